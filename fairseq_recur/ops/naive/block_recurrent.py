"""The layer of a Block-Recurrent Transformer (Hutchins et al. 2022) as loops.

Its structure is that of the public code that Huang et al. 2023 modified: four attentions with
weights of their own, each of which norms what attends but not another sequence that it reads,
and two gates.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_recur.ops.naive.attention import dot_product_attention


def rotary(vectors: list[Tensor], width: int) -> Tensor:
    """Each pair of channels as a complex number, multiplied by e^{i t w_k}: (T, D)."""
    half, outputs = width // 2, []
    for t, vector in enumerate(vectors):
        points = []
        for k in range(half):
            angle = t * 10000 ** (-2 * k / width)
            turn = torch.tensor(complex(math.cos(angle), math.sin(angle)), dtype=torch.complex128)
            points.append(torch.complex(vector[k], vector[half + k]) * turn)
        parts = [p.real for p in points] + [p.imag for p in points]
        outputs.append(torch.stack([*parts, *vector[width:]]))
    return torch.stack(outputs)


def state_gate(update: Tensor, write: Tensor, keep: Tensor, state: Tensor) -> Tensor:
    """The next state of one state vector, with each function written out: (C,)."""
    values = []
    for u, w, k, s in zip(update, write, keep, state):
        grown, shrunk = torch.exp(u), torch.exp(-u)
        let_in, kept = 1 / (1 + torch.exp(1 - w)), 1 / (1 + torch.exp(-1 - k))
        values.append((grown - shrunk) / (grown + shrunk) * let_in + s * kept)
    return torch.stack(values)


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """A vector divided by its root mean square, times *weight* (Zhang and Sennrich 2019)."""
    return x / torch.sqrt((x * x).sum() / x.numel() + eps) * weight


class Network(NamedTuple):
    """W_2 GELU(W_1 x + b_1) + b_2.

    Attributes:
        w_1, b_1: (F, C) and (F,)
        w_2, b_2: (C, F) and (C,)
    """

    w_1: Tensor
    b_1: Tensor
    w_2: Tensor
    b_2: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """One vector (C,) to (C,)."""
        inner = self.w_1.mv(x) + self.b_1
        # GELU: x times the probability that a standard normal number is smaller.
        inner = inner * (1 + torch.erf(inner / math.sqrt(2))) / 2
        return self.w_2.mv(inner) + self.b_2


class BlockAttention(NamedTuple):
    """Multi-head attention that norms what attends, but not another sequence that it reads.

    Attributes:
        norm: (C,) weight of the `rms_norm`
        query, key, value: (H D, C)
        out, bias: (C, H D) and (C,)
        heads: H
        turned: channels of a head that `rotary` turns; 0 for none
        masked: whether later keys are hidden
    """

    norm: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    out: Tensor
    bias: Tensor
    heads: int
    turned: int = 0
    masked: bool = False

    def __call__(self, x: list[Tensor], source: list[Tensor] | None = None) -> list[Tensor]:
        """What each vector of *x* reads in *source*, or in *x* itself."""
        asking = [rms_norm(vector, self.norm) for vector in x]
        read = asking if source is None else source
        heads = []
        for h in range(self.heads):
            # Rows of the matrices: those of one head.
            q, k, v = (w.chunk(self.heads)[h] for w in (self.query, self.key, self.value))
            queries, keys = [q.mv(vector) for vector in asking], [k.mv(vector) for vector in read]
            values = [v.mv(vector) for vector in read]
            if self.turned:
                queries, keys = list(rotary(queries, self.turned)), list(rotary(keys, self.turned))
            seen = [t + 1 if self.masked else len(read) for t in range(len(x))]
            heads.append(
                [dot_product_attention(a, keys[:n], values[:n]) for a, n in zip(queries, seen)]
            )
        return [self.out.mv(torch.cat(of_heads)) + self.bias for of_heads in zip(*heads)]


class Gate(NamedTuple):
    """The gate of a state with its linear maps: matrices (C, C), each with its bias (C,)."""

    update: tuple[Tensor, Tensor]
    write: tuple[Tensor, Tensor]
    keep: tuple[Tensor, Tensor]

    def __call__(self, x: Tensor, state: Tensor) -> Tensor:
        """The state vector that follows *state* after an update *x*, (C,) all."""
        u, w, k = (matrix.mv(x) + bias for matrix, bias in (self.update, self.write, self.keep))
        return state_gate(u, w, k, state)


class BlockRecurrence(NamedTuple):
    """The weights of a block-recurrent layer.

    Attributes:
        identity: (N, C), what tells the vectors of the state from each other
        input_self, state_self, input_to_state, state_to_input: the attentions
        input_proj, state_proj: (C, 2C), of what two attentions have read
        gates: of the attentions' update of the state, and of the network's
        input_network, state_network: position-wise
    """

    identity: Tensor
    input_self: BlockAttention
    state_self: BlockAttention
    input_to_state: BlockAttention
    state_to_input: BlockAttention
    input_proj: Tensor
    state_proj: Tensor
    gates: tuple[Gate, Gate]
    input_network: Network
    state_network: Network


def read_block(
    x: list[Tensor], state: list[Tensor], layer: BlockRecurrence
) -> tuple[list[Tensor], list[Tensor]]:
    """One block (Hutchins et al. 2022, section 3.1 and figure 2): its output, and the next state.

    Horizontally the block reads itself and the state, with residual connections. Vertically the
    state reads itself and the block, with gates in place of residual connections (eqs. 1 and 2).
    """
    known = [vector + identity for vector, identity in zip(state, layer.identity)]
    outputs, states = [], []
    for token, of_state, own in zip(x, layer.input_to_state(x, known), layer.input_self(x)):
        token = token + layer.input_proj.mv(torch.cat([of_state, own]))
        outputs.append(token + layer.input_network(token))
    for vector, of_block, own in zip(
        state, layer.state_to_input(known, x), layer.state_self(known)
    ):
        vector = layer.gates[0](layer.state_proj.mv(torch.cat([of_block, own])), vector)
        states.append(layer.gates[1](layer.state_network(vector), vector))
    return outputs, states


def block_recurrent_layer(
    tokens: list[Tensor], state: list[Tensor], size: int, layer: BlockRecurrence
) -> tuple[list[Tensor], list[Tensor]]:
    """A segment in blocks of *size* positions, the last of which may be shorter.

    Args:
        tokens: T of (C,)
        state: N of (C,) after the segment before; zeros at the beginning of a text
        size: of a block
        layer: its weights

    Returns:
        T of (C,), and the state after the last block
    """
    outputs: list[Tensor] = []
    for first in range(0, len(tokens), size):
        read, state = read_block(tokens[first : first + size], state, layer)
        outputs += read
    return outputs, state
