"""Self-attention: a map over the positions, and optionally a matrix that is mixed with it."""

from typing import Any, ClassVar

import torch
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import MultiheadAttention
from torch import Tensor

from fairseq_recur.modules.context import Context, mask_as
from fairseq_recur.modules.mixture import Mixture
from fairseq_recur.modules.multihead import MultiheadBase
from fairseq_recur.ops.attention import (
    attention_map,
    dot_product_attention,
    read_values,
    stores_map,
)
from fairseq_recur.ops.mixture import mixed_map
from fairseq_recur.ops.precision import at_least_float32, no_autocast


class SelfAttention(MultiheadBase):
    """What the maps of self-attention share. Each says in `weights` and `attend` what it computes.

    fairseq's own ``forward`` cannot be extended: without incremental state it hands everything to
    a torch function that a subclass does not see.

    Args:
        cfg: the host's configuration
        side: "encoder" or "decoder"
        mixture: P and its gate, mixed with this map (Huang et al. 2023), or None
    """

    sides: ClassVar[tuple[str, ...]] = ("encoder", "decoder")
    """Where this map can be used."""

    has_map: bool = True
    """Whether a head's output is its map times V, and nothing is added to the values.

    In a map whose options decide it, `without_map` does.
    """

    fused: ClassVar[bool] = False
    """Whether `attend` uses torch's fused kernel where nobody asks for the map."""

    few_rows: ClassVar[bool] = False
    """Whether a mixture acts on only a few rows."""

    reads_memory: ClassVar[bool] = False
    """Whether the map may have more keys than queries without incremental decoding."""

    stepwise: ClassVar[bool] = True
    """Whether an output depends only on its own and earlier positions, if later ones are hidden.

    Decoding step by step needs that.
    """

    def __init__(self, cfg: TransformerConfig, side: str, mixture: Mixture | None) -> None:
        options = getattr(cfg, side)
        joined = side == "decoder" and cfg.cross_self_attention
        super().__init__(
            cfg, side, self_attention=not joined, xformers_att_config=options.xformers_att_config
        )
        self.causal = side == "decoder"
        self.mixture = mixture
        self.has_map = self.without_map(cfg, type(self).__name__) is None

    @classmethod
    def without_map(cls, cfg: Any, choice: str) -> str | None:
        """What has no map in the sense of `has_map`: flags with their values; None if all have.

        Args:
            cfg: the model's options, flat
            choice: the flag that chooses this map, with its value
        """
        return None if cls.has_map else choice

    def stores_map(self, query: Tensor, context: Context) -> bool:
        """Whether `attend` stores the map of *query* (B, H, T, D), even if nobody asks for it."""
        return not self.fused or stores_map(query, context.mask, self.dropout_probability)

    def weights(self, query: Tensor, key: Tensor, mask: Tensor | None, context: Context) -> Tensor:
        """The attention map without dropout.

        Args:
            query: (B, H, T, D), not scaled; the last query stands at the last key
            key: (B, H, S, D)
            mask: that of *context* in the dtype of the scores: additive, finite, broadcastable to
                (B, H, T, S), or None
            context: of the batch

        Returns:
            (B, H, T, S) in float32 or more
        """
        raise NotImplementedError(type(self).__name__)

    @property
    def has_weights(self) -> bool:
        """As in `MultiheadBase`: a mixture with what is not the whole output has none."""
        return self.mixture is None or self.has_map

    @property
    def stock(self) -> bool:
        """Whether fairseq's own arithmetic is used, which reads no `Context.mask`."""
        return False

    def exact_weights(self, query: Tensor, key: Tensor, context: Context) -> Tensor:
        """`weights` of scores in float32 or more, as torch's fused attention computes them.

        Large scores would leave float16's range, and its lowest value would not hide them.
        """
        with no_autocast(query):
            query, key = at_least_float32(query), at_least_float32(key)
            return self.weights(query, key, mask_as(context.mask, query.dtype), context)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, context: Context, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The output of each head, without the mixture.

        Args:
            query: (B, H, T, D), not scaled; in incremental decoding T is 1
            key, value: (B, H, S, D), the values zero at padding
            context: of the batch
            need_weights: whether to return the map

        Returns:
            (B, H, T, D), and the map (B, H, T, S) or None
        """
        # Scores in float32 may exceed what hides a key in float16.
        mask = mask_as(context.mask, torch.promote_types(query.dtype, torch.float32))
        weights = self.weights(query, key, mask, context)
        return read_values(weights, value, self.dropout_probability), weights

    def attend_mixed(
        self, query: Tensor, key: Tensor, value: Tensor, context: Context, need_weights: bool,
        mixture: Mixture,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """((1 - g) A + g P) V, where A is the map: as in `attend`, with the mixed map."""
        weights = self.exact_weights(query, key, context)
        with no_autocast(value):
            matrix = mixture.matrix(query.size(2), key.size(2))
            matrix = mixture.applied(matrix, context.padding_mask)
        dropout, gates = self.dropout_probability, mixture.gates()
        return mixed_map(weights, value, matrix, gates, dropout, mixture.drop_mixed)

    def attend_to_mix(
        self, query: Tensor, key: Tensor, value: Tensor, context: Context
    ) -> tuple[Tensor, Tensor | None]:
        """What a mixture mixes with its product: `attend`, and the rows on which it acts.

        Returns:
            (B, H, T, D), and (B, H, T, 1) bool, True at these rows; None: all rows
        """
        return self.attend(query, key, value, context, need_weights=False)[0], None

    def forward(
        self,
        x: Tensor,
        context: Context,
        need_weights: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from each position of *x* to all positions.

        Args:
            x: (T, B, C); in incremental decoding the newest position, whose predecessors come
                from the state
            context: of the batch
            need_weights: return the attention weights, averaged over the heads
            need_head_weights: return the attention weights of each head

        Returns:
            (T, B, C), and attention weights: (B, T, S), or (H, B, T, S) per head; None where
            they are not needed
        """
        read = x if context.memory is None else torch.cat([context.memory, x])
        q = self.split(self.q_proj(x))
        k, v = (self.split(p(read)) for p in (self.k_proj, self.v_proj))
        hidden = context.input_padding
        if hidden is not None:
            v = v.masked_fill(hidden[:, None, :, None], 0.0)
        if context.incremental_state is not None:
            k, v = self.extend(context, k, v)
        needed = need_weights or need_head_weights
        if self.mixture is None:
            out, weights = self.attend(q, k, v, context, needed)
        else:
            out, weights = self.mixture.mix(self, q, k, v, context, needed)
        return self.output(out, weights if needed else None, need_head_weights)

    def extend(self, context: Context, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append to the keys and values of the earlier positions that are still visible."""
        saved = self._get_input_buffer(context.incremental_state)
        if "prev_key" in saved:
            known = saved["prev_key"].size(2)
            first = 0 if context.kept is None else known - context.kept
            key = torch.cat([saved["prev_key"][:, :, first:], key], dim=2)
            value = torch.cat([saved["prev_value"][:, :, first:], value], dim=2)
        saved = {"prev_key": key, "prev_value": value}
        self._set_input_buffer(context.incremental_state, saved)
        return key, value


class DotSelfAttention(SelfAttention):
    """Scaled dot products (Vaswani et al. 2017): softmax(Q K^T / sqrt(D) + mask) V.

    Without a mixture, and around fairseq's Transformer, it is fairseq's own module. Around a T5
    the scores are not scaled, and the mask holds the bias of the relative positions.
    """

    about = "standard"

    fused = True
    reads_memory = True

    @property
    def stock(self) -> bool:
        """As in `SelfAttention`."""
        return self.mixture is None and not self.t5 and self.q_proj.bias is not None

    def forward(
        self,
        x: Tensor,
        context: Context,
        need_weights: bool = False,
        need_head_weights: bool = False,
        source: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """As in `SelfAttention.forward`.

        *source* (L, B, C) is what fairseq's ``--cross-self-attention`` attends to: the encoder's
        output, then *x*.
        """
        if not self.stock or context.memory is not None or context.kept is not None:
            return super().forward(x, context, need_weights, need_head_weights)
        key = x if source is None else source
        mask, padding = context.future, context.input_padding
        if source is not None and key.size(0) > x.size(0):
            mask, padding = joined_masks(x, context, key.size(0) - x.size(0))
        return MultiheadAttention.forward(
            self,
            query=x,
            key=key,
            value=key,
            key_padding_mask=padding,
            incremental_state=context.incremental_state,
            need_weights=need_weights,
            # Else fairseq hands everything to torch's function, which averages over the heads.
            static_kv=need_head_weights and context.incremental_state is None,
            attn_mask=mask,
            need_head_weights=need_head_weights,
        )

    def weights(self, query: Tensor, key: Tensor, mask: Tensor | None, context: Context) -> Tensor:
        """As in `SelfAttention.weights`."""
        return attention_map(query, key, mask, self.scale)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, context: Context, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """As in `SelfAttention.attend`; by torch's fused kernel where no weights are needed."""
        if need_weights or context.incremental_state is not None:
            weights = self.exact_weights(query, key, context)
            return read_values(weights, value, self.dropout_probability), weights
        # Torch's own causal rule skips the products that a mask would hide.
        mask = None if context.causal else mask_as(context.mask, query.dtype)
        dropout = self.dropout_probability
        out = dot_product_attention(query, key, value, mask, dropout, context.causal, self.scale)
        return out, None


def joined_masks(
    x: Tensor, context: Context, source_length: int
) -> tuple[Tensor | None, Tensor | None]:
    """The masks of ``--cross-self-attention``, whose keys are the source and then *x* (T, B, C).

    Returns:
        (T, S + T) additive and (B, S + T) bool, each None where nothing is hidden
    """
    mask, padding = context.future, context.input_padding
    if mask is not None:
        mask = torch.cat((x.new_zeros(x.size(0), source_length), mask), dim=1)
    if padding is None and context.encoder_padding is None:
        return mask, None
    none = torch.zeros(x.size(1), 1, dtype=torch.bool, device=x.device)
    own = none.expand(-1, x.size(0)) if padding is None else padding
    hidden = context.encoder_padding
    hidden = none.expand(-1, source_length) if hidden is None else hidden
    return mask, torch.cat((hidden, own), dim=1)
