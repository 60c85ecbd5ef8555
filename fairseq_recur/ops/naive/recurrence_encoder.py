"""The recurrence encoder of Hao et al. 2019 as loops over one sentence."""

from collections.abc import Callable

import torch
from torch import Tensor

from fairseq_recur.ops.naive.attention import softmax_sum

Norm = Callable[[Tensor], Tensor]


def mean_of_real_tokens(tokens: list[Tensor]) -> Tensor:
    """The initial state of Hao et al. 2019, section 3.1: the mean of a sentence's tokens."""
    total = torch.zeros_like(tokens[0])
    for token in tokens:
        total = total + token
    return total / len(tokens)


def additive_attention(
    query: Tensor, keys: list[Tensor], score: Tensor, values: list[Tensor]
) -> Tensor:
    """Additive attention of one projected query over a sentence (Bahdanau et al. 2015)."""
    energies = [score.dot(torch.tanh(query + key)) for key in keys]
    return softmax_sum(energies, values)


class CoverageAttention:
    """Additive attention whose score reads what earlier steps have read (See et al. 2017).

    Args:
        keys: projected source
        score: as in `additive_attention`
        values: the source itself
        w_seen: vector by which the sum of the earlier steps' weights enters the score
    """

    def __init__(
        self, keys: list[Tensor], score: Tensor, values: list[Tensor], w_seen: Tensor
    ) -> None:
        self.keys, self.score, self.values, self.w_seen = keys, score, values, w_seen
        self.seen = torch.zeros(len(keys), dtype=score.dtype)

    def __call__(self, query: Tensor) -> Tensor:
        """One step: the context of a projected query (A,)."""
        energies = [
            self.score.dot(torch.tanh(query + key + seen * self.w_seen))
            for key, seen in zip(self.keys, self.seen)
        ]
        units = list(torch.eye(len(self.keys), dtype=query.dtype))
        self.seen = self.seen + softmax_sum(energies, units)
        return softmax_sum(energies, self.values)


def gru(x: Tensor, h: Tensor, w_x: Tensor, w_h: Tensor, bias: Tensor) -> Tensor:
    """One GRU step on vectors x (I,) and h (C,); only the candidate has a bias (C,)."""
    width = h.numel()
    w_xr, w_xz, w_xn = w_x[:width], w_x[width : 2 * width], w_x[2 * width :]
    w_hr, w_hz, w_hn = w_h[:width], w_h[width : 2 * width], w_h[2 * width :]
    reset = torch.sigmoid(w_xr.mv(x) + w_hr.mv(h))
    update = torch.sigmoid(w_xz.mv(x) + w_hz.mv(h))
    candidate = torch.tanh(w_xn.mv(x) + bias + reset * w_hn.mv(h))
    return (1 - update) * candidate + update * h


def lstm(
    x: Tensor, h: Tensor, m: Tensor, w_x: Tensor, w_h: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """One LSTM step on vectors x (I,), h (C,) and memory cells m (C,); weights of i, f, g, o."""
    gates = []
    for n in range(4):
        rows = slice(n * h.numel(), (n + 1) * h.numel())
        gates.append(w_x[rows].mv(x) + w_h[rows].mv(h) + bias[rows])
    take, keep, candidate, show = gates
    m = torch.sigmoid(keep) * m + torch.sigmoid(take) * torch.tanh(candidate)
    return torch.sigmoid(show) * torch.tanh(m), m


def arn_chain(
    attend: Callable[[Tensor], Tensor],
    h0: Tensor,
    w_x: Tensor,
    w_h: Tensor,
    bias: Tensor,
    steps: int,
) -> list[Tensor]:
    """One attentive recurrent network (Hao et al., eqs. 12-13): [h_1, ..., h_R].

    The cell is an LSTM if there is a bias for each of its gates, else a GRU.
    """
    states, h, m = [], h0, torch.zeros_like(h0)
    for _ in range(steps):
        if len(bias) == 4 * len(h):
            h, m = lstm(attend(h), h, m, w_x, w_h, bias)
        else:
            h = gru(attend(h), h, w_x, w_h, bias)
        states.append(h)
    return states


def biarn(
    attend: tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]],
    h0: tuple[Tensor, Tensor],
    w_x: Tensor,
    w_h: Tensor,
    bias: Tensor,
    steps: int,
) -> Tensor:
    """Two chains with separate cells; the second one in reverse order: (R, 2C).

    Each has an attention of its own, which may remember what it has read.
    """
    first = arn_chain(attend[0], h0[0], w_x[0], w_h[0], bias[0], steps)
    second = arn_chain(attend[1], h0[1], w_x[1], w_h[1], bias[1], steps)
    return torch.stack([torch.cat([first[t], second[steps - 1 - t]]) for t in range(steps)])


def torch_gru(x: Tensor, h: Tensor, w_x: Tensor, w_h: Tensor, b_x: Tensor, b_h: Tensor) -> Tensor:
    """One step of `torch.nn.GRU`, which has two biases, on vectors."""
    xr, xz, xn = (w_x.mv(x) + b_x).chunk(3)
    hr, hz, hn = (w_h.mv(h) + b_h).chunk(3)
    reset, update = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
    candidate = torch.tanh(xn + reset * hn)
    return (1 - update) * candidate + update * h


RNNWeights = tuple[Tensor, Tensor, Tensor, Tensor]


def rnn_chain(tokens: list[Tensor], h0: Tensor, weights: RNNWeights) -> list[Tensor]:
    """One direction (Hao et al., eq. 10): [h_1, ..., h_J], an LSTM if it has four gates."""
    w_x, w_h, b_x, b_h = weights
    states, h, m = [], h0, torch.zeros_like(h0)
    for token in tokens:
        if len(b_x) == 4 * len(h):
            h, m = lstm(token, h, m, w_x, w_h, b_x + b_h)
        else:
            h = torch_gru(token, h, *weights)
        states.append(h)
    return states


def birnn(
    tokens: list[Tensor],
    h0: tuple[Tensor, Tensor],
    forward_weights: RNNWeights,
    backward_weights: RNNWeights,
) -> Tensor:
    """Bidirectional RNN over the real tokens (Hao et al., eqs. 9-11): (length, 2C)."""
    forward = rnn_chain(tokens, h0[0], forward_weights)
    backward = rnn_chain(tokens[::-1], h0[1], backward_weights)[::-1]
    return torch.stack([torch.cat(pair) for pair in zip(forward, backward)])


def gated_sum(d: Tensor, r: Tensor, w_d: Tensor, w_r: Tensor, bias: Tensor) -> Tensor:
    """The sum lam D + (1 - lam) R for one position (Hao et al., eqs. 15 and 17)."""
    lam = torch.sigmoid(w_d.mv(d) + w_r.mv(r) + bias)
    return lam * d + (1 - lam) * r


def multi_column(e: Tensor, r: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The projected concatenation of both encoders' outputs at one position (Chen et al. 2018)."""
    total = bias
    for column, value in zip(weight.t(), [*e, *r]):
        total = total + column * value
    return total


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Layer normalisation of one vector (Ba et al. 2016)."""
    mean = x.sum() / x.numel()
    variance = ((x - mean) ** 2).sum() / x.numel()
    return (x - mean) / torch.sqrt(variance + eps) * weight + bias


def sublayer(x: Tensor, output: Callable[[Tensor], Tensor], norm: Norm, before: bool) -> Tensor:
    """LN(output(x) + x), or with pre-norm (*before*) output(LN(x)) + x."""
    return output(norm(x)) + x if before else norm(output(x) + x)


def recurrence_layer(
    tokens: list[Tensor],
    recurrence: Callable[[list[Tensor]], list[Tensor]],
    feed_forward: Callable[[Tensor], Tensor],
    norms: tuple[Norm, Norm],
    first: bool,
    before: bool,
) -> list[Tensor]:
    """One layer of the recurrence encoder, where *recurrence* is REC (Hao et al., eqs. 7-8).

    The first layer has no residual connection around REC.
    """
    norm_c, norm_h = norms
    states = recurrence([norm_c(t) for t in tokens] if before else tokens)
    if not first:
        states = [state + token for state, token in zip(states, tokens)]
    if not before:
        states = [norm_c(state) for state in states]
    return [sublayer(c, feed_forward, norm_h, before) for c in states]


def stack(
    c: Tensor, d: Tensor, attend: Callable[[Tensor], Tensor], norm: Norm, before: bool
) -> Tensor:
    """The feed-forward network's input under stack fusion (Hao et al., eq. 18)."""
    return sublayer(d, attend, norm, before)


def gate(
    c: Tensor,
    d: Tensor,
    attend: Callable[[Tensor], Tensor],
    norm: Norm,
    before: bool,
    weights: tuple[Tensor, Tensor, Tensor],
) -> Tensor:
    """The feed-forward network's input under gated-sum fusion (Hao et al., eqs. 14, 15, 17)."""
    return gated_sum(d, sublayer(c, attend, norm, before), *weights)
