"""Every flag of the plug-in's models with hostile values gives a working model or one clear error.

The flags are read from the parsers, so that a new flag is tested without a change here.
`test_fuzz_registered.py` does the same for tasks, criterions, optimizers and scorers.
"""

import random
from argparse import Action
from collections.abc import Sequence
from pathlib import Path

import pytest
from fairseq.models import ARCH_MODEL_REGISTRY
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fairseq_recur.errors import ConfigError
from tests.conftest import FORECASTERS, MEMORY_MODELS, OURS
from tests.fuzzing import HOSTILE, SYSTEMS, flag, lines_of, names_a_flag_of, system, within

NAMES = sorted({flag(action) for name in SYSTEMS for action in system(name).flags})
"""The plug-in's flags of all models."""

FEW = 2
"""Lines per flag in the fast run."""


def hosts(name: str) -> list[str]:
    """The systems that have a flag."""
    return [s for s in SYSTEMS if name in map(flag, system(s).flags)]


def of_flag(name: str, host: str) -> Action:
    """The flag as a system's parser has it."""
    return next(action for action in system(host).flags if flag(action) == name)


def must_be_told(host: str, words: Sequence[str]) -> str:
    """The outcome of flags; an error must name one of them, and appear quickly."""
    with within():
        came = system(host).attempt(words)
    if came != "built" and not came.startswith("parser"):
        assert names_a_flag_of(came, words), (words, came)
    return came


def test_every_architecture_has_its_flags_here() -> None:
    """The systems include all kinds of models; all presets of a kind have the same flags."""
    names = {
        arch: {f.name for f in system_fields(arch)} for arch in OURS + MEMORY_MODELS + FORECASTERS
    }
    for arch, found in names.items():
        assert any(found == names[given[0]] for given in SYSTEMS.values()), arch
    for name in SYSTEMS:
        assert not system(name).unparsed, "an option without a flag"
        assert system(name).attempt([]) == "built"


def system_fields(arch: str) -> list:
    """The options of an architecture."""
    return list(getattr(ARCH_MODEL_REGISTRY[arch], "__dataclass").__dataclass_fields__.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_flag_with_hostile_values(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A few values in one system; the choice differs from flag to flag."""
    turn = random.Random(name)
    for host in turn.sample(hosts(name), 1):
        lines = list(lines_of(of_flag(name, host)))
        for words in turn.sample(lines, min(FEW, len(lines))):
            must_be_told(host, words)


@pytest.mark.slow
@pytest.mark.parametrize("host", SYSTEMS)
def test_all_flags_with_all_hostile_values(host: str, capfd: pytest.CaptureFixture[str]) -> None:
    for action in system(host).flags:
        for words in lines_of(action):
            must_be_told(host, words)


def combined(host: str) -> st.SearchStrategy:
    """Two to six flags of a system, some with valid values, some with any."""
    lines = {flag(action): list(lines_of(action)) for action in system(host).flags}
    right = {name: [w for w in of_one if usual(w)] or of_one for name, of_one in lines.items()}
    one = st.sampled_from(sorted(lines)).flatmap(
        lambda name: st.one_of(st.sampled_from(right[name]), st.sampled_from(lines[name]))
    )
    return st.lists(one, min_size=2, max_size=6).map(lambda several: sum(several, []))


def usual(words: Sequence[str]) -> bool:
    """Whether a value is one that users write."""
    values = {"1", "2", "0.5", "64", "1,2", "-1,1", "1,0,0,1,0,0"}
    return "=" not in words[0] or words[0].split("=", 1)[1] in values | set("0")


def fuzz_combinations(examples: int) -> None:
    """Test combinations of flags in every system."""
    settled = settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    for host in SYSTEMS:
        settled(given(st.just(host), combined(host))(must_be_told_in))()


def must_be_told_in(host: str, words: list[str]) -> None:
    """`must_be_told` as a test of hypothesis, which must return nothing."""
    must_be_told(host, words)


def test_flags_together(capfd: pytest.CaptureFixture[str]) -> None:
    fuzz_combinations(examples=2)


@pytest.mark.slow
def test_many_flags_together(capfd: pytest.CaptureFixture[str]) -> None:
    fuzz_combinations(examples=400)


MESSAGES: list[tuple[str, str, str]] = [
    (
        "biarn",
        "--recurrence-steps 1000000000",
        "--recurrence-steps 1000000000: expected -1 to 10000",
    ),
    ("srformer", "--target-length 0", "--target-length 0: expected 1 to"),
    (
        "srformer",
        "--srformer-scale unit --srformer-leak-init 1.0",
        "--srformer-leak-init 1.0 with --srformer-scale unit: the memory is a leaky mean",
    ),
    ("srformer", "--target-length-mode ratio --target-ratio nan", "--target-ratio nan: expected"),
    ("rsa", "--rsa-gate-init nan", "--rsa-gate-init nan: expected a number"),
    ("rsa", "--rsa-nu-init 1,x", "--rsa-nu-init 1,x: expected two numbers"),
    (
        "toeplitz",
        "--learned-matrix-length 2147483647",
        "--learned-matrix-length 2147483647: expected",
    ),
    ("relative", "--relative-clip 2147483647", "--relative-clip 2147483647: expected 1 to 65536"),
    ("biarn", "--monitor-interval -1", "--monitor-interval -1: expected 0 to"),
    ("forecaster", "--rsa-heads 1", "--rsa-heads 1: six numbers"),
    ("t5", "--t5-relative-buckets 5", "--t5-relative-buckets 5: expected an even number"),
]
"""Values beside those of `tests.unit.test_config`, and what the message says of them."""


@pytest.mark.parametrize("host, line, messages", MESSAGES, ids=[line for _, line, _ in MESSAGES])
def test_messages(host: str, line: str, messages: str) -> None:
    assert messages in must_be_told(host, line.split())


def test_fairseqs_own_way_from_flags_to_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line takes a second, so this tests only what the shortcut would not show."""
    for words, came in (
        (["--rsa-heads", "x\\"], "--rsa-heads 'x\\': hydra cannot read this backslash"),
        (["--rsa-heads", "${nope}"], "--rsa-heads '${nope}': ${...}"),
        (["--rsa-heads", "a'b"], "--rsa-heads a'b has no effect"),
        (["--dropout", "0.5"], "built"),
    ):
        assert came in system("biarn").attempt(words, whole=True)


@pytest.mark.slow
def test_fairseqs_own_way_gives_the_same() -> None:
    turn = random.Random(1)
    for host in SYSTEMS:
        for action in turn.sample(system(host).flags, 4):
            for words in turn.sample(list(lines_of(action)), 1):
                own, short = (system(host).attempt(words, whole=w) for w in (True, False))
                assert own == short, words


def test_hostile_values_are_hostile() -> None:
    """Some values are refused by the parser, some by the checks, and some are valid."""
    came = [
        system("biarn").attempt([f"--{name}={value}"])
        for name in ("recurrence-steps", "recurrence-fused-layers")
        for value in HOSTILE[::3]
    ]
    kinds = [word.split(":")[0].split()[0] for word in came]
    assert min(kinds.count(kind) for kind in ("parser", "built", "the")) >= 2


def test_a_defect_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error other than ConfigError is not taken for a refusal, nor is a timeout."""

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    host = system("biarn")
    monkeypatch.setattr("fairseq_recur.models.base.check_config", fail)
    with pytest.raises(ZeroDivisionError):
        host.attempt([])
    assert not issubclass(ZeroDivisionError, ConfigError)
