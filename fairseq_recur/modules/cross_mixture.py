"""Recurrence encoding matrices between a target and its source, for cross-attention."""

from math import isqrt
from typing import TYPE_CHECKING

import torch.nn.functional as F
from fairseq.models.transformer import TransformerConfig
from torch import Tensor

from fairseq_recur.modules.context import Context, hiding, mask_as
from fairseq_recur.modules.mixture import with_room
from fairseq_recur.modules.rem import RecurrenceEncodingMatrices
from fairseq_recur.ops.attention import attention_map, dot_product_attention, stores_map
from fairseq_recur.ops.mixture import mixed_map, mixed_outputs
from fairseq_recur.ops.precision import at_least_float32, no_autocast
from fairseq_recur.ops.toeplitz import toeplitz_matrix

if TYPE_CHECKING:
    from fairseq_recur.modules.cross_attention import DotCrossAttention


class CrossRecurrenceEncodingMatrices(RecurrenceEncodingMatrices):
    """P of the cross-attention: P[t, j] = f(|start + t - j| / d) (Huang et al. 2023, appendix D.2).

    Target token t is at time start + t and source token j at time j. In text the start is 0. A
    forecaster's target begins inside or after its source (`Context.target_start`). Positions are
    counted in real tokens, so that padding on either side changes nothing.
    """

    about = (
        "Huang et al. 2023, appendix D.2; by the distance of the target's position from the "
        "source's"
    )

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__(cfg, "decoder")

    @staticmethod
    def place(side: str) -> tuple[str, bool]:
        """The attention that it mixes with; P reaches later source tokens, too."""
        return "mixture of the cross-attention", False

    def between(self, start: int, queries: int, keys: int) -> Tensor:
        """P (H', T, S) of queries at times start ... start + T - 1."""
        kernel, _ = self.kernels(max(start + queries, keys))
        return toeplitz_matrix(kernel, kernel, queries, keys, start)

    def rows(self, attention: "DotCrossAttention", queries: int, keys: int, c: Context) -> Tensor:
        """P of the batch: (H', T, S); in incremental decoding the newest position's (H', 1, S).

        That row is a slice of a table in the incremental state, which is made once per batch and
        again when it is too short.
        """
        if c.incremental_state is None:
            return self.between(c.target_start, queries, keys)
        assert c.position is not None
        saved = attention.get_incremental_state(c.incremental_state, "mixture")
        if saved is None or saved["table"].size(-1) - keys < c.position:
            steps = with_room(c.position + 1)
            table = self.between(c.target_start + steps - 1, 1, steps + keys - 1)
            saved = {"table": table}
            attention.set_incremental_state(c.incremental_state, "mixture", saved)
        first = saved["table"].size(-1) - keys - c.position
        return saved["table"][:, :, first : first + keys]

    def product_at(
        self, values: Tensor, padding: Tensor | None, form: str, start: int, queries: int
    ) -> Tensor:
        """P V, where `product` has as many queries as keys.

        Args:
            values: (B, H', S, D) in float32 or more, zero at padding
            padding: (B, S) bool or None
            form: "dense" or "chunked"
            start: time of the first query
            queries: T

        Returns:
            (B, H', T, D)
        """
        if form == "dense":
            matrix = self.between(start, queries, values.size(2))
            return self.dense_product(matrix, values, padding)
        missing = max(0, start + queries - values.size(2))
        padded = F.pad(values, (0, 0, 0, missing))
        square = self.product(padded, padded.size(2), None, form)
        return square[:, :, start : start + queries]

    def mix_source(
        self,
        attention: "DotCrossAttention",
        query: Tensor,
        key: Tensor,
        value: Tensor,
        hidden: Tensor | None,
        context: Context,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """(1 - g) softmax(Q K^T / sqrt(D)) V + g P V.

        Args:
            attention: the cross-attention
            query: (B, H, T, D), not scaled, real tokens first; in incremental decoding T rows of a
                beam at the newest position
            key, value: (B, H, S, D), real tokens first, the values zero at padding
            hidden: (B, S) bool, True at padding, or None
            context: of the batch
            need_weights: whether to return the map

        Returns:
            (B, H, T, D), and the mixed map (B, H, T, S) or None, its keys with real tokens first
        """
        keys, mask = key.size(2), None
        if hidden is not None:
            mask = hiding(hidden, at_least_float32(query).dtype)[:, None, None, :]
        dropout, newest = attention.dropout_probability, context.incremental_state is not None
        stored = stores_map(query, None, dropout)
        form = self.form_for(isqrt(query.size(2) * keys), True, stored=stored)
        if newest or need_weights or form == "mixed":
            with no_autocast(value):
                exact = at_least_float32(query), at_least_float32(key)
                weights = attention_map(*exact, mask, attention.scale)
                matrix = self.rows(attention, query.size(2), keys, context)
                matrix = self.applied(matrix, hidden)
            gates, dropped = self.gates(), self.drop_mixed
            out, weights = mixed_map(weights, value, matrix, gates, dropout, dropped)
            if need_weights and hidden is not None:  # P does not hide padding, whose values are 0
                weights = weights.masked_fill(hidden[:, None, None, :], 0.0)
            return out, weights
        local = dot_product_attention(
            query, key, value, mask_as(mask, query.dtype), dropout, scale=attention.scale
        )
        with no_autocast(value):
            mixing = at_least_float32(value[:, : self.mixing])
            start, queries = context.target_start, query.size(2)
            recurrent = self.product_at(mixing, hidden, form, start, queries)
        return mixed_outputs(local, recurrent, self.gates()), None
