"""Every flag of fairseq's own programs with hostile values, up to its configuration.

Values that would lose a training are refused before anything is loaded; fairseq judges the rest.
"""

import argparse
import random
import traceback
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

from fairseq_recur.compat.fairseq_options import refuse_lost_training
from fairseq_recur.errors import ConfigError
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
    """A program's flags, and the result of parsing a command line into the configuration."""

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
        """ "read", "parser", "fairseq", or the message of a refusal; anything else is a defect."""
        try:
            args = self.parser.parse_args([*self.needed, *words])
            for name, value in vars(self.usual).items():  # fairseq derives some from others
                vars(args).setdefault(name, value)
            if hasattr(args, "max_update"):
                refuse_lost_training(vars(args))
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
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
            # fairseq reads some numbers as text, and raises what ast.literal_eval raises.
            assert "literal_eval" in "".join(traceback.format_tb(error.__traceback__))
            return "fairseq"
        return "read"


@pytest.mark.parametrize("name", PROGRAMS)
def test_flags_of_fairseqs_programs(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A sample of all lines; one program's sample may contain what another's misses."""
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


# Each ends a training after an epoch of work, before anything is saved.
REFUSED = (
    "--save-interval 0",
    "--validate-interval 0",
    "--validate-interval 0 --disable-validation",
    "--max-valid-steps -1",
    "--distributed-world-size 0",
    "--best-checkpoint-metric bleu",
    "--best-checkpoint-metric accuracy --criterion label_smoothed_cross_entropy",
)

# Everything else is left to fairseq, whether it works there or ends at once.
LEFT = {
    "train": (
        "--save-interval -1 --validate-interval -1",
        "--save-interval-updates 0 --keep-interval-updates -1",
        "--max-valid-steps 0",
        "--best-checkpoint-metric bleu --eval-bleu",
        "--best-checkpoint-metric bleu --disable-validation",
        "--best-checkpoint-metric accuracy --criterion label_smoothed_cross_entropy "
        "--report-accuracy",
        "--best-checkpoint-metric accuracy --criterion cross_entropy",
        "--best-checkpoint-metric ppl",
        "--batch-size -1 --max-tokens 0",
        "--required-batch-size-multiple 0",
        "--update-freq 1,0 --lr=",
        "--num-workers -1 --seed -1 --log-interval 0",
        "--adam-betas 1 --optimizer-overrides x --eval-bleu-args x",
    ),
    "generate": ("--beam 0 --nbest 0 --temperature 0 --max-len-b 0", "--max-tokens -1"),
    "validate": ("--max-valid-steps -1 --model-overrides x",),
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_would_lose_a_training_is_refused(line: str) -> None:
    with pytest.raises(ConfigError, match="would lose the training:\n- --.* give ") as caught:
        parse("train", line)
    assert line.split()[0] in str(caught.value)


@pytest.mark.parametrize("program, line", [(p, line) for p in LEFT for line in LEFT[p]])
def test_everything_else_is_left_to_fairseq(program: str, line: str) -> None:
    parse(program, line)


def test_all_that_is_wrong_is_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("train", "--save-interval 0 --max-valid-steps -1")
    assert str(caught.value).splitlines()[1:] == [
        "- --save-interval 0: expected a number of epochs; give at least 1",
        "- --max-valid-steps -1: expected at least 0; give another number",
    ]


@pytest.mark.parametrize(
    "change, name",
    [
        (lambda cfg: cfg.checkpoint.update(save_interval=0), "save-interval"),
        (lambda cfg: cfg.dataset.update(validate_interval=0), "validate-interval"),
        (lambda cfg: cfg.dataset.update(max_valid_steps=-1), "max-valid-steps"),
    ],
)
def test_through_hydra(change: Callable[[Any], None], name: str) -> None:
    """fairseq-hydra-train reads no command line of flags; its trainer has the same options."""
    cfg = OmegaConf.structured(FairseqConfig)
    OmegaConf.set_struct(cfg, False)
    change(cfg)
    with pytest.raises(ConfigError, match=f"- --{name} (0|-1): expected"):
        Trainer(cfg, None, None, None)
