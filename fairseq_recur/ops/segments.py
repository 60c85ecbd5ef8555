"""Segments of a source, and which of them each query reads (Long et al. 2023, section 3.1).

A source of k tokens has m = ceil(k / s) segments of s tokens. Query t of a target of length q
reads segment i = min(t m // q, m - 1). A *step* is one segment in the order in which the queries
read them. If q >= m, the steps are all segments; otherwise they are those that a query reads.

Letters: M segments, N steps, n queries per step.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_recur.ops.padding import restore_order


def split_segments(x: Tensor, size: int) -> Tensor:
    """(..., S, D) cut into segments, the last one padded with zeros: (..., M, s, D)."""
    missing = -x.size(-2) % size
    x = F.pad(x, (0, 0, 0, missing)) if missing else x  # F.pad always copies
    return x.view(*x.shape[:-2], x.size(-2) // size, size, x.size(-1))


def segment_counts(lengths: Tensor, size: int) -> Tensor:
    """M = ceil(k / s), at least 1, in the shape of *lengths*."""
    return ((lengths + size - 1) // size).clamp(min=1)


def step_of(position: Tensor, segments: Tensor, target: Tensor) -> Tensor:
    """The step at which the query at *position* reads; all arguments int64, broadcastable.

    If there are fewer queries than segments, each of the q queries has its own step. Queries past
    the target's length share one further step, at the last segment.
    """
    every = torch.minimum(position * segments // target, segments - 1)
    return torch.where(target < segments, torch.minimum(position, target), every)


def segment_of(step: Tensor, segments: Tensor, target: Tensor) -> Tensor:
    """The segment that is read at a step; steps past the last one read the last segment."""
    skipping = torch.where(step < target, step * segments // target, segments - 1)
    return torch.minimum(torch.where(target < segments, skipping, step), segments - 1)


@dataclass(frozen=True)
class SegmentSchedule:
    """The steps of a batch, with its queries in blocks, one block per step.

    All blocks have the same size, that of the step with most queries. Queries at padding, whose
    outputs nothing reads, are in places that are left over. Free places stay zero.

    Attributes:
        steps: N, of the sentence that needs most
        queries_per_step: n
        query_slots: (B, T) int64, the place of each query among its sentence's N n places; None
            if the queries fill all places in order
        step_segments: (B, N) int64, the segment read at each step; None if step i reads segment i
        last_step: (B, 1) int64, the last step of each sentence
    """

    steps: int
    queries_per_step: int
    query_slots: Tensor | None
    step_segments: Tensor | None
    last_step: Tensor

    def finished_steps(self) -> Tensor | None:
        """(B, N) bool, True past a sentence's last step; None if the queries fill all places."""
        if self.query_slots is None:
            return None
        return torch.arange(self.steps, device=self.last_step.device) > self.last_step

    def moved(self, order: Tensor) -> "SegmentSchedule":
        """The schedule of queries whose t-th stands in column *order*[:, t], (B, T) int64."""
        slots = self.query_slots
        if slots is None:
            slots = torch.arange(order.size(1), device=order.device).expand_as(order)
        return replace(self, query_slots=restore_order(slots, order, 1))

    def segments_read(self, queries: Tensor) -> Tensor:
        """The segment that each of the queries (B, H, T, D) reads: (B, T) int64."""
        slots = self.query_slots
        if slots is None:
            places = torch.arange(queries.size(2), device=queries.device)
            slots = places.expand(queries.size(0), -1)
        steps = slots // self.queries_per_step
        return steps if self.step_segments is None else self.step_segments.gather(1, steps)

    def to_blocks(self, queries: Tensor) -> Tensor:
        """(B, H, T, D) to (B, H, N, n, D), zero in free places."""
        batch, heads, _, width = queries.size()
        if self.query_slots is not None:
            index = self.query_slots[:, None, :, None].expand_as(queries)
            places = queries.new_zeros(batch, heads, self.steps * self.queries_per_step, width)
            queries = places.scatter(2, index, queries)
        return queries.view(batch, heads, self.steps, self.queries_per_step, width)

    def from_blocks(self, outputs: Tensor) -> Tensor:
        """(B, H, N, n, D) to (B, H, T, D)."""
        outputs = outputs.flatten(2, 3)
        if self.query_slots is None:
            return outputs
        size = (-1, outputs.size(1), -1, outputs.size(3))
        return outputs.gather(2, self.query_slots[:, None, :, None].expand(size))


def segment_schedule(
    lengths: tuple[int, ...],
    targets: tuple[int, ...],
    queries: int,
    size: int,
    device: torch.device,
    real: tuple[int, ...] | None = None,
) -> SegmentSchedule:
    """The schedule of a batch with *queries* queries per sentence.

    Args:
        lengths: true length k of each sentence's source, at least 1
        targets: length q of each sentence's target, which determines the steps
        queries: T, which may be more or less than q
        size: s
        device: device of the schedule's tensors
        real: number of queries of each sentence that are no padding, at least 1; these come first.
            None: all
    """
    segments = segment_counts(torch.tensor(lengths), size).unsqueeze(1)
    target = torch.tensor(targets).unsqueeze(1)
    position = torch.arange(queries).unsqueeze(0)
    padded = position >= torch.tensor(real or [queries] * len(lengths)).unsqueeze(1)
    step = step_of(position, segments, target)
    last = step.masked_fill(padded, 0).max(dim=1, keepdim=True).values
    steps = torch.arange(int(last.max()) + 1).unsqueeze(0)
    step = torch.minimum(step, last)  # where a query at padding is until it gets its place below
    counts = torch.zeros(len(lengths), steps.size(1), dtype=torch.int64)
    counts.scatter_add_(1, step, (~padded).long())
    per_step = max(int(counts.max()), -(-queries // steps.size(1)))  # room for all of them
    before = counts.cumsum(1) - counts  # queries of earlier steps
    slots = step * per_step + position - before.gather(1, step)
    slots = _in_places_left_over(slots, padded, steps.size(1) * per_step)
    filled = queries == steps.size(1) * per_step and torch.equal(slots, position.expand_as(slots))
    read = segment_of(steps, segments, target)
    # Nothing reads the segments after a sentence's last step.
    in_order = bool(((read == steps) | (steps > last)).all())
    return SegmentSchedule(
        steps=steps.size(1),
        queries_per_step=per_step,
        query_slots=None if filled else slots.to(device),
        step_segments=None if in_order else read.to(device),
        last_step=last.to(device),
    )


def _in_places_left_over(slots: Tensor, padded: Tensor, places: int) -> Tensor:
    """Give the *padded* queries the places that the others leave free, in order: (B, T) int64."""
    if not padded.any():
        return slots
    taken = torch.zeros(slots.size(0), places + 1, dtype=torch.bool)
    taken.scatter_(1, slots.masked_fill(padded, places), True)  # the additional one is for these
    free = taken[:, :places].sort(dim=1, stable=True).indices
    number = padded.cumsum(1) - 1
    return torch.where(padded, free.gather(1, number.clamp(min=0)), slots)
