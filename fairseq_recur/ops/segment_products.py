"""Matrices of keys and values, segment by segment, and the softmax within segments.

Letters: R rows, one for each head of a sentence; M segments, N steps, n queries a step.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

GROUPS = 2
"""Into how many groups the rows are divided that are computed one after the other."""


@dataclass(frozen=True)
class Neuron:
    """The accumulate-and-fire neuron's learned scalars, as numbers."""

    leak: float
    threshold: float


@dataclass(frozen=True)
class Source:
    """What the neurons' inputs are made of.

    x_i = P_i W^T with P_i = K^T V - K_i^T V_i. It is linear in V, so that W can be folded into
    V first: K_i^T (V_i W^T). That costs s D^2 for a segment, and the product with P_i costs
    D^3: small segments would make this dearer than full attention. So W is folded in where
    s < D.

    Attributes:
        keys, values: (R, M, s, D), zero at padding
        weight: W (D, D)
        rest: P_i is of all segments but i (eq. 16); False: of segment i alone
    """

    keys: Tensor
    values: Tensor
    weight: Tensor
    rest: bool

    @property
    def folds(self) -> bool:
        """Whether W is folded into V."""
        return self.keys.size(2) < self.weight.size(0)

    def groups(self) -> Iterator[slice]:
        """Groups of rows, one after the other: the matrices of few segments stay in the cache.

        Where W is folded in, the matrices of a group also take no more space than all keys do.
        """
        rows, _, size, width = self.keys.size()
        at_once = -(-rows // GROUPS)
        if self.folds:
            at_once = max(1, min(at_once, rows * size // width))
        for first in range(0, rows, at_once):
            yield slice(first, min(first + at_once, rows))

    def of_rows(self, part: slice) -> "Source":
        """The source of a group, its values times W^T where W is folded in."""
        values = self.values[part]
        if self.folds:
            values = torch.matmul(values, self.weight.t())
        return replace(self, keys=self.keys[part], values=values)

    def inputs(self, partial: Tensor, out: Tensor) -> None:
        """P_i, into *partial* (R, M, D, D), and x_i into *out*: the same where W is folded in."""
        bmm(self.keys.transpose(2, 3), self.values, out=partial)
        if self.rest:
            torch.sub(partial.sum(1, keepdim=True), partial, out=partial)
        if not self.folds:
            torch.mm(partial.flatten(0, 2), self.weight.t(), out=out.flatten(0, 2))


def bmm(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """The product of (R, M, X, Y) and (R, M, Y, Z), for all R M at once, into *out*."""
    left, right = left.flatten(0, 1), right.flatten(0, 1)
    if out is None:
        return torch.bmm(left, right)
    torch.bmm(left, right, out=out.flatten(0, 1))
    return out


def add_bmm(into: Tensor, left: Tensor, right: Tensor) -> None:
    """Add the product of (R, M, X, Y) and (R, M, Y, Z) in place."""
    if into.is_contiguous():
        into.flatten(0, 1).baddbmm_(left.flatten(0, 1), right.flatten(0, 1))
    else:
        into += torch.matmul(left, right)


@dataclass(frozen=True)
class SegmentSoftmax:
    """The attention within segments.

    Attributes:
        mask: (R, N, 1, s), added to the scores; None if there is no padding
        kept: (R, N, n, s) bool, the weights that dropout leaves; None without dropout
        dropout: its probability
    """

    mask: Tensor | None
    kept: Tensor | None
    dropout: float

    def of_rows(self, part: slice) -> "SegmentSoftmax":
        """That of a group of rows."""
        mask, kept = (None if x is None else x[part] for x in (self.mask, self.kept))
        return SegmentSoftmax(mask, kept, self.dropout)

    def weights(self, queries: Tensor, keys: Tensor) -> Tensor:
        """softmax(Q K_i^T): (R, N, n, s) of (R, N, n, D) and (R, N, s, D)."""
        scores = torch.matmul(queries, keys.transpose(2, 3))
        if self.mask is not None:
            scores += self.mask
        return torch.softmax(scores, dim=-1)

    def drop(self, weights: Tensor) -> Tensor:
        """The weights, or their gradient, after dropout."""
        return weights if self.kept is None else weights * self.kept / (1 - self.dropout)
