"""Rows of tables in memory as fairseq's data."""

from typing import Any

import numpy
from fairseq.data import FairseqDataset

from fairseq_recur.compat.data import seeded_for

Sizes = numpy.ndarray[Any, numpy.dtype[numpy.int64]]


class RowDataset(FairseqDataset):
    """Rows of tables; `collater` of a subclass selects those of a batch at once.

    Args:
        sizes: symbols or time steps of each row
        shuffled: `ordered_indices` draws a new order in each epoch, from a seed with the epoch
    """

    def __init__(self, sizes: Sizes, shuffled: bool) -> None:
        super().__init__()
        self.sizes, self.shuffled, self.epoch = sizes, shuffled, 1

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> Any:
        """Return the index itself; a subclass may return more."""
        return int(index)

    def num_tokens(self, index: int) -> int:
        """Return the size of a row."""
        return int(self.sizes[index])

    size = num_tokens

    def num_tokens_vec(self, indices: Sizes) -> Sizes:
        """Return the sizes of rows."""
        return self.sizes[indices]

    def set_epoch(self, epoch: int) -> None:
        """Remember the epoch whose order `ordered_indices` draws next."""
        self.epoch = epoch

    def drawn(self) -> Sizes:
        """Return all indices in random order, another one in each epoch; fairseq seeds numpy."""
        with seeded_for(self.epoch):
            return numpy.random.permutation(len(self))

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """Whether epochs share batches."""
        return not self.shuffled
