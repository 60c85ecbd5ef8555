"""Matrices that RSA's is compared with: less structure, more parameters."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_recur.modules.context import Padding
from fairseq_recur.modules.mixture import LagMixture, Mixture, with_room
from fairseq_recur.modules.options import option
from fairseq_recur.modules.part import exempt_from_decay
from fairseq_recur.modules.rem import CHUNK
from fairseq_recur.modules.text_memory import TextMemory
from fairseq_recur.ops.padding import restore_order
from fairseq_recur.ops.precision import at_least_float32
from fairseq_recur.ops.toeplitz import banded_product


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
    ``--learned-matrix-length`` have the entry 0.
    """

    about = "for comparison: a learned value per pair of positions"

    @dataclass
    class Options(Mixture.Options):
        """Adds the length."""

        learned_matrix_length: int = length_option()

    forms = ("dense",)

    def __init__(self, cfg: TransformerConfig, side: str) -> None:
        super().__init__(cfg, side)
        length = cfg.learned_matrix_length
        self.weight = nn.Parameter(torch.zeros(self.heads, length, length))
        exempt_from_decay(*self.parameters())

    @classmethod
    def problems(cls, cfg: Any, side: str) -> Iterator[str]:
        """Problems with the combination of this part's options, one message each."""
        yield from super().problems(cfg, side)
        if side == "decoder" and getattr(cfg, "memory_same_length", False):
            yield (
                "--memory-same-length moves the positions of full_matrix at every step; leave it "
                "out, or choose toeplitz, which depends on lags"
            )

    @classmethod
    def zero_with(cls, memory: type[TextMemory], cfg: Any) -> Iterator[str]:
        """As in `Mixture.zero_with`: positions of a segment are counted after those in memory."""
        if memory.of_positions and cfg.learned_matrix_length <= cfg.memory_length:
            yield (
                f"--learned-matrix-length {cfg.learned_matrix_length}: full_matrix counts from the "
                f"first position in the memory, so with --memory-length {cfg.memory_length} it is "
                "zero once the memory is full; give the sum of --memory-length and "
                "--tokens-per-sample"
            )

    def matrix(self, queries: int, keys: int) -> Tensor:
        """The first *keys* rows and columns, of them the last *queries* rows; diagonal 0."""
        length = self.weight.size(-1)
        square = at_least_float32(self.weight)[:, :keys, :keys]
        square = (
            square.tril(-1)
            if self.causal
            else square - torch.diag_embed(square.diagonal(dim1=-2, dim2=-1))
        )
        if keys > length:
            square = F.pad(square, (0, keys - length, 0, keys - length))
        return square[:, keys - queries :]

    def row_sum(self) -> Tensor:
        """As in `Mixture.row_sum`."""
        length = self.weight.size(-1)
        return self.matrix(length, length).abs().sum(dim=2).max()

    def product(self, values: Tensor, queries: int, padding: Padding | None, form: str) -> Tensor:
        """As `Mixture.product`; real tokens are moved to the front, and the results back."""
        if padding is None or padding.trailing:
            return super().product(values, queries, padding, form)
        places = padding.order[:, None, :, None]
        moved = values.gather(2, places.expand_as(values))
        matrix = self.matrix(values.size(2), values.size(2))
        product = self.dense_product(matrix, moved, padding.ordered_mask)
        return restore_order(product, places, 2)[:, :, -queries:]

    def table(self, keys: int) -> Tensor:
        """The matrix itself: its rows have nothing in common. With room for steps to come."""
        size = self.weight.size(-1)
        # A row of zeros stands for all positions beyond the length.
        return F.pad(self.matrix(size, size), (0, max(0, with_room(keys) - size), 0, 1))

    def last_row(self, table: Tensor, keys: int) -> Tensor:
        """Row *keys*."""
        row = min(keys, table.size(1)) - 1
        return table[:, row : row + 1, :keys]
