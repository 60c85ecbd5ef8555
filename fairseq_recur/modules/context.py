"""Facts about the batch that layers need, computed once per forward pass, at the top."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from fairseq_recur.ops.padding import real_tokens_first

if TYPE_CHECKING:
    from fairseq_recur.modules.segments import Segments

Fact = TypeVar("Fact", Tensor, tuple[Tensor, Tensor])

IncrementalState = dict[str, dict[str, Any]]
"""fairseq's, of a whole decoder: for each module what it keeps from step to step."""


@dataclass(frozen=True)
class Padding:
    """Which positions of a batch are padding. A batch without padding has None instead.

    Attributes:
        mask: (B, L) bool, True at padding
        order: (B, L) int64, the positions of the real tokens in their order, then the padding
        counts: (B,) int64, number of real tokens of each sentence
        host_counts: *counts* on the host, or None in a compiled graph
        trailing: whether all padding is known to stand behind the real tokens
    """

    mask: Tensor
    order: Tensor
    counts: Tensor
    host_counts: tuple[int, ...] | None = None
    trailing: bool = False

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of real tokens of each sentence, on the host."""
        return tuple(self.counts.tolist()) if self.host_counts is None else self.host_counts

    @property
    def ordered_mask(self) -> Tensor:
        """The mask of the positions in the order `order`: (B, L) bool."""
        places = torch.arange(self.mask.size(1), device=self.mask.device)
        return places >= self.counts.unsqueeze(1)

    @classmethod
    def of(cls, mask: Tensor | None) -> "Padding | None":
        """The padding of a batch by its mask (B, L); None if nothing is padded.

        It reads the mask, which on a GPU waits for the device. So it is called once per batch.
        A compiled graph serves all batches: there nothing is read, and the mask always counts.
        """
        return None if mask is None else cls.of_parts(mask, max(1, mask.size(1)))[0]

    @classmethod
    def of_parts(cls, mask: Tensor, size: int) -> "list[Padding | None]":
        """`of` for each *size* columns of a mask (B, L), with one wait for the device."""
        parts = mask.to(torch.bool).split(size, dim=1)
        if torch.compiler.is_compiling():
            return [cls(part, *real_tokens_first(part)) for part in parts]
        # Number of real tokens, and of those right behind padding.
        counts = [((~p).sum(1), (p[:, :-1] & ~p[:, 1:]).sum(1)) for p in parts]
        facts = torch.stack([torch.stack(of_part) for of_part in counts]).tolist()
        return [
            None
            if min(read, default=0) == part.size(1)
            else cls(part, *real_tokens_first(part), tuple(read), not any(behind))
            for part, (read, behind) in zip(parts, facts)
        ]


@dataclass(frozen=True)
class Source:
    """The source sentences behind the rows of a decoder's batch.

    Rows are sentences in training. In decoding they are hypotheses: a beam is a group of rows
    that share a sentence, and finished sentences have no row.

    Attributes:
        states: (S, U, C) output of the Transformer encoder, one column per sentence
        padding: of the sentences, or None
        rows: (B,) int64, the sentence of each row
        beam: rows per group of consecutive rows of one sentence, if all groups have as many; else 1
        whole: whether the groups are all sentences, in order
    """

    states: Tensor
    padding: Padding | None
    rows: Tensor
    beam: int = 1
    whole: bool = True

    @classmethod
    def of(cls, states: Tensor, padding: Padding | None) -> "Source":
        """A source each of whose sentences is one row."""
        return cls(states, padding, torch.arange(states.size(1), device=states.device))

    @property
    def groups(self) -> Tensor:
        """The sentence of each group of *beam* rows: (B / beam,) int64."""
        return self.rows[:: self.beam]

    def beams_as_queries(self, x: Tensor) -> Tensor:
        """The newest position of each row, (B, H, 1, D), as queries: (B / beam, H, beam, D)."""
        return x.unflatten(0, (-1, self.beam)).squeeze(3).transpose(1, 2)

    def queries_as_beams(self, x: Tensor) -> Tensor:
        """The inverse of `beams_as_queries`."""
        return x.transpose(1, 2).flatten(0, 1).unsqueeze(2)

    @property
    def lengths(self) -> tuple[int, ...]:
        """True length of each sentence, at least 1."""
        if self.padding is None:
            return (self.states.size(0),) * self.states.size(1)
        return tuple(max(1, length) for length in self.padding.lengths)

    def per_row(self, states: Tensor, mask: Tensor | None) -> "Source":
        """A source with one sentence per row, for teacher forcing.

        Args:
            states: (S, B, C) of the rows
            mask: (B, S) bool, True at padding, or None
        """
        return self if states is self.states else Source.of(states, Padding.of(mask))

    def reordered(self, order: Tensor) -> "Source":
        """The source of the rows *order* (B',); this very object if no row changes its sentence."""
        rows = self.rows.index_select(0, order)
        if torch.equal(rows, self.rows):
            return self
        _, counts = torch.unique_consecutive(rows, return_counts=True)
        sizes = set(counts.tolist())
        beam = sizes.pop() if len(sizes) == 1 else 1
        every = torch.arange(self.states.size(1), device=rows.device)
        return replace(self, rows=rows, beam=beam, whole=torch.equal(rows[::beam], every))

    def of_groups(self, x: Tensor) -> Tensor:
        """The rows of *x* (U, ...) for each group: *x* itself while all sentences are there."""
        return x if self.whole else x[self.groups]


@dataclass(frozen=True)
class Context:
    """Facts about the batch for the layers of an encoder or a decoder.

    ``L`` positions are the layer's input; in incremental decoding the input is the newest of them.

    Attributes:
        padding: of the L positions, or None
        mask: what is added to the scores of self-attention, finite, broadcastable to
            (B, H, T, L): padding, later positions and T5's position bias; None if nothing is added
            or no part reads it
        causal: whether *mask* hides later positions and does nothing else
        future: (T, T) fairseq's mask of later positions, for its own attention, or None
        incremental_state: in incremental decoding; else None
        position: in incremental decoding, the newest position
        kept: in incremental decoding, the number of earlier positions that the newest one sees; the
            others are forgotten; None for all
        memory: (M, B, C) of a layer, the input that it had at the positions before the first, which
            its self-attention reads; or None. *padding* and *mask* then count these keys, too
        encoder_out: (S, B, C) output of the encoder, or None
        encoder_padding: (B, S) bool or None
        source: the sentences behind *encoder_out*, if a part reads them, or None
        target_start: time of the first target position, when the source begins at time 0
        segments: of the source, for cross-attention over segments, or None
        recurrence: (L', B, 2C or C) output of the recurrence encoder, or None; L' is S for birnn,
            and R for biarn
        recurrence_padding: (B, L') bool or None
        shared: what `once` has made
    """

    padding: Padding | None = None
    mask: Tensor | None = None
    causal: bool = False
    future: Tensor | None = None
    incremental_state: IncrementalState | None = None
    position: int | None = None
    kept: int | None = None
    memory: Tensor | None = None
    encoder_out: Tensor | None = None
    encoder_padding: Tensor | None = None
    source: Source | None = None
    target_start: int = 0
    segments: "Segments | None" = None
    recurrence: Tensor | None = None
    recurrence_padding: Tensor | None = None
    shared: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    def once(self, key: Hashable, make: Callable[[], Fact]) -> Fact:
        """What a part needs in every layer: made for the first of them, and handed to the others.

        What a gradient flows through, such as a mask with T5's position bias, each layer makes for
        itself: a layer whose activations are recomputed needs its graph again.

        Args:
            key: names what is made, with all that it depends on besides the batch; layers of
                another width or dtype get their own
            make: makes it, a tensor or two
        """
        if key in self.shared:
            return self.shared[key]
        made = make()
        if not any(x.requires_grad for x in (made if isinstance(made, tuple) else (made,))):
            self.shared[key] = made
        return made

    @property
    def padding_mask(self) -> Tensor | None:
        """(B, L) bool, True at padding, or None."""
        return None if self.padding is None else self.padding.mask

    @property
    def input_padding(self) -> Tensor | None:
        """The padding mask of the keys: (B, L); in a step of decoding (B, 1)."""
        mask = self.padding_mask
        return mask if mask is None or self.incremental_state is None else mask[:, -1:]


def mask_as(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """An additive mask in another dtype; what it hides has the lowest value of that dtype."""
    if mask is None or mask.dtype == dtype:
        return mask
    hidden = mask <= torch.finfo(mask.dtype).min
    lowest = torch.finfo(dtype).min
    return mask.to(dtype).clamp(min=lowest).masked_fill(hidden, lowest)


def hiding(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """A bool mask, True at what is hidden, as a finite one that is added to scores."""
    return torch.zeros_like(hidden, dtype=dtype).masked_fill(hidden, torch.finfo(dtype).min)


def causal_mask(queries: int, keys: int, like: Tensor, reach: int | None = None) -> Tensor:
    """fairseq's mask of later positions: -inf at what a query does not see, else 0.

    Args:
        queries: T; the last query stands at the last key
        keys: S
        like: a tensor of the dtype and device of the result
        reach: number of positions that a query sees, its own included, or None for all

    Returns:
        (T, S)
    """
    positions = torch.arange(keys, device=like.device)
    lags = positions[keys - queries :, None] - positions
    hidden = lags < 0 if reach is None else (lags < 0) | (lags >= reach)
    return like.new_zeros(hidden.size()).masked_fill(hidden, float("-inf"))


def additive_mask(
    hidden: Tensor | None, padding: Padding | None, dtype: torch.dtype
) -> Tensor | None:
    """One mask that is added to the scores; finite, so that no row of a softmax becomes NaN.

    Args:
        hidden: (T, L) or (H, T, L), additive, or None
        padding: of the L keys, or None
        dtype: of the scores

    Returns:
        (T, L), (H, T, L), (B, 1, 1, L), (B, 1, T, L) or (B, H, T, L), or None
    """
    lowest = torch.finfo(dtype).min
    if hidden is not None:
        hidden = hidden.to(dtype).clamp(min=lowest)
    if padding is None:
        return hidden
    away = padding.mask[:, None, None, :]
    if hidden is None:
        return hiding(away, dtype)
    heads = hidden.size(0) if hidden.dim() == 3 else 1
    return hidden.expand(away.size(0), heads, -1, -1).masked_fill(away, lowest)
