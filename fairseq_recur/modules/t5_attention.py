"""T5's attentions: dot products that are not divided by anything, and a bias for distances."""

import torch
import torch.nn.functional as F
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_recur.modules.fusion import IncrementalState
from fairseq_recur.modules.self_attention import SelfAttention
from fairseq_recur.modules.t5_projections import inner_width, use_t5_projections
from fairseq_recur.ops.attention import attention_map
from fairseq_recur.ops.relative_positions import bucket_starts, relative_buckets


class RelativePositionBias(nn.Module):
    """A number for each head and bucket of distances, added to the scores of self-attention.

    Raffel et al. 2020, section 2.1. A stack has one, which all of its layers share.

    Args:
        cfg: the host's configuration
        side: "encoder", where half of the buckets are for later keys, or "decoder"
    """

    def __init__(self, cfg: TransformerConfig, side: str) -> None:
        super().__init__()
        self.bidirectional = side == "encoder"
        options, buckets = getattr(cfg, side), cfg.t5_relative_buckets
        self.weight = nn.Parameter(torch.empty(buckets, options.attention_heads))
        nn.init.normal_(self.weight, std=options.embed_dim**-0.5)
        starts = bucket_starts(
            buckets // 2 if self.bidirectional else buckets, cfg.t5_relative_max_distance
        )
        self.register_buffer("starts", torch.tensor(starts), persistent=False)

    def forward(self, queries: int, keys: int) -> Tensor:
        """The bias of the last *queries* of *keys* positions over all of them: (H, T, S)."""
        lag = torch.arange(1 - keys, queries, device=self.weight.device)
        band = self.weight[relative_buckets(lag, self.starts, self.bidirectional)]
        # Row i of the map is the window of the band that begins T - 1 - i from its start.
        return band.t().unfold(-1, keys, 1).flip(1)


class T5SelfAttention(SelfAttention):
    """softmax(Q K^T + mask) V, where the mask holds the bias of the relative positions.

    Args:
        cfg: the host's configuration
        side: "encoder" or "decoder"
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
        if incremental_state is None and not need_weights:
            return F.scaled_dot_product_attention(query, key, value, mask, dropout), None
        weights = attention_map(query, key, mask)
        return torch.matmul(F.dropout(weights, dropout).to(value.dtype), value), weights


class T5CrossAttention(MultiheadAttention):
    """fairseq's attention over the encoder, without scaling and without positions.

    Args:
        cfg: the host's configuration
    """

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__(
            inner_width(cfg, "decoder"),
            cfg.decoder.attention_heads,
            dropout=cfg.attention_dropout,
            encoder_decoder_attention=True,
        )
        use_t5_projections(self, cfg, cfg.decoder.embed_dim, cfg.encoder.embed_dim)
