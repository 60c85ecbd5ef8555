"""Cross-attention over one segment of the source, and what its relatives share."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from fairseq.models.transformer import TransformerConfig
from torch import Tensor

from fairseq_recur.modules.decoding import Beams, current_step
from fairseq_recur.modules.fusion import IncrementalState
from fairseq_recur.modules.heads import Heads
from fairseq_recur.modules.t5_projections import inner_width, is_t5, use_t5_projections
from fairseq_recur.ops.padding import real_tokens_first
from fairseq_recur.ops.segmented_attention import attend_segments, segments_at_steps
from fairseq_recur.ops.segments import (
    SegmentSchedule,
    segment_counts,
    segment_of,
    segment_schedule,
    split_segments,
    step_of,
)

Source = dict[str, Tensor]
"""What is made of a source, for each step of the schedule: (B, H or 1, N or 1, ...)."""

TARGET_LENGTHS = ("fixed", "ratio", "reference")


class SegmentedAttention(Heads):
    """O_S[t] = softmax(Q_t K_i^T) V_i: SRformer without recurrence (Long et al. 2023, eq. 6).

    The parameters are those of fairseq's module, under their names, so that a stock checkpoint
    fits. The relatives of this part differ in `prepare` and `attend`.

    Args:
        cfg: the host's configuration
    """

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__(
            inner_width(cfg, "decoder"),
            cfg.decoder.attention_heads,
            kdim=cfg.encoder.embed_dim,
            vdim=cfg.encoder.embed_dim,
            dropout=cfg.attention_dropout,
            encoder_decoder_attention=True,
            q_noise=cfg.quant_noise.pq,
            qn_block_size=cfg.quant_noise.pq_block_size,
        )
        if is_t5(cfg):
            use_t5_projections(self, cfg, cfg.decoder.embed_dim, cfg.encoder.embed_dim)
        self.size = cfg.segment_size
        self.target_mode, self.target_length = cfg.target_length_mode, cfg.target_length
        self.target_ratio = cfg.target_ratio
        self._references: tuple[int, ...] | None = None

    def prepare(
        self,
        keys: Tensor,
        values: Tensor,
        schedule: SegmentSchedule,
        mask: Tensor | None,
        hidden: Tensor,
    ) -> Source:
        """What depends on the source alone.

        Args:
            keys, values: (B, H, M, s, D), zero at padding
            schedule: the steps
            mask: (B, 1, M, 1, s), added to the scores, or None
            hidden: (B, 1, M, s, C), the encoder's output, zero at padding
        """
        steps = schedule.step_segments, schedule.steps
        source = {
            "keys": segments_at_steps(keys, *steps),
            "values": segments_at_steps(values, *steps),
        }
        if mask is not None:
            source["mask"] = segments_at_steps(mask.transpose(3, 4), *steps).transpose(3, 4)
        return source

    def attend(self, queries: Tensor, source: Source) -> tuple[Tensor, Tensor]:
        """The heads' outputs.

        Args:
            queries: (B, H, N, n, D), scaled
            source: from `prepare`

        Returns:
            (B, H, N, n, D), and the weights within the segments (B, H, N, n, s)
        """
        return attend_segments(
            queries, source["keys"], source["values"], source.get("mask"), self.dropout_probability
        )

    def read(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        schedule: SegmentSchedule,
        mask: Tensor | None,
        hidden: Tensor,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """All steps at once; arguments and results as for `prepare` and `attend`.

        The queries are not scaled yet.
        """
        source = self.prepare(keys, values, schedule, mask, hidden)
        return self.attend(queries * self.scaling, source)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None,
        key_padding_mask: Tensor | None = None,
        incremental_state: IncrementalState = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Tensor | None = None,
        before_softmax: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from *query* (T, B, C) to the encoder's output *key* (S, B, C).

        The arguments are fairseq's. In incremental decoding *query* is the newest position.

        Returns:
            (T, B, C), and attention weights: (B, T, S), averaged over the heads, or with
            *need_head_weights* (H, B, T, S); None in training. Zero outside the segments.
        """
        queries = self.split(self.q_proj(query))
        wanted = (need_weights or need_head_weights) and not self.training
        if incremental_state is None:
            out, weights = self.all_steps(queries, key, key_padding_mask, wanted)
        else:
            out, weights = self.one_step(queries, key, key_padding_mask, incremental_state, wanted)
        return self.output(out, weights, need_head_weights)

    def all_steps(
        self, queries: Tensor, hidden: Tensor, padding: Tensor | None, wanted: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Teacher forcing: (B, H, T, D) of the same, and the weights (B, H, T, S) if *wanted*."""
        order, lengths = real_order(hidden, padding)
        arranged = self.arrange(hidden, order, lengths)
        targets = self.targets(lengths, self._references or (queries.size(2),) * len(lengths))
        plan = segment_schedule(lengths, targets, queries.size(2), self.size, hidden.device)
        out, weights = self.read(
            plan.to_blocks(queries), *arranged[:2], plan, *arranged[2:], wanted
        )
        if not wanted:
            return plan.from_blocks(out), None
        length, target = (
            torch.tensor(x, device=hidden.device)[:, None] for x in (lengths, targets)
        )
        segments = segment_counts(length, self.size)
        position = torch.arange(queries.size(2), device=hidden.device)[None]
        read = segment_of(step_of(position, segments, target), segments, target)
        weights = plan.from_blocks(weights)
        return plan.from_blocks(out), spread(weights, read, order, hidden.size(0))

    def one_step(
        self,
        queries: Tensor,
        hidden: Tensor,
        padding: Tensor | None,
        incremental_state: dict[str, dict[str, Any]],
        wanted: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """The newest position alone: (B, H, 1, D), and the weights (B, H, 1, S) if *wanted*.

        What depends on the source alone is computed at the first position, once for each
        sentence, and stays where it is: each step reads its place.
        """
        sentences, position = current_step(incremental_state)
        state = self.get_incremental_state(incremental_state, "source")
        if state is None:
            state = self.first_step(hidden, padding, Beams(sentences))
            self.set_incremental_state(incremental_state, "source", state)
        elif state["beams"].sentences is not sentences:
            state["beams"] = Beams(sentences, state["beams"].known)
        beams, rows = state["beams"], state["beams"].stored
        segments, targets = state["segments"][rows], state["targets"][rows]
        step = step_of(torch.full_like(rows, position), segments, targets)
        source = {
            name: x[rows] if x.size(2) == 1 else x[rows, :, step].unsqueeze(2)
            for name, x in state["source"].items()
        }
        # The beams of a sentence are queries that read the same.
        together = queries.unflatten(0, (-1, beams.size)).squeeze(3).transpose(1, 2).unsqueeze(2)
        out, weights = self.attend(together * self.scaling, source)
        out = out.squeeze(2).transpose(1, 2).reshape(queries.size())
        if not wanted:
            return out, None
        weights = weights.squeeze(2).transpose(1, 2).flatten(0, 1).unsqueeze(2)
        read = segment_of(step, segments, targets).repeat_interleave(beams.size)[:, None]
        order = state["order"]
        order = None if order is None else order[rows].repeat_interleave(beams.size, 0)
        return out, spread(weights, read, order, hidden.size(0))

    def first_step(self, hidden: Tensor, padding: Tensor | None, beams: Beams) -> dict[str, Any]:
        """What incremental decoding keeps: of each sentence once."""
        hidden = hidden.index_select(1, beams.first)
        padding = None if padding is None else padding.index_select(0, beams.first)
        order, lengths = real_order(hidden, padding)
        keys, values, mask, arranged = self.arrange(hidden, order, lengths)
        targets = self.targets(lengths, (self.target_length,) * len(lengths))
        plan = segment_schedule(lengths, targets, max(targets) + 1, self.size, hidden.device)
        counts = segment_counts(torch.tensor(lengths, device=hidden.device), self.size)
        return {
            "source": self.prepare(keys, values, plan, mask, arranged),
            "segments": counts,
            "targets": torch.tensor(targets, device=hidden.device),
            "order": order,
            "beams": beams,
        }

    def arrange(
        self, hidden: Tensor, order: Tensor | None, lengths: tuple[int, ...]
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """Keys and values in segments, with the real tokens first and zeros at padding.

        Args:
            hidden: (S, B, C)
            order: (B, S), see `real_order`
            lengths: of the sentences

        Returns:
            keys and values (B, H, M, s, D); a mask for their scores (B, 1, M, 1, s) or None;
            and the encoder's output in the same order (B, 1, M, s, C)
        """
        if order is not None:
            order = order[:, : max(lengths)]
            hidden = hidden.gather(0, order.t().unsqueeze(2).expand(-1, -1, hidden.size(2)))
        keys, values = self.split(self.k_proj(hidden)), self.split(self.v_proj(hidden))
        hidden, mask = hidden.transpose(0, 1).unsqueeze(1), None
        if min(lengths) < hidden.size(2) or hidden.size(2) % self.size:
            room = -(-hidden.size(2) // self.size) * self.size
            position = torch.arange(room, device=hidden.device)
            missing = position >= torch.tensor(lengths, device=hidden.device).unsqueeze(1)
            gone = missing[:, None, : hidden.size(2), None]
            keys, values, hidden = (x.masked_fill(gone, 0.0) for x in (keys, values, hidden))
            mask = hidden.new_zeros(missing.size(), dtype=torch.float32)
            mask = mask.masked_fill(missing, torch.finfo(torch.float32).min)
            mask = mask.unflatten(1, (-1, self.size))[:, None, :, None]
        keys, values, hidden = (split_segments(x, self.size) for x in (keys, values, hidden))
        return keys, values, mask, hidden

    def targets(self, lengths: tuple[int, ...], references: tuple[int, ...]) -> tuple[int, ...]:
        """The target length q of each sentence, by which its segments are visited."""
        if self.target_mode == "reference":
            return references
        if self.target_mode == "ratio":
            return tuple(math.ceil(self.target_ratio * length) for length in lengths)
        return (self.target_length,) * len(lengths)

    @contextmanager
    def knowing_references(self, padding: Tensor | None) -> Iterator[None]:
        """While the targets' lengths are known, by their padding (B, T); None: all are full."""
        if padding is not None and self.target_mode == "reference":
            self._references = tuple((~padding).sum(1).tolist())
        try:
            yield
        finally:
            self._references = None

    def reorder_incremental_state(
        self, incremental_state: dict[str, dict[str, Any]], new_order: Tensor
    ) -> None:
        """Nothing moves: what is stored belongs to sentences and not to rows."""


def real_order(hidden: Tensor, padding: Tensor | None) -> tuple[Tensor | None, tuple[int, ...]]:
    """The order that puts real tokens first, (B, S) or None if they are, and their numbers."""
    if padding is None:
        return None, (hidden.size(0),) * hidden.size(1)
    order, lengths = real_tokens_first(padding.to(torch.bool))
    return order, tuple(max(1, length) for length in lengths.tolist())


def spread(weights: Tensor, segments: Tensor, order: Tensor | None, length: int) -> Tensor:
    """Weights within segments as weights over the source.

    Args:
        weights: (B, H, T, s)
        segments: (B, T) int64, the segment that each query reads
        order: (B, S) int64, where the real tokens came from, or None if they did not move
        length: S

    Returns:
        (B, H, T, S)
    """
    size = weights.size(3)
    place = segments.unsqueeze(2) * size + torch.arange(size, device=weights.device)
    missing = place >= length  # of the last segment; their weights are 0
    place = place.masked_fill(missing, 0)
    if order is not None:
        place = order[:, None].expand(-1, place.size(1), -1).gather(2, place)
    place = place.unsqueeze(1).expand_as(weights)
    weights = weights.masked_fill(missing.unsqueeze(1), 0.0)
    return weights.new_zeros(*weights.size()[:3], length).scatter_add(3, place, weights)
