"""Self-attention with fairseq's parameters and cache, and arithmetic of its own."""

import torch
from fairseq.models.transformer import TransformerConfig
from torch import Tensor

from fairseq_recur.modules.fusion import IncrementalState
from fairseq_recur.modules.future_mask import FutureMask
from fairseq_recur.modules.heads import Heads
from fairseq_recur.modules.t5_projections import inner_width, is_t5, use_t5_projections


class SelfAttention(Heads):
    """What the parts for the self-attention slots share; each says in `attend` what it computes.

    The parameters are those of fairseq's module, under their names, so that a stock
    checkpoint fits; in a T5, those of T5's. fairseq's own `forward` cannot be extended: without
    incremental state it hands everything to a torch function that a subclass does not see.

    Args:
        cfg: the host's configuration
        side: "encoder" or "decoder"
    """

    def __init__(self, cfg: TransformerConfig, side: str) -> None:
        options = getattr(cfg, side)
        super().__init__(
            inner_width(cfg, side),
            options.attention_heads,
            dropout=cfg.attention_dropout,
            self_attention=True,
            q_noise=cfg.quant_noise.pq,
            qn_block_size=cfg.quant_noise.pq_block_size,
        )
        self.causal = side == "decoder"
        self.future_mask = FutureMask()
        self.query_factor = 1.0
        if is_t5(cfg):
            use_t5_projections(self, cfg, options.embed_dim, options.embed_dim)
            # What `attend` divides the scores by, whichever part it is of.
            self.query_factor = self.head_dim**0.5

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
        """Each head's output.

        Args:
            query: (B, H, T, D), to be scaled by 1 / sqrt(D), in a T5 as well; the last query
                stands at the last key
            key, value: (B, H, S, D), the values zero at padding
            mask: additive, broadcastable to (B, H, T, S), finite; in a T5 it holds the bias of
                the relative positions; None if nothing is added
            padding: (B, S) bool, True at padding, or None
            incremental_state: fairseq's; in incremental decoding the only query is the last
            need_weights: return the attention map
            causal: whether *mask* hides the later keys and nothing else

        Returns:
            (B, H, T, D), and the map (B, H, T, S) or None
        """
        raise NotImplementedError(type(self).__name__)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        key_padding_mask: Tensor | None = None,
        incremental_state: IncrementalState = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Tensor | None = None,
        before_softmax: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from each position of *query* (T, B, C) to all; *key* and *value* are the same.

        The arguments are fairseq's. In incremental decoding *query* is the newest position
        and the earlier ones come from the state.

        Returns:
            (T, B, C), and attention weights: (B, T, S), averaged over the heads, or with
            *need_head_weights* (H, B, T, S); None where they are not needed
        """
        q, k, v = (self.split(p(query)) for p in (self.q_proj, self.k_proj, self.v_proj))
        if self.query_factor != 1.0:
            q = q * self.query_factor
        if key_padding_mask is not None:
            key_padding_mask = key_padding_mask.to(torch.bool)
            v = v.masked_fill(key_padding_mask[:, None, :, None], 0.0)
        if incremental_state is not None:
            k, v, key_padding_mask = self.extend(incremental_state, k, v, key_padding_mask)
        mask = additive_mask(attn_mask, key_padding_mask, q.dtype)
        wanted = need_weights or need_head_weights
        causal = (
            incremental_state is None
            and key_padding_mask is None
            and self.future_mask.recognises(attn_mask)
        )
        out, weights = self.attend(
            q, k, v, mask, key_padding_mask, incremental_state, wanted, causal
        )
        return self.output(out, weights if wanted else None, need_head_weights)

    def extend(
        self,
        incremental_state: dict[str, dict[str, Tensor | None]],
        key: Tensor,
        value: Tensor,
        padding: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Append to the keys, values and padding of the earlier positions, and keep them all."""
        saved = self._get_input_buffer(incremental_state)
        if "prev_key" in saved:
            key = torch.cat([saved["prev_key"], key], dim=2)
            value = torch.cat([saved["prev_value"], value], dim=2)
            padding = self._append_prev_key_padding_mask(
                padding, saved["prev_key_padding_mask"], key.size(0), key.size(2), False
            )
            padding = None if padding is None else padding.to(torch.bool)
        saved = {"prev_key": key, "prev_value": value, "prev_key_padding_mask": padding}
        self._set_input_buffer(incremental_state, saved)
        return key, value, padding


def additive_mask(
    attn_mask: Tensor | None, padding: Tensor | None, dtype: torch.dtype
) -> Tensor | None:
    """Both masks as one that is added to the scores; finite, so that no row becomes NaN.

    Args:
        attn_mask: (T, S) or (H, T, S), bool with True at what is hidden, or additive; None if
            there is none
        padding: (B, S) bool, True at padding; None if there is none
        dtype: of the scores

    Returns:
        (T, S), (H, T, S), (B, 1, 1, S), (B, 1, T, S) or (B, H, T, S), or None
    """
    lowest = torch.finfo(dtype).min
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=dtype).masked_fill(attn_mask, lowest)
        attn_mask = attn_mask.to(dtype).clamp(min=lowest)
    if padding is None:
        return attn_mask
    hidden = padding[:, None, None, :]
    if attn_mask is None:
        return torch.zeros_like(hidden, dtype=dtype).masked_fill(hidden, lowest)
    heads = attn_mask.size(0) if attn_mask.dim() == 3 else 1
    return attn_mask.expand(padding.size(0), heads, -1, -1).masked_fill(hidden, lowest)
