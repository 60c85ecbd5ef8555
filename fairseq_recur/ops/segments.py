"""Which segment of its source each query reads (Long et al. 2023, section 3.1).

A source of k tokens has m = ceil(k / s) segments; query t of a target of length q reads
segment i = min(t m // q, m - 1). A *step* is one segment in the order in which the queries
visit them: where q >= m the steps are all segments, else those that a query falls on.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


def segment_counts(lengths: Tensor, size: int) -> Tensor:
    """M = ceil(k / s), of the same shape as *lengths*, at least 1."""
    return ((lengths + size - 1) // size).clamp(min=1)


def step_of(position: Tensor, segments: Tensor, target: Tensor) -> Tensor:
    """The step at which the query at *position* reads; all arguments int64, broadcast.

    With fewer queries than segments each of the q queries has a step of its own, and those
    past the target's length share one more, at the last segment.
    """
    every = torch.minimum(position * segments // target, segments - 1)
    return torch.where(target < segments, torch.minimum(position, target), every)


def segment_of(step: Tensor, segments: Tensor, target: Tensor) -> Tensor:
    """The segment that is read at a step; steps past the last one stay there."""
    skipping = torch.where(step < target, step * segments // target, segments - 1)
    return torch.minimum(torch.where(target < segments, skipping, step), segments - 1)


@dataclass(frozen=True)
class SegmentSchedule:
    """The steps of a batch, with its queries in blocks, one a step.

    A block has room for the largest number of queries that a step of a sentence has; the room
    that is not needed stays empty.

    Attributes:
        steps: N, of the sentence that takes most
        room: n
        slots: (B, T) int64, where in its sentence's N n places each query lies; None if the
            queries fill all places in their order
        segments: (B, N) int64, the segment read at each step; None if step i reads segment i
    """

    steps: int
    room: int
    slots: Tensor | None
    segments: Tensor | None

    def past_last(self) -> Tensor | None:
        """(B, N) bool, True at steps past the last one of a sentence; None if there are none."""
        if self.slots is None:
            return None
        last = self.slots[:, -1:] // self.room
        return torch.arange(self.steps, device=last.device) > last

    def to_blocks(self, queries: Tensor) -> Tensor:
        """(B, H, T, D) to (B, H, N, n, D), zeros where there is no query."""
        batch, heads, _, width = queries.size()
        if self.slots is not None:
            index = self.slots[:, None, :, None].expand_as(queries)
            places = queries.new_zeros(batch, heads, self.steps * self.room, width)
            queries = places.scatter(2, index, queries)
        return queries.unflatten(2, (self.steps, self.room))

    def from_blocks(self, outputs: Tensor) -> Tensor:
        """(B, H, N, n, D) to (B, H, T, D)."""
        outputs = outputs.flatten(2, 3)
        if self.slots is None:
            return outputs
        size = (-1, outputs.size(1), -1, outputs.size(3))
        return outputs.gather(2, self.slots[:, None, :, None].expand(size))


def segment_schedule(
    lengths: tuple[int, ...],
    targets: tuple[int, ...],
    queries: int,
    size: int,
    device: torch.device,
) -> SegmentSchedule:
    """The steps that *queries* queries a sentence take.

    Args:
        lengths: true length k of each sentence's source, at least 1
        targets: the length q of each sentence's target that the steps are counted by
        queries: T, which may be more or less than q
        size: s
        device: where to put the tensors
    """
    segments = segment_counts(torch.tensor(lengths), size).unsqueeze(1)
    target = torch.tensor(targets).unsqueeze(1)
    position = torch.arange(queries).unsqueeze(0)
    step = step_of(position, segments, target)
    last = step.max(dim=1, keepdim=True).values
    steps = torch.arange(int(last.max()) + 1).unsqueeze(0)
    counts = torch.zeros(len(lengths), steps.size(1), dtype=torch.int64)
    counts.scatter_add_(1, step, torch.ones_like(step))
    room = int(counts.max())
    before = counts.cumsum(1) - counts  # queries of earlier steps
    slots = step * room + position - before.gather(1, step)
    filled = queries == steps.size(1) * room and torch.equal(slots, position.expand_as(slots))
    read = segment_of(steps, segments, target)
    # What a sentence would read after its own last step is open.
    in_order = bool(((read == steps) | (steps > last)).all())
    return SegmentSchedule(
        steps=steps.size(1),
        room=room,
        slots=None if filled else slots.to(device),
        segments=None if in_order else read.to(device),
    )
