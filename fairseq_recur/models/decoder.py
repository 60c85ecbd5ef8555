"""The Transformer decoder with slots, whose upper layers read the recurrence encoder."""

from collections.abc import Iterator
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerConfig, TransformerDecoderBase
from torch import Tensor, nn

from fairseq_recur.models.encoder import EncoderOut
from fairseq_recur.modules.context import Context, IncrementalState, Padding, Source, additive_mask
from fairseq_recur.modules.layers import LayerRunner, sharded
from fairseq_recur.modules.parts import layer_fusion
from fairseq_recur.modules.segments import Segments
from fairseq_recur.modules.transformer_layer import DecoderLayer


class RecurrentTransformerDecoder(TransformerDecoderBase):
    """fairseq's decoder, its layers with slots, the upper ones with fusion.

    Without cross-attention it is the decoder of the language model.
    """

    def __init__(
        self,
        cfg: TransformerConfig,
        dictionary: Dictionary,
        embed_tokens: nn.Module,
        no_encoder_attn: bool = False,
    ) -> None:
        # fairseq builds the layers from the bottom without saying which one it builds.
        self._numbers = iter(range(cfg.decoder.layers))
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn=no_encoder_attn)
        del self._numbers
        self.run = LayerRunner(cfg)

    def build_decoder_layer(
        self, cfg: TransformerConfig, no_encoder_attn: bool = False
    ) -> nn.Module:
        """The next layer from the bottom."""
        return sharded(self.build_layer(next(self._numbers), cfg, no_encoder_attn), cfg)

    def build_layer(self, number: int, cfg: TransformerConfig, no_encoder_attn: bool) -> nn.Module:
        """Layer *number*, counted from the bottom, from 0."""
        fusion = layer_fusion(cfg)
        if fusion is not None and number < cfg.decoder.layers - fusion.fused_layers(cfg):
            fusion = None
        return DecoderLayer(cfg, no_encoder_attn, None if fusion is None else fusion(cfg))

    def all_layers(self) -> Iterator[nn.Module]:
        """The layers from the bottom; iterating over `layers` itself may drop some (LayerDrop)."""
        return (self.layers[index] for index in range(len(self.layers)))

    def aligned_layer(self) -> int | None:
        """The topmost layer that attends to the encoder, or None without any."""
        layers = enumerate(self.all_layers())
        attending = [n for n, layer in layers if getattr(layer, "encoder_attn", None) is not None]
        return attending[-1] if attending else None

    def embed(self, tokens: Tensor, incremental_state: IncrementalState | None) -> Tensor:
        """The layers' input for (B, T) tokens; in incremental decoding for the newest token.

        Returns:
            (T, B, C)
        """
        positions = None
        if self.embed_positions is not None:
            positions = self.embed_positions(tokens, incremental_state=incremental_state)
        if incremental_state is not None:
            tokens = tokens[:, -1:]
            positions = None if positions is None else positions[:, -1:]
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

    def position_terms(self, x: Tensor, keys: int, future: Tensor | None) -> Tensor | None:
        """What positions add to scores of *x* (T, B, C) over S *keys*: (T, S), (H, T, S) or None.

        *future* (T, S) hides later positions.
        """
        return future

    def context(
        self,
        x: Tensor,
        tokens: Tensor,
        encoder_out: EncoderOut | None,
        incremental_state: IncrementalState | None,
        full_context: bool,
    ) -> Context:
        """The context of the batch, for the layers.

        Args:
            x: (T, B, C) input of the layers
            tokens: (B, L) all target tokens so far
            encoder_out: of the encoder, or None
            incremental_state: in incremental decoding
            full_context: whether positions see later ones
        """
        padding = Padding.of(tokens.eq(self.padding_idx))
        causal = incremental_state is None and not full_context
        future = self.buffered_future_mask(x) if causal else None
        mask, terms = None, None
        if any(reads_mask(layer) for layer in self.all_layers()):
            terms = self.position_terms(x, tokens.size(1), future)
            mask = additive_mask(terms, padding, x.dtype)
        position = None if incremental_state is None else tokens.size(1) - 1
        facts: dict[str, Any] = {}
        if encoder_out is not None and encoder_out["encoder_out"]:
            facts = {
                "encoder_out": encoder_out["encoder_out"][0],
                "encoder_padding": only(encoder_out["encoder_padding_mask"]),
                "recurrence": only(encoder_out.get("recurrence_out", [])),
                "recurrence_padding": only(encoder_out.get("recurrence_padding_mask", [])),
            }
            facts.update(self.segments(encoder_out, incremental_state, position, x, padding))
        return Context(
            padding=padding,
            mask=mask,
            causal=causal and padding is None and terms is future,
            future=future,
            incremental_state=incremental_state,
            position=position,
            **facts,
        )

    def segments(
        self,
        encoder_out: EncoderOut,
        incremental_state: IncrementalState | None,
        position: int | None,
        x: Tensor,
        padding: Padding | None,
    ) -> dict[str, Source | Segments]:
        """The source and its segments, those of them that the layers read, by name.

        In incremental decoding the source is cut at the first step, for all steps.
        """
        attentions = [getattr(layer, "encoder_attn", None) for layer in self.all_layers()]
        part = next((a for a in attentions if getattr(a, "reads_segments", False)), None)
        if not any(a is not None and a.reads_source for a in attentions):
            return {}
        states, mask = encoder_out["encoder_out"][0], only(encoder_out["encoder_padding_mask"])
        source = only(encoder_out.get("source", [])) or Source.of(states, Padding.of(mask))
        if incremental_state is None:
            source = source.per_row(states, mask)
        if part is None:
            return {"source": source}
        if incremental_state is None:
            return {"source": source, "segments": part.segments(source, x.size(0), padding)}
        assert position is not None
        saved = self.get_incremental_state(incremental_state, "segments")
        if saved is None:
            saved = {"segments": part.segments(source, None, None)}
            self.set_incremental_state(incremental_state, "segments", saved)
        return {"source": source, "segments": saved["segments"].at(source, position)}

    def extract_features_scriptable(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut | None,
        incremental_state: IncrementalState | None = None,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, dict[str, list[Any] | None]]:
        """The decoder without its output layer; arguments and results are fairseq's.

        fairseq's loop over the layers cannot pass on the context that ours need.
        """
        x = self.embed(prev_output_tokens, incremental_state)
        context = self.context(
            x, prev_output_tokens, encoder_out, incremental_state, full_context_alignment
        )
        wanted = self.aligned_layer() if alignment_layer is None else alignment_layer
        read = alignment_layer is not None or not self.training
        attention, inner_states = None, [x]
        for index, layer in enumerate(self.layers):
            part = getattr(layer, "encoder_attn", None)
            stock = part is None or part.stock
            x, weights, _ = self.run(layer, x, context, index == wanted and (read or stock))
            inner_states.append(x)
            if weights is not None and index == wanted:
                attention = weights.float().to(x)[:alignment_heads].mean(dim=0)
                if alignment_layer is not None and not stock:
                    # fairseq's alignment loss takes the logarithm. Outside the segment that a query
                    # reads the weights are 0, and those of a mixture may be negative.
                    attention = attention.clamp(min=torch.finfo(x.dtype).tiny)
        # None, which fairseq's ensembles skip, where no layer attends to the encoder.
        attn = None if attention is None else [attention]
        return self.features(x), {"attn": attn, "inner_states": inner_states}

    def features(self, x: Tensor) -> Tensor:
        """The top layer's (T, B, C) as the output layer's input (B, T, C)."""
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)
        return x if self.project_out_dim is None else self.project_out_dim(x)


def only(values: list[Any]) -> Any:
    """The only value of an entry of fairseq's dictionaries, or None for an empty entry."""
    return values[0] if values else None


def reads_mask(layer: nn.Module) -> bool:
    """Whether a layer's self-attention reads `Context.mask`, as all do but fairseq's own."""
    attention = getattr(layer, "self_attn", None)
    return attention is not None and not attention.stock
