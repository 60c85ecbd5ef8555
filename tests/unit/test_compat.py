"""The registry of mends, and that applying them twice changes nothing."""

import importlib.metadata
import io
import logging
import os
import subprocess
import sys
import warnings
from argparse import Namespace
from typing import Any

import pytest
import torch

import fairseq_recur
from fairseq_recur import compat
from fairseq_recur.compat import console, registry

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


def test_every_mend_says_why_and_until_when() -> None:
    names = [mend.name for mend in compat.MENDS]
    assert len(names) == len(set(names)) > 20
    for mend in compat.MENDS:
        assert len(mend.reason) > 20 and mend.until, mend.name
        assert mend.patches or mend.actions, mend.name
        assert mend.status in (registry.APPLIED, registry.NOT_NEEDED), mend.error
    with pytest.raises(AssertionError, match="two mends are called 'last batch'"):
        registry.mend("last batch", reason="", until="")


def test_applying_again_changes_nothing() -> None:
    compat.apply()  # pytest starts each test with its own warning filters
    before = [current(*place) for place in PLACES]
    filters = list(warnings.filters)
    compat.apply()
    assert [current(*place) for place in PLACES] == before
    assert list(warnings.filters) == filters


def test_a_second_copy_of_the_package_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [current(*place) for place in PLACES]
    for name in [name for name in sys.modules if name.startswith("fairseq_recur.compat")]:
        monkeypatch.delitem(sys.modules, name)
    copy = importlib.import_module("fairseq_recur.compat")
    monkeypatch.setattr(fairseq_recur, "compat", compat)
    assert copy is not compat and len(copy.MENDS) == len(compat.MENDS)
    copy.apply()
    assert [current(*place) for place in PLACES] == before
    file = io.BytesIO()
    torch.save({"args": Namespace(arch="transformer")}, file)
    file.seek(0)
    assert torch.load(file) == {"args": Namespace(arch="transformer")}


class Installed:
    """A library to mend."""

    def double(self, number: int) -> int:
        return 2 * number


def made(target: str, **settings: Any) -> compat.Mend:
    mend = compat.Mend("more", "a reason", "a version", **{"needed": lambda: True, **settings})
    mend.patch(f"{__name__}:Installed.double")(lambda original, self, n: original(self, n) + 1)
    mend.patch(target)(lambda original: original())
    return mend


def test_a_mend_wraps_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Installed, "double", Installed.double)
    mend = made("os:getcwd", patches=[])
    mend.patches.pop()
    assert mend.status == ""
    for _ in range(2):
        mend.apply()
        assert (mend.status, Installed().double(3), Installed.double.__name__) == (
            registry.APPLIED, 7, "double",
        )  # fmt: skip


def test_a_mend_that_is_not_needed_leaves_everything() -> None:
    mend = made("os:getcwd", needed=lambda: False)
    mend.apply()
    assert (mend.status, Installed().double(3)) == (registry.NOT_NEEDED, 6)


@pytest.mark.parametrize(
    "target", ["fairseq.utils:nowhere", "fairseq.trainer:Trainer.nowhere", "fairseq.nowhere:some"]
)
def test_a_renamed_attribute_names_the_mend(target: str, caplog: pytest.LogCaptureFixture) -> None:
    mend = made(target)
    mend.apply()
    assert mend.status == registry.FAILED and Installed().double(3) == 6  # all patches or none
    for text in (mend.error, caplog.text):
        assert "cannot apply 'more'" in text and f"{target} not found" in text
    with pytest.raises(ImportError, match=f"cannot apply 'more'.*{target} not found"):
        made(target, required=True).apply()
    with pytest.raises(ImportError, match=f"cannot apply 'own'.*{target} not found"):
        registry.extend(target, "own")(print)


def test_a_broken_fairseq_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = compat.Problem("hydra-core 1.4 does not work with it", "pip install hydra", "error")
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
            console.lower_root_logger()
            assert root.level == expected
    finally:
        root.setLevel(level)


def test_generate_gives_advice_that_works(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    logging.getLogger("fairseq_cli.generate").warning("Use --sacrebleu for standard 13a BLEU")
    (record,) = caplog.records
    assert record.levelname == "INFO" and "use fairseq-recur score" in record.getMessage()


@pytest.mark.slow
def test_an_import_in_a_new_process() -> None:
    """Its environment variables and logger, and that it does not import torch's compiler."""
    kept = {k: v for k, v in os.environ.items() if k not in ("HYDRA_FULL_ERROR", "LOGLEVEL")}
    code = (
        "import fairseq_recur, logging, os, sys; print(logging.getLogger().level, "
        f"{compat.UNSAFE_VARIABLE!r} in os.environ, os.environ.get('HYDRA_FULL_ERROR'), "
        "'torch._dynamo' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**kept, compat.UNSAFE_VARIABLE: "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    level, unsafe, hydra, compiler = done.stdout.split()
    assert compiler == "False"
    assert int(level) >= logging.INFO
    assert unsafe == "False" and "lets every checkpoint run code" in done.stderr
    old = importlib.metadata.version("hydra-core").startswith("1.0.")
    assert hydra == ("1" if old and sys.version_info >= (3, 10) else "None")
