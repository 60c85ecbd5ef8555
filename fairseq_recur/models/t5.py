"""T5 (Raffel et al. 2020) around the parts: what differs from fairseq's Transformer.

Norms are root mean squares, before each sub-layer and after each stack; nothing has a bias or
a mean; scores are not scaled; positions act through a bias in the self-attentions, one for
each stack, and nowhere else; tied logits are multiplied by C^-1/2.
"""

import torch.nn.functional as F
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_recur.models.decoder import RecurrentTransformerDecoder
from fairseq_recur.models.encoder import EncoderOut, RecurrentTransformerEncoder
from fairseq_recur.models.layers import wrap_layer
from fairseq_recur.modules.t5_attention import RelativePositionBias
from fairseq_recur.modules.t5_encoder_layer import T5EncoderLayer
from fairseq_recur.modules.t5_projections import t5_norm


class T5Encoder(RecurrentTransformerEncoder):
    """T5's encoder, with slots and optionally a recurrence encoder beside it."""

    def __init__(
        self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        self.layer_norm = t5_norm(cfg.encoder.embed_dim)
        self.position_bias = RelativePositionBias(cfg, "encoder")

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        """A layer whose self-attention is the part named by the configuration."""
        return wrap_layer(T5EncoderLayer(cfg), cfg)

    def forward_scriptable(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
    ) -> EncoderOut:
        """Encode (B, S) source tokens; arguments and results are those of fairseq's encoder."""
        padding = src_tokens.eq(self.padding_idx)
        x, embedding = self.forward_embedding(src_tokens, token_embeddings)
        x = x.masked_fill(padding.unsqueeze(-1), 0.0).transpose(0, 1)
        bias = self.position_bias(x.size(0), x.size(0))
        hidden = padding if padding.any() else None
        states = [x]
        for layer in self.layers:
            x = layer(x, hidden, bias)
            states.append(x)
        return {
            "encoder_out": [self.dropout_module(self.layer_norm(x))],
            "encoder_padding_mask": [padding],
            "encoder_embedding": [embedding],
            "encoder_states": states if return_all_hiddens else [],
            "fc_results": [],
            "src_tokens": [],
            "src_lengths": [(~padding).sum(dim=1, keepdim=True).int()],
        }


class T5Decoder(RecurrentTransformerDecoder):
    """T5's decoder, with slots.

    T5 starts its outputs with the padding symbol, whose embedding it has learnt for that,
    and fairseq with the end-of-sentence symbol, which it puts nowhere else into a decoder's
    input. So this decoder reads each end of sentence as the padding's row, which then is an
    embedding like others: it begins at random and gets a gradient. What is padding is decided
    by the tokens, and the encoder reads the end of sentence as itself.
    """

    def __init__(
        self,
        cfg: TransformerConfig,
        dictionary: Dictionary,
        embed_tokens: nn.Embedding,
        no_encoder_attn: bool = False,
    ) -> None:
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn=no_encoder_attn)
        self.layer_norm = t5_norm(cfg.decoder.embed_dim)
        self.position_bias = RelativePositionBias(cfg, "decoder")

    def build_output_projection(
        self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> None:
        """The embedding matrix, or one of its own as in T5 v1.1."""
        if cfg.t5_untied_output:
            self.share_input_output_embed = False
        super().build_output_projection(cfg, dictionary, embed_tokens)

    def look_up(self, tokens: Tensor) -> Tensor:
        """The tokens' rows, (B, T) to (B, T, C): for the start of a sentence the padding's."""
        rows = tokens.masked_fill(tokens.eq(self.dictionary.eos()), self.padding_idx)
        # The module itself would keep the gradient from the padding's row.
        return F.embedding(rows, self.embed_tokens.weight)

    def self_attention_mask(self, x: Tensor, keys: int, causal: bool) -> Tensor:
        """The bias of *x* (T, B, C) over *keys* positions, later ones hidden: (H, T, S)."""
        bias = self.position_bias(x.size(0), keys)
        return bias + self.buffered_future_mask(x) if causal else bias

    def features(self, x: Tensor) -> Tensor:
        """The top layer's (T, B, C) as the output layer's input (B, T, C)."""
        return self.dropout_module(super().features(x))

    def output_layer(self, features: Tensor) -> Tensor:
        """The logits (B, T, V); tied weights are those of inputs, too large for outputs."""
        if self.share_input_output_embed:
            features = features * self.embed_dim**-0.5
        return super().output_layer(features)
