"""T5 (Raffel et al. 2020) around the parts: its options, and how it differs from fairseq's model.

Norms are root mean squares, before each sub-layer and after each stack. Nothing has a bias or
subtracts a mean. Scores are not scaled. Positions act only through a bias in the
self-attentions, one per stack. Tied logits are multiplied by C^-1/2.
"""

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass

import torch.nn.functional as F
from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_recur.models.decoder import RecurrentTransformerDecoder
from fairseq_recur.models.encoder import RecurrentTransformerEncoder
from fairseq_recur.modules.context import Padding, additive_mask
from fairseq_recur.modules.options import flag, option
from fairseq_recur.modules.t5 import RelativePositionBias

# Options of fairseq's Transformer that describe a T5.
TRUE_OF_T5 = (
    "encoder_normalize_before",
    "decoder_normalize_before",
    "no_scale_embedding",
    "no_token_positional_embeddings",
)
# Options that ask for what a T5 does not have.
NOT_IN_T5 = (
    "adaptive_softmax_cutoff",
    "base_layers",
    "cross_self_attention",
    "decoder_learned_pos",
    "decoder_xformers_att_config",
    "encoder_learned_pos",
    "encoder_xformers_att_config",
    "layernorm_embedding",
    "no_decoder_final_norm",
)
IN_T5 = {"host": ("t5",)}


@dataclass
class T5Options:
    """The host of the parts, and what a T5 has beside fairseq's options."""

    host: ChoiceEnum(["transformer", "t5"]) = option(  # type: ignore[valid-type]
        "transformer",
        "arithmetic of the model around the parts: fairseq's Transformer, or T5 (Raffel et al. "
        "2020), whose other options --arch t5_small sets",
    )
    # The bounds of the buckets are found in whole numbers, distance by distance.
    t5_relative_buckets: int = option(
        32, "buckets of T5's relative position bias, an even number", (4, 1024), IN_T5
    )
    t5_relative_max_distance: int = option(
        128, "distance beyond which T5's position bias is constant", (0, 2**16), IN_T5
    )
    t5_head_dim: int = option(
        0,
        "width of a head in T5 (d_kv); 0: the model's width divided by the heads",
        (0, 2**17),
        IN_T5,
    )
    t5_gated: bool = option(
        False,
        "the feed-forward network multiplies the activation by a second projection (T5 v1.1, with "
        "--activation-fn gelu_accurate)",
        needs=IN_T5,
    )
    t5_untied_output: bool = option(
        False,
        "a separate output matrix, whose logits are not scaled, also with --share-all-embeddings "
        "(T5 v1.1)",
        needs=IN_T5,
    )

    @staticmethod
    def problems(cfg: Namespace) -> Iterator[str]:
        """What is wrong with the options of a T5, flat, one message each."""
        if cfg.host != "t5":
            return
        lacking = [flag(name) for name in TRUE_OF_T5 if not getattr(cfg, name)]
        if lacking:
            yield f"--host t5 needs {' '.join(lacking)}; start from --arch t5_small, which has them"
        for name in NOT_IN_T5:
            if getattr(cfg, name):
                yield f"{flag(name)} asks for something that --host t5 does not have; leave it out"
        if cfg.decoder_output_dim != cfg.decoder_embed_dim:
            yield (
                f"--decoder-output-dim {cfg.decoder_output_dim}: with --host t5 expected "
                f"--decoder-embed-dim {cfg.decoder_embed_dim}; leave it out"
            )
        buckets, distance = cfg.t5_relative_buckets, cfg.t5_relative_max_distance
        if buckets % 2:
            yield f"--t5-relative-buckets {buckets}: expected an even number; give one"
        elif distance <= buckets // 2:
            yield (
                f"--t5-relative-max-distance {distance}: expected more than half of "
                f"--t5-relative-buckets {buckets}; give a larger distance or fewer buckets"
            )
        if cfg.t5_untied_output and not cfg.share_all_embeddings:
            yield (
                "--t5-untied-output has no effect without --share-all-embeddings, where "
                "--share-decoder-input-output-embed says whether the output is tied; leave it out"
            )


class T5Encoder(RecurrentTransformerEncoder):
    """T5's encoder, with slots and optionally a recurrence encoder beside it."""

    def __init__(
        self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> None:
        super().__init__(cfg, dictionary, embed_tokens)
        self.layer_norm = nn.RMSNorm(cfg.encoder.embed_dim, eps=1e-6)
        self.position_bias = RelativePositionBias(cfg, "encoder")

    def self_attention_mask(self, x: Tensor, padding: Padding | None) -> Tensor | None:
        """The bias of the positions of *x* (S, B, C), padding hidden: (H, S, S) or (B, H, S, S)."""
        return additive_mask(self.position_bias(x.size(0), x.size(0)), padding, x.dtype)

    def finish(self, x: Tensor) -> Tensor:
        """The top layer's (S, B, C) as the encoder's output."""
        return self.dropout_module(super().finish(x))


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
        self.layer_norm = nn.RMSNorm(cfg.decoder.embed_dim, eps=1e-6)
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

    def position_terms(self, x: Tensor, keys: int, future: Tensor | None) -> Tensor | None:
        """The bias of *x* (T, B, C) over *keys* positions, later ones hidden: (H, T, S)."""
        bias = self.position_bias(x.size(0), keys)
        return bias if future is None else bias + future

    def features(self, x: Tensor) -> Tensor:
        """The top layer's (T, B, C) as the output layer's input (B, T, C)."""
        return self.dropout_module(super().features(x))

    def output_layer(self, features: Tensor) -> Tensor:
        """The logits (B, T, V); tied weights are those of inputs, too large for outputs."""
        if self.share_input_output_embed:
            features = features * self.embed_dim**-0.5
        return super().output_layer(features)
