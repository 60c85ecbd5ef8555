"""The Transformer encoder with a recurrence encoder beside it."""

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerConfig, TransformerEncoderBase
from torch import Tensor, nn

from fairseq_recur.models.layers import wrap_layer
from fairseq_recur.modules.encoder_layer import EncoderLayer
from fairseq_recur.modules.multicolumn import MultiColumn
from fairseq_recur.modules.parts import MULTICOLUMN, RECURRENCE
from fairseq_recur.modules.recurrence_encoder import RecurrenceEncoder

EncoderOut = dict[str, list[Tensor]]


class RecurrentTransformerEncoder(TransformerEncoderBase):
    """fairseq's encoder, its layers with slots, and optionally a recurrence encoder.

    To fairseq's output dictionary it adds ``recurrence_out``, [states (L', B, 2C)], and
    ``recurrence_padding_mask``, [mask (B, L')] or [] if there is nothing to mask, unless the
    two encoders' outputs are joined as the columns of ``encoder_out``; and ``sentences``,
    [(B,) int64], which sentence each row is of, also once rows are beams.
    """

    def __init__(
        self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        self.recurrence_positions = cfg.recurrence_positions
        self.recurrence_encoder = (
            None
            if cfg.recurrence == "none"
            else RecurrenceEncoder(
                cfg, RECURRENCE[cfg.recurrence], lambda layer: wrap_layer(layer, cfg)
            )
        )
        joined = cfg.recurrence != "none" and cfg.recurrence_fusion == MULTICOLUMN
        self.columns = MultiColumn(cfg) if joined else None

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        """A layer whose self-attention is the part named by the configuration."""
        return wrap_layer(EncoderLayer(cfg, return_fc=self.return_fc), cfg)

    def recurrence_input(self, src_tokens: Tensor, embedding: Tensor) -> Tensor:
        """The scaled embeddings, with positions on demand and embedding dropout: (B, S, C)."""
        if self.recurrence_positions:
            embedding = embedding + self.embed_positions(src_tokens)
        return self.dropout_module(embedding)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
    ) -> EncoderOut:
        """Encode (B, S) source tokens; see fairseq's encoder, and the class for what is added."""
        out = super().forward(src_tokens, src_lengths, return_all_hiddens, token_embeddings)
        out["sentences"] = [torch.arange(src_tokens.size(0), device=src_tokens.device)]
        if self.recurrence_encoder is None:
            return out
        mask = src_tokens.eq(self.padding_idx)
        states, mask = self.recurrence_encoder(
            self.recurrence_input(src_tokens, out["encoder_embedding"][0]),
            mask if mask.any() else None,
        )
        if self.columns is not None:
            out["encoder_out"] = [self.columns(out["encoder_out"][0], states)]
            return out
        out["recurrence_out"] = [states]
        out["recurrence_padding_mask"] = [] if mask is None else [mask]
        return out

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        """The output for the sentences *new_order* (B',), for beams and finished sentences.

        fairseq's method returns the keys it knows and no others, and copies them at each step of
        decoding. The rows of a sentence are equal, so mostly there is nothing to move.
        """
        sentences = encoder_out["sentences"][0]
        reordered = sentences.index_select(0, new_order)
        if torch.equal(reordered, sentences):  # beams of a sentence changed places
            return encoder_out
        out = super().reorder_encoder_out(encoder_out, new_order)
        out["sentences"] = [reordered]
        for key, batch_axis in (("recurrence_out", 1), ("recurrence_padding_mask", 0)):
            if key in encoder_out:
                out[key] = [x.index_select(batch_axis, new_order) for x in encoder_out[key]]
        return out
