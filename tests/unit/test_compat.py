"""The list of adaptations, and that applying them twice changes nothing."""

import importlib.metadata
import importlib.util
import logging
import os
import subprocess
import sys
import warnings

import pytest

from fairseq_recur import compat

PLACES = [
    ("fairseq.options", "parse_args_and_arch"),
    ("fairseq.utils", "import_user_module"),
    ("fairseq.checkpoint_utils", "load_checkpoint_to_cpu"),
    ("fairseq.checkpoint_utils", "load_ema_from_checkpoint"),
    ("fairseq.checkpoint_utils", "load_model_ensemble_and_task"),
    ("fairseq.distributed.utils", "infer_init_method"),
    ("fairseq.distributed.utils", "call_main"),
    ("fairseq.models.distributed_fairseq_model", "DistributedDataParallel"),
    ("fairseq.nan_detector.NanDetector", "add_hooks"),
    ("fairseq.optim", "build_optimizer"),
    ("fairseq.optim.fp16_optimizer.FP16Optimizer", "build_optimizer"),
    ("fairseq.optim.amp_optimizer.AMPOptimizer", "clip_grad_norm"),
    ("fairseq.tasks.translation.TranslationTask", "build_dataset_for_inference"),
    ("fairseq.trainer.Trainer", "__init__"),
]


def current(place: str, attribute: str) -> object:
    module, _, name = place.rpartition(".")
    owner = importlib.import_module(place if name.islower() else module)
    return getattr(owner if name.islower() else getattr(owner, name), attribute)


def test_every_adaptation_says_why_and_until_when() -> None:
    names = [a.name for a in compat.ADAPTATIONS]
    assert len(names) == len(set(names)) > 10
    for item in compat.ADAPTATIONS:
        assert len(item.reason) > 20, item.name
        assert item.needless_from, item.name


def test_applying_again_changes_nothing() -> None:
    compat.apply()  # pytest starts each test with its own warning filters
    before = [current(*place) for place in PLACES]
    filters = list(warnings.filters)
    compat.apply()
    assert [current(*place) for place in PLACES] == before
    assert list(warnings.filters) == filters


def test_a_second_copy_of_the_module_changes_nothing() -> None:
    spec = importlib.util.spec_from_file_location("compat_under_another_name", compat.__file__)
    copy = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = copy
    before = [current(*place) for place in PLACES]
    spec.loader.exec_module(copy)
    copy.apply()
    del sys.modules[spec.name]
    assert len(copy.ADAPTATIONS) == len(compat.ADAPTATIONS)
    assert [current(*place) for place in PLACES] == before


def test_a_broken_fairseq_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = compat.Problem("hydra-core 1.4 does not go with it", "pip install hydra", "error")
    monkeypatch.setitem(sys.modules, "fairseq", None)  # what `import fairseq` then finds
    monkeypatch.setattr(compat, "known_problems", lambda: [problem])
    with pytest.raises(ImportError, match="(?s)fairseq cannot be imported.*1.4 does.*pip install"):
        compat.apply()


def test_the_root_logger_is_lowered_only_where_fairseq_raised_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = logging.getLogger()
    monkeypatch.delenv("LOGLEVEL", raising=False)
    mine, theirs = logging.StreamHandler(), logging.StreamHandler()
    mine.setFormatter(logging.Formatter("%(message)s"))
    theirs.setFormatter(logging.Formatter(logging.BASIC_FORMAT))
    level = root.level
    try:
        for handler, expected in ((mine, logging.DEBUG), (theirs, logging.INFO)):
            monkeypatch.setattr(root, "handlers", [handler])
            root.setLevel(logging.DEBUG)
            compat._quiet_root_logger()
            assert root.level == expected
    finally:
        root.setLevel(level)


def imported(code: str, **environment: str) -> subprocess.CompletedProcess:
    """A new process that imports the package and then runs the code."""
    kept = {k: v for k, v in os.environ.items() if k not in ("HYDRA_FULL_ERROR", "LOGLEVEL")}
    call = [sys.executable, "-c", f"import fairseq_recur, logging, os; print({code})"]
    return subprocess.run(
        call, env={**kept, **environment}, capture_output=True, text=True, check=True
    )


def test_the_import_leaves_the_root_logger_at_info() -> None:
    assert int(imported("logging.getLogger().level").stdout) >= logging.INFO


def test_the_import_removes_the_variable_that_allows_code() -> None:
    done = imported(f"{compat.UNSAFE_VARIABLE!r} in os.environ", **{compat.UNSAFE_VARIABLE: "1"})
    assert done.stdout == "False\n"
    assert "lets every checkpoint run code" in done.stderr


def test_hydra_1_0_shows_its_errors() -> None:
    old = importlib.metadata.version("hydra-core").startswith("1.0.")
    done = imported("os.environ.get('HYDRA_FULL_ERROR')")
    assert done.stdout == ("1\n" if old and sys.version_info >= (3, 10) else "None\n")
