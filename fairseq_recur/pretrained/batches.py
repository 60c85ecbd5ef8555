"""Batches of encoded text for a model, the limits of its length, and a progress bar."""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy
from fairseq import utils
from fairseq.data import (
    FairseqDataset,
    IdDataset,
    LanguagePairDataset,
    ListDataset,
    NestedDictionaryDataset,
    NumelDataset,
    PadDataset,
    SortDataset,
)
from fairseq.tasks import FairseqTask
from torch import Tensor

from fairseq_recur.errors import ConfigError, first_items
from fairseq_recur.logs import quiet
from fairseq_recur.search import fits
from fairseq_recur.text import truncated

DEFAULT_TOKENS = 4000
"""Default size of a batch: tokens of its longer side with padding, or one longer text."""

LARGEST = 2**31 - 1
"""The most texts or tokens of a batch that can be asked for, more than any machine computes."""


def limits(task: FairseqTask, models: Sequence[Any]) -> tuple[int, int]:
    """Return the most tokens of a source without its prefix, and of a target, ends included.

    A language model has one limit for both.
    """
    found = utils.resolve_max_positions(
        task.max_positions(), *[model.max_positions() for model in models]
    )
    source, target = found if isinstance(found, tuple) else (found, found)
    return source - len(getattr(task, "prefix", None) or []), target


def fit(what: str, texts: list[Tensor], limit: int, truncate: bool | None) -> list[Tensor]:
    """Truncate texts to a limit but keep the end-of-sentence symbol.

    Args:
        what: name of the texts for the error.
        texts: (L,) ids each, with the end-of-sentence symbol.
        limit: the most ids.
        truncate: False to raise an error instead; None if truncation is impossible.

    Raises:
        ConfigError: naming texts that are too long and must not be truncated.
    """
    long = [number for number, text in enumerate(texts) if len(text) > limit]
    if long and not truncate:
        found = first_items([f"number {n} has {len(texts[n])}" for n in long])
        remedy = "shorten them"
        if truncate is not None:
            remedy += ", or in Python give truncate=True"
        raise ConfigError(
            f"{len(long)} of {len(texts)} {what} are longer than the model's limit of {limit} "
            f"tokens: {found} (counted from 0); {remedy}"
        )
    return [truncated(text, limit) for text in texts]


def pairs(
    task: FairseqTask, sources: list[Tensor], targets: list[Tensor] | None = None
) -> LanguagePairDataset:
    """Return sources as the task gives them to a model, with its prefix if any, and targets."""
    read = task.build_dataset_for_inference(sources, list(map(len, sources)))
    if targets is None:
        return read
    return LanguagePairDataset(
        read.src, read.src_sizes, read.src_dict,
        ListDataset(targets), numpy.array(list(map(len, targets))), task.target_dictionary,
        left_pad_source=read.left_pad_source, shuffle=False,
    )  # fmt: skip


def whole_texts(task: FairseqTask, texts: list[Tensor]) -> FairseqDataset:
    """Return texts for a language model to score, including the end-of-sentence symbol.

    fairseq's own inference dataset does not predict this symbol.
    """
    words = task.source_dictionary
    first = words.bos() if getattr(task.args, "add_bos_token", False) else words.eos()
    read = ListDataset([text.new_tensor([first, *text[:-1].tolist()]) for text in texts])
    pad = {"pad_idx": words.pad(), "left_pad": False}
    sizes = numpy.array(list(map(len, texts)))
    found = NestedDictionaryDataset(
        {
            "id": IdDataset(),
            "net_input": {
                "src_tokens": PadDataset(read, **pad),
                "src_lengths": NumelDataset(read, reduce=False),
            },
            "target": PadDataset(ListDataset(texts), **pad),
        },
        sizes=[sizes],
    )
    return SortDataset(found, [sizes])


def batches(
    task: FairseqTask,
    data: FairseqDataset,
    batch_size: int | None,
    max_tokens: int | None,
    progress: bool | None,
) -> Iterator[dict[str, Any]]:
    """Yield batches of texts of similar length, with a progress bar.

    Args:
        task: fairseq's task.
        data: the texts.
        batch_size: the most texts per batch.
        max_tokens: the most tokens per batch, with padding, but at least those of the longest
            text; `DEFAULT_TOKENS` if *batch_size* is not given either.
        progress: show the bar; None shows it for several batches.

    Raises:
        ConfigError: *batch_size* or *max_tokens* is no whole number, below 1 or above `LARGEST`.
    """
    for name, value in (("batch_size", batch_size), ("max_tokens", max_tokens)):
        if value is not None and not fits(value, int):
            raise ConfigError(f"{name}={value!r}: expected a whole number; give one")
        if value is not None and not 1 <= value <= LARGEST:
            raise ConfigError(f"{name}={value}: expected at least 1 and at most {LARGEST}")
    if batch_size is None and max_tokens is None:
        max_tokens = DEFAULT_TOKENS
    if max_tokens is not None:
        max_tokens = max(max_tokens, *(data.num_tokens(index) for index in range(len(data))))
    with quiet("fairseq"):  # four lines that are useless in a notebook
        found = task.get_batch_iterator(
            data, max_tokens, max_sentences=batch_size, disable_iterator_cache=True
        ).next_epoch_itr(shuffle=False)
    shown = len(found) > 1 if progress is None else progress
    with bar(len(data), shown) as counter:
        for batch in found:
            yield batch
            counter.update(len(batch["id"]))


def bar(total: int, shown: bool) -> Any:
    """Return tqdm's bar: a widget in a notebook with ipywidgets, otherwise a line of text."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without ipywidgets it recommends them
        from tqdm.auto import tqdm

    return tqdm(total=total, disable=not shown, unit=" texts")
