"""Sources with a prefix, texts cut to a length, and batches that keep the whole references."""

from collections.abc import Sequence
from typing import Any

import numpy
import torch
from fairseq.data import BaseWrapperDataset, FairseqDataset, LanguagePairDataset
from torch import Tensor


class FramedDataset(BaseWrapperDataset):
    """Texts with the same tokens before each, and no longer than a limit.

    Args:
        dataset: texts of token ids, each ending with ``eos``.
        eos: the id that ends a text; it stays at the end of one that is cut.
        prefix: the ids to put before each text; they count.
        limit: the most ids that a text may have, prefix and end included; None for any number.
    """

    def __init__(
        self,
        dataset: FairseqDataset,
        eos: int,
        prefix: Sequence[int] = (),
        limit: int | None = None,
    ) -> None:
        super().__init__(dataset)
        self.eos = eos
        self.prefix = torch.tensor(list(prefix), dtype=torch.long)
        self.limit = limit
        self._sizes = numpy.asarray(dataset.sizes) + len(self.prefix)
        if limit is not None:
            self._sizes = self._sizes.clip(max=limit)

    @property
    def sizes(self) -> numpy.ndarray:
        """The number of ids of each text."""
        return self._sizes

    def __getitem__(self, index: int) -> Tensor:
        return frame(self.dataset[index], self.eos, self.prefix, self.limit)

    def num_tokens(self, index: int) -> int:
        """Return the number of ids of a text."""
        return int(self.sizes[index])

    def size(self, index: int) -> int:
        """Return the number of ids of a text."""
        return int(self.sizes[index])


def frame(text: Tensor, eos: int, prefix: Tensor, limit: int | None) -> Tensor:
    """Put a prefix before a text and cut it to a limit, the end of the sentence kept.

    Args:
        text: (S,) ids, with ``eos`` at the end.
        eos: what ends a text that is cut.
        prefix: (P,) ids.
        limit: the most ids of the result, or None.

    Returns:
        (P + S,) or (limit,) ids.
    """
    text = torch.cat([prefix.to(text), text]) if len(prefix) else text
    if limit is None or len(text) <= limit:
        return text
    return torch.cat([text[: limit - 1], text.new_tensor([eos])])


class SummarizationDataset(LanguagePairDataset):
    """Sources and summaries, with the whole summaries beside those cut for training.

    Args:
        references: the whole summaries, which batches then have as ``references``, a list of
            ids in the order of the batch; None for none.
        others: what fairseq's LanguagePairDataset takes.
    """

    def __init__(
        self, *others: Any, references: FairseqDataset | None = None, **named: Any
    ) -> None:
        super().__init__(*others, **named)
        self.references = references

    def collater(
        self, samples: list[dict[str, Any]], pad_to_length: dict[str, int] | None = None
    ) -> dict[str, Any]:
        """Make a batch, with ``references`` where there are any."""
        batch = super().collater(samples, pad_to_length)
        if batch and self.references is not None:
            batch["references"] = [self.references[i].long() for i in batch["id"].tolist()]
        return batch
