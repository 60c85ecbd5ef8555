"""Cross-attention over one segment of the source, and what its relatives share."""

import math
from dataclasses import dataclass

from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig
from torch import Tensor

from fairseq_recur.modules.context import Context, IncrementalState, Padding, Source
from fairseq_recur.modules.cross_attention import CrossAttention
from fairseq_recur.modules.layers import between_graphs
from fairseq_recur.modules.options import option
from fairseq_recur.modules.segments import Segments, cut_source
from fairseq_recur.ops.segmented_attention import attend_segments, segments_at_steps, spread
from fairseq_recur.ops.segments import segment_of

PreparedSource = dict[str, Tensor]
"""What a layer computes from the source, per step of the schedule: (B, H or 1, N or 1, ...)."""

TARGET_LENGTHS = ("fixed", "ratio", "reference")


class SegmentedAttention(CrossAttention):
    """O_S[t] = softmax(Q_t K_i^T) V_i: SRformer without recurrence (Long et al. 2023, eq. 6).

    The relatives of this part differ in `prepare` and `attend`.
    """

    about = "for comparison: SRformer without recurrence"

    @dataclass
    class Options:
        """Options of the segments."""

        segment_size: int = option(64, "source tokens per segment, s", (1, 2**16))
        target_length: int = option(
            128,
            "target length q over which the segments are spread: query t reads segment t m / q of "
            "m, and queries past q read the last one. For --target-length-mode fixed, and for "
            "decoding in the mode reference",
            (1, 2**20),
            needs={"target_length_mode": ("fixed", "reference")},
        )
        target_length_mode: ChoiceEnum(list(TARGET_LENGTHS)) = option(  # type: ignore[valid-type]
            "fixed",
            "q: always --target-length (fixed), --target-ratio times the source's length "
            "(ratio), or the reference's length in training, as in the paper (reference)",
        )
        target_ratio: float = option(
            1.0,
            "target tokens per source token, in the mode ratio",
            (1e-6, 1e3),
            needs={"target_length_mode": ("ratio",)},
        )

    reads_segments = True
    covers = "a segment of the source"

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__(cfg)
        self.size = cfg.segment_size
        self.target_mode, self.target_length = cfg.target_length_mode, cfg.target_length
        self.target_ratio = cfg.target_ratio

    @between_graphs
    def segments(self, source: Source, queries: int | None, references: Padding | None) -> Segments:
        """Cut a batch of sources; once per batch, for all layers.

        Args:
            source: of the decoder
            queries: T in teacher forcing; None in incremental decoding, for all steps to come
            references: padding of the targets in teacher forcing, or None

        Returns:
            the segments of each sentence
        """
        whole = None if queries is None else (queries,) * len(source.lengths)
        real = None
        if whole is not None and references is not None:
            whole = real = tuple(max(1, length) for length in references.lengths)
        targets = self.targets(source.lengths, whole)
        order = None if references is None or references.trailing else references.order
        return cut_source(source, self.size, targets, queries, order, real)

    def targets(
        self, lengths: tuple[int, ...], references: tuple[int, ...] | None
    ) -> tuple[int, ...]:
        """The target length q of each sentence, by which its segments are read."""
        if self.target_mode == "reference" and references is not None:
            return references
        if self.target_mode == "ratio":
            # Rounded first: 1.1 times 50 is a little more than 55 in binary.
            return tuple(math.ceil(round(self.target_ratio * length, 6)) for length in lengths)
        return (self.target_length,) * len(lengths)

    def prepare(self, keys: Tensor, values: Tensor, segments: Segments) -> PreparedSource:
        """What depends on the source only.

        Args:
            keys, values: (B, H, M, s, D), zero at padding
            segments: of the source
        """
        order = segments.schedule.step_segments, segments.schedule.steps
        source = {
            "keys": segments_at_steps(keys, *order),
            "values": segments_at_steps(values, *order),
        }
        if segments.mask is not None:
            source["mask"] = segments.mask_at_steps()
        return source

    def attend(self, queries: Tensor, source: PreparedSource) -> tuple[Tensor, Tensor]:
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
        self, queries: Tensor, keys: Tensor, values: Tensor, segments: Segments, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """All steps at once; arguments and results as for `prepare` and `attend`.

        The queries are not scaled yet.
        """
        return self.attend(queries * self.scaling, self.prepare(keys, values, segments))

    def forward(
        self,
        x: Tensor,
        context: Context,
        need_weights: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As in `CrossAttention.forward`; the weights are zero outside the segments."""
        assert context.source is not None and context.segments is not None
        queries, segments = self.split(self.q_proj(x)), context.segments
        needed = need_weights or need_head_weights
        if context.incremental_state is None:
            out, weights = self.all_steps(queries, segments, needed)
        else:
            state, source = context.incremental_state, context.source
            out, weights = self.one_step(queries, segments, source, state, needed)
        return self.output(out, weights, need_head_weights)

    def all_steps(
        self, queries: Tensor, segments: Segments, needed: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Teacher forcing: (B, H, T, D) to the same shape, and the map (B, H, T, S) if *needed*."""
        schedule = segments.schedule
        blocks = schedule.to_blocks(queries)
        out, weights = self.read(blocks, *self.keys_and_values(segments), segments, needed)
        if not needed:
            return schedule.from_blocks(out), None
        assert weights is not None
        read = schedule.segments_read(queries)
        weights = spread(schedule.from_blocks(weights), read, segments.order, segments.length)
        return schedule.from_blocks(out), weights

    def one_step(
        self,
        queries: Tensor,
        segments: Segments,
        source: Source,
        incremental_state: IncrementalState,
        needed: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """The newest position: (B, H, 1, D), and the weights (B, H, 1, S) if *needed*.

        What depends on the source only is computed at the first position, once per sentence, and
        stays where it is: each step reads its place.
        """
        prepared = self.get_incremental_state(incremental_state, "source")
        if prepared is None:
            prepared = self.prepare(*self.keys_and_values(segments), segments)
            self.set_incremental_state(incremental_state, "source", prepared)
        assert segments.step is not None
        rows, step = source.groups, segments.step.squeeze(1)
        read = {
            name: x[rows] if x.size(2) == 1 else x[rows, :, step].unsqueeze(2)
            for name, x in prepared.items()
        }
        # The rows of a beam are queries that read the same segment.
        together = source.beams_as_queries(queries).unsqueeze(2)
        out, weights = self.attend(together * self.scaling, read)
        out = source.queries_as_beams(out.squeeze(2))
        if not needed:
            return out, None
        weights = source.queries_as_beams(weights.squeeze(2))
        place = segment_of(segments.step, segments.counts[rows], segments.targets[rows])
        order = None if segments.order is None else segments.order[source.rows]
        read_by_row = place.repeat_interleave(source.beam, 0)
        return out, spread(weights, read_by_row, order, segments.length)

    def keys_and_values(self, segments: Segments) -> tuple[Tensor, Tensor]:
        """(U, H, M, s, D) each, zero at padding."""
        keys, values = (
            segments.cut(self.split(p(segments.hidden))) for p in (self.k_proj, self.v_proj)
        )
        return keys, values

    def reorder_incremental_state(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> None:
        """Nothing moves: what is stored belongs to sentences, not to rows."""
