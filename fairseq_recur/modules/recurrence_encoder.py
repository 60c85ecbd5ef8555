"""The second encoder: a short stack of recurrent networks over the source."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fairseq import utils
from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import FairseqDropout, LayerNorm
from fairseq.modules.quant_noise import quant_noise
from torch import Tensor, nn

from fairseq_recur.modules.context import Padding
from fairseq_recur.modules.layers import LayerRunner, feed_forward
from fairseq_recur.modules.options import flag, option
from fairseq_recur.modules.part import FreshWeights
from fairseq_recur.modules.recurrence import Recurrence


class RecurrenceLayer(nn.Module):
    """C = LN(REC(H) + H), H' = LN(FFN(C) + C) (Hao et al. 2019, eqs. 7-8).

    The first layer has no residual connection around REC, whose output differs from its
    input in width and, for an attentive recurrent network, in length. When the host
    normalises before its sub-layers, so does this layer.

    Args:
        cfg: the host's configuration
        recurrence: REC
        first: whether this is the bottom layer
    """

    ffn_layernorm = w_resid = None  # which only fairseq's decoder layer can have

    def __init__(self, cfg: TransformerConfig, recurrence: Recurrence, first: bool) -> None:
        super().__init__()
        width = 2 * recurrence.state_dim
        inner = cfg.encoder.ffn_embed_dim
        noise = cfg.quant_noise.pq, cfg.quant_noise.pq_block_size
        name = type(self).__name__
        self.normalize_before = cfg.encoder.normalize_before
        self.first = first
        self.recurrence = recurrence
        self.recurrence_layer_norm = LayerNorm(
            recurrence.input_dim if self.normalize_before else width, export=cfg.export
        )
        self.fc1 = quant_noise(nn.Linear(width, inner), *noise)
        self.fc2 = quant_noise(nn.Linear(inner, width), *noise)
        self.final_layer_norm = LayerNorm(width, export=cfg.export)
        self.activation_fn = utils.get_activation_fn(cfg.activation_fn)
        self.dropout_module = FairseqDropout(cfg.dropout, module_name=name)
        self.activation_dropout_module = FairseqDropout(
            float(cfg.activation_dropout), module_name=name
        )

    def forward(self, x: Tensor, padding: Padding | None) -> Tensor:
        """(B, L, I) and its padding to (B, L', 2C)."""
        residual = x
        if self.normalize_before:
            x = self.recurrence_layer_norm(x)
        x = self.dropout_module(self.recurrence(x, padding))
        if not self.first:
            x = residual + x
        if not self.normalize_before:
            x = self.recurrence_layer_norm(x)
        return feed_forward(self, x)

    @staticmethod
    def residual_connection(x: Tensor, residual: Tensor) -> Tensor:
        """As in fairseq's layers."""
        return residual + x


class RecurrenceEncoder(FreshWeights, nn.Module):
    """The recurrence encoder of Hao et al. 2019, section 3.1 and figure 2.

    Args:
        cfg: the host's configuration, with this plug-in's ``recurrence_*`` options
        recurrence: class of the recurrent network
    """

    @dataclass
    class Options:
        """Options of every recurrence encoder."""

        recurrence_layers: int = option(
            1, "layers of the recurrence encoder; the paper tries 1, 3 and 6", (1, 1000)
        )
        recurrence_width: ChoiceEnum(["full", "half", "projected"]) = option(  # type: ignore[valid-type]
            "full",
            "width of the recurrence encoder's output: two directions as wide as the model (full), "
            "as in the paper; two of half its width (half); or full, projected to its width",
        )
        recurrence_input: ChoiceEnum(["embeddings", "encoder"]) = option(  # type: ignore[valid-type]
            "embeddings",
            "what the recurrence encoder reads: the word embeddings, or the output of the "
            "Transformer encoder",
            of_model=True,
        )
        recurrence_positions: bool = option(
            False,
            "add position embeddings to the input of the recurrence encoder",
            needs={"recurrence_input": ["embeddings"]},
            of_model=True,
        )
        recurrence_lr_scale: float = option(
            1.0,
            "factor of the learning rate for the weights of the recurrence encoder and its fusion",
            (1e-3, 1e3),
            of_model=True,
        )

    slot = "recurrence"

    def __init__(self, cfg: TransformerConfig, recurrence: type[Recurrence]) -> None:
        super().__init__()
        width = cfg.encoder.embed_dim
        direction = width // 2 if cfg.recurrence_width == "half" else width
        networks = [
            recurrence(width if layer == 0 else 2 * direction, direction, cfg)
            for layer in range(cfg.recurrence_layers)
        ]
        self.keeps_length = networks[0].keeps_length
        self.layers = nn.ModuleList(
            RecurrenceLayer(cfg, network, first=layer == 0)
            for layer, network in enumerate(networks)
        )
        self.layer_norm = (
            LayerNorm(2 * direction, export=cfg.export) if cfg.encoder.normalize_before else None
        )
        projected = cfg.recurrence_width == "projected"
        self.projection = nn.Linear(2 * width, width) if projected else None
        if self.projection is not None:
            nn.init.xavier_uniform_(self.projection.weight)
            nn.init.zeros_(self.projection.bias)
        self.run = LayerRunner(cfg)

    @staticmethod
    def output_width(cfg: TransformerConfig) -> int:
        """The width of H_r: 2C, or C where the directions are narrower or are projected."""
        return cfg.encoder.embed_dim * (2 if cfg.recurrence_width == "full" else 1)

    @classmethod
    def problems(cls, cfg: Any, side: str) -> Iterator[str]:
        """Options that a recurrence encoder does not support, one message each."""
        if cfg.recurrence_width == "half" and cfg.encoder_embed_dim % 2:
            yield (
                "--recurrence-width half needs a multiple of 2, found --encoder-embed-dim "
                f"{cfg.encoder_embed_dim}; choose full or projected"
            )
        for name, what in (
            ("no_cross_attention", "leaves it out"),
            ("cross_self_attention", "reads the source in the self-attention, too"),
        ):
            if getattr(cfg, name):
                yield (
                    f"--recurrence {cfg.recurrence} joins the cross-attention, but {flag(name)} "
                    f"{what}; leave one out"
                )
        if cfg.recurrence_positions and cfg.no_token_positional_embeddings:
            reason = (
                "--host t5 does not have"
                if cfg.host == "t5"
                else ("--no-token-positional-embeddings removes")
            )
            yield (
                f"--recurrence-positions needs position embeddings, which {reason}; leave one out"
            )

    def forward(self, x: Tensor, padding: Padding | None) -> tuple[Tensor, Padding | None]:
        """Read the source.

        Args:
            x: (B, S, C) embeddings, or output of the Transformer encoder
            padding: of the source, or None

        Returns:
            states H_r (L', B, `output_width`), batch second as in fairseq's encoder outputs,
            where L' is S for a network over the tokens and R for an attentive one; and their
            padding, None when there is nothing to mask
        """
        for layer in self.layers:
            x = self.run(layer, x, padding)
            padding = padding if self.keeps_length else None
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        if self.projection is not None:
            x = self.projection(x)
        return x.transpose(0, 1), padding
