"""Self-attention with the learned relative positions of Shaw et al. 2018."""

import torch
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_recur.modules.fusion import IncrementalState
from fairseq_recur.modules.part import Part
from fairseq_recur.modules.self_attention import SelfAttention
from fairseq_recur.ops.relative_positions import relative_attention


class RelativePositions(Part, nn.Module):
    """A vector for keys and one for values for each lag up to a limit and head, "edge labels".

    Args:
        slot: the slot of the attention that it belongs to
        heads: H
        width: D
        clip: lags beyond it share the vectors of the last one; 16 in the paper
        causal: whether there are no later keys
    """

    def __init__(self, slot: str, heads: int, width: int, clip: int, causal: bool) -> None:
        super().__init__()
        self.slot, self.clip, self.causal = slot, clip, causal
        rows = clip + 1 if causal else 2 * clip + 1
        self.key = nn.Parameter(torch.empty(heads, rows, width))
        self.value = nn.Parameter(torch.empty(heads, rows, width))
        for head in (*self.key.detach(), *self.value.detach()):
            nn.init.xavier_uniform_(head)

    def tables(self) -> tuple[Tensor, Tensor]:
        """The vectors for lags -clip ... clip; those of later keys are 0 where none are seen."""
        if not self.causal:
            return self.key, self.value
        return tuple(nn.functional.pad(t, (0, 0, 0, self.clip)) for t in (self.key, self.value))


class RelativeSelfAttention(SelfAttention):
    """Attention whose keys and values know how far away they are (Shaw et al. 2018, eqs. 3-5).

    Args:
        cfg: the host's configuration, with ``relative_clip``
        side: "encoder" or "decoder"
    """

    def __init__(self, cfg: TransformerConfig, side: str) -> None:
        super().__init__(cfg, side)
        self.positions = RelativePositions(
            f"{side} self-attention", self.num_heads, self.head_dim, cfg.relative_clip, self.causal
        )

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
        tables = self.positions.tables()
        return relative_attention(query, key, value, *tables, mask, self.dropout_probability)
