"""Texts with a prefix, truncated to a limit, and summaries with whole references."""

from collections.abc import Sequence
from typing import Any

import numpy
import torch
from fairseq.data import BaseWrapperDataset, FairseqDataset, LanguagePairDataset
from torch import Tensor

from fairseq_recur.text import truncated


class FramedDataset(BaseWrapperDataset):
    """Texts with a common prefix, truncated to a limit.

    Args:
        dataset: texts of token ids, each with the end-of-sentence id, which a truncated text keeps.
        prefix: ids before each text.
        limit: the most ids of a text, including prefix and end; None for no limit.
    """

    def __init__(
        self,
        dataset: FairseqDataset,
        prefix: Sequence[int] = (),
        limit: int | None = None,
    ) -> None:
        super().__init__(dataset)
        self.prefix = torch.tensor(list(prefix), dtype=torch.long)
        self.limit = limit
        self._sizes = numpy.asarray(dataset.sizes) + len(self.prefix)
        if limit is not None:
            self._sizes = self._sizes.clip(max=limit)

    @property
    def sizes(self) -> Any:
        """Number of ids of each text, an array."""
        return self._sizes

    def __getitem__(self, index: int) -> Tensor:
        text = self.dataset[index]
        framed = torch.cat([self.prefix.to(text), text]) if len(self.prefix) else text
        return truncated(framed, self.limit)

    def num_tokens(self, index: int) -> int:
        """Return the number of ids of a text."""
        return int(self.sizes[index])

    size = num_tokens


class SummarizationDataset(LanguagePairDataset):
    """Sources and truncated summaries, with the whole summaries as references.

    Args:
        arguments: of fairseq's LanguagePairDataset, like ``named``.
        references: whole summaries, or None. Batches list their ids as ``references``.
    """

    def __init__(
        self, *arguments: Any, references: FairseqDataset | None = None, **named: Any
    ) -> None:
        super().__init__(*arguments, **named)
        self.references = references

    def collater(
        self, samples: list[dict[str, Any]], pad_to_length: dict[str, int] | None = None
    ) -> dict[str, Any]:
        """Build a batch, with ``references`` if there are any."""
        batch = super().collater(samples, pad_to_length)
        if batch and self.references is not None:
            batch["references"] = [self.references[i].long() for i in batch["id"].tolist()]
        return batch
