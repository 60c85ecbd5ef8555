"""Matrices that RSA's is compared with: less structure, more parameters."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_recur.modules.context import Context, Padding
from fairseq_recur.modules.mixture import LagMixture, Mixture, normalised
from fairseq_recur.modules.options import option
from fairseq_recur.modules.part import exempt_from_decay
from fairseq_recur.modules.rem import CHUNK
from fairseq_recur.modules.text_memory import TextMemory
from fairseq_recur.ops.padding import restore_order
from fairseq_recur.ops.precision import at_least_float32
from fairseq_recur.ops.toeplitz import banded_product

if TYPE_CHECKING:
    from fairseq_recur.modules.self_attention import SelfAttention


def length_option() -> Any:
    """The option that both learned matrices declare."""
    return option(
        256, "lags of toeplitz and positions of full_matrix that have parameters", (1, 2**16)
    )


class ToeplitzMatrix(LagMixture):
    """P[i, j] = t_{i-j}, a learned value per lag, head and direction ("TL" in figure 4).

    Lags beyond ``--learned-matrix-length`` have the entry 0.
    """

    about = "for comparison: a learned value per lag"

    @dataclass
    class Options(LagMixture.Options):
        """Adds the length."""

        learned_matrix_length: int = length_option()

    def __init__(self, cfg: TransformerConfig, side: str) -> None:
        super().__init__(cfg, side)
        size = self.heads, cfg.learned_matrix_length
        self.past = nn.Parameter(torch.zeros(size))
        self.future = None if self.causal else nn.Parameter(torch.zeros(size))
        exempt_from_decay(*self.parameters())

    def kernels(self, length: int) -> tuple[Tensor, Tensor | None]:
        """Learned from lag 1 on; the diagonal is 0."""
        past, future = (
            None if side is None else F.pad(at_least_float32(side), (1, 0))[:, :length]
            for side in (self.past, self.future)
        )
        assert past is not None
        return past, future

    def row_sum(self) -> Tensor:
        """As in `Mixture.row_sum`."""
        lags = None if self.reach is None else self.reach - 1
        sides = [at_least_float32(s)[:, :lags] for s in (self.past, self.future) if s is not None]
        return torch.stack([side.abs().sum(dim=1) for side in sides]).sum(dim=0).max()

    def product(self, values: Tensor, queries: int, padding: Padding | None, form: str) -> Tensor:
        """As `Mixture.product`; the chunked form is a band over the learned lags."""
        if form == "dense":
            return super().product(values, queries, padding, form)
        past, future = self.kernels(self.lags(values.size(2)))
        seen = values[:, :, -(queries + past.size(1) - 1) :]
        return banded_product(past, seen, CHUNK, future)[:, :, -queries:]


class FullMatrix(Mixture):
    """P[i, j] learned for every pair of positions and head ("FL" in figure 4).

    A position is counted in real tokens, so that padding changes nothing. Positions beyond
    ``--learned-matrix-length`` L have the entry 0.

    With a memory of M positions, the matrix has T = L - M rows, for the positions of a segment,
    and L columns, of which the last T are for the same positions. So a memory that is still filling
    has the last of the M columns before them, and what a longer one holds beyond M has the entry 0.
    """

    about = "for comparison: a learned value per pair of positions"

    @dataclass
    class Options(Mixture.Options):
        """Adds the length."""

        learned_matrix_length: int = length_option()

    forms = ("dense",)

    def __init__(self, cfg: TransformerConfig, side: str) -> None:
        super().__init__(cfg, side)
        remembers = reads_memory(cfg, side)
        self.segment = int(cfg.tokens_per_sample) if remembers else 0
        length = cfg.learned_matrix_length
        rows = length - min(cfg.memory_length, length) if remembers else length
        self.weight = nn.Parameter(torch.zeros(self.heads, rows, length))
        exempt_from_decay(*self.parameters())

    @classmethod
    def problems(cls, cfg: Any, side: str) -> Iterator[str]:
        """Problems with the combination of this part's options, one message each."""
        yield from super().problems(cfg, side)
        if side == "decoder" and getattr(cfg, "memory_same_length", False):
            yield (
                "--memory-same-length counts lags, and full_matrix positions; leave it out, or "
                "choose toeplitz, which depends on lags"
            )

    @classmethod
    def zero_with(cls, memory: type[TextMemory], cfg: Any) -> Iterator[str]:
        """As in `Mixture.zero_with`: without a row, all of the matrix is zero."""
        if memory.of_positions and cfg.learned_matrix_length <= cfg.memory_length:
            yield (
                f"--learned-matrix-length {cfg.learned_matrix_length}: full_matrix has a row for "
                f"each position beyond --memory-length {cfg.memory_length}, so it has none; give "
                "the sum of --memory-length and --tokens-per-sample"
            )

    def fit(self, weight: Tensor) -> None:
        """Take the shape of a checkpoint's *weight*, if its memory had another length in training.

        A square one is left to fail: earlier versions had rows for the positions in the memory.
        """
        if self.segment and weight.dim() == 3 and weight.size(1) < weight.size(2):
            self.weight.data = self.weight.new_zeros(self.heads, *weight.shape[1:])

    @property
    def held(self) -> int:
        """M, the columns before the segment; 0 without a memory."""
        return self.weight.size(2) - self.weight.size(1)

    def learned(self) -> Tensor:
        """All rows and columns, in float32 or more, with what no position reads set to 0."""
        weight = at_least_float32(self.weight)
        if self.causal:
            return weight.tril(self.held - 1)
        return weight - torch.diag_embed(weight.diagonal(dim1=-2, dim2=-1))

    def matrix(self, queries: int, keys: int) -> Tensor:
        """P (H, T, S): the segment's first *queries* rows; without a memory, the last of *keys*."""
        size, older = (queries, keys - queries - self.held) if self.segment else (keys, 0)
        more = size - self.weight.size(1)
        # A negative number cuts off.
        return F.pad(self.learned(), (older, more, 0, more))[:, size - queries :]

    def first_rows(self, size: int) -> Tensor:
        """As in `Mixture.first_rows`, behind a memory that is full."""
        rows = min(size, self.weight.size(1))
        return self.matrix(rows, self.held + rows)

    def row_sum(self) -> Tensor:
        """As in `Mixture.row_sum`."""
        return self.learned().abs().sum(dim=2).max()

    def product(self, values: Tensor, queries: int, padding: Padding | None, form: str) -> Tensor:
        """As `Mixture.product`; real tokens are moved to the front, and the results back."""
        if padding is None or padding.trailing:
            return super().product(values, queries, padding, form)
        keys = values.size(2)
        places = padding.order[:, None, :, None]
        moved = values.gather(2, places.expand_as(values))
        # Nothing in a memory is padding, so it stays where it is.
        size = queries if self.segment else keys
        matrix = F.pad(self.matrix(size, keys), (0, 0, keys - size, 0))
        product = self.dense_product(matrix, moved, padding.ordered_mask)
        return restore_order(product, places, 2)[:, :, -queries:]

    def newest_row(
        self, attention: "SelfAttention", keys: int, context: Context
    ) -> tuple[Tensor, Tensor]:
        """As `Mixture.newest_row`, without a table: it is a row of the parameter itself.

        All sentences are at the same position, so none may begin with padding.
        """
        place = keys - 1
        if self.segment:
            assert context.position is not None
            place = context.position % self.segment
        row = at_least_float32(self.weight[:, place : place + 1])
        sides = keys - 1 - place - self.held, place - self.weight.size(1)
        row = F.pad(F.pad(row, (*sides, 0, 1 - row.size(1))), (0, 1))  # 0 at the position itself
        gate = self.gate
        if self.normalize:
            row = normalised(row, context.padding_mask)
        return gate * row, 1 - gate


def reads_memory(cfg: TransformerConfig, side: str) -> bool:
    """Whether the maps of a side read a language model's memory of positions."""
    from fairseq_recur.modules.parts import MEMORY  # which imports this module

    memory = MEMORY.get(getattr(cfg, "decoder_memory", ""))
    return side == "decoder" and memory is not None and memory.of_positions
