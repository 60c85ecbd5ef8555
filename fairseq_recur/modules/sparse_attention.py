"""Self-attention over few pairs of positions: Informer's ProbSparse, and LogSparse."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig
from torch import Tensor

from fairseq_recur.modules.context import Context, mask_as
from fairseq_recur.modules.mixture import Mixture
from fairseq_recur.modules.options import option
from fairseq_recur.modules.self_attention import SelfAttention
from fairseq_recur.ops.attention import attention_map, dot_product_attention
from fairseq_recur.ops.precision import at_least_float32, no_autocast
from fairseq_recur.ops.sparse_attention import (
    attending_rows,
    log_sparse_mask,
    matrix_rows,
    prob_sparse_attention,
    sampled_keys,
)

ROWS = ["chosen", "all"]

EVALUATION_SEED = 1
"""Seed of the sampled keys outside training, so that results do not change between calls."""


class Chosen(NamedTuple):
    """The queries that attend.

    Attributes:
        rows: (B, H, U) int64, their positions
        room: (B, 1, U) bool, whether a row counts
        counts: (B,) int64, real tokens of each sentence
    """

    rows: Tensor
    room: Tensor
    counts: Tensor


class ProbSparseSelfAttention(SelfAttention):
    """Attention from the queries whose scores are farthest from uniform (Zhou et al. 2021).

    The others get the mean of the values, in a decoder their cumulative sum. Which queries attend
    depends on all positions, and so no decoder that works step by step can have this map. In
    training the keys for the measure are drawn anew in each forward pass, by torch's generator.
    """

    about = "Zhou et al. 2021; encoder or forecaster only"

    @dataclass
    class Options:
        """Options of ProbSparse."""

        prob_sparse_factor: int = option(
            5,
            "sampling factor c of ProbSparse: c ceil(ln n) of the n queries attend, selected by "
            "their scores on as many sampled keys",
            (1, 1000),
        )
        prob_sparse_mixed_rows: ChoiceEnum(ROWS) = option(  # type: ignore[valid-type]
            "chosen",
            "rows of prob_sparse that are mixed with a matrix: chosen, those that attend, or "
            "all; Huang et al. 2023 can be read either way",
        )

    few_rows = True
    stepwise = False

    def __init__(self, cfg: TransformerConfig, side: str, mixture: Mixture | None) -> None:
        super().__init__(cfg, side, mixture)
        self.factor = cfg.prob_sparse_factor
        self.mix_all = cfg.prob_sparse_mixed_rows == "all"

    @classmethod
    def without_map(cls, cfg: Any, choice: str) -> str | None:
        """As in `SelfAttention.without_map`: the rows that do not attend are not read by a map."""
        rows = cfg.prob_sparse_mixed_rows
        return None if rows == "chosen" else f"--prob-sparse-mixed-rows {rows}"

    @classmethod
    def problems(cls, cfg: Any, side: str) -> Iterator[str]:
        """Problems with the combination of this part's options, one message each."""
        yield from super().problems(cfg, side)
        rows, name = cfg.prob_sparse_mixed_rows, getattr(cfg, f"{side}_self_attention")
        sides = [s for s in cls.sides if getattr(cfg, f"{s}_self_attention", None) == name]
        mixtures = {getattr(cfg, f"{s}_self_attention_mixture") for s in sides}
        if rows != "chosen" and mixtures == {"none"}:
            yield (
                f"--prob-sparse-mixed-rows {rows} has no effect: it needs "
                f"--{side}-self-attention-mixture, such as rsa"
            )

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, context: Context, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """As in `SelfAttention.attend`."""
        chosen = self.choose(query, key, context)
        return self.attend_from(chosen, query, key, value, context, need_weights)

    def attend_mixed(
        self, query: Tensor, key: Tensor, value: Tensor, context: Context, need_weights: bool,
        mixture: Mixture,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """As in `SelfAttention.attend_mixed`: of P, only the rows of the chosen queries."""
        chosen = self.choose(query, key, context)
        with no_autocast(value):
            matrix = mixture.matrix(query.size(2), key.size(2))
            matrix = matrix_rows(matrix, chosen.rows[:, : mixture.mixing])
            matrix = mixture.applied(matrix, context.padding_mask)
        mixed = matrix, mixture.gates(), mixture.drop_mixed
        return self.attend_from(chosen, query, key, value, context, need_weights, *mixed)

    def attend_to_mix(
        self, query: Tensor, key: Tensor, value: Tensor, context: Context
    ) -> tuple[Tensor, Tensor | None]:
        """As in `SelfAttention.attend_to_mix`: by default only the rows that attend are mixed."""
        chosen = self.choose(query, key, context)
        out, _ = self.attend_from(chosen, query, key, value, context, False)
        if self.mix_all:
            return out, None
        mixed = torch.zeros(query.shape[:3], dtype=torch.bool, device=query.device)
        mixed = mixed.scatter(2, chosen.rows, chosen.room.expand_as(chosen.rows))
        return out, mixed.unsqueeze(3)

    def choose(self, query: Tensor, key: Tensor, context: Context) -> Chosen:
        """The queries of this forward pass that attend."""
        padding = context.padding
        if padding is None:
            counts = torch.full((len(query),), query.size(2), device=query.device)
        else:
            counts = padding.counts
        order = None if padding is None else padding.order
        seed = None if self.training else EVALUATION_SEED
        drawn = sampled_keys(seed, counts, query.size(2), order, self.factor)
        return Chosen(*attending_rows(query, key, *drawn, counts, context.padding_mask), counts)

    def attend_from(
        self, chosen: Chosen, query: Tensor, key: Tensor, value: Tensor, context: Context,
        need_weights: bool, *mixed: Any,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """As in `SelfAttention.attend`, given the queries that attend.

        *mixed* are the last arguments of `prob_sparse_attention`: matrix, gate and drop_mixed.
        """
        # Scores in float32 may exceed what hides a key in float16.
        mask = mask_as(context.mask, torch.promote_types(query.dtype, torch.float32))
        return prob_sparse_attention(
            query, key, value, *chosen, context.padding_mask, mask, self.causal,
            self.dropout_probability, self.scale, need_weights, *mixed,
        )  # fmt: skip


class LogSparseSelfAttention(SelfAttention):
    """Attention to the own position and to those 1, 2, 4, ... away (Li et al. 2019, section 4.2).

    An encoder looks both ways, a decoder back.
    """

    about = "Li et al. 2019"

    fused = True
    reads_memory = True

    def weights(self, query: Tensor, key: Tensor, mask: Tensor | None, context: Context) -> Tensor:
        """As in `SelfAttention.weights`."""
        with no_autocast(query):
            query, key = at_least_float32(query), at_least_float32(key)
            return attention_map(query, key, self.own_mask(query, key, mask, context), self.scale)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, context: Context, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """As in `SelfAttention.attend`; by torch's fused kernel where no weights are needed."""
        if need_weights or context.incremental_state is not None:
            return super().attend(query, key, value, context, need_weights)
        mask, dropout = self.own_mask(query, key, context.mask, context), self.dropout_probability
        out = dot_product_attention(query, key, value, mask, dropout, scale=self.scale)
        return out, None

    def own_mask(self, query: Tensor, key: Tensor, mask: Tensor | None, context: Context) -> Tensor:
        """The mask of the batch, which also hides keys at other distances: as in `weights`."""
        queries, keys = query.size(2), key.size(2)
        return context.once(
            ("log_sparse", queries, keys, query.dtype),
            lambda: log_sparse_mask(queries, keys, mask, query),
        )
