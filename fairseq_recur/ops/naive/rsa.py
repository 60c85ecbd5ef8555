"""RSA (Huang et al. 2023) as loops, and its Proposition 1."""

from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_recur.ops.naive.attention import dot_product_attention


def rem_entry(
    decay: Tensor, angle: Tensor, sine: bool, dilation: int, lag: int, max_power: int
) -> Tensor:
    """The kernel f at one lag (Huang et al. 2023, eq. 2; dilated as P kron I_d)."""
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
    query_positions: list[int],
    key_positions: list[int],
    masked: bool,
    max_power: int = 0,
) -> Tensor:
    """The recurrence encoding matrix of one head for any positions of queries and keys: (T, S)."""
    rows = []
    for query in query_positions:
        row = []
        for key in key_positions:
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
    """z_t = gamma e^{i theta} (z_{t-1} + v_{t-1}) (Huang et al. 2023, eq. 12): (Re z), (Im z)."""
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
        recurrent = (matrix[t, : len(values), None] * torch.stack(values)).sum(0)
        outputs.append((1 - gate) * attention + gate * recurrent)
    return torch.stack(outputs)


def linear_rnn(w_h: Tensor, inputs: list[Tensor], dilation: int = 1) -> Tensor:
    """h_t = W_h h_{t-d} + u_t from h = 0, u_t = W_x x_t (Huang et al. 2023, eqs. 1 and 10)."""
    states: list[Tensor] = []
    for t, u in enumerate(inputs):
        states.append(u if t < dilation else w_h.mv(states[t - dilation]) + u)
    return torch.stack(states)


class LinearHeads(NamedTuple):
    """The heads of Proposition 1; head k maps values G_k W_x x_t to its part of h_t.

    Attributes:
        decay: (K,) lambda_k or gamma_k
        angle: (K,) theta_k; 0 for regular heads
        sine: (K,) bool, True for the second head of each cyclical pair
        mixing: (K, C, C), the matrices G_k
    """

    decay: Tensor
    angle: Tensor
    sine: Tensor
    mixing: Tensor


def linear_rnn_heads(w_h: Tensor) -> LinearHeads:
    """Split h_t = W_h h_{t-1} + W_x x_t into heads (Huang et al. 2023, Propositions 1, 2 and 4).

    With W_h = B diag(lambda) B^-1, an eigenvalue's powers are multiplied by the projection
    G = b c' of its eigenvectors. A conjugate pair gives 2 gamma^n (cos(n theta) Re G -
    sin(n theta) Im G): a cosine head and a sine head. Then

        h_t = W_x x_t + sum_k sum_{n>=1} f_k(n) G_k W_x x_{t-n}

    and the same heads, dilated by d, give the recurrence with W_h h_{t-d} instead of W_h h_{t-1}.

    Args:
        w_h: (C, C) real, with distinct non-zero eigenvalues; float64 is best

    Raises:
        ValueError: W_h cannot be diagonalized or has no non-zero eigenvalue
    """
    eigenvalues, right = torch.linalg.eig(w_h)
    largest = eigenvalues.abs().max()
    precision = torch.finfo(w_h.dtype).eps * len(w_h)
    if torch.linalg.svdvals(right)[-1] < precision**0.5:
        raise ValueError(
            "W_h has no basis of eigenvectors; Proposition 1 expects distinct non-zero "
            "eigenvalues; pass a diagonalizable matrix"
        )
    left = torch.linalg.inv(right)
    heads: list[tuple[Tensor, Tensor, bool, Tensor]] = []
    for k, value in enumerate(eigenvalues):
        if value.abs() <= 1e3 * precision * largest or value.imag < 0:
            continue  # zero up to rounding, or handled together with its conjugate
        projection = torch.outer(right[:, k], left[k])
        if value.imag == 0:
            heads.append((value.real, torch.zeros_like(value.real), False, projection.real))
        else:
            heads.append((value.abs(), value.angle(), False, 2 * projection.real))
            heads.append((value.abs(), value.angle(), True, -2 * projection.imag))
    if not heads:
        raise ValueError(
            "W_h has no non-zero eigenvalue, so there is no recurrence to split; pass the matrix "
            "of a recurrence"
        )
    decay, angle, sine, mixing = zip(*heads)
    return LinearHeads(
        torch.stack(decay), torch.stack(angle), torch.tensor(sine), torch.stack(mixing)
    )
