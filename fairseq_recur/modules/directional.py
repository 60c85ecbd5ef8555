"""Directional self-attention for the encoder, after DiSAN (Shen et al. 2018)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_recur.modules.fusion import IncrementalState
from fairseq_recur.modules.self_attention import SelfAttention
from fairseq_recur.ops.directional import directional_attention, one_way_masks
from fairseq_recur.ops.mixture import attention_map


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
        masks = one_way_masks(query, mask)
        maps = [
            attention_map(q, k, m) for q, k, m in zip(query.chunk(2, 1), key.chunk(2, 1), masks)
        ]
        weights = torch.cat(maps, dim=1)
        return torch.matmul(F.dropout(weights, dropout).to(value.dtype), value), weights
