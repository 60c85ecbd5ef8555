"""A linear recurrent network as heads of recurrence encoding matrices."""

from typing import NamedTuple

import torch
from torch import Tensor


class LinearHeads(NamedTuple):
    """The heads of Proposition 1; head k turns values G_k W_x x_t into its part of h_t.

    Attributes:
        decay: (K,) lambda_k or gamma_k
        angle: (K,) theta_k; 0 for regular heads
        sine: (K,) bool, the second head of each cyclical pair
        mixing: (K, C, C) the matrices G_k
    """

    decay: Tensor
    angle: Tensor
    sine: Tensor
    mixing: Tensor


def linear_rnn_heads(w_h: Tensor) -> LinearHeads:
    """Split h_t = W_h h_{t-1} + W_x x_t into heads (Huang et al. 2023, Propositions 1, 2 and 4).

    With W_h = B diag(lambda) B^-1, the powers of an eigenvalue come with the projection
    G = b c' of its eigenvectors; a conjugate pair gives 2 gamma^n (cos(n theta) Re G -
    sin(n theta) Im G), a cosine and a sine head. Then

        h_t = W_x x_t + sum_k sum_{n>=1} f_k(n) G_k W_x x_{t-n}

    and with W_h h_{t-d} in place of W_h h_{t-1} the same heads, dilated by d.

    Args:
        w_h: (C, C) real, its non-zero eigenvalues distinct; better in float64

    Raises:
        ValueError: if W_h cannot be diagonalised, as when non-zero eigenvalues coincide
    """
    eigenvalues, right = torch.linalg.eig(w_h)
    largest = eigenvalues.abs().max()
    precision = torch.finfo(w_h.dtype).eps * len(w_h)
    if torch.linalg.svdvals(right)[-1] < precision**0.5:
        raise ValueError(
            "W_h has no basis of eigenvectors (non-zero eigenvalues that coincide?); "
            "Proposition 1 needs distinct ones"
        )
    left = torch.linalg.inv(right)
    decay, angle, sine, mixing = [], [], [], []
    for k, value in enumerate(eigenvalues):
        if value.abs() <= 1e3 * precision * largest or value.imag < 0:
            continue  # a zero, but for rounding, recurs nothing; a conjugate comes with its partner
        projection = torch.outer(right[:, k], left[k])
        if value.imag == 0:
            parts = [(value.real, torch.zeros_like(value.real), False, projection.real)]
        else:
            parts = [
                (value.abs(), value.angle(), False, 2 * projection.real),
                (value.abs(), value.angle(), True, -2 * projection.imag),
            ]
        for part, collected in zip(zip(*parts), (decay, angle, sine, mixing)):
            collected.extend(part)
    if not decay:
        raise ValueError(
            "W_h has no non-zero eigenvalue: there is no recurrence to split; "
            "give a matrix of a recurrence"
        )
    return LinearHeads(
        torch.stack(decay), torch.stack(angle), torch.tensor(sine), torch.stack(mixing)
    )
