"""The Transformer decoder whose upper layers read the recurrence encoder."""

from itertools import count
from typing import Any

from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerConfig, TransformerDecoderBase
from torch import Tensor, nn

from fairseq_recur.models.config import fused_layers
from fairseq_recur.models.encoder import EncoderOut
from fairseq_recur.models.layers import wrap_layer
from fairseq_recur.modules.decoder_layer import DecoderLayer, FusedDecoderLayer
from fairseq_recur.modules.decoding import note_step
from fairseq_recur.modules.fusion import IncrementalState
from fairseq_recur.modules.t5_projections import is_t5


class RecurrentTransformerDecoder(TransformerDecoderBase):
    """fairseq's decoder, its layers with slots, the upper ones with fusion."""

    def __init__(
        self,
        cfg: TransformerConfig,
        dictionary: Dictionary,
        embed_tokens: nn.Embedding,
        no_encoder_attn: bool = False,
    ) -> None:
        # fairseq builds the layers from the bottom without saying which it is.
        self._next_layer = count()
        self._first_fused = cfg.decoder.layers - fused_layers(cfg)
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn=no_encoder_attn)

    def build_decoder_layer(
        self, cfg: TransformerConfig, no_encoder_attn: bool = False
    ) -> nn.Module:
        """The next layer from the bottom."""
        if next(self._next_layer) >= self._first_fused:
            return wrap_layer(FusedDecoderLayer(cfg), cfg)
        return wrap_layer(DecoderLayer(cfg, no_encoder_attn), cfg)

    def embed(self, tokens: Tensor, incremental_state: IncrementalState) -> Tensor:
        """The layers' input for (B, T) tokens, the last ones alone in incremental decoding.

        Returns:
            (T, B, C)
        """
        positions = None
        if self.embed_positions is not None:
            positions = self.embed_positions(tokens, incremental_state=incremental_state)
        if incremental_state is not None:
            tokens = tokens[:, -1:]
        x = self.embed_scale * self.look_up(tokens.contiguous())
        if self.quant_noise is not None:
            x = self.quant_noise(x)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        if positions is not None:
            x = x + positions
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return self.dropout_module(x).transpose(0, 1)

    def look_up(self, tokens: Tensor) -> Tensor:
        """The tokens' rows of the embedding matrix: (B, T) to (B, T, C)."""
        return self.embed_tokens(tokens)

    def self_attention_mask(self, x: Tensor, keys: int, causal: bool) -> Tensor | None:
        """What is added to the scores of *x* (T, B, C) over *keys* positions: (T, S) or None."""
        return self.buffered_future_mask(x) if causal else None

    def extract_features_scriptable(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut | None,
        incremental_state: IncrementalState = None,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, dict[str, list[Any]]]:
        """The decoder without its output layer; arguments and results are fairseq's.

        Without fusion it is fairseq's own method; fairseq's loop over the layers cannot
        hand them a second encoder's output, nor a bias to be added to the scores, so with
        fusion and in a T5 the loop is this one.
        """
        if incremental_state is not None:
            position = prev_output_tokens.size(1) - 1
            note_step(incremental_state, encoder_out["sentences"][0], position)
        if self._first_fused == self.num_layers and not is_t5(self.cfg):
            return super().extract_features_scriptable(
                prev_output_tokens,
                encoder_out,
                incremental_state,
                full_context_alignment,
                alignment_layer,
                alignment_heads,
            )
        x = self.embed(prev_output_tokens, incremental_state)
        causal = incremental_state is None and not full_context_alignment
        target_padding = prev_output_tokens[:, -x.size(0) :].eq(self.padding_idx)
        arguments = {
            "encoder_out": encoder_out["encoder_out"][0],
            "encoder_padding_mask": next(iter(encoder_out["encoder_padding_mask"]), None),
            "incremental_state": incremental_state,
            "self_attn_mask": self.self_attention_mask(x, prev_output_tokens.size(1), causal),
            "self_attn_padding_mask": target_padding if target_padding.any() else None,
        }
        recurrence = {
            name: next(iter(encoder_out.get(name, [])), None)
            for name in ("recurrence_out", "recurrence_padding_mask")
        }
        wanted = self.num_layers - 1 if alignment_layer is None else alignment_layer
        attention, inner_states = None, [x]
        for index, layer in enumerate(self.layers):
            fused = getattr(layer, "fuses_recurrence", False)
            x, weights, _ = layer(
                x,
                **arguments,
                **(recurrence if fused else {}),
                need_attn=index == wanted,
                need_head_weights=index == wanted,
            )
            inner_states.append(x)
            if weights is not None and index == wanted:
                attention = weights.float().to(x)[:alignment_heads].mean(dim=0)
        return self.features(x), {"attn": [attention], "inner_states": inner_states}

    def features(self, x: Tensor) -> Tensor:
        """The top layer's (T, B, C) as the output layer's input (B, T, C)."""
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)
        return x if self.project_out_dim is None else self.project_out_dim(x)
