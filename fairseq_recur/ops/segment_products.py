"""Products of keys and values, segment by segment, and the softmax within segments.

Letters: R rows, one per head of a sentence; M segments, N steps, n queries per step.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

GROUPS = 2
"""Number of groups of rows, which are computed one after the other."""


@dataclass(frozen=True)
class Neuron:
    """The accumulate-and-fire neuron's learned scalars, which stay on the device."""

    leak: Tensor
    threshold: Tensor


@dataclass(frozen=True)
class SourceTensors:
    """The tensors that the neurons' inputs are computed from.

    x_i = P_i W^T with P_i = K^T V - K_i^T V_i is linear in V, so W can be folded into V first:
    K_i^T (V_i W^T). Folding costs s D^2 per segment, the product with P_i costs D^3, and small
    segments would then cost more than full attention. Hence W is folded into V where s < D.

    Attributes:
        keys, values: (R, M, s, D), zero at padding
        weight: W (D, D)
        rest: P_i sums over all segments but i (eq. 16); false: over segment i only
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
        """Groups of rows, so small that the matrices of a group stay in the processor's cache.

        Where W is folded in, the matrices of a group need no more memory than all keys.
        """
        rows, _, size, width = self.keys.size()
        at_once = max(1, -(-rows // GROUPS))
        if self.folds:
            at_once = max(1, min(at_once, rows * size // width))
        for first in range(0, rows, at_once):
            yield slice(first, min(first + at_once, rows))

    def of_rows(self, part: slice) -> "SourceTensors":
        """The source of a group of rows, with V W^T as values where W is folded in."""
        values = self.values[part]
        if self.folds:
            values = torch.matmul(values, self.weight.t())
        return replace(self, keys=self.keys[part], values=values)

    def inputs(self, partial: Tensor, out: Tensor) -> None:
        """Write P_i into *partial* (R, M, D, D) and x_i into *out*.

        Where W is folded in, *partial* receives x_i and *out* stays unused.
        """
        bmm(self.keys.transpose(2, 3), self.values, out=partial)
        if self.rest:
            torch.sub(partial.sum(1, keepdim=True), partial, out=partial)
        if not self.folds:
            torch.mm(partial.flatten(0, 2), self.weight.t(), out=out.flatten(0, 2))


def bmm(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """The product of (R, M, X, Y) and (R, M, Y, Z) in one call, into *out* if given."""
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
    """The softmax of the attention within segments.

    Attributes:
        mask: additive (R, N, 1, s), for the compiled form (B, N, 1, s); None if there is no padding
        kept: (R, N, n, s) bool, True at weights that dropout keeps; None without dropout
        dropout: probability of dropping a weight
    """

    mask: Tensor | None
    kept: Tensor | None
    dropout: float

    @staticmethod
    def parts(softmax: "SegmentSoftmax | None") -> tuple[Tensor | None, Tensor | None]:
        """Its tensors, which a graph saves so that activation checkpointing frees them."""
        return (None, None) if softmax is None else (softmax.mask, softmax.kept)

    @property
    def kept_scale(self) -> float:
        """Factor of the weights that dropout keeps; 0 where it keeps none."""
        return 0.0 if self.dropout == 1 else 1 / (1 - self.dropout)

    def of_rows(self, part: slice) -> "SegmentSoftmax":
        """The softmax of a group of rows."""
        mask, kept = (None if x is None else x[part] for x in (self.mask, self.kept))
        return SegmentSoftmax(mask, kept, self.dropout)

    def weights(self, queries: Tensor, keys: Tensor) -> Tensor:
        """softmax(Q K_i^T): (R, N, n, s) of (R, N, n, D) and (R, N, s, D)."""
        scores = torch.matmul(queries, keys.transpose(2, 3))
        if self.mask is not None:
            scores += self.mask
        return torch.softmax(scores, dim=-1)

    def drop(self, weights: Tensor) -> Tensor:
        """Apply dropout to the weights or to their gradient."""
        return weights if self.kept is None else weights * self.kept * self.kept_scale
