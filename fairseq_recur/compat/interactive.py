"""fairseq-interactive: every line of input has its output, and --truncate-source acts."""

import contextlib
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fairseq_recur.compat.registry import Function, mend
from fairseq_recur.errors import ConfigError

TRANSLATION = "fairseq.tasks.translation:TranslationTask"

interactive_input = mend(
    "interactive input",
    reason="a carriage return within a line makes two sentences of it, which shifts all later "
    "outputs; one byte that is not UTF-8, or a line that is too long, ends the program and loses "
    "the lines in its buffer",
    until="permanent",
)


@interactive_input.patch("fairseq_cli.interactive:buffered_read")
def buffered_read(_: Function, input: str, buffer_size: int) -> Iterator[list[str]]:
    """Yield lists of at most *buffer_size* lines, each of them one sentence."""
    # In notebooks and tests standard input may be text already.
    typed = getattr(sys.stdin, "buffer", sys.stdin)
    with contextlib.nullcontext(typed) if input == "-" else open(input, "rb") as lines:
        texts = map(sentence, lines)
        done = 0
        _too_long.append(None)
        try:
            while buffer := list(itertools.islice(texts, buffer_size)):
                yield buffer
                if _too_long[-1] is not None:
                    number, tokens, limit = _too_long[-1]
                    raise ConfigError(
                        f"line {done + number + 1} of the input has {tokens} tokens, expected at "
                        f"most {limit}: give --truncate-source, or leave the line out; the lines "
                        "before it have their output"
                    )
                done += len(buffer)
        finally:
            _too_long.pop()


_too_long: list[tuple[int, int, int] | None] = []
"""For each running `buffered_read`: the first line of its buffer that is too long, its length and
the limit."""


@interactive_input.patch("fairseq_cli.interactive:make_batches")
def make_batches(
    make: Function, lines: list[str], cfg: Any, task: Any, limits: Any, encode: Function
) -> Iterator[Any]:
    """Yield the batches of the lines before one that is too long, which ends `buffered_read`."""
    try:
        yield from make(list(lines), cfg, task, limits, encode)
    except Exception as error:  # fairseq raises this base class
        if "Size of sample" not in str(error) or not _too_long:
            raise
        limit = limits[0] if isinstance(limits, (tuple, list)) else limits
        # With --constraints a line has those behind tabs; only its source is read by the encoder.
        alone = [x.split("\t")[0] for x in lines] if cfg.generation.constraints else list(lines)
        lengths = list(task.get_interactive_tokens_and_lengths(alone, encode)[1])
        first = next((i for i, n in enumerate(lengths) if n > limit), None)
        if first is None:
            raise
        if first:
            yield from make(lines[:first], cfg, task, limits, encode)
        _too_long[-1] = (first, int(lengths[first]), int(limit))


def sentence(line: bytes | str) -> str:
    """Return a line of input as one sentence; bytes that are not UTF-8 become U+FFFD.

    A byte order mark at its beginning, that of a file, is no part of the first word.
    """
    text = line if isinstance(line, str) else line.decode("utf-8", errors="replace")
    return text.removeprefix("\ufeff").replace("\r", " ").strip()


truncation = mend(
    "truncation in fairseq-interactive",
    reason="fairseq-interactive ignores --truncate-source (fairseq's issue 4507), and ends at the "
    "first line that is longer than the model allows",
    until="a fairseq whose build_dataset_for_inference obeys --truncate-source",
)


@truncation.patch(f"{TRANSLATION}.build_generator")
def build_generator(
    build: Function, self: Any, models: Sequence[Any], *args: Any, **kwargs: Any
) -> Any:
    """Remember the limits of the models, which may be lower than the task's option."""
    limits = [model.max_positions() for model in models if model is not None]
    self._recur_source_limits = [limit[0] for limit in limits if isinstance(limit, tuple)]
    return build(self, models, *args, **kwargs)


@truncation.patch(f"{TRANSLATION}.build_dataset_for_inference")
def build_dataset_for_inference(
    build: Function,
    self: Any,
    src_tokens: Sequence[torch.Tensor],
    src_lengths: Sequence[int],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Truncate the sources, each of which keeps its end of sentence."""
    if self.cfg.truncate_source:
        known = getattr(self, "_recur_source_limits", [])
        limit = min([self.cfg.max_source_positions, *known])
        src_tokens = [
            t if len(t) <= limit else torch.cat([t[: limit - 1], t[-1:]]) for t in src_tokens
        ]
        src_lengths = [len(t) for t in src_tokens]
    return build(self, src_tokens, src_lengths, *args, **kwargs)
