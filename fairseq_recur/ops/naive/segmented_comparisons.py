"""The systems that Long et al. 2023 compare SRformer with (section 4.2), as loops for one head.

A source is the list of its real tokens, in segments of *size* tokens. Query t reads segment
i = min(t m // q, m - 1) of m, as in Algorithm 1, and further keys and values beside it.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fairseq_recur.ops.naive.attention import dot_product_attention
from fairseq_recur.ops.naive.block_recurrent import rms_norm

Chain = Callable[[list[Tensor]], list[Tensor]]
"""The states of an RNN over a list of vectors."""


def plain_rnn(
    tokens: list[Tensor], w_x: Tensor, w_h: Tensor, b_x: Tensor, b_h: Tensor
) -> list[Tensor]:
    """h_t = tanh(W_x x_t + b_x + W_h h_{t-1} + b_h) from h = 0 (Elman 1990): T of (D,)."""
    states, h = [], torch.zeros_like(b_h)
    for token in tokens:
        h = torch.tanh(w_x.mv(token) + b_x + w_h.mv(h) + b_h)
        states.append(h)
    return states


def cut_into_segments(tokens: list[Tensor], size: int) -> list[list[Tensor]]:
    """The segments of a list, the last of which may be shorter."""
    return [tokens[first : first + size] for first in range(0, len(tokens), size)]


def segment_read(t: int, segments: int, target_length: int) -> int:
    """The segment that query t reads (Long et al. 2023, algorithm 1)."""
    return min(t * segments // target_length, segments - 1)


def xl_cross_head(
    queries: list[Tensor],
    keys: list[Tensor],
    values: list[Tensor],
    size: int,
    target_length: int,
    chains: tuple[Chain, Chain] | None = None,
) -> Tensor:
    """Transformer-XL as a cross-attention: what was read before is the memory: (T, D).

    A query sees its segment and the one that was read before it; at the first one there is no
    memory. With *chains*, an RNN over the keys and one over the values, the memory is their states
    at that segment; they run over the segments in the order in which these are read.
    """
    cut_keys, cut_values = cut_into_segments(keys, size), cut_into_segments(values, size)
    read: list[int] = []
    outputs = []
    for t, query in enumerate(queries):
        i = segment_read(t, len(cut_keys), target_length)
        if i not in read:
            read.append(i)
        memory_keys: list[Tensor] = []
        memory_values: list[Tensor] = []
        if len(read) > 1:
            memory_keys, memory_values = cut_keys[read[-2]], cut_values[read[-2]]
        if len(read) > 1 and chains is not None:
            before = [sum((cut[j] for j in read[:-1]), []) for cut in (cut_keys, cut_values)]
            states = [chain(tokens) for chain, tokens in zip(chains, before)]
            memory_keys, memory_values = (s[-len(cut_keys[read[-2]]) :] for s in states)
        outputs.append(
            dot_product_attention(
                query, [*memory_keys, *cut_keys[i]], [*memory_values, *cut_values[i]]
            )
        )
    return torch.stack(outputs)


def published_xl_head(
    queries: list[Tensor],
    keys: list[Tensor],
    values: list[Tensor],
    key_states: list[Tensor],
    value_states: list[Tensor],
    size: int,
    target_length: int,
) -> Tensor:
    """The same in SRformer's published code: (T, D).

    The RNNs run over the whole source, and over all heads together; *key_states* and
    *value_states* are this head's part of their states, S of (D,) each. The memory is the states
    at the segment before in the source, and at the first segment its own.
    """
    cut_keys, cut_values = cut_into_segments(keys, size), cut_into_segments(values, size)
    cut_key_states, cut_value_states = (
        cut_into_segments(key_states, size),
        cut_into_segments(value_states, size),
    )
    outputs = []
    for t, query in enumerate(queries):
        i = segment_read(t, len(cut_keys), target_length)
        before = i - 1 if i > 0 else 0
        outputs.append(
            dot_product_attention(
                query,
                [*cut_key_states[before], *cut_keys[i]],
                [*cut_value_states[before], *cut_values[i]],
            )
        )
    return torch.stack(outputs)


def segment_means(tokens: list[Tensor], size: int) -> list[Tensor]:
    """The mean of the tokens of each segment: M of (D,)."""
    return [
        torch.stack(segment).sum(0) / len(segment) for segment in cut_into_segments(tokens, size)
    ]


def transient_tokens(states: list[Tensor], size: int, weight: Tensor) -> list[Tensor]:
    """LongT5's global tokens (Guo et al. 2022, section 3.1): normed sums of a segment's states.

    *weight* (C,) is the norm's. The result, M of (C,), goes through the projections of the keys
    and of the values.
    """
    return [
        rms_norm(torch.stack(segment).sum(0), weight) for segment in cut_into_segments(states, size)
    ]


def global_head(
    queries: list[Tensor],
    keys: list[Tensor],
    values: list[Tensor],
    token_keys: list[Tensor],
    token_values: list[Tensor],
    size: int,
    target_length: int,
) -> Tensor:
    """A query sees its segment, and a token of each segment of the source: (T, D).

    Args:
        queries, keys, values: of the head
        token_keys, token_values: M of (D,) each, such as the `segment_means` of both
        size: of a segment
        target_length: q
    """
    cut_keys, cut_values = cut_into_segments(keys, size), cut_into_segments(values, size)
    outputs = []
    for t, query in enumerate(queries):
        i = segment_read(t, len(cut_keys), target_length)
        outputs.append(
            dot_product_attention(
                query, [*token_keys, *cut_keys[i]], [*token_values, *cut_values[i]]
            )
        )
    return torch.stack(outputs)
