"""Options of fairseq's search, checked before it starts."""

import difflib
from typing import Any

from fairseq.dataclass.configs import GenerationConfig

from fairseq_recur.errors import ConfigError

OPTIONS = (
    "beam lenpen min_len max_len_a max_len_b no_repeat_ngram_size unkpen unnormalized temperature "
    "match_source_len sampling sampling_topk sampling_topp diverse_beam_groups "
    "diverse_beam_strength diversity_rate"
).split()
"""The search options of fairseq-generate, with the same defaults."""


def search_options(options: dict[str, Any], nbest: int, shortest: int, longest: int) -> Any:
    """Build fairseq's configuration of a search.

    Args:
        options: some of `OPTIONS`.
        nbest: number of hypotheses to return.
        shortest: tokens of the shortest source, on which ``max_len_a`` depends.
        longest: the most tokens of an output.

    Raises:
        ConfigError: an unknown option, or conflicting values.
    """
    for name in options:
        if name not in OPTIONS:
            close = difflib.get_close_matches(name, OPTIONS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"choose one of {', '.join(OPTIONS)}"
            raise ConfigError(f"there is no search option {name!r}; {hint}")
    found = GenerationConfig(**options)
    if found.beam < 1 or not 1 <= nbest <= found.beam:
        raise ConfigError(
            f"nbest={nbest} of beam={found.beam}: expected a beam of at least 1, and nbest from 1 "
            "to the beam"
        )
    # Like fairseq, without the end-of-sentence symbol.
    most = min(int(found.max_len_a * shortest + found.max_len_b), longest - 1)
    if found.match_source_len:
        most = shortest
    if found.min_len > most:
        raise ConfigError(
            f"min_len={found.min_len} is more than the longest output for the shortest text, "
            f"{most} tokens (max_len_a={found.max_len_a}, max_len_b={found.max_len_b}, the model's "
            f"{longest} positions); give less, or a larger max_len_b"
        )
    kinds = [
        name
        for name, on in (
            ("sampling", found.sampling),
            ("diverse_beam_groups", found.diverse_beam_groups > 0),
            ("match_source_len", found.match_source_len),
            ("diversity_rate", found.diversity_rate > 0),
        )
        if on
    ]
    if len(kinds) > 1:
        raise ConfigError(f"{' and '.join(kinds)} are different kinds of search; choose one")
    if not found.sampling and (found.sampling_topk > 0 or found.sampling_topp > 0):
        raise ConfigError(
            "sampling_topk and sampling_topp need sampling=True; give it, or leave them out"
        )
    if found.diverse_beam_groups > 0 and found.beam % found.diverse_beam_groups:
        raise ConfigError(
            f"beam={found.beam} cannot be split into diverse_beam_groups="
            f"{found.diverse_beam_groups}; choose a beam that is a multiple of this number"
        )
    return found
