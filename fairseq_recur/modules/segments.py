"""A batch of sources cut into segments, and the order in which queries read them."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fairseq_recur.modules.context import Source, hiding
from fairseq_recur.ops.segmented_attention import segments_at_steps
from fairseq_recur.ops.segments import (
    SegmentSchedule,
    segment_counts,
    segment_schedule,
    split_segments,
    step_of,
)


@dataclass(frozen=True)
class Segments:
    """A batch of sources cut into segments of s tokens: the same for all layers of a decoder.

    Attributes:
        hidden: (S', U, C) output of the encoder, the real tokens of each sentence first
        size: s
        missing: (U, S') bool, True at padding, or None
        mask: (U, 1, M, 1, s), added to scores over the segments, or None
        order: (U, S') int64, where the real tokens came from, or None if they did not move
        length: S
        counts: (U, 1) int64, number of segments of each sentence
        tokens: (U, M) int64, number of tokens of each segment
        targets: (U, 1) int64, target length q of each sentence
        schedule: which segment is read at each step, and which queries read at it
        step: in incremental decoding, the step at which each group of rows reads: (G, 1) int64
    """

    hidden: Tensor
    size: int
    missing: Tensor | None
    mask: Tensor | None
    order: Tensor | None
    length: int
    counts: Tensor
    tokens: Tensor
    targets: Tensor
    schedule: SegmentSchedule
    step: Tensor | None = None

    def cut(self, x: Tensor) -> Tensor:
        """Keys or values in segments, zero at padding: (U, H, S', D) to (U, H, M, s, D)."""
        if self.missing is not None:
            x = x.masked_fill(self.missing[:, None, :, None], 0.0)
        return split_segments(x, self.size)

    def states(self) -> Tensor:
        """`hidden` in segments, zero where a segment has no token: (U, 1, M, s, C)."""
        return self.cut(self.hidden.transpose(0, 1).unsqueeze(1))

    def mask_at_steps(self) -> Tensor:
        """`mask` of the segment that is read at each step: (U, 1, N, 1, s)."""
        if self.mask is None:
            size = (self.hidden.size(1), 1, self.schedule.steps, 1, self.size)
            return self.hidden.new_zeros(size, dtype=torch.float32)
        order = self.schedule.step_segments, self.schedule.steps
        return segments_at_steps(self.mask.transpose(3, 4), *order).transpose(3, 4)

    def at(self, source: Source, position: int) -> "Segments":
        """These segments, with the step at which the rows' *position* reads."""
        counts, targets = self.counts[source.groups], self.targets[source.groups]
        return replace(self, step=step_of(torch.full_like(counts, position), counts, targets))


def cut_source(
    source: Source,
    size: int,
    targets: tuple[int, ...],
    queries: int | None,
    order: Tensor | None,
    real: tuple[int, ...] | None = None,
) -> Segments:
    """Cut a batch of sources into segments.

    Args:
        source: of the decoder
        size: s
        targets: target length q of each sentence
        queries: T in teacher forcing; None in incremental decoding, for all steps to come
        order: (U, T) int64, where the real tokens of the targets are, or None if they come first
        real: number of the real tokens of each target, or None without padding
    """
    hidden, lengths, padding = source.states, source.lengths, source.padding
    device, length = hidden.device, hidden.size(0)
    if padding is not None:
        moved = padding.order[:, : max(lengths)]
        hidden = hidden.gather(0, moved.t().unsqueeze(2).expand(-1, -1, hidden.size(2)))
    steps = max(targets) + 1 if queries is None else queries
    schedule = segment_schedule(lengths, targets, steps, size, device, real)
    missing = mask = None
    first = torch.arange(0, hidden.size(0), size, device=device)
    total = torch.tensor(lengths, device=device).unsqueeze(1)
    if min(lengths) < hidden.size(0) or hidden.size(0) % size:
        room = -(-hidden.size(0) // size) * size
        away = torch.arange(room, device=device) >= total
        missing = away[:, : hidden.size(0)]
        mask = hiding(away, torch.float32).unflatten(1, (-1, size))[:, None, :, None]
    return Segments(
        hidden=hidden,
        size=size,
        missing=missing,
        mask=mask,
        order=None if padding is None else padding.order[:, : max(lengths)],
        length=length,
        counts=segment_counts(total, size),
        tokens=(total - first).clamp(0, size),
        targets=torch.tensor(targets, device=device).unsqueeze(1),
        schedule=schedule if order is None else schedule.moved(order),
    )
