"""The systems that SRformer is compared with: segments with a memory (Long et al. 2023, 4.2)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_recur.modules.context import hiding
from fairseq_recur.modules.layers import rnn_problems
from fairseq_recur.modules.options import option
from fairseq_recur.modules.part import FreshWeights, MonitoredModule
from fairseq_recur.modules.recurrence import RECURRENT_NORM, recurrent_norm
from fairseq_recur.modules.segmented_attention import PreparedSource, SegmentedAttention
from fairseq_recur.modules.segments import Segments
from fairseq_recur.ops.precision import at_least_float32
from fairseq_recur.ops.segmented_attention import segments_at_steps


class MemoryAttention(SegmentedAttention):
    """softmax(Q_t [A_i K_i]^T) [B_i V_i], with further keys A_i and values B_i for each segment.

    Keys and values of a segment and of the memory stand in one softmax.
    """

    covers = "a segment of the source, without its memory"

    def attend(self, queries: Tensor, source: PreparedSource) -> tuple[Tensor, Tensor]:
        """As in `SegmentedAttention.attend`; weights on the memory are not returned."""
        batch, _, steps = queries.size()[:3]
        more = source["memory_keys"].size(3)

        def joined(memory: Tensor, own: Tensor) -> Tensor:
            return torch.cat([memory.expand(-1, -1, own.size(2), -1, -1), own], dim=3)

        size = source["keys"].size(3)
        own = source.get("mask", queries.new_zeros(1, 1, 1, 1, size, dtype=torch.float32))
        mask = torch.cat(
            [
                source["memory_mask"].expand(batch, 1, steps, 1, more),
                own.expand(batch, 1, steps, 1, size),
            ],
            dim=4,
        )
        both = {
            "keys": joined(source["memory_keys"], source["keys"]),
            "values": joined(source["memory_values"], source["values"]),
            "mask": mask,
        }
        out, weights = super().attend(queries, both)
        return out, weights[..., more:]


class SegmentRNNs(MonitoredModule, FreshWeights, nn.Module):
    """Two RNNs, over keys and over values, whose states are carried from segment to segment.

    Args:
        width: of a head, D
        heads: H whose keys one RNN reads together, concatenated; 1 to read each separately
    """

    slot = "cross-attention"
    quantities = RECURRENT_NORM

    def __init__(self, width: int, heads: int = 1) -> None:
        super().__init__()
        self.heads = heads
        self.keys = nn.RNN(heads * width, heads * width, batch_first=True)
        self.values = nn.RNN(heads * width, heads * width, batch_first=True)

    def monitored(self) -> dict[str, Tensor]:
        """The `recurrent_norm` of both."""
        return {
            "recurrent_norm": recurrent_norm(
                r.get_parameter("weight_hh_l0") for r in (self.keys, self.values)
            )
        }

    def forward(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Their states at each position, (B, H, N, s, D) both; carried across segments."""
        return self.run(self.keys, keys), self.run(self.values, values)

    def run(self, rnn: nn.RNN, x: Tensor) -> Tensor:
        """The states of one RNN; positions after the real ones come last."""
        groups = x.unflatten(1, (-1, self.heads)).permute(0, 1, 3, 4, 2, 5)  # (B, G, N, s, h, D)
        out, _ = rnn(groups.flatten(4).flatten(2, 3).flatten(0, 1))
        return out.view(groups.size()).permute(0, 1, 4, 2, 3, 5).flatten(1, 2)


class XLAttention(MemoryAttention):
    """A memory of the previous segment's keys and values, as Transformer-XL's (Dai et al. 2019)."""

    about = "for comparison: a memory of the previous segment"

    @dataclass
    class Options(SegmentedAttention.Options):
        """Adds the kind of memory."""

        xl_memory: ChoiceEnum(["raw", "rnn", "rnn_all_heads"]) = option(  # type: ignore[valid-type]
            "raw",
            "memory of xl: the previous segment's keys and values (raw), or the states of an RNN "
            "over them: of a head's width, with no memory at the first segment (rnn), or over all "
            "heads, where the first segment reads its own states, as in SRformer's published code "
            "(rnn_all_heads)",
        )

    @classmethod
    def problems(cls, cfg: Any, side: str) -> Iterator[str]:
        """Adds those of the RNNs."""
        yield from super().problems(cfg, side)
        if cfg.xl_memory != "raw":
            yield from rnn_problems(cfg, f"--xl-memory {cfg.xl_memory}")

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__(cfg)
        self.published = cfg.xl_memory == "rnn_all_heads"
        heads = self.num_heads if self.published else 1
        self.rnns = None if cfg.xl_memory == "raw" else SegmentRNNs(self.head_dim, heads)

    def prepare(self, keys: Tensor, values: Tensor, segments: Segments) -> PreparedSource:
        """Adds the memory: what the step before has read."""
        source = super().prepare(keys, values, segments)
        if self.published:
            return {**source, **self.published_memory(keys, values, segments)}
        keys, values = source["keys"], source["values"]
        if self.rnns is not None:
            keys, values = self.rnns(keys, values)
        lowest = torch.finfo(torch.float32).min
        own = source.get("mask", torch.zeros((), device=keys.device))
        own = own.expand(keys.size(0), 1, keys.size(2), 1, keys.size(3))
        source["memory_keys"], source["memory_values"] = shifted(keys), shifted(values)
        source["memory_mask"] = torch.cat(
            [torch.full_like(own[:, :, :1], lowest), own[:, :, :-1]], 2
        )
        return source

    def published_memory(
        self, keys: Tensor, values: Tensor, segments: Segments
    ) -> dict[str, Tensor]:
        """The states at segment max(0, i - 1) for segment i, as in SRformer's published code."""
        assert self.rnns is not None
        order = segments.schedule.step_segments, segments.schedule.steps
        previous = (torch.arange(keys.size(2), device=keys.device) - 1).clamp(min=0)
        memory_keys, memory_values = (
            segments_at_steps(x[:, :, previous], *order) for x in self.rnns(keys, values)
        )
        if segments.mask is not None:
            segments = replace(segments, mask=segments.mask[:, :, previous])
        mask = segments.mask_at_steps()
        return {"memory_keys": memory_keys, "memory_values": memory_values, "memory_mask": mask}


class TransientNorm(FreshWeights, nn.RMSNorm):
    """The norm of LongT5's transient global tokens."""

    slot = "cross-attention"


class GlobalAttention(MemoryAttention):
    """A token for each segment that all queries see, as in LongT5 (Guo et al. 2022).

    "mean" is the published comparison system: the mean of a segment's keys and of its values.
    "transient" is LongT5's: the sum of a segment's states, normed, through the same projections.
    """

    about = "for comparison: summaries of all segments"

    @dataclass
    class Options(SegmentedAttention.Options):
        """Adds the kind of tokens."""

        global_tokens: ChoiceEnum(["mean", "transient"]) = option(  # type: ignore[valid-type]
            "mean",
            "tokens of global: means of each segment's keys and values (mean), or LongT5's "
            "normed sums of its states, projected (transient)",
        )

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__(cfg)
        transient = cfg.global_tokens == "transient"
        self.norm = TransientNorm(cfg.encoder.embed_dim, eps=1e-6) if transient else None

    def prepare(self, keys: Tensor, values: Tensor, segments: Segments) -> PreparedSource:
        """Beside the segments the global tokens, the same at all steps."""
        source = super().prepare(keys, values, segments)
        if self.norm is None:
            count = segments.tokens[:, None, :, None].clamp(min=1)
            tokens = [(sum_of_tokens(x) / count).to(x.dtype) for x in (keys, values)]
        else:
            sums, weight = sum_of_tokens(segments.states()), at_least_float32(self.norm.weight)
            normed = F.rms_norm(sums, sums.shape[-1:], weight, self.norm.eps)
            states = normed.to(keys.dtype).squeeze(1).transpose(0, 1)  # (M, B, C)
            tokens = [self.split(project(states)) for project in (self.k_proj, self.v_proj)]
        source["memory_keys"], source["memory_values"] = (x.unsqueeze(2) for x in tokens)
        empty = segments.tokens[:, None, None, None] == 0
        source["memory_mask"] = hiding(empty, torch.float32)
        return source


def sum_of_tokens(x: Tensor) -> Tensor:
    """(..., M, s, D) summed over the tokens of each segment, in float32 or more: (..., M, D)."""
    return at_least_float32(x).sum(-2)


def shifted(x: Tensor) -> Tensor:
    """Each step's x at the next step, zeros at the first: (B, H, N, s, D)."""
    return torch.cat([torch.zeros_like(x[:, :, :1]), x[:, :, :-1]], dim=2)
