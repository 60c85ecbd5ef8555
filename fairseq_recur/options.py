"""Options that fairseq takes and cannot work with, which it finds out far within.

--save-interval 0 ends a training with a ZeroDivisionError at the end of its first epoch, and
--required-batch-size-multiple 0 ends the process without a word. What works is left alone: a
--batch-size of 0 or -1 is no limit, a --max-len-b of 0 goes with a --max-len-a.
"""

import ast
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from fairseq_recur.errors import ConfigError

Options = Mapping[str, Any]


class Range(NamedTuple):
    """The numbers that can be used."""

    low: float = -math.inf
    high: float = math.inf
    zero: bool = True
    used: Callable[[Options], Any] = lambda options: True
    """Whether the number is used at all, with these other options."""

    def has(self, number: float) -> bool:
        return self.low <= number <= self.high and (self.zero or number != 0)

    def __str__(self) -> str:
        ends = {"at least": self.low, "at most": self.high}
        words = [f"{word} {end}" for word, end in ends.items() if math.isfinite(end)]
        return " and ".join(words + ["not 0"] * (not self.zero)) or "a number"


DIVISOR = Range(zero=False)
FP16_DIVISOR = Range(zero=False, used=lambda options: options.get("fp16"))
BATCH = Range(high=2**63 - 1)

RANGES: dict[str, Range] = {
    "batch_size": BATCH,
    "batch_size_valid": BATCH,
    "beam": Range(low=1),
    "distributed_world_size": Range(low=1),  # with 0 a training saves nothing
    "fp16_init_scale": FP16_DIVISOR,
    "fp16_scale_window": FP16_DIVISOR,
    "keep_interval_updates_pattern": Range(
        zero=False, used=lambda options: (options.get("keep_interval_updates") or 0) > 0
    ),
    "log_interval": DIVISOR,
    "max_tokens": BATCH,
    "max_tokens_valid": BATCH,
    "max_valid_steps": Range(low=0),
    "nbest": DIVISOR,
    "num_workers": Range(0, 1024),  # as many processes are started
    "required_batch_size_multiple": Range(-1, 2**31 - 1, zero=False),
    "required_seq_len_multiple": Range(high=2**20, zero=False),
    "save_interval": DIVISOR,
    "seed": Range(0, 2**32 - 1),
    "temperature": Range(low=0, zero=False),
    "total_num_update": Range(
        low=1, used=lambda options: options.get("lr_scheduler") == "polynomial_decay"
    ),
    "update_freq": Range(low=1),
    "validate_interval": DIVISOR,
    "warmup_updates": Range(
        low=1, used=lambda options: options.get("lr_scheduler") == "inverse_sqrt"
    ),
}
TRAINING: dict[str, Range] = {**RANGES, "max_tokens": Range(1, 2**63 - 1)}
"""A training leaves out sentences of more tokens; elsewhere 0 and -1 are no limit."""

FOLLOWING = ("max_tokens_valid", "batch_size_valid", "update_epoch_batch_itr", "total_num_update")
"""What fairseq reads as text, for without a value they follow other options."""

LISTS = ("lr", "update_freq")
"""Numbers for the epochs, of which there must be one."""

TRANSLATING = ("eval_bleu_args", "eval_bleu_detok_args")
DICTIONARIES: dict[str, Callable[[str], Any]] = {
    "optimizer_overrides": ast.literal_eval,
    "model_overrides": ast.literal_eval,
    **dict.fromkeys(TRANSLATING, json.loads),
}
"""Texts that fairseq reads as dictionaries."""


def refuse_impossible(options: Options) -> None:
    """Refuse what would end a command far within.

    Args:
        options: values by their names; of a training if max_update is among them

    Raises:
        ConfigError: with all that is wrong, one line each
    """
    ranges = TRAINING if "max_update" in options else RANGES
    wrong = [
        problem
        for name, value in options.items()
        for problem in problems(name, value, ranges.get(name, Range()), options)
    ]
    wrong += [*dictionaries(options), *betas(options), *together(options)]
    if wrong:
        raise ConfigError("options that cannot be used:\n- " + "\n- ".join(wrong))


def problems(name: str, value: Any, allowed: Range, options: Options) -> Iterator[str]:
    """What is wrong with one option."""
    flag = "--" + name.replace("_", "-")
    if name in FOLLOWING and isinstance(value, str) and not value.startswith("${"):
        value = literal(value)
        if not isinstance(value, (int, float, type(None))):
            yield f"{flag} {options[name]}: expected a number; give one, or leave it out"
    if name in LISTS and isinstance(value, (list, tuple)) and not value:
        yield f"{flag}: found nothing, expected numbers with commas between; give one"
    if allowed.used(options):
        for number in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(number, (int, float)) and not allowed.has(number):
                yield f"{flag} {number}: expected {allowed}; give another number"


def literal(text: str, read: Callable[[str], Any] = ast.literal_eval) -> Any:
    """The number, list or dictionary that a text is; the text itself if it is none."""
    try:
        return read(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def dictionaries(options: Options) -> Iterator[str]:
    """Texts that should be dictionaries."""
    for name, read in DICTIONARIES.items():
        text = options.get(name)
        used = name not in TRANSLATING or options.get("eval_bleu")
        if used and isinstance(text, str) and literal(text, read) not in (None, []):
            if not isinstance(literal(text, read), dict):
                flag = "--" + name.replace("_", "-")
                yield f'{flag} {text}: expected a dictionary such as {{"beam": 4}}; give one'


def betas(options: Options) -> Iterator[str]:
    """Adam's, which are a text to fairseq and two numbers to torch."""
    text = options.get("adam_betas")
    if text is None or options.get("optimizer") not in ("adam", "adamw_fused"):
        return
    pair = literal(text) if isinstance(text, str) else text
    numbers = isinstance(pair, (tuple, list)) and all(isinstance(b, (int, float)) for b in pair)
    if not (numbers and len(pair) == 2 and all(0 <= b < 1 for b in pair)):
        yield f'--adam-betas {text}: expected two numbers from 0 to below 1; give "(0.9, 0.98)"'


def together(options: Options) -> Iterator[str]:
    """Options that do not go together."""
    least, greatest = options.get("min_len"), options.get("max_len_b")
    if not (
        options.get("max_len_a") or options.get("match_source_len") or None in (least, greatest)
    ):
        if least > greatest:
            yield f"--min-len {least} is more than --max-len-b {greatest}; give a greater --max-len-b"
    if options.get("lr_scheduler") == "polynomial_decay" and options.get("max_update", 1) <= 0:
        if options.get("total_num_update", 1) is None:
            yield "--total-num-update: the --lr-scheduler needs it, found none and no --max-update; give one"
    if options.get("best_checkpoint_metric") == "bleu" and not options.get("eval_bleu", True):
        if not options.get("disable_validation"):
            yield "--best-checkpoint-metric bleu, but no BLEU is computed: give --eval-bleu"
