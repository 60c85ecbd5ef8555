"""Every flag of fairseq's own programs with hostile values, as far as to its configuration.

What is refused stops before anything is loaded; what works in fairseq is left alone.
"""

import argparse
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fairseq import options
from fairseq.dataclass import utils as dataclass_utils
from fairseq.dataclass.configs import FairseqConfig
from fairseq.registry import REGISTRIES
from fairseq.trainer import Trainer
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from fairseq_recur.errors import ConfigError
from fairseq_recur.options import RANGES, TRAINING, refuse_impossible
from tests.fuzzing import flag, lines_of, within

TRAIN = (
    "data --arch transformer_biarn --criterion label_smoothed_cross_entropy --optimizer adam "
    "--lr-scheduler inverse_sqrt"
).split()
TRANSLATE = "data --path m.pt".split()
PROGRAMS: dict[str, tuple] = {
    "train": (options.get_training_parser, TRAIN),
    "generate": (options.get_generation_parser, TRANSLATE),
    "interactive": (options.get_interactive_generation_parser, TRANSLATE),
    "validate": (options.get_validation_parser, TRANSLATE),
    "eval-lm": (options.get_eval_lm_parser, TRANSLATE),
}
CHOOSING = {"--arch", "--task", "--user-dir", "--help"}
CHOOSING |= {"--" + group.replace("_", "-") for group in REGISTRIES}
"""Flags that choose what has further flags; those of ours are in `test_fuzz_registered.py`."""


class Program:
    """A program's flags, and what a line of it becomes on the way to the configuration."""

    def __init__(self, name: str) -> None:
        make, self.needed = PROGRAMS[name]
        self.parser: argparse.ArgumentParser = make()
        self.usual = options.parse_args_and_arch(self.parser, self.needed)
        self.known = set(dataclass_utils.override_module_args(self.usual)[0])

    def lines(self) -> Iterator[list[str]]:
        """All hostile lines of each flag."""
        for action in self.parser._actions:
            if flag(action) and not CHOOSING & set(action.option_strings):
                yield from lines_of(action)

    def read(self, words: list[str]) -> str:
        """ "read", "parser", or the message of a refusal; anything else is a defect."""
        try:
            args = self.parser.parse_args([*self.needed, *words])
            for name, value in vars(self.usual).items():  # fairseq derives some from others
                vars(args).setdefault(name, value)
            refuse_impossible(vars(args))
            found = set(dataclass_utils.override_module_args(args)[0]) - self.known
            OverridesParser.create().parse_overrides(sorted(found))
        except SystemExit as left:
            assert left.code == 2
            return "parser"
        except ConfigError as error:
            given = {word.split("=")[0] for word in words}
            names = [n for a in self.parser._actions if given & {*a.option_strings}
                     for n in a.option_strings]  # fmt: skip
            assert any(name in str(error) for name in names), (words, str(error))
            return str(error)
        return "read"


@pytest.mark.parametrize("name", PROGRAMS)
def test_flags_of_fairseqs_programs(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Some of all lines; a value or a flag that one program misses another may have."""
    program = Program(name)
    for words in random.Random(name).sample(list(program.lines()), 60):
        with within():
            program.read(words)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_all_flags_of_fairseqs_programs(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    program = Program(name)
    for words in program.lines():
        with within():
            program.read(words)


def parse(name: str, line: str) -> argparse.Namespace:
    make, needed = PROGRAMS[name]
    return options.parse_args_and_arch(make(), [*needed, *line.split()])


# Each ends in fairseq with an error from far within, or without one, or saves nothing: at once,
# at the first validation, or at the end of the first epoch.
REFUSED: dict[str, str] = {
    "--save-interval 0": "train",
    "--validate-interval 0 --disable-validation": "train",
    "--log-interval 0": "train",
    "--required-batch-size-multiple 0": "train generate interactive validate eval-lm",
    "--required-batch-size-multiple 2147483648": "train",
    "--required-seq-len-multiple 0": "train",
    "--required-seq-len-multiple 1000000000": "train",
    "--keep-interval-updates-pattern 0 --keep-interval-updates 1": "train",
    "--max-valid-steps -1": "train validate",
    "--max-tokens 0": "train",
    "--max-tokens -1": "train",
    "--max-tokens 1000000000000000000000": "train generate",
    "--batch-size 1000000000000000000000": "train generate",
    "--max-tokens-valid x": "train",
    "--max-tokens-valid [1]": "train",
    "--max-tokens-valid 1e400": "train",
    "--batch-size-valid x": "train",
    "--update-epoch-batch-itr x": "train",
    "--update-freq 1,0": "train",
    "--update-freq -1": "train",
    "--update-freq 0.5": "train",
    "--update-freq=": "train",
    "--lr=": "train",
    "--lr 1e400,nan": "",
    "--clip-norm nan": "train",
    "--num-workers -1": "train generate validate eval-lm",
    "--num-workers 1000000000000": "train generate validate eval-lm",
    "--seed -1": "train generate",
    "--distributed-world-size 0": "train",
    "--warmup-updates 0": "train",
    "--total-num-update 0 --lr-scheduler polynomial_decay": "train",
    "--total-num-update x --lr-scheduler polynomial_decay": "train",
    "--fp16-init-scale 0 --memory-efficient-fp16": "train",
    "--fp16-scale-window 0 --memory-efficient-fp16": "train",
    "--beam 0": "generate interactive",
    "--nbest 0": "generate interactive",
    "--temperature 0": "generate interactive",
    "--temperature -1": "generate interactive",
    "--max-len-a nan": "generate interactive",
    "--max-len-b 0": "generate interactive",
    "--min-len 300": "generate interactive",
    "--optimizer-overrides x": "train",
    "--optimizer-overrides 5": "train",
    "--model-overrides x": "generate interactive validate eval-lm",
    "--eval-bleu-args {beam:2} --eval-bleu": "train",
    "--eval-bleu-detok-args x --eval-bleu": "train",
    "--lr-scheduler polynomial_decay": "train",
    "--best-checkpoint-metric bleu": "train",
    "--adam-betas 1": "train",
    "--adam-betas (0.9,)": "train",
    "--adam-betas (0.9,2)": "train",
    "--adam-betas (0.9,'x')": "train",
    "--adam-betas x --optimizer adamw_fused": "train",
}

# What works in fairseq: 0 and -1 as no limit, and the like.
WORKS: dict[str, str] = {
    "--batch-size 0": "train generate validate",
    "--batch-size -1": "train generate validate",
    "--max-tokens 0 --batch-size 4": "generate interactive validate eval-lm",
    "--max-tokens -1 --batch-size 4": "generate interactive validate eval-lm",
    "--max-tokens-valid 0": "train",
    "--max-tokens-valid None": "train",
    "--max-tokens-valid 4e3": "train",
    "--batch-size-valid -1": "train",
    "--update-epoch-batch-itr True": "train",
    "--required-batch-size-multiple -1": "train generate",
    "--required-seq-len-multiple -1": "train",
    "--log-interval -1": "train",
    "--save-interval -1 --validate-interval -1": "train",
    "--save-interval-updates 0 --keep-interval-updates -1": "train",
    "--keep-interval-updates-pattern 0": "train",
    "--max-valid-steps 0": "train",
    "--lr 0": "train",
    "--lr -0.01": "train",
    "--clip-norm -1 --patience -1 --stop-time-hours -1 --curriculum -1": "train",
    "--warmup-updates 0 --lr-scheduler fixed": "train",
    "--warmup-updates 0 --lr-scheduler polynomial_decay --total-num-update 9": "train",
    "--label-smoothing -0.1": "train",
    "--fp16-init-scale 0": "train",
    "--num-workers 0": "train generate",
    "--max-len-a 1 --max-len-b 0": "generate interactive",
    "--max-len-a 2 --max-len-b -1": "generate interactive",
    "--max-len-b 0 --match-source-len": "generate interactive",
    "--min-len 0 --max-len-b 0": "generate interactive",
    "--nbest -1": "generate",
    "--lenpen inf": "generate",
    "--model-overrides {'beam':4}": "generate",
    "--optimizer-overrides {'lr':[0.1]}": "train",
    "--eval-bleu-args x": "train",
    '--eval-bleu-args {"beam":2} --eval-bleu': "train",
    "--lr-scheduler polynomial_decay --max-update 9": "train",
    "--best-checkpoint-metric bleu --eval-bleu": "train",
    "--best-checkpoint-metric bleu --disable-validation": "train",
    "--best-checkpoint-metric ppl": "train",
    "--adam-betas (0.9,0.98)": "train",
    "--adam-betas [0,0.98] --optimizer adamw_fused": "train",
}


def each(cases: dict[str, str]) -> list[Any]:
    return [
        pytest.param(program, line, id=f"{program} {line}")
        for line, programs in cases.items()
        for program in programs.split()
    ]


@pytest.mark.parametrize("program, line", each(REFUSED))
def test_what_would_end_far_within(program: str, line: str) -> None:
    with pytest.raises(ConfigError, match="cannot be used:\n- --.* give ") as caught:
        parse(program, line)
    assert line.replace("=", " ").split()[0] in str(caught.value)


@pytest.mark.parametrize("program, line", each(WORKS))
def test_what_works_is_left_alone(program: str, line: str) -> None:
    parse(program, line)


def test_every_range_is_tested() -> None:
    named = {line.replace("=", " ").split()[0][2:].replace("-", "_") for line in REFUSED}
    assert set(RANGES) == set(TRAINING) and set(RANGES) <= named


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("train", "--save-interval 0 --lr-scheduler fixed --max-tokens 0 --num-workers -1")
    assert str(caught.value).splitlines()[1:] == [
        "- --num-workers -1: expected at least 0 and at most 1024; give another number",
        "- --max-tokens 0: expected at least 1 and at most 9223372036854775807; "
        "give another number",
        "- --save-interval 0: expected not 0; give another number",
    ]


@pytest.mark.parametrize(
    "change, name",
    [
        (lambda cfg: cfg.checkpoint.update(save_interval=0), "save-interval"),
        (lambda cfg: cfg.dataset.update(max_tokens=0), "max-tokens"),
        (lambda cfg: cfg.dataset.update(num_workers=-1), "num-workers"),
        (lambda cfg: cfg.optimization.update(update_freq=[2, 0]), "update-freq"),
        (lambda cfg: cfg.common.update(log_interval=0), "log-interval"),
        (
            lambda cfg: cfg.update(lr_scheduler={"_name": "inverse_sqrt", "warmup_updates": 0}),
            "warmup-updates",
        ),
    ],
)
def test_through_hydra(change: Callable[[Any], None], name: str) -> None:
    """fairseq-hydra-train reads no command line of flags; its trainer has the same options."""
    cfg = OmegaConf.structured(FairseqConfig)
    OmegaConf.set_struct(cfg, False)
    change(cfg)
    with pytest.raises(ConfigError, match=f"- --{name} (0|-1): expected"):
        Trainer(cfg, None, None, None)
