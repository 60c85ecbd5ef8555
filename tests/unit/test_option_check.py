"""Options of fairseq that cannot act, and what fairseq itself refuses: one message each."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.data.data_utils import batch_by_size
from fairseq.optim.lr_scheduler.pass_through import PassThroughScheduleSchedule
from fairseq.utils import eval_bool

from fairseq_recur.cli import fairseq_refusals, main
from fairseq_recur.cli.fairseq_commands import around_hydra
from fairseq_recur.cli.option_check import CRITERIONS, criterion_problems
from fairseq_recur.errors import ConfigError, Problems
from tests.conftest import SMALL

TRAIN = "--arch transformer_biarn_tiny --optimizer adam --lr 0.001 --max-tokens 500 --cpu".split()


@pytest.mark.parametrize("name", CRITERIONS)
def test_criterions_of_other_models_are_refused(name: str) -> None:
    """Each is one that fairseq has."""
    assert name in CRITERION_REGISTRY
    given: Any = SimpleNamespace(criterion=name, arch="srformer_tiny", ddp_backend="legacy_ddp")
    problems = Problems("")
    criterion_problems(given, problems)
    (problem,) = problems.found
    assert problem.startswith(f"--criterion {name} is for {CRITERIONS[name]}, not for --arch srf")
    given.arch = "transformer"
    criterion_problems(given, problems)
    assert problems.found == [problem], "fairseq's own models are its own affair"


def test_all_options_are_told_at_once(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save = ["--save-dir", str(tmp_path / "none")]
    words = ["train", str(corpus / "bin"), *TRAIN, *save, "--criterion", "adaptive_loss"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "bands without a word have no gradient; give --ddp-backend legacy_ddp" in said
    assert "give --adaptive-softmax-cutoff" in said and "Traceback" not in said
    path = tmp_path / "model.pt"
    path.touch()
    flags = "--print-step --retain-iter-history --constraints".split()
    assert main(["generate", str(corpus / "bin"), "--path", str(path), *flags]) == 2
    said = capsys.readouterr().err
    for part in ("--print-step is for", "--retain-iter-history is for", "--constraints: generate"):
        assert part in said
    flags = "--score-reference --print-alignment soft".split()
    assert main(["generate", str(corpus / "bin"), "--path", str(path), *flags]) == 2
    assert "give --print-alignment hard" in capsys.readouterr().err
    evaluation = ["eval-lm", str(corpus / "bin"), "--path", str(path), "--remove-bpe"]
    assert main([*evaluation, "sentencepiece"]) == 2
    assert "which end in @@; give --remove-bpe without a value" in capsys.readouterr().err
    assert main([*evaluation, "--task", "language_modeling_with_memory"]) == 2
    assert "both parts would be counted; leave it out" in capsys.readouterr().err
    language_model = [*evaluation, "--task", "language_modeling"]
    assert main(language_model) == 2
    assert "--sample-break-mode eos or complete" in capsys.readouterr().err
    main([*language_model, "--sample-break-mode", "eos"])
    assert "remove-bpe" not in capsys.readouterr().err
    for kind in ("lazy", "cached"):
        assert main(["train", str(corpus / "bin"), *TRAIN, *save, "--dataset-impl", kind]) == 2
        said = capsys.readouterr().err
        assert f"--dataset-impl {kind}: " in said and "is memory-mapped; leave" in said
    assert not (tmp_path / "none").exists()


def test_what_fairseq_refuses_is_one_message() -> None:
    with pytest.raises(ConfigError, match="refuses this: optimizer must be an inst.*; change"):
        with fairseq_refusals.told():
            PassThroughScheduleSchedule(None, SimpleNamespace(lr_scheduler=None))


def test_what_compiled_code_refuses_is_one_message() -> None:
    lengths = numpy.array([3, 9])
    said = "refuses this: .* should not exceed max_tokens=5; change"
    with pytest.raises(ConfigError, match=said):
        with fairseq_refusals.told():
            batch_by_size(numpy.arange(2), lengths.item, num_tokens_vec=lengths, max_tokens=5)


@pytest.mark.parametrize("by_hydra", [False, True])
def test_so_it_is_in_the_commands(
    by_hydra: bool, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """hydra would print the traceback itself."""
    if by_hydra:
        optimizer = SimpleNamespace(lr_scheduler=None)
        train = partial(PassThroughScheduleSchedule, None, optimizer)
        module: Any = SimpleNamespace(_hydra_main=train)
        with pytest.raises(ConfigError, match="fairseq refuses this: optimizer must be"):
            with around_hydra(module):
                module._hydra_main()
        return
    words = [*TRAIN, *SMALL, "--save-dir", str(tmp_path), "--lr-scheduler", "pass_through"]
    assert main(["train", str(corpus / "bin"), *map(str, words)]) == 2
    said = capsys.readouterr().err
    assert "error: fairseq refuses this: Pass-through schedule can only be used with" in said


def fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    "call, kind",
    [
        (lambda: fail(ValueError("raised by other code than that of fairseq")), ValueError),
        (lambda: fail(ConfigError("a message of our own; change it")), ConfigError),
        (lambda: eval_bool(None, 3, 4), TypeError),
    ],
)
def test_other_errors_stay_as_they_are(call: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind) as raised, fairseq_refusals.told():
        call()
    assert type(raised.value) is kind and "fairseq refuses" not in str(raised.value)


def test_an_assertion_without_a_message_keeps_its_traceback() -> None:
    """It may be a defect, and says nothing to a user."""
    code = compile("assert not True", str(Path(fairseq_refusals.fairseq.__file__)), "exec")
    with pytest.raises(AssertionError), fairseq_refusals.told():
        exec(code)
