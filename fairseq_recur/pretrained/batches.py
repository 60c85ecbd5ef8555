"""Batches of encoded text for a model, long text cut or refused, and a bar that shows progress."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy
import torch
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
from torch import Tensor, nn

from fairseq_recur.errors import ConfigError

DEFAULT_TOKENS = 4000
"""Of the longer side in a batch, with padding, where nothing is said; of one longer text, more."""


def limits(task: FairseqTask, models: Sequence[nn.Module]) -> tuple[int, int]:
    """The most tokens of a source, its prefix not counted, and of a target, ends included.

    A language model has one limit for both.
    """
    found = utils.resolve_max_positions(
        task.max_positions(), *[model.max_positions() for model in models]
    )
    source, target = found if isinstance(found, tuple) else (found, found)
    return source - len(getattr(task, "prefix", None) or []), target


def fit(what: str, texts: list[Tensor], limit: int, truncate: bool | None) -> list[Tensor]:
    """Cut texts to a limit, the end of the sentence kept.

    Args:
        what: of them, for the error
        texts: (L,) ids each, with the end of the sentence
        limit: the most ids
        truncate: False to raise instead; None if they cannot be cut

    Raises:
        ConfigError: some are too long and not to be cut; it says which
    """
    long = [number for number, text in enumerate(texts) if len(text) > limit]
    if long and not truncate:
        shown = ", ".join(f"number {n} has {len(texts[n])}" for n in long[:5])
        more = f" and {len(long) - 5} more" if len(long) > 5 else ""
        remedy = "shorten them" if truncate is None else "shorten them, or give truncate=True"
        raise ConfigError(
            f"{len(long)} of {len(texts)} {what} are longer than the {limit} tokens that the model "
            f"takes: {shown}{more} (counted from 0); {remedy}"
        )
    cut = set(long)
    return [
        torch.cat([text[: limit - 1], text[-1:]]) if number in cut else text
        for number, text in enumerate(texts)
    ]


def pairs(
    task: FairseqTask, sources: list[Tensor], targets: list[Tensor] | None = None
) -> LanguagePairDataset:
    """Sources as the task hands them to a model, with a prefix if it has one, and targets."""
    read = task.build_dataset_for_inference(sources, list(map(len, sources)))
    if targets is None:
        return read
    return LanguagePairDataset(
        read.src, read.src_sizes, read.src_dict,
        ListDataset(targets), numpy.array(list(map(len, targets))), task.target_dictionary,
        left_pad_source=read.left_pad_source, shuffle=False,
    )  # fmt: skip


def whole_texts(task: FairseqTask, texts: list[Tensor]) -> FairseqDataset:
    """Texts for a language model to score, the end of the sentence predicted as well.

    (fairseq's own inference dataset leaves it out.)
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
    """Yield batches of texts of similar length, with a bar that counts texts.

    Args:
        task, data: of fairseq
        batch_size: the most texts of a batch
        max_tokens: the most tokens of a batch, with padding
        progress: show the bar; None to show it if there are several batches

    Raises:
        ConfigError: a text that is longer than a batch may be
    """
    longest = max(data.num_tokens(index) for index in range(len(data)))
    if batch_size is None and max_tokens is None:
        max_tokens = max(DEFAULT_TOKENS, longest)
    for name, value in (("batch_size", batch_size), ("max_tokens", max_tokens)):
        if value is not None and value < 1:
            raise ConfigError(f"{name}={value}: expected at least 1")
    if max_tokens is not None and longest > max_tokens:
        raise ConfigError(
            f"max_tokens={max_tokens}: the longest text has {longest} tokens; give at least as many"
        )
    log = logging.getLogger("fairseq.tasks.fairseq_task")  # four lines of no use to a notebook
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        found = task.get_batch_iterator(
            data, max_tokens, max_sentences=batch_size, disable_iterator_cache=True
        ).next_epoch_itr(shuffle=False)
    finally:
        log.setLevel(level)
    shown = len(found) > 1 if progress is None else progress
    with bar(len(data), shown) as counter:
        for batch in found:
            yield batch
            counter.update(len(batch["id"]))


def bar(total: int, shown: bool) -> Any:
    """Tqdm's bar: widgets in a notebook that has them, else a line of text."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without ipywidgets it recommends them
        from tqdm.auto import tqdm

    return tqdm(total=total, disable=not shown, unit=" texts")
