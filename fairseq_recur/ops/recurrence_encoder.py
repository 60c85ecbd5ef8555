"""The recurrence encoder of Hao et al. 2019: attentive recurrence, GRU, LSTM and gated sum."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_recur.ops.precision import at_least_float32, no_autocast
from fairseq_recur.ops.triton.recurrence import additive_energies, computes, gated_states


def additive_attention(
    query: Tensor,
    keys: Tensor,
    score: Tensor,
    values: Tensor,
    padding_mask: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """The sum c = sum_j alpha_j v_j with alpha = softmax_j(score . tanh(query + key_j)).

    Bahdanau et al. 2015 as the ``ATT`` of Hao et al. 2019, eq. 13. Queries and keys are projected
    by the caller, who projects the keys once for all steps.

    Args:
        query: (B, N, A) projected states, one per chain
        keys: (B, S, A) projected source
        score: (A,)
        values: (B, S, C), the source itself
        padding_mask: (B, S) bool, True at padding, or None
        dropout: probability of dropping a weight (0 outside training)

    Returns:
        (B, N, C) in the dtype of *values*; softmax and sum in float32 under half precision. For a
        sentence without real tokens, the mean of its values
    """
    if computes(query, keys, score):
        energy = additive_energies(query, keys, score)
    else:
        energy = torch.tanh(query.unsqueeze(2) + keys.unsqueeze(1)) @ score  # (B, N, S)
    return read_by_energy(energy, values, padding_mask, dropout)[0]


def coverage_attention(
    query: Tensor,
    keys: Tensor,
    score: Tensor,
    values: Tensor,
    seen: Tensor,
    w_seen: Tensor,
    padding_mask: Tensor | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """`additive_attention` whose score also reads what earlier steps have read.

    alpha = softmax_j(score . tanh(query + key_j + seen_j w)), where seen is the sum of the alpha of
    the earlier steps (See et al. 2017, eqs. 10 and 11, after Tu et al. 2016).

    Args:
        query, keys, score, values, padding_mask, dropout: as in `additive_attention`
        seen: (B, N, S) float32 at least; zero before the first step
        w_seen: (A,), w

    Returns:
        (B, N, C) as `additive_attention`; and seen + alpha (B, N, S), without dropout, for the
        next step
    """
    covered = seen.to(query.dtype).unsqueeze(3) * w_seen
    energy = torch.tanh(query.unsqueeze(2) + keys.unsqueeze(1) + covered) @ score
    context, weights = read_by_energy(energy, values, padding_mask, dropout)
    return context, seen + weights


def read_by_energy(
    energy: Tensor, values: Tensor, padding_mask: Tensor | None = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The sum c = sum_j alpha_j v_j with alpha = softmax_j(energy), the end of both attentions.

    Args:
        energy: (B, N, S)
        values, padding_mask, dropout: as in `additive_attention`

    Returns:
        (B, N, C) in the dtype of *values*; and alpha (B, N, S), without dropout, float32 at least
    """
    if padding_mask is not None:
        energy = energy.masked_fill(padding_mask.unsqueeze(1), torch.finfo(energy.dtype).min)
    with no_autocast(values):
        weights = torch.softmax(at_least_float32(energy), dim=-1)
        context = torch.bmm(F.dropout(weights, dropout), at_least_float32(values))
        return context.to(values.dtype), weights


def gru_step(x: Tensor, h: Tensor, w_x: Tensor, w_h: Tensor, bias: Tensor) -> Tensor:
    """One step of N independent GRUs: h' = (1 - z) * n + z * h.

    Cho et al. 2014 with torch's gate order: ``r, z = sigma(W x + U h)`` and
    ``n = tanh(W_n x + b + r * (U_n h))``. Only the candidate n has a bias, as in the THUMT cell
    that agrees with the paper's parameter counts. The reset gate acts after the product with U_n,
    as in torch.

    Args:
        x: (N, B, I) inputs
        h: (N, B, C) states
        w_x: (N, 3C, I) input weights of r, z and n
        w_h: (N, 3C, C) recurrent weights of r, z and n
        bias: (N, C) of the candidate

    Returns:
        (N, B, C) new states
    """
    of_x, of_h = torch.bmm(x, w_x.transpose(1, 2)), torch.bmm(h, w_h.transpose(1, 2))
    if computes(h, of_x, of_h, bias):
        return gated_states(of_x, of_h, bias, h)
    (x_r, x_z, x_n), (h_r, h_z, h_n) = of_x.chunk(3, dim=-1), of_h.chunk(3, dim=-1)
    r = torch.sigmoid(x_r + h_r)
    z = torch.sigmoid(x_z + h_z)
    n = torch.tanh(x_n + bias.unsqueeze(1) + r * h_n)
    return n + z * (h - n)


def lstm_step(
    x: Tensor, h: Tensor, m: Tensor, w_x: Tensor, w_h: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """One step of N independent LSTMs: m' = f * m + i * g, h' = o * tanh(m').

    Hochreiter and Schmidhuber 1997 with torch's gate order: ``i, f, o = sigma(W x + U h + b)`` and
    ``g = tanh(W_g x + U_g h + b_g)``.

    Args:
        x: (N, B, I) inputs
        h: (N, B, C) states
        m: (N, B, C) memory cells
        w_x: (N, 4C, I) input weights of i, f, g and o
        w_h: (N, 4C, C) recurrent weights of i, f, g and o
        bias: (N, 4C)

    Returns:
        new states and new memory cells, (N, B, C) each
    """
    summed = torch.bmm(x, w_x.transpose(1, 2)) + torch.bmm(h, w_h.transpose(1, 2))
    i, f, g, o = (summed + bias.unsqueeze(1)).chunk(4, dim=-1)
    m = torch.sigmoid(f) * m + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(m), m


def attentive_recurrence(
    attend: Callable[[Tensor], Tensor],
    h0: Tensor,
    w_x: Tensor,
    w_h: Tensor,
    bias: Tensor,
    steps: int,
    lengths: Tensor | None = None,
    cell: str = "gru",
) -> Tensor:
    """Bidirectional ARN: h_t = f(c_t, h_{t-1}), c_t = ATT(h_{t-1}, H) (Hao et al., eqs. 12-13).

    Both chains run R steps from their initial states, in one batch. Attention chooses the inputs
    of both chains, so only the output order makes the second one "backward": its t-th state is
    output R + 1 - t.

    Args:
        attend: maps (B, 2, C) states to (B, 2, I) contexts; called once per step, in order
        h0: (2, B, C) initial states
        w_x: input weights of the two cells, as in `gru_step` or `lstm_step` with N = 2
        w_h: recurrent weights, likewise
        bias: biases, likewise
        steps: R
        lengths: (B,) int64, steps of each sentence, at most R; None if all have R
        cell: f, "gru" or "lstm", whose memory cells start at zero

    Returns:
        (B, R, 2C), zero after a sentence's last step
    """
    states, h, m = [], h0, torch.zeros_like(h0)
    for _ in range(steps):
        context = attend(h.transpose(0, 1)).transpose(0, 1)  # (2, B, I)
        if cell == "lstm":
            h, m = lstm_step(context, h, m, w_x, w_h, bias)
        else:
            h = gru_step(context, h, w_x, w_h, bias)
        states.append(h)
    forward, backward = torch.stack(states, dim=2)  # (B, R, C) each
    if lengths is None:
        return torch.cat([forward, backward.flip(1)], dim=-1)
    place = torch.arange(steps, device=h0.device)
    mirrored = (lengths.unsqueeze(1) - 1 - place).clamp(min=0).unsqueeze(-1)
    both = torch.cat([forward, backward.gather(1, mirrored.expand_as(backward))], dim=-1)
    return both.masked_fill((place >= lengths.unsqueeze(1)).unsqueeze(-1), 0.0)


def gate(d: Tensor, r: Tensor, w_d: Tensor, w_r: Tensor, bias: Tensor) -> Tensor:
    """The gate lam = sigma(W_d D + W_r R + b), (..., G) (Hao et al. 2019, eq. 17)."""
    return torch.sigmoid(d @ w_d.t() + r @ w_r.t() + bias)


def gated_sum(d: Tensor, r: Tensor, w_d: Tensor, w_r: Tensor, bias: Tensor) -> Tensor:
    """The sum lam * D + (1 - lam) * R with the `gate` lam (Hao et al. 2019, eqs. 15 and 17).

    A gate of exactly 1 returns D bit for bit.

    Args:
        d: (..., C), output of the attention over the Transformer encoder
        r: (..., C), output of the attention over the recurrence encoder
        w_d: (G, C), with G = C for one gate per channel or G = 1 for a scalar gate
        w_r: (G, C), with G = C for one gate per channel or G = 1 for a scalar gate
        bias: (G,)

    Returns:
        (..., C)
    """
    lam = gate(d, r, w_d, w_r, bias)
    return lam * d + (1 - lam) * r
