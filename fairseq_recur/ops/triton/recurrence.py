"""Steps of an attentive recurrent network: what is not a matrix product, by Triton kernels.

A step in torch's operations is about twenty launches, most of them elementwise, and keeps
tanh(query + key), (B, N, S, C), for the backward pass. Here the energies are one launch each way,
and so is the cell after its products. The backward pass computes tanh and gates again.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_recur.ops.native.segmented_recurrent import expect
from fairseq_recur.ops.triton.choosing import block


class AdditiveEnergies(torch.autograd.Function):
    """As `additive_energies`."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, keys: Tensor, score: Tensor) -> Tensor:
        """The energies, (B, N, S)."""
        from fairseq_recur.ops.triton.recurrence_kernels import energies

        (batch, chains, width), length = query.size(), keys.size(1)
        out, constants = query.new_empty(batch, chains, length), tiles(length, width)
        with torch.cuda.device_of(query):
            energies[batch * chains, -(-length // constants["KEYS"])](
                query, keys, score, out, chains, length, width, **constants
            )
        ctx.save_for_backward(query, keys, score)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of the arguments."""
        from fairseq_recur.ops.triton.recurrence_kernels import energies_back

        query, keys, score = ctx.saved_tensors
        (batch, chains, width), length = query.size(), keys.size(1)
        of_query, of_keys = torch.empty_like(query), torch.empty_like(keys)
        of_score, constants = query.new_empty(batch, width), tiles(length, width)
        with torch.cuda.device_of(query):
            energies_back[batch, -(-width // constants["WIDTH"])](
                grad.contiguous(), query, keys, score, of_query, of_keys, of_score, chains, length,
                width, **constants,
            )  # fmt: skip
        return of_query, of_keys, of_score.sum(0)


def tiles(length: int, width: int) -> dict[str, int]:
    """The constants of the kernels for this many keys of this width."""
    return {"KEYS": block(length, 32), "WIDTH": block(width, 64), "num_warps": 4}


def additive_energies(query: Tensor, keys: Tensor, score: Tensor) -> Tensor:
    """The energies score . tanh(query + key_j) of additive attention.

    Args:
        query: (B, N, A) that `choosing.usable` accepts, of any width
        keys: (B, S, A) in the dtype of *query*
        score: (A,), likewise

    Returns:
        (B, N, S)

    Raises:
        ValueError: a tensor has another shape or dtype than the kernels read
    """
    batch, _, width = query.size()
    shape = (batch, keys.size(1), width)
    expect(query.dtype, keys=(keys, shape), score=(score, (width,)))
    return AdditiveEnergies.apply(*(x.contiguous() for x in (query, keys, score)))


class GatedStates(torch.autograd.Function):
    """As `gated_states`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, u: Tensor, bias: Tensor, h: Tensor) -> Tensor:
        """The new states, (N, B, C)."""
        from fairseq_recur.ops.triton.recurrence_kernels import gru

        units, batch, width = h.size()
        out, size = torch.empty_like(h), block(width)
        with torch.cuda.device_of(h):
            gru[units * batch, -(-width // size)](
                x, u, bias, h, out, batch, width, WIDTH=size, num_warps=4
            )
        ctx.save_for_backward(x, u, bias, h)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        """The gradients of the arguments."""
        from fairseq_recur.ops.triton.recurrence_kernels import gru_back

        x, u, bias, h = ctx.saved_tensors
        units, batch, width = h.size()
        (of_x, of_u, of_h), size = (torch.empty_like(t) for t in (x, u, h)), block(width)
        with torch.cuda.device_of(h):
            gru_back[units * batch, -(-width // size)](
                x, u, bias, h, grad.contiguous(), of_x, of_u, of_h, batch, width, WIDTH=size,
                num_warps=4,
            )  # fmt: skip
        return of_x, of_u, of_x[..., 2 * width :].sum(1), of_h


def gated_states(x: Tensor, u: Tensor, bias: Tensor, h: Tensor) -> Tensor:
    """The new states of N independent GRUs, given the products with their weights.

    Args:
        x: W x, (N, B, 3C): of r, z and n
        u: U h, likewise
        bias: (N, C) of the candidate n
        h: (N, B, C) that `choosing.usable` accepts, of any width

    Returns:
        (N, B, C)

    Raises:
        ValueError: a tensor has another shape or dtype than the kernels read
    """
    units, batch, width = h.size()
    gates = (units, batch, 3 * width)
    expect(h.dtype, x=(x, gates), u=(u, gates), bias=(bias, (units, width)))
    return GatedStates.apply(*(t.contiguous() for t in (x, u, bias, h)))
