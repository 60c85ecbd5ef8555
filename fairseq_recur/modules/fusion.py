"""How a decoder layer reads the recurrence encoder."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Optional

import torch
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import FairseqDropout, LayerNorm, MultiheadAttention
from torch import Tensor, nn

from fairseq_recur.modules.observed import Observed
from fairseq_recur.modules.part import Part
from fairseq_recur.ops.recurrence_encoder import gate, gated_sum

IncrementalState = Optional[dict[str, dict[str, Tensor | None]]]


class StackFusion(Observed, Part, nn.Module):
    """R = LN(ATT(D, H_r) + D), and the feed-forward network reads R (Hao et al., eqs. 18-19).

    Args:
        cfg: the host's configuration
    """

    slot = "recurrence"

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__()
        width = cfg.decoder.embed_dim
        self.normalize_before = cfg.decoder.normalize_before
        self.attention = MultiheadAttention(
            width,
            cfg.decoder.attention_heads,
            kdim=2 * cfg.encoder.embed_dim,
            vdim=2 * cfg.encoder.embed_dim,
            dropout=cfg.attention_dropout,
            encoder_decoder_attention=True,
            q_noise=cfg.quant_noise.pq,
            qn_block_size=cfg.quant_noise.pq_block_size,
        )
        self.layer_norm = LayerNorm(width, export=cfg.export)
        self.dropout_module = FairseqDropout(cfg.dropout, module_name=type(self).__name__)
        self._target_padding: Tensor | None = None

    @contextmanager
    def knowing_targets(self, padding: Tensor | None) -> Iterator[None]:
        """While the padding of the target (B, T) is known, for what is observed."""
        self._target_padding = padding
        try:
            yield
        finally:
            self._target_padding = None

    def attend(
        self,
        x: Tensor,
        states: Tensor,
        padding_mask: Tensor | None,
        incremental_state: IncrementalState,
    ) -> Tensor:
        """LN(ATT(x, H_r) + x), normalised before instead where the host is: (T, B, C)."""
        residual = x
        if self.normalize_before:
            x = self.layer_norm(x)
        x, _ = self.attention(
            query=x,
            key=states,
            value=states,
            key_padding_mask=padding_mask,
            incremental_state=incremental_state,
            static_kv=True,
            need_weights=False,
        )
        x = residual + self.dropout_module(x)
        return x if self.normalize_before else self.layer_norm(x)

    def forward(
        self,
        c: Tensor,
        d: Tensor,
        states: Tensor,
        padding_mask: Tensor | None = None,
        incremental_state: IncrementalState = None,
    ) -> Tensor:
        """What the feed-forward network reads.

        Args:
            c: (T, B, C) output of the self-attention sub-layer, C_self
            d: (T, B, C) output of the cross-attention sub-layer, D
            states: (L', B, 2C) output of the recurrence encoder, H_r
            padding_mask: (B, L') bool or None
            incremental_state: fairseq's, in which the projected *states* are kept

        Returns:
            (T, B, C)
        """
        return self.attend(d, states, padding_mask, incremental_state)


class GatedSumFusion(StackFusion):
    """R = LN(ATT(C_self, H_r) + C_self); lam D + (1 - lam) R (Hao et al., eqs. 14-17).

    lam = sigma(W_d D + W_r R + b) is a value per channel, or one per position
    (``recurrence_gate`` "vector" or "scalar").
    """

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

    def forward(
        self,
        c: Tensor,
        d: Tensor,
        states: Tensor,
        padding_mask: Tensor | None = None,
        incremental_state: IncrementalState = None,
    ) -> Tensor:
        """As in `StackFusion.forward`, which says the shapes."""
        r = self.attend(c, states, padding_mask, incremental_state)
        weights = self.gate_d.weight, self.gate_r.weight, self.gate_r.bias
        if self.watched:
            padding = self._target_padding
            padding = None if padding is None else padding.t().unsqueeze(2)
            with torch.no_grad():
                self.observe("fusion_gate", gate(d, r, *weights), padding)
        return gated_sum(d, r, *weights)

    def gate(
        self,
        c: Tensor,
        d: Tensor,
        states: Tensor,
        padding_mask: Tensor | None = None,
        incremental_state: IncrementalState = None,
    ) -> Tensor:
        """Lam for the arguments of `forward`, which does not keep it: (T, B, C), or (T, B, 1)."""
        r = self.attend(c, states, padding_mask, incremental_state)
        return gate(d, r, self.gate_d.weight, self.gate_r.weight, self.gate_r.bias)
