"""Matrices over positions that a self-attention mixes with its map, and their gate."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_recur.modules.observed import Observed
from fairseq_recur.modules.part import Part
from fairseq_recur.ops.precision import at_least_float32
from fairseq_recur.ops.toeplitz import shared_product, toeplitz_matrix

FORMS = ("mixed", "dense", "chunked")
"""Of the sum (1 - g) softmax(Q K^T) V + g P V: one map; two products; the second in chunks."""


class Mixture(Observed, Part, nn.Module):
    """P and the gate g = sigma(mu), one scalar a layer (Huang et al. 2023, eq. 4).

    Args:
        slot: the slot of the attention that it belongs to
        mixing: heads with a matrix; they come first, those after them are ordinary
        heads: all heads, H
        causal: whether P is zero for later keys
        gate: initial mu
        normalize: divide rows that add up to more than one, see `normalised`
    """

    forms: tuple[str, ...] = FORMS
    """The forms in which the product with this matrix can be computed."""

    def __init__(
        self, slot: str, mixing: int, heads: int, causal: bool, gate: float, normalize: bool
    ) -> None:
        super().__init__()
        self.slot, self.mixing, self.heads, self.causal = slot, mixing, heads, causal
        self.normalize = normalize
        self.mu = nn.Parameter(torch.tensor(float(gate)))

    def exempt_from_decay(self) -> None:
        """Mark the parameters: weight decay would pull them to values that mean something."""
        for parameter in self.parameters():
            parameter.optim_overrides = {"optimizer": {"weight_decay": 0.0}}

    def gates(self) -> Tensor:
        """G for each head, 0 for ordinary ones: (H, 1, 1), in float32 or more."""
        gate = torch.sigmoid(at_least_float32(self.mu)).expand(self.mixing)
        return F.pad(gate, (0, self.heads - self.mixing)).view(-1, 1, 1)

    def matrix(self, queries: int, keys: int) -> Tensor:
        """P (H', T, S) of the mixing heads; the last query stands at the last key."""
        raise NotImplementedError(type(self).__name__)

    def product(self, values: Tensor, padding: Tensor | None, form: str) -> Tensor:
        """P V for as many queries as keys.

        Args:
            values: (B, H', T, D) in float32 or more, zero at padding
            padding: (B, T) bool or None
            form: "dense" or "chunked"

        Returns:
            (B, H', T, D)
        """
        matrix = self.matrix(values.size(2), values.size(2))
        if self.normalize:
            return torch.matmul(normalised(matrix, padding), values)
        return shared_product(matrix, values)

    def table(self, keys: int) -> Tensor:
        """What `last_row` reads in incremental decoding, for at least *keys* keys."""
        raise NotImplementedError(type(self).__name__)

    def last_row(self, table: Tensor, keys: int) -> Tensor:
        """P's row for the newest of *keys* positions: (H', 1, keys), a view of the table."""
        raise NotImplementedError(type(self).__name__)

    def row_sum(self) -> Tensor:
        """The largest sum of a row's absolute values over the heads: a norm of the matrices.

        It is the norm of P as a map from the largest absolute value of V to that of P V, of a
        sequence so long that all of a row's entries count.
        """
        raise NotImplementedError(type(self).__name__)

    def monitored(self) -> dict[str, Tensor]:
        """The gate g, and the `row_sum` of the matrices as they are applied."""
        row = self.row_sum()
        return {
            "gate": torch.sigmoid(at_least_float32(self.mu)),
            "rem": row.clamp(max=1.0) if self.normalize else row,
        }


class LagMixture(Mixture):
    """A matrix whose entries depend on the lag alone."""

    def kernels(self, length: int) -> tuple[Tensor, Tensor | None]:
        """The entries for earlier keys and, unless causal, for later ones: (H', L) over lags.

        Both begin with lag 0, whose entry is 0, and may be shorter than *length*: longer
        lags have the entry 0.
        """
        raise NotImplementedError(type(self).__name__)

    def matrix(self, queries: int, keys: int) -> Tensor:
        """P (H', T, S) of the mixing heads; the last query stands at the last key."""
        past, future = self.kernels(keys)
        return toeplitz_matrix(past, future, queries, keys, offset=keys - queries)

    def table(self, keys: int) -> Tensor:
        """The kernel of the earlier keys from its end, with room for the steps to come: (H', L)."""
        length = 64
        while length < keys:
            length *= 2
        past, _ = self.kernels(length)
        return F.pad(past, (0, length - past.size(1))).flip(1)

    def last_row(self, table: Tensor, keys: int) -> Tensor:
        """Lags keys - 1 ... 0, which end the table."""
        return table[:, None, -keys:]


def normalised(matrix: Tensor, padding: Tensor | None) -> Tensor:
    """Rows whose absolute values add up to more than one, divided by that sum.

    Args:
        matrix: (H', T, S)
        padding: (B, S) bool, keys that do not count, or None

    Returns:
        (H', T, S), or with padding (B, H', T, S)
    """
    size = matrix.abs()
    if padding is None:
        return matrix / size.sum(-1, keepdim=True).clamp(min=1.0)
    real = (~padding).to(size.dtype)
    return matrix / torch.einsum("hts,bs->bht", size, real).unsqueeze(-1).clamp(min=1.0)
