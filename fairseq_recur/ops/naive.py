"""The papers written as loops: what the fast functions must equal. Imported by tests only.

No batching, no masks, no tricks: a sentence is the list of its real tokens, a state is a
vector. Every function works in the dtype it is given and is differentiable.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def mean_of_real_tokens(tokens: list[Tensor]) -> Tensor:
    """The initial state of Hao et al. 2019, section 3.1: the mean of a sentence's tokens."""
    total = torch.zeros_like(tokens[0])
    for token in tokens:
        total = total + token
    return total / len(tokens)


def gru(x: Tensor, h: Tensor, w_x: Tensor, w_h: Tensor, bias: Tensor) -> Tensor:
    """One GRU step on vectors x (I,) and h (C,); bias (C,) on the candidate alone."""
    width = h.numel()
    w_xr, w_xz, w_xn = w_x[:width], w_x[width : 2 * width], w_x[2 * width :]
    w_hr, w_hz, w_hn = w_h[:width], w_h[width : 2 * width], w_h[2 * width :]
    reset = torch.sigmoid(w_xr.mv(x) + w_hr.mv(h))
    update = torch.sigmoid(w_xz.mv(x) + w_hz.mv(h))
    candidate = torch.tanh(w_xn.mv(x) + bias + reset * w_hn.mv(h))
    return (1 - update) * candidate + update * h


def softmax_sum(energies: list[Tensor], values: list[Tensor]) -> Tensor:
    """sum_j softmax(e)_j v_j, each exponential written out."""
    highest = max(float(e) for e in energies)
    exponentials = [torch.exp(e - highest) for e in energies]
    normaliser = sum(exponentials[1:], exponentials[0])
    total = torch.zeros_like(values[0])
    for e, value in zip(exponentials, values):
        total = total + e / normaliser * value
    return total


def additive_attention(
    query: Tensor, keys: list[Tensor], score: Tensor, values: list[Tensor]
) -> Tensor:
    """Additive attention of one projected query over a sentence (Bahdanau et al. 2015)."""
    energies = [score.dot(torch.tanh(query + key)) for key in keys]
    return softmax_sum(energies, values)


def dot_product_attention(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Scaled dot-product attention of one query of one head over a sentence."""
    energies = [query.dot(key) / query.numel() ** 0.5 for key in keys]
    return softmax_sum(energies, values)


def relative_bucket(lag: int, buckets: int, max_distance: int, bidirectional: bool) -> int:
    """T5's bucket of a key *lag* positions after the query (Raffel et al. 2020, section 2.1).

    Bucket e + k holds the distances n with e (max / e)^(k / L) <= n, for k < L = buckets - e.
    """
    first = 0
    if bidirectional:
        buckets //= 2
        first = buckets if lag > 0 else 0
    elif lag > 0:
        lag = 0
    distance, exact = abs(lag), buckets // 2
    if distance < exact:
        return first + distance
    k, steps = 0, buckets - exact
    while k + 1 < steps and distance**steps * exact ** (k + 1) >= exact**steps * max_distance ** (
        k + 1
    ):
        k += 1
    return first + exact + k


def arn_chain(
    attend: Callable[[Tensor], Tensor],
    h0: Tensor,
    w_x: Tensor,
    w_h: Tensor,
    bias: Tensor,
    steps: int,
) -> list[Tensor]:
    """One attentive recurrent network (Hao et al., eqs. 12-13): [h_1, ..., h_R]."""
    states, h = [], h0
    for _ in range(steps):
        h = gru(attend(h), h, w_x, w_h, bias)
        states.append(h)
    return states


def biarn(
    attend: Callable[[Tensor], Tensor],
    h0: tuple[Tensor, Tensor],
    w_x: Tensor,
    w_h: Tensor,
    bias: Tensor,
    steps: int,
) -> Tensor:
    """Two chains with their own GRUs; the second is read from its end: (R, 2C)."""
    first = arn_chain(attend, h0[0], w_x[0], w_h[0], bias[0], steps)
    second = arn_chain(attend, h0[1], w_x[1], w_h[1], bias[1], steps)
    return torch.stack([torch.cat([first[t], second[steps - 1 - t]]) for t in range(steps)])


def torch_gru(x: Tensor, h: Tensor, w_x: Tensor, w_h: Tensor, b_x: Tensor, b_h: Tensor) -> Tensor:
    """One step of `torch.nn.GRU` on vectors, both of its biases written out."""
    xr, xz, xn = (w_x.mv(x) + b_x).chunk(3)
    hr, hz, hn = (w_h.mv(h) + b_h).chunk(3)
    reset, update = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
    candidate = torch.tanh(xn + reset * hn)
    return (1 - update) * candidate + update * h


def birnn(
    tokens: list[Tensor],
    h0: tuple[Tensor, Tensor],
    forward_weights: tuple[Tensor, Tensor, Tensor, Tensor],
    backward_weights: tuple[Tensor, Tensor, Tensor, Tensor],
) -> Tensor:
    """Bidirectional RNN over the real tokens (Hao et al., eqs. 9-11): (length, 2C)."""
    forward, h = [], h0[0]
    for token in tokens:
        h = torch_gru(token, h, *forward_weights)
        forward.append(h)
    backward, h = [], h0[1]
    for token in reversed(tokens):
        h = torch_gru(token, h, *backward_weights)
        backward.append(h)
    backward.reverse()
    return torch.stack([torch.cat(pair) for pair in zip(forward, backward)])


def gated_sum(d: Tensor, r: Tensor, w_d: Tensor, w_r: Tensor, bias: Tensor) -> Tensor:
    """Lam D + (1 - lam) R for one position (Hao et al., eqs. 15 and 17)."""
    lam = torch.sigmoid(w_d.mv(d) + w_r.mv(r) + bias)
    return lam * d + (1 - lam) * r


def multi_column(e: Tensor, r: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The two encoders' outputs at one position as one vector (Chen et al. 2018)."""
    total = bias
    for column, value in zip(weight.t(), [*e, *r]):
        total = total + column * value
    return total


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Layer normalisation of one vector (Ba et al. 2016)."""
    mean = x.sum() / x.numel()
    variance = ((x - mean) ** 2).sum() / x.numel()
    return (x - mean) / torch.sqrt(variance + eps) * weight + bias


def sublayer(x: Tensor, output: Callable[[Tensor], Tensor], norm: Callable, before: bool) -> Tensor:
    """LN(output(x) + x), or output(LN(x)) + x in a model that normalises *before*."""
    return output(norm(x)) + x if before else norm(output(x) + x)


def recurrence_layer(
    tokens: list[Tensor],
    recurrence: Callable[[list[Tensor]], list[Tensor]],
    feed_forward: Callable[[Tensor], Tensor],
    norms: tuple[Callable, Callable],
    first: bool,
    before: bool,
) -> list[Tensor]:
    """One layer of the recurrence encoder (Hao et al., eqs. 7-8), REC being *recurrence*.

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
    c: Tensor, d: Tensor, attend: Callable[[Tensor], Tensor], norm: Callable, before: bool
) -> Tensor:
    """What the feed-forward network reads under stack fusion (Hao et al., eq. 18)."""
    return sublayer(d, attend, norm, before)


def gate(
    c: Tensor,
    d: Tensor,
    attend: Callable[[Tensor], Tensor],
    norm: Callable,
    before: bool,
    weights: tuple[Tensor, Tensor, Tensor],
) -> Tensor:
    """What it reads under gated-sum fusion (Hao et al., eqs. 14, 15 and 17)."""
    return gated_sum(d, sublayer(c, attend, norm, before), *weights)


def rem_entry(
    decay: Tensor, angle: Tensor, sine: bool, dilation: int, lag: int, max_power: int
) -> Tensor:
    """F at one lag (Huang et al. 2023, eq. 2; dilated as P kron I_d)."""
    n = lag // dilation
    if lag <= 0 or lag % dilation or (max_power and n > max_power):
        return torch.zeros_like(decay)
    turn = torch.sin(n * angle) if sine else torch.cos(n * angle)
    return decay**n * turn


def rem(
    decay: Tensor,
    angle: Tensor,
    sine: bool,
    dilation: int,
    query_times: list[int],
    key_times: list[int],
    masked: bool,
    max_power: int = 0,
) -> Tensor:
    """The recurrence encoding matrix of one head for any times of queries and keys: (T, S)."""
    rows = []
    for query in query_times:
        row = []
        for key in key_times:
            lag = query - key if masked else abs(query - key)
            row.append(rem_entry(decay, angle, sine, dilation, lag, max_power))
        rows.append(torch.stack(row))
    return torch.stack(rows)


def regular_recurrence(decay: Tensor, values: list[Tensor]) -> list[Tensor]:
    """h_t = lambda (h_{t-1} + v_{t-1}) (Huang et al. 2023, eq. 11 with its input scaled)."""
    states, h = [], torch.zeros_like(values[0])
    for t in range(len(values)):
        if t > 0:
            h = decay * (h + values[t - 1])
        states.append(h)
    return states


def cyclical_recurrence(
    decay: Tensor, angle: Tensor, values: list[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """z_t = gamma e^{i theta} (z_{t-1} + v_{t-1}): its real and its imaginary parts (eq. 12)."""
    real, imaginary = torch.zeros_like(values[0]), torch.zeros_like(values[0])
    cosines, sines = [], []
    for t in range(len(values)):
        if t > 0:
            a, b = real + values[t - 1], imaginary
            c, s = decay * torch.cos(angle), decay * torch.sin(angle)
            real, imaginary = c * a - s * b, s * a + c * b
        cosines.append(real)
        sines.append(imaginary)
    return cosines, sines


def rsa_head(
    queries: list[Tensor],
    keys: list[Tensor],
    values: list[Tensor],
    matrix: Tensor,
    gate: Tensor,
    masked: bool,
) -> Tensor:
    """(1 - g) softmax(Q K^T / sqrt(D)) V + g P V of one head (Huang et al. 2023, eq. 4): (T, D).

    The last query stands at the last key.
    """
    outputs = []
    for t, query in enumerate(queries):
        seen = len(keys) - len(queries) + t + 1 if masked else len(keys)
        attention = dot_product_attention(query, keys[:seen], values[:seen])
        recurrent = torch.zeros_like(values[0])
        for j, value in enumerate(values):
            recurrent = recurrent + matrix[t, j] * value
        outputs.append((1 - gate) * attention + gate * recurrent)
    return torch.stack(outputs)


def relative_head(
    queries: list[Tensor],
    keys: list[Tensor],
    values: list[Tensor],
    key_table: Tensor,
    value_table: Tensor,
    masked: bool,
) -> Tensor:
    """Attention with relative positions of one head (Shaw et al. 2018, eqs. 3 and 4): (T, D).

    Row clip + r of a table (2 clip + 1, D) belongs to a key r positions after the query.
    """
    clip = key_table.size(0) // 2
    outputs = []
    for t, query in enumerate(queries):
        time = len(keys) - len(queries) + t
        seen = range(time + 1) if masked else range(len(keys))
        rows = [clip + max(-clip, min(clip, j - time)) for j in seen]
        energies = [
            query.dot(keys[j] + key_table[row]) / query.numel() ** 0.5 for j, row in zip(seen, rows)
        ]
        outputs.append(
            softmax_sum(energies, [values[j] + value_table[row] for j, row in zip(seen, rows)])
        )
    return torch.stack(outputs)


def directional_head(
    queries: list[Tensor], keys: list[Tensor], values: list[Tensor], ahead: bool
) -> Tensor:
    """A head that looks *ahead*, or back, and at its own position (Shen et al. 2018): (T, D)."""
    outputs = []
    for t, query in enumerate(queries):
        seen = range(t, len(keys)) if ahead else range(t + 1)
        outputs.append(
            dot_product_attention(query, [keys[j] for j in seen], [values[j] for j in seen])
        )
    return torch.stack(outputs)


def linear_rnn(w_h: Tensor, inputs: list[Tensor], dilation: int = 1) -> Tensor:
    """h_t = W_h h_{t-d} + u_t from h = 0, u_t = W_x x_t (Huang et al. 2023, eqs. 1 and 10)."""
    states: list[Tensor] = []
    for t, u in enumerate(inputs):
        states.append(u if t < dilation else w_h.mv(states[t - dilation]) + u)
    return torch.stack(states)


def outer_products(keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """K^T V (D, D), a key and a value at a time."""
    total = keys[0].new_zeros(keys[0].numel(), values[0].numel())
    for key, value in zip(keys, values):
        total = total + torch.outer(key, value)
    return total


def raf(
    x: Tensor, memory: Tensor, leak: Tensor, threshold: Tensor, surrogate: bool
) -> tuple[Tensor, Tensor]:
    """A recurrent accumulate-and-fire neuron on one matrix (Long et al. 2023, appendix A.2)."""
    memory = leak * memory + x
    y = memory / threshold - 1.0
    spikes = torch.zeros_like(y)
    for row in range(y.size(0)):
        for column in range(y.size(1)):
            potential = y[row, column]
            if potential > 0:
                spikes[row, column] = 1.0
            if surrogate and abs(float(potential)) < 1:
                slope = 0.3 * (1 - abs(float(potential)))
                spikes[row, column] = spikes[row, column] + slope * (potential - potential.detach())
    return torch.clamp(y, min=0), memory - threshold * spikes


def key_norm(keys: list[Tensor], kind: str) -> Tensor:
    """norm(K) of Long et al. 2023, eq. 13: over the positions for each channel, or over all."""
    if kind == "none":
        return torch.ones_like(keys[0])
    squares = torch.zeros_like(keys[0])
    for key in keys:
        squares = squares + key * key
    if kind == "frobenius":
        squares = squares.sum().expand_as(squares)
    return torch.clamp(torch.sqrt(squares), min=1e-6)


def srformer_head(
    queries: list[Tensor],
    keys: list[Tensor],
    values: list[Tensor],
    size: int,
    target_length: int,
    weight: Tensor,
    leak: Tensor,
    threshold: Tensor,
    norm: str = "key",
    clamp: float = 0.0,
    current: bool = False,
    neuron: bool = True,
    surrogate: bool = False,
) -> tuple[Tensor, Tensor]:
    """Algorithm 1 of Long et al. 2023 for one head: O_S and O_R, (T, D) each.

    The queries come scaled. *current* and not *neuron* are the ablations IV and III of Table 3.
    """

    def limited(product: Tensor) -> Tensor:
        return product.clamp(-clamp, clamp) if clamp else product

    segments = -(-len(keys) // size)
    memory = torch.zeros_like(weight)
    whole, fired = limited(outer_products(keys, values)), memory
    previous, local, recurrent = -1, [], []
    for t, query in enumerate(queries):
        i = min(t * segments // target_length, segments - 1)
        own_keys, own_values = keys[i * size : (i + 1) * size], values[i * size : (i + 1) * size]
        local.append(softmax_sum([query.dot(key) for key in own_keys], own_values))
        if i != previous:
            own = limited(outer_products(own_keys, own_values))
            fired = own if current else whole - own
            if neuron:
                fired, memory = raf(fired @ weight.T, memory, leak, threshold, surrogate)
            previous = i
        recurrent.append((query @ fired) / key_norm(keys, norm))
    return torch.stack(local), torch.stack(recurrent)
