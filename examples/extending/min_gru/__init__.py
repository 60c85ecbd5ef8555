"""An additional recurrent network for the recurrence encoder: the bidirectional minGRU.

Feng et al. 2024, "Were RNNs All We Needed?": a GRU whose gate and candidate read only the input,

    z_t = sigma(W_z x_t),   c_t = W_c x_t,   h_t = (1 - z_t) h_{t-1} + z_t c_t

so the state passes from token to token only through a weighted sum.
"""

from typing import Any

import torch
from torch import Tensor, nn

from fairseq_recur.models.extending import add_part
from fairseq_recur.modules.context import Padding
from fairseq_recur.modules.recurrence import Recurrence


class MinGRU(Recurrence):
    """REC(H) with one output per token: (B, S, I) to (B, S, 2C)."""

    about = "Feng et al. 2024"
    keeps_length = True

    def __init__(self, input_dim: int, state_dim: int, cfg: Any) -> None:
        super().__init__(input_dim, state_dim, cfg)
        # Gate and candidate, for the forward and the backward direction.
        self.input_proj = nn.Linear(input_dim, 4 * state_dim)

    def forward(self, x: Tensor, padding: Padding | None) -> Tensor:
        """Map x (B, S, I) and its padding to (B, S, 2C), zero at padding."""
        gates, candidates = self.input_proj(x).view(*x.shape[:2], 2, 2, -1).unbind(2)
        z = torch.sigmoid(gates)  # (B, S, 2, C), both directions
        if padding is not None:  # padding leaves the state unchanged
            z = z.masked_fill(padding.mask[:, :, None, None], 0.0)
        states = self.initial_states(x, padding)
        forward = self.scan(z[:, :, 0], candidates[:, :, 0], states[0])
        backward = self.scan(z[:, :, 1].flip(1), candidates[:, :, 1].flip(1), states[1]).flip(1)
        out = torch.cat([forward, backward], dim=-1)
        return out if padding is None else out.masked_fill(padding.mask.unsqueeze(-1), 0.0)

    @staticmethod
    def scan(z: Tensor, candidates: Tensor, state: Tensor) -> Tensor:
        """Compute h_1, ..., h_S (B, S, C) from gates and candidates (B, S, C) and h_0 (B, C)."""
        states = []
        for gate, candidate in zip(z.unbind(1), candidates.unbind(1)):
            state = torch.lerp(state, candidate, gate)
            states.append(state)
        return torch.stack(states, dim=1)


add_part("recurrence", "min_gru", MinGRU)
