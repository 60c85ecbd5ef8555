"""The Transformer encoder with slots, and with a recurrence encoder beside it."""

from typing import Any

from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerConfig, TransformerEncoderBase
from torch import Tensor, nn

from fairseq_recur.modules.context import Context, Padding, Source, additive_mask
from fairseq_recur.modules.fusion import MultiColumn
from fairseq_recur.modules.layers import LayerRunner, sharded
from fairseq_recur.modules.parts import FUSION, NONE, RECURRENCE
from fairseq_recur.modules.recurrence_encoder import RecurrenceEncoder
from fairseq_recur.modules.transformer_layer import EncoderLayer

EncoderOut = dict[str, list[Any]]


class RecurrentTransformerEncoder(TransformerEncoderBase):
    """fairseq's encoder, its layers with slots, and optionally a recurrence encoder.

    To fairseq's output dictionary it adds ``source``, [a `Source` for the decoder's layers], and,
    unless the outputs of the two encoders are joined as the columns of ``encoder_out``,
    ``recurrence_out``, [states (L', B, 2C or C)], and ``recurrence_padding_mask``, [mask (B, L')]
    or [] if there is nothing to mask.
    """

    def __init__(
        self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        self.run = LayerRunner(cfg)
        self.recurrence_positions = cfg.recurrence_positions
        self.recurrence_reads = cfg.recurrence_input
        self.recurrence_encoder: RecurrenceEncoder | None = None
        self.columns: MultiColumn | None = None
        if cfg.recurrence != NONE:
            self.recurrence_encoder = RecurrenceEncoder(cfg, RECURRENCE[cfg.recurrence])
            fusion = FUSION[cfg.recurrence_fusion]
            self.columns = fusion(cfg) if issubclass(fusion, MultiColumn) else None

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        """A layer whose self-attention is the part named by the configuration."""
        return sharded(EncoderLayer(cfg), cfg)

    def recurrence_input(self, src_tokens: Tensor, embedding: Tensor, x: Tensor) -> Tensor:
        """What the recurrence encoder reads: (B, S, C).

        Args:
            src_tokens: (B, S)
            embedding: (B, S, C) scaled embeddings, which get positions on demand and dropout
            x: (S, B, C) output of the Transformer encoder, H_e (``--recurrence-input encoder``)
        """
        if self.recurrence_reads == "encoder":
            return x.transpose(0, 1)
        if self.recurrence_positions:
            embedding = embedding + self.embed_positions(src_tokens)
        return self.dropout_module(embedding)

    def self_attention_mask(self, x: Tensor, padding: Padding | None) -> Tensor | None:
        """What is added to the scores over the positions of *x* (S, B, C): (B, 1, 1, S) or None."""
        return additive_mask(None, padding, x.dtype)

    def finish(self, x: Tensor) -> Tensor:
        """The top layer's (S, B, C) as the encoder's output."""
        return x if self.layer_norm is None else self.layer_norm(x)

    def forward_scriptable(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
    ) -> EncoderOut:
        """Encode (B, S) source tokens; see fairseq's encoder, and the class for what is added."""
        mask = src_tokens.eq(self.padding_idx)
        padding = Padding.of(mask)
        x, embedding = self.forward_embedding(src_tokens, token_embeddings)
        if padding is not None:
            x = x * (1 - mask.unsqueeze(-1).type_as(x))
        x = x.transpose(0, 1)
        context = Context(padding=padding, mask=self.self_attention_mask(x, padding))
        states = [x] if return_all_hiddens else []
        for layer in self.layers:
            x = self.run(layer, x, context)
            if return_all_hiddens:
                states.append(x)
        x = self.finish(x)
        recurrence, recurrence_padding = None, None
        if self.recurrence_encoder is not None:
            read = self.recurrence_input(src_tokens, embedding, x)
            recurrence, recurrence_padding = self.recurrence_encoder(read, padding)
        if self.columns is not None:
            x, recurrence = self.columns(x, recurrence), None
        out = {
            "encoder_out": [x],
            "encoder_padding_mask": [mask],
            "encoder_embedding": [embedding],
            "encoder_states": states,
            "fc_results": [],
            "src_tokens": [],
            "src_lengths": [(~mask).sum(dim=1, keepdim=True).int()],
            "source": [Source.of(x, padding)],
        }
        if recurrence is not None:
            out["recurrence_out"] = [recurrence]
            out["recurrence_padding_mask"] = (
                [] if recurrence_padding is None else [recurrence_padding.mask]
            )
        return out

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        """The output for the rows *new_order* (B',), for beams and finished sentences.

        fairseq's method returns the keys it knows and no others, and copies them at each step of
        decoding. The rows of a sentence are equal, so mostly there is nothing to move.
        """
        source = encoder_out["source"][0].reordered(new_order)
        if source is encoder_out["source"][0]:  # beams of a sentence changed places
            return encoder_out
        out = super().reorder_encoder_out(encoder_out, new_order)
        out["source"] = [source]
        for key, batch_axis in (("recurrence_out", 1), ("recurrence_padding_mask", 0)):
            if key in encoder_out:
                out[key] = [x.index_select(batch_axis, new_order) for x in encoder_out[key]]
        return out
