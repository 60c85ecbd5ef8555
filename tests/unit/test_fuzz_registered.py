"""Every flag of the plug-in's tasks, criterions, optimizers and scorers, with hostile values.

They are read from fairseq's registries, so that new ones are tested without a change here.
"""

import random
from argparse import Action, Namespace
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from fairseq import options
from fairseq.dataclass import utils as dataclass_utils
from fairseq.models import FairseqDecoder, FairseqLanguageModel
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY

from fairseq_recur.errors import ConfigError
from fairseq_recur.tasks.streams import StreamDataset, Text
from tests.configuring import composing_directly
from tests.freeze import FOLDER
from tests.fuzzing import lines_of, names_a_flag_of, within
from tests.series import write_series

Key = tuple[str, str]
"""A group and a name in it: ("optimizer", "adamw_fused")."""


def ours(registry: dict[str, type]) -> list[str]:
    """The names in a registry that this package registers."""
    return [n for n, c in registry.items() if c.__module__.split(".")[0] == "fairseq_recur"]


GROUPS: dict[str, tuple[dict[str, type], dict[str, type]]] = {
    "task": (TASK_REGISTRY, TASK_DATACLASS_REGISTRY),
    **{group: (r["registry"], r["dataclass_registry"]) for group, r in REGISTRIES.items()},
}
REGISTERED: list[Key] = [
    (group, name) for group, (classes, _) in GROUPS.items() for name in ours(classes)
]
SERIES = TemporaryDirectory()
"""Of the file that the task of time series reads."""
USUAL: dict[Key, list[str]] = {
    ("task", "regular_languages"): "--train-size 20 --bin-size 5 --longest-string 12".split(),
    ("task", "summarization"): "-s src -t tgt --eval-rouge".split(),
    ("task", "time_series_forecasting"): [
        "--series-file",
        str(write_series(Path(SERIES.name) / "series.csv")),
        *"--split-fractions 0.6,0.2,0.2 --input-length 9 --label-length 3 --horizon 2".split(),
    ],
}
NAMES = [f"{group} {name}" for group, name in REGISTERED]


def dataclass_of(key: Key) -> Any:
    """The dataclass of a registered name; None if it has no options."""
    return GROUPS[key[0]][1].get(key[1])


def parse(key: Key, words: Sequence[str]) -> tuple[Any, Namespace]:
    """The parser of training (for scorers: of generation), and the parsed command line."""
    scorer = key[0] == "scoring"
    make = options.get_generation_parser if scorer else options.get_training_parser
    parser = make()
    needed = ["--path", "x.pt"] if scorer else ["--arch", "transformer"]
    task = [] if key[0] == "task" else ["--task", "translation"]
    without_data = key[0] == "task" and key[1] in ("regular_languages", "time_series_forecasting")
    line = [] if without_data else [str(FOLDER)]
    line += [*needed, *task, f"--{key[0]}", key[1], *USUAL.get(key, []), *words]
    return parser, options.parse_args_and_arch(parser, line)


@cache
def flags_of(key: Key) -> list[Action]:
    """The flags of a registered name, as the parser has them, without those of fairseq's groups."""
    if dataclass_of(key) is None:
        return []
    own = {f.name for f in fields(dataclass_of(key)) if not str(f.default).startswith("${")}
    names = own - {"_name", "data"}
    return [a for a in parse(key, [])[0]._actions if a.dest in names]


def use(key: Key, cfg: Any) -> None:
    """Create a registered object and use it."""
    group, name = key
    made = GROUPS[group][0][name]
    if group == "task":
        task = made.setup_task(cfg)
        if name in ("regular_languages", "time_series_forecasting"):
            task.load_dataset("train")
        if name == "language_modeling_with_memory":
            text = Text(torch.arange(50, dtype=torch.int32), 2, 0, whole=True)
            data = StreamDataset(text, cfg.tokens_per_sample).arranged(3, 1)
            assert len(data.collater([data[0]])["target"][0]) <= cfg.tokens_per_sample
    elif group == "optimizer":
        weight = torch.nn.Parameter(torch.ones(3))
        weight.grad = torch.ones(3)
        made(cfg, [weight]).step()
        assert weight.isfinite().all()
    elif group == "scoring":
        scorer = made(cfg)
        scorer.add_string("a b c", "a b d")
        assert 0 <= scorer.score() <= 100 and scorer.result_string()
    elif group == "criterion":
        logits = torch.randn(2, 5, 9)
        task = Namespace(target_dictionary=None)
        settings = {f.name: getattr(cfg, f.name) for f in fields(dataclass_of(key))}
        criterion = made(task, **{n: settings[n] for n in settings if n != "_name"})
        model: Any = FairseqLanguageModel(FairseqDecoder(None))
        model.get_targets = lambda *_: torch.randint(9, (2, 5))
        loss, _ = criterion.compute_loss(model, (logits, None), {})
        assert loss.isfinite()
    else:
        raise AssertionError(f"`use` does not know the group {group}: add what to do with it")


def attempt(key: Key, words: Sequence[str]) -> str:
    """Parse, configure, create and use; "used", "parser", or the message of the refusal."""
    try:
        _, args = parse(key, words)
    except SystemExit as left:
        assert left.code == 2
        return "parser"
    except ConfigError as error:
        return str(error)
    try:
        try:
            with composing_directly(fallback=False):
                cfg = dataclass_utils.convert_namespace_to_omegaconf(args)[key[0]]
        except Exception:  # fairseq's own function must refuse it with a clear message
            cfg = dataclass_utils.convert_namespace_to_omegaconf(args)[key[0]]
        use(key, cfg)
    except ConfigError as error:
        return str(error)
    return "used"


def must_be_told(key: Key, words: Sequence[str]) -> None:
    """An error must name a flag among these words, and appear quickly."""
    with within():
        came = attempt(key, words)
    if came not in ("used", "parser"):
        assert names_a_flag_of(came, words), (words, came)


@pytest.mark.parametrize("key", REGISTERED, ids=NAMES)
def test_flags_are_found(key: Key) -> None:
    options_ = dataclass_of(key)
    given = {f.name for f in fields(options_) if f.metadata.get("help")} if options_ else set()
    assert given - {"data"} <= {a.dest for a in flags_of(key)}
    if flags_of(key):
        assert attempt(key, []) == "used"


@pytest.mark.parametrize("key", REGISTERED, ids=NAMES)
def test_flags_with_hostile_values(key: Key, capfd: pytest.CaptureFixture[str]) -> None:
    lines = [words for action in flags_of(key) for words in lines_of(action)]
    for words in random.Random(key[1]).sample(lines, min(4, len(lines))):
        must_be_told(key, words)


@pytest.mark.slow
@pytest.mark.parametrize("key", REGISTERED, ids=NAMES)
def test_flags_with_all_hostile_values(key: Key, capfd: pytest.CaptureFixture[str]) -> None:
    wrong = []
    for action in flags_of(key):
        for words in lines_of(action):
            try:
                must_be_told(key, words)
            except BaseException as error:
                wrong.append(f"{words}: {type(error).__name__}: {error}"[:300])
    assert not wrong, "\n".join(wrong)
