"""Steps of an attentive recurrent network: what is not a matrix product, by Triton kernels.

A step in torch's operations is about twenty launches, most of them elementwise, and keeps
tanh(query + key), (B, N, S, C), for the backward pass. Here the energies are one launch each way,
and so is the cell after its products. The backward pass computes tanh and gates again.
"""

from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_recur.ops.arguments import check_tensors
from fairseq_recur.ops.precision import at_least_float32
from fairseq_recur.ops.triton.dispatch import block, usable


def computes(*tensors: Tensor) -> bool:
    """Whether the kernels can compute with these, which may have any width and mixed dtypes.

    In double precision, which only the interpreter has, must be all of them or none.
    """
    doubles = [x.dtype == torch.float64 for x in tensors]
    return len({*doubles}) == 1 and usable(tensors[0], widest=None, half=True)


class AdditiveEnergies(torch.autograd.Function):
    """As `additive_energies`."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, keys: Tensor, score: Tensor) -> Tensor:
        """The energies, (B, N, S)."""
        from fairseq_recur.ops.triton.recurrence_kernels import energies

        (batch, chains, width), length = query.size(), keys.size(1)
        constants = energy_constants(query, length)
        kind = torch.promote_types(query.dtype, torch.float32)
        out = query.new_empty(batch, chains, length, dtype=kind)
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
        of_score, constants = grad.new_empty(batch, width), energy_constants(query, length)
        with torch.cuda.device_of(query):
            energies_back[batch, -(-width // constants["WIDTH"])](
                grad.contiguous(), query, keys, score, of_query, of_keys, of_score, chains, length,
                width, **constants,
            )  # fmt: skip
        return of_query, of_keys, of_score.sum(0).to(score.dtype)


def energy_constants(query: Tensor, length: int) -> dict[str, int]:
    """The constants of the kernels for these queries and this many keys."""
    return {
        "DOUBLE": query.dtype == torch.float64, "KEYS": block(length, 32),
        "WIDTH": block(query.size(2), 64), "num_warps": 4,
    }  # fmt: skip


def additive_energies(query: Tensor, keys: Tensor, score: Tensor) -> Tensor:
    """The energies score . tanh(query + key_j) of additive attention.

    Args:
        query: (B, N, A), with the others accepted by `computes`
        keys: (B, S, A)
        score: (A,)

    Returns:
        (B, N, S) in float32 at least

    Raises:
        ValueError: a tensor has another shape than the kernels read
    """
    batch, _, width = query.size()
    check_tensors(keys.dtype, keys=(keys, (batch, keys.size(1), width)))
    check_tensors(score.dtype, score=(score, (width,)))
    return AdditiveEnergies.apply(*(x.contiguous() for x in (query, keys, score)))


class GatedStates(torch.autograd.Function):
    """As `gated_states`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, u: Tensor, bias: Tensor, h: Tensor) -> Tensor:
        """The new states, (N, B, C)."""
        from fairseq_recur.ops.triton.recurrence_kernels import gru

        units, batch, width = h.size()
        kind = reduce(torch.promote_types, (t.dtype for t in (x, u, bias, h)))
        out, size = torch.empty_like(h, dtype=kind), block(width)
        with torch.cuda.device_of(h):
            gru[units * batch, -(-width // size)](
                x, u, bias, h, out, batch, width, DOUBLE=kind == torch.float64, WIDTH=size,
                num_warps=4,
            )  # fmt: skip
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
                x, u, bias, h, grad.contiguous(), of_x, of_u, of_h, batch, width,
                DOUBLE=h.dtype == torch.float64, WIDTH=size, num_warps=4,
            )  # fmt: skip
        of_bias = at_least_float32(of_x[..., 2 * width :]).sum(1).to(bias.dtype)
        return of_x, of_u, of_bias, of_h


def gated_states(x: Tensor, u: Tensor, bias: Tensor, h: Tensor) -> Tensor:
    """The new states of N independent GRUs, given the products with their weights.

    Args:
        x: W x, (N, B, 3C): of r, z and n
        u: U h, likewise
        bias: (N, C) of the candidate n
        h: (N, B, C), with the others accepted by `computes`

    Returns:
        (N, B, C), in the dtype that torch gives their sum

    Raises:
        ValueError: a tensor has another shape than the kernels read
    """
    units, batch, width = h.size()
    gates = (units, batch, 3 * width)
    check_tensors(x.dtype, x=(x, gates))
    check_tensors(u.dtype, u=(u, gates))
    check_tensors(bias.dtype, bias=(bias, (units, width)))
    return GatedStates.apply(*(t.contiguous() for t in (x, u, bias, h)))
