"""How a decoder reads the recurrence encoder beside the Transformer encoder."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import FairseqDropout, LayerNorm, MultiheadAttention
from torch import Tensor, nn

from fairseq_recur.errors import ConfigError
from fairseq_recur.modules.context import Context
from fairseq_recur.modules.layers import kept_layers
from fairseq_recur.modules.multihead import uneven_heads
from fairseq_recur.modules.options import NoOptions, flag, option
from fairseq_recur.modules.part import FreshWeights, MonitoredModule, exempt_from_decay
from fairseq_recur.modules.recurrence_encoder import RecurrenceEncoder
from fairseq_recur.ops.recurrence_encoder import gate, gated_sum


class LayerFusion(MonitoredModule, FreshWeights, nn.Module):
    """What every fusion in the decoder's layers has: an attention over the recurrence encoder.

    It is ATT(., H_r) of Hao et al. 2019, eqs. 14 and 18.
    """

    @dataclass
    class Options:
        """Which layers have one."""

        recurrence_fused_layers: str = option(
            "top",
            "decoder layers that read the recurrence encoder: the top one (top), all of them "
            "(all), or a number N of layers counted from the top",
        )

    slot = "recurrence"
    replaces = False
    """Whether the layer has no attention over the Transformer encoder, so that D is C_self."""

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__()
        width = cfg.decoder.embed_dim
        self.normalize_before = cfg.decoder.normalize_before
        self.attention = MultiheadAttention(
            width,
            cfg.decoder.attention_heads,
            kdim=RecurrenceEncoder.output_width(cfg),
            vdim=RecurrenceEncoder.output_width(cfg),
            dropout=cfg.attention_dropout,
            encoder_decoder_attention=True,
            q_noise=cfg.quant_noise.pq,
            qn_block_size=cfg.quant_noise.pq_block_size,
        )
        self.layer_norm = LayerNorm(width, export=cfg.export)
        self.dropout_module = FairseqDropout(cfg.dropout, module_name=type(self).__name__)

    @classmethod
    def fused_layers(cls, cfg: Any) -> int:
        """How many decoder layers, counted from the top, read the recurrence encoder.

        Args:
            cfg: anything with ``recurrence_fused_layers`` and ``decoder_layers``

        Raises:
            ValueError: if ``recurrence_fused_layers`` is not "top", "all" or a number
        """
        names = {"top": 1, "all": cfg.decoder_layers}
        wanted = cfg.recurrence_fused_layers
        return names[wanted] if wanted in names else int(wanted)

    @classmethod
    def kept_fused_layers(cls, cfg: Any, kept: list[int]) -> int:
        """How many of the fused layers are among those that a model keeps: again the top ones.

        Args:
            cfg: the model's options, flat
            kept: from `kept_layers`
        """
        lowest = cfg.decoder_layers - cls.fused_layers(cfg)
        return sum(layer >= lowest for layer in set(kept))

    @classmethod
    def problems(cls, cfg: Any, side: str) -> Iterator[str]:
        """Problems with the combination of this part's options, one message each."""
        found = f"--recurrence-fused-layers {cfg.recurrence_fused_layers}"
        try:
            fused = cls.fused_layers(cfg)
            wrong = not 1 <= fused <= cfg.decoder_layers
        except ValueError:
            wrong = True
        if wrong:
            yield (
                f"{found}: the decoder has {cfg.decoder_layers} layers (--decoder-layers); "
                f"choose top, all or a number from 1 to {cfg.decoder_layers}"
            )
            return
        yield from uneven_heads(cfg, "decoder")
        kept = kept_layers(cfg, "decoder")
        if kept is not None and not cls.kept_fused_layers(cfg, kept):
            yield (
                f"--decoder-layers-to-keep {cfg.decoder_layers_to_keep} drops every layer that "
                f"reads the recurrence encoder ({found}); keep at least one layer from "
                f"{cfg.decoder_layers - fused} to {cfg.decoder_layers - 1}"
            )

    def attend(self, x: Tensor, context: Context) -> Tensor:
        """LN(ATT(x, H_r) + x), or with the norm first where the host has it first: (T, B, C).

        Raises:
            ConfigError: the decoder was called without the recurrence encoder's output
        """
        if context.recurrence is None:
            raise ConfigError(
                "the decoder reads a recurrence encoder, but was called without the output of one; "
                "give it the whole dictionary that the encoder returns"
            )
        residual = x
        if self.normalize_before:
            x = self.layer_norm(x)
        x, _ = self.attention(
            query=x,
            key=context.recurrence,
            value=context.recurrence,
            key_padding_mask=context.recurrence_padding,
            incremental_state=context.incremental_state,
            static_kv=True,
            need_weights=False,
        )
        x = residual + self.dropout_module(x)
        return x if self.normalize_before else self.layer_norm(x)

    def forward(self, c: Tensor, d: Tensor, context: Context) -> Tensor:
        """The input of the feed-forward network.

        Args:
            c: (T, B, C) output of the self-attention sub-layer, C_self
            d: (T, B, C) output of the cross-attention sub-layer, D
            context: of the batch, with the output of the recurrence encoder, H_r

        Returns:
            (T, B, C)
        """
        return self.attend(d, context)

    def opened(self, d: Tensor, fused: Tensor) -> Tensor:
        """What the feed-forward network reads: *fused*, as `forward` returns it."""
        return fused


class StackFusion(LayerFusion):
    """R = LN(ATT(D, H_r) + D), and the feed-forward network reads R (Hao et al., eqs. 18-19).

    Closed (``--recurrence-fusion-init closed``), it reads D + a (R - D) with a learned a that
    starts at zero. A zero in place of the attention's output projection would not do: where the
    norm comes last, LN(D) is not D.
    """

    about = "in a decoder layer, after its cross-attention"

    @dataclass
    class Options(LayerFusion.Options):
        """Adds how the fusion starts."""

        recurrence_fusion_init: ChoiceEnum(["open", "closed"]) = option(  # type: ignore[valid-type]
            "open",
            "initial state of stack and gated_sum: open, as in the paper, or closed: the decoder "
            "starts out as if there were no fusion, and a learned factor opens it",
        )

    quantities = {"opening": "factor of a fusion that started closed"}

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__(cfg)
        closed = cfg.recurrence_fusion_init == "closed"
        self.opening = nn.Parameter(torch.zeros(1)) if closed else None
        if self.opening is not None:
            exempt_from_decay(self.opening)

    def opened(self, d: Tensor, fused: Tensor) -> Tensor:
        """As far as the fusion is open: D + a (*fused* - D), D to the last bit where a is 0."""
        return fused if self.opening is None else d + self.opening * (fused - d)

    def monitored(self) -> dict[str, Tensor]:
        """The `opening` a of a fusion that started closed."""
        return {} if self.opening is None else {"opening": self.opening.squeeze(0)}


class GatedSumFusion(StackFusion):
    """R = LN(ATT(C_self, H_r) + C_self); lam D + (1 - lam) R (Hao et al., eqs. 14-17).

    lam = sigma(W_d D + W_r R + b) is a value per channel, or one per position
    (``--recurrence-gate`` vector or scalar).
    """

    about = "in a decoder layer, beside its cross-attention"

    @dataclass
    class Options(StackFusion.Options):
        """Adds the kind of gate."""

        recurrence_gate: ChoiceEnum(["vector", "scalar"]) = option(  # type: ignore[valid-type]
            "vector", "gate of the gated_sum: a value per channel, or one per position"
        )

    quantities = {
        **StackFusion.quantities,
        "fusion_gate": "fusion gate, share of the Transformer encoder",
    }
    means = ("fusion_gate",)

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__(cfg)
        width = cfg.decoder.embed_dim
        gates = {"vector": width, "scalar": 1}[cfg.recurrence_gate]
        self.gate_d = nn.Linear(width, gates, bias=False)
        self.gate_r = nn.Linear(width, gates)
        nn.init.xavier_uniform_(self.gate_d.weight)
        nn.init.xavier_uniform_(self.gate_r.weight)
        nn.init.zeros_(self.gate_r.bias)

    def forward(self, c: Tensor, d: Tensor, context: Context) -> Tensor:
        """As in `LayerFusion.forward`, which gives the shapes."""
        r = self.attend(c, context)
        weights = self.gate_d.weight, self.gate_r.weight, self.gate_r.bias
        if self.watched:
            padding = context.input_padding
            padding = None if padding is None else padding.t().unsqueeze(2)
            with torch.no_grad():
                self.observe("fusion_gate", gate(d, r, *weights), padding)
        return gated_sum(d, r, *weights)

    def gate(self, c: Tensor, d: Tensor, context: Context) -> Tensor:
        """lam for the arguments of `forward`, which does not keep it: (T, B, C) or (T, B, 1)."""
        r = self.attend(c, context)
        return gate(d, r, self.gate_d.weight, self.gate_r.weight, self.gate_r.bias)


class Replacement(LayerFusion):
    """R = LN(ATT(C_self, H_r) + C_self): the layer has no attention over the Transformer encoder.

    What Hao et al. 2019, section 4, tried: the recurrence encoder is all that the decoder reads.
    """

    about = "in place of a layer's cross-attention"

    replaces = True

    @classmethod
    def problems(cls, cfg: Any, side: str) -> Iterator[str]:
        """As in `LayerFusion`; also an encoder that no layer reads."""
        found = list(super().problems(cfg, side))
        yield from found
        kept = kept_layers(cfg, "decoder")
        if found or kept is None or cls.kept_fused_layers(cfg, kept) < len(kept):
            return
        fusion = f"--recurrence-fusion {cfg.recurrence_fusion} in all decoder layers"
        if cfg.recurrence_input != "encoder":
            yield (
                f"{fusion}: nothing reads the Transformer encoder; give it to the recurrence "
                "encoder (--recurrence-input encoder), or choose fewer --recurrence-fused-layers"
            )
        if cfg.cross_attention != "dot":
            yield (
                f"{fusion} cannot be combined with --cross-attention {cfg.cross_attention}; leave "
                "one out"
            )
        for name, off in (("cross_attention_mixture", "none"), ("cross_attention_fused", False)):
            if getattr(cfg, name, off) != off:
                yield f"{fusion} cannot be combined with {flag(name)}; leave one out"


class MultiColumn(FreshWeights, nn.Module):
    """H = W [H_e; H_r] + b: both outputs, concatenated and projected to the model's width.

    Chen et al. 2018. H_e is the output of the Transformer encoder, H_r that of the recurrence
    encoder, both normalised by their last layer; every decoder layer attends to H only. W starts
    as the identity over H_e, so that a trained decoder finds its input unchanged, and
    Xavier-uniform over H_r. Where W is zero over H_r, H is H_e to the last bit.
    """

    about = (
        "for comparison, before all layers, Chen et al. 2018: concatenation of the encoders' "
        "outputs; with an output per token"
    )

    Options: ClassVar[type] = NoOptions
    slot = "recurrence"

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__()
        width, recurrent = cfg.encoder.embed_dim, RecurrenceEncoder.output_width(cfg)
        self.merge = nn.Linear(width + recurrent, width)
        columns = self.merge.weight.detach().split([width, recurrent], dim=1)
        nn.init.eye_(columns[0])
        nn.init.xavier_uniform_(columns[1])
        nn.init.zeros_(self.merge.bias)

    @classmethod
    def problems(cls, cfg: Any, side: str) -> Iterator[str]:
        """No problems of its own."""
        yield from ()

    def forward(self, states: Tensor, recurrent: Tensor) -> Tensor:
        """H, (S, B, C), of H_e (S, B, C) and H_r (S, B, 2C or C)."""
        return self.merge(torch.cat([states, recurrent], dim=-1))
