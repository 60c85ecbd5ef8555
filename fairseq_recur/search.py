"""Options of fairseq's search, checked before it starts."""

import difflib
import math
from collections.abc import Sequence
from dataclasses import fields
from numbers import Integral, Real
from typing import Any

from fairseq.dataclass.configs import GenerationConfig

from fairseq_recur.errors import ConfigError

OPTIONS = (
    "beam lenpen min_len max_len_a max_len_b no_repeat_ngram_size unkpen unnormalized temperature "
    "match_source_len sampling sampling_topk sampling_topp diverse_beam_groups "
    "diverse_beam_strength diversity_rate"
).split()
"""The search options of fairseq-generate, with the same defaults."""

EXPECTED = {int: "a whole number", float: "a number", bool: "true or false"}


STEEPEST = 10
"""Exponent of a length penalty beyond which the power of a length may overflow."""


def fits(value: Any, kind: Any) -> bool:
    """Whether an option of a type, a key of `EXPECTED`, can have a value."""
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    return isinstance(value, Integral if kind is int else Real) and math.isfinite(value)


def search_options(
    options: dict[str, Any], nbest: int, shortest: int, longest: int, words: int | None = None
) -> Any:
    """Build fairseq's configuration of a search.

    Args:
        options: some of `OPTIONS`.
        nbest: number of hypotheses to return.
        shortest: tokens of the shortest source, on which ``max_len_a`` depends; if sources are not
            known, of the longest that there may be.
        longest: the most tokens of an output.
        words: entries of the dictionary, if it is known.

    Raises:
        ConfigError: an unknown option, a value of another type, or conflicting values.
    """
    found = GenerationConfig(**of_their_types(options))
    if not fits(nbest, int):
        raise ConfigError(f"nbest={nbest!r}: expected a whole number; give one")
    if found.beam < 1:
        raise ConfigError(f"beam={found.beam}: expected a beam of at least 1")
    if found.min_len < 0:
        raise ConfigError(f"min_len={found.min_len}: expected at least 0")
    if not 1 <= nbest <= found.beam:
        raise ConfigError(f"nbest={nbest} of beam={found.beam}: expected 1 to the beam")
    if abs(found.lenpen) > STEEPEST:
        raise ConfigError(f"lenpen={found.lenpen}: expected -{STEEPEST} to {STEEPEST}")
    if words is not None and found.sampling_topk > words:
        raise ConfigError(
            f"sampling_topk={found.sampling_topk}: the dictionary has {words} words; give at most "
            "that"
        )
    if found.temperature <= 0:
        raise ConfigError(f"temperature={found.temperature}: expected more than 0; give 1 for none")
    most = longest_output(found, shortest, longest)
    if found.match_source_len:
        most = shortest
    if found.min_len > most:
        raise ConfigError(
            f"min_len={found.min_len} is more than the longest output for {shortest} source "
            f"tokens, {most} tokens (max_len_a={found.max_len_a}, max_len_b={found.max_len_b}, the "
            f"model's {longest} positions); give less, or a larger max_len_b"
        )
    refuse_conflicts(found)
    return found


def of_their_types(options: dict[str, Any]) -> dict[str, Any]:
    """Check the names and types of options, and make whole numbers of floats that are whole.

    Raises:
        ConfigError: the first that is unknown or has another type.
    """
    found = dict(options)
    kinds = {f.name: f.type for f in fields(GenerationConfig)}
    for name, value in options.items():
        if name not in OPTIONS:
            close = difflib.get_close_matches(name, OPTIONS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"choose one of {', '.join(OPTIONS)}"
            raise ConfigError(f"there is no search option {name!r}; {hint}")
        kind: Any = kinds[name]
        if kind is int and isinstance(value, float) and value.is_integer():
            found[name] = value = int(value)  # as JSON of other programs may have it
        if not fits(value, kind):
            hint = "leave out the quotes" if isinstance(value, str) else "give one"
            raise ConfigError(f"{name}={value!r}: expected {EXPECTED[kind]}; {hint}")
    return found


def refuse_conflicts(found: GenerationConfig) -> None:
    """Raise ConfigError if two options ask for different kinds of search."""
    searches = [
        name
        for name, on in (
            ("sampling", found.sampling),
            ("diverse_beam_groups", found.diverse_beam_groups > 0),
            ("match_source_len", found.match_source_len),
            ("diversity_rate", found.diversity_rate > 0),
        )
        if on
    ]
    if len(searches) > 1:
        raise ConfigError(f"{' and '.join(searches)} are different kinds of search; choose one")
    if not found.sampling and (found.sampling_topk >= 0 or found.sampling_topp >= 0):
        raise ConfigError(
            "sampling_topk and sampling_topp need sampling=True; give it, or leave them out"
        )
    if found.diverse_beam_groups > 0 and found.beam % found.diverse_beam_groups:
        raise ConfigError(
            f"beam={found.beam} cannot be split into diverse_beam_groups="
            f"{found.diverse_beam_groups}; choose a beam that is a multiple of this number"
        )


def longest_output(options: GenerationConfig, source: int, longest: int) -> int:
    """Return the most tokens of an output, like fairseq without the end-of-sentence symbol.

    Args:
        options: of the search.
        source: tokens of the source.
        longest: the model's positions.
    """
    return min(int(options.max_len_a * source + options.max_len_b), longest - 1)


def check_beginnings(lengths: Sequence[int], options: GenerationConfig, longest: int) -> None:
    """Refuse beginnings that leave a language model no token to add; fairseq would cut them.

    Args:
        lengths: tokens of each text, without the end-of-sentence symbol.
        options: of the search.
        longest: the model's positions.

    Raises:
        ConfigError: naming the first of them.
    """
    for number, length in enumerate(lengths):
        most = longest_output(options, length + 1, longest)
        if length >= most:
            remedy = f"raise max_len_b to more than {length}"
            if length >= longest - 1:
                remedy = f"shorten it, as the model has {longest} positions"
            raise ConfigError(
                f"text number {number}, counted from 0, has {length} tokens, and the continued "
                f"text may have {most} (max_len_a={options.max_len_a}, "
                f"max_len_b={options.max_len_b}), so that nothing would be added; {remedy}"
            )
