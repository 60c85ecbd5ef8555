"""The attentive recurrent network: a recurrence over what attention reads from a source."""

from collections.abc import Callable

import torch
from torch import Tensor

from fairseq_recur.ops.gru import gru_step


def attentive_recurrence(
    attend: Callable[[Tensor], Tensor],
    h0: Tensor,
    w_x: Tensor,
    w_h: Tensor,
    bias: Tensor,
    steps: int,
    lengths: Tensor | None = None,
) -> Tensor:
    """Bidirectional ARN: h_t = GRU(c_t, h_{t-1}), c_t = ATT(h_{t-1}, H) (Hao et al., eqs. 12-13).

    Both chains run from their initial state for R steps, in one batch. The input of the
    second is content-driven like that of the first, so "backward" is its index alone: its
    t-th state stands at R + 1 - t.

    Args:
        attend: maps (B, 2, C) states to (B, 2, I) contexts
        h0: (2, B, C) initial states
        w_x, w_h, bias: the two GRUs, as in `gru_step` with N = 2
        steps: R
        lengths: (B,) int64, the steps of each sentence, at most R; None if all have R

    Returns:
        (B, R, 2C), zero after a sentence's last step
    """
    states, h = [], h0
    for _ in range(steps):
        context = attend(h.transpose(0, 1)).transpose(0, 1)  # (2, B, I)
        h = gru_step(context, h, w_x, w_h, bias)
        states.append(h)
    forward, backward = torch.stack(states, dim=2)  # (B, R, C) each
    if lengths is None:
        return torch.cat([forward, backward.flip(1)], dim=-1)
    place = torch.arange(steps, device=h0.device)
    mirrored = (lengths.unsqueeze(1) - 1 - place).clamp(min=0).unsqueeze(-1)
    both = torch.cat([forward, backward.gather(1, mirrored.expand_as(backward))], dim=-1)
    return both.masked_fill((place >= lengths.unsqueeze(1)).unsqueeze(-1), 0.0)
