"""Directional self-attention for the encoder, after DiSAN (Shen et al. 2018)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_recur.modules.fusion import IncrementalState
from fairseq_recur.modules.self_attention import SelfAttention
from fairseq_recur.ops.attention import directional_attention, directional_map


class DirectionalSelfAttention(SelfAttention):
    """Half of the heads attend to earlier positions and half to later ones, all to their own.

    Hao et al. 2019, section 5.3: "a mask ... constrains the SAN to focus on forward or backward
    elements". It has no parameters of its own; the number of heads is even.

    Args:
        cfg: the host's configuration
        side: "encoder"
    """

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        padding: Tensor | None,
        incremental_state: IncrementalState,
        need_weights: bool,
        causal: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """As in `SelfAttention.attend`."""
        dropout = self.dropout_probability
        if not need_weights:
            return directional_attention(query, key, value, mask, dropout), None
        weights = directional_map(query, key, mask)
        return torch.matmul(F.dropout(weights, dropout).to(value.dtype), value), weights
