"""SRformer: segmented recurrent cross-attention (Long et al. 2023)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Optional

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_recur.modules.accumulate_fire import DEFAULT_LEAK, AccumulateFire
from fairseq_recur.modules.options import option
from fairseq_recur.modules.part import FreshWeights, MonitoredModule, exempt_from_decay
from fairseq_recur.modules.segmented_attention import PreparedSource, SegmentedAttention
from fairseq_recur.modules.segments import Segments
from fairseq_recur.ops.precision import at_least_float32, no_autocast
from fairseq_recur.ops.segmented_attention import key_norm, partial_products
from fairseq_recur.ops.segmented_recurrent import recurrent_attention, segmented_recurrent
from fairseq_recur.ops.segments import SegmentSchedule
from fairseq_recur.ops.unit_scale import UNIT_NORMS, unit_keys, unit_queries

FORMS = ("stored", "recomputed")
"""Forms of the scan: its matrices are kept for the backward pass, or computed again."""

LARGEST_HALF = 2048.0
"""A head's output in float16; a row of the output projection has up to 1024 of them."""

OBSERVED_SENTENCES = 4
"""Sentences per batch whose neurons are observed, chosen over all of its lengths."""

WITH_NEURON = {"srformer_no_neuron": (False,)}


class LearnedMix(MonitoredModule, FreshWeights, nn.Module):
    """sigma of eq. 10, learned: O = sigma O_S + (1 - sigma) O_R; it starts at one half."""

    slot = "cross-attention"
    quantities = {"sigma": "sigma, share of the segment in SRformer"}

    def __init__(self) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.zeros(()))
        exempt_from_decay(self.logit)

    def monitored(self) -> dict[str, Tensor]:
        """The value of sigma."""
        return {"sigma": torch.sigmoid(at_least_float32(self.logit))}

    def forward(self, local: Tensor, recurrent: Tensor) -> Tensor:
        """O, from O_S and O_R of the same shape."""
        sigma = self.monitored()["sigma"]
        return sigma * local + (1 - sigma) * recurrent


class SRformerAttention(SegmentedAttention):
    """O[t] = O_S[t] + Q_t RAF(P_i) / norm(K) (eqs. 11 and 13)."""

    about = "Long et al. 2023"

    covers = "a segment of the source; the recurrent term has no weights"

    @dataclass
    class Options(SegmentedAttention.Options):
        """Options of the recurrent term."""

        # Initial values beyond these ranges would overflow in the first products.
        srformer_scale: ChoiceEnum(list(DEFAULT_LEAK)) = option(  # type: ignore[valid-type]
            "paper",
            "scale of the recurrent term: a sum over keys and segments, divided by the threshold "
            "(paper), or inputs near one: squared positive parts of keys and queries, keys normed "
            "before the neuron, and a leaky mean over the segments (unit)",
        )
        srformer_leak_init: Optional[float] = option(  # noqa: UP045 (fairseq reads the form)
            None,
            "initial leak of the accumulate-and-fire neuron; by default 1.0, or 0.5 at the unit "
            "scale",
            (-1e4, 1e4),
            WITH_NEURON,
        )
        srformer_threshold_init: float = option(
            0.1,
            "initial threshold of the accumulate-and-fire neuron; 0.1 is the paper's, for "
            "pretrained models; values below 0.001 act as 0.001",
            (1e-6, 1e6),
            WITH_NEURON,
        )
        srformer_norm: ChoiceEnum(list(UNIT_NORMS)) = option(  # type: ignore[valid-type]
            "key",
            "norm(K) that divides the recurrent term: for each key channel over the positions "
            "(key), over both (frobenius), or none (ablation II); at the unit scale also the sum "
            "for each key channel, so that the neuron reads a mean of the values (sum)",
        )
        srformer_clamp: float = option(
            0.0, "bound on the entries of K^T V and K_i^T V_i; 0: none (2 for BART)", (0, 1e30)
        )
        srformer_learned_mix: bool = option(
            False,
            "learn sigma and add sigma O_S + (1 - sigma) O_R (eq. 10) instead of O_S + O_R",
            needs={"srformer_no_segmented_term": (False,)},
        )
        srformer_surrogate: ChoiceEnum(["none", "piecewise"]) = option(  # type: ignore[valid-type]
            "none",
            "derivative of the neuron's step function: none, or 0.3 max(0, 1 - |y|)",
            needs=WITH_NEURON,
        )
        srformer_neuron_bias: bool = option(
            False,
            "add a learned bias to the neuron's input, as in the pseudo code of the paper's "
            "appendix A.2; the published code has none",
            needs=WITH_NEURON,
        )
        srformer_neuron_per_head: bool = option(
            False,
            "a linear map, leak and threshold for each head; in the published code the heads "
            "share them",
            needs=WITH_NEURON,
        )
        srformer_no_segmented_term: bool = option(False, "ablation I: leave out O_S")
        srformer_no_neuron: bool = option(
            False, "ablation III: P_i itself, without accumulate-and-fire"
        )
        srformer_current_segment: bool = option(
            False, "ablation IV: accumulate the segment that is read instead of all others"
        )
        srformer_form: ChoiceEnum(["auto", *FORMS]) = option(  # type: ignore[valid-type]
            "auto",
            "how to differentiate the scan over the segments: keep its matrices (stored), or "
            "compute them again where no segment is skipped (auto), on a CPU by compiled code and "
            "on a GPU by Triton kernels; recomputed: as auto, by torch's operations, and an error "
            "for options that only stored supports",
            needs=WITH_NEURON,
        )

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__(cfg)
        self.neuron = (
            None if cfg.srformer_no_neuron else AccumulateFire(cfg, self.head_dim, self.num_heads)
        )
        self.learned_mix = LearnedMix() if cfg.srformer_learned_mix else None
        self.local = not cfg.srformer_no_segmented_term
        self.rest = not cfg.srformer_current_segment
        self.unit = cfg.srformer_scale == "unit"
        self.norm, self.clamp = cfg.srformer_norm, cfg.srformer_clamp
        self.form = cfg.srformer_form

    @property
    def has_weights(self) -> bool:
        """As in `MultiheadBase`: without the segmented term there are none."""
        return self.local

    @classmethod
    def problems(cls, cfg: Any, side: str) -> Iterator[str]:
        """Problems with the combination of this part's options, one message each."""
        yield from super().problems(cfg, side)
        if cfg.srformer_norm == "sum" and cfg.srformer_scale != "unit":
            yield "--srformer-norm sum is for --srformer-scale unit; give that, or another norm"
        leak = cfg.srformer_leak_init
        if cfg.srformer_scale == "unit" and leak is not None and not 0 < leak < 1:
            yield (
                f"--srformer-leak-init {leak} with --srformer-scale unit: the memory is a leaky "
                "mean, expected a leak between 0 and 1, such as 0.5"
            )
        if cfg.srformer_form == "recomputed" and not cfg.srformer_no_neuron:
            asked = {
                f"--srformer-clamp {cfg.srformer_clamp}": cfg.srformer_clamp != 0,
                f"--srformer-surrogate {cfg.srformer_surrogate}": cfg.srformer_surrogate != "none",
                "--srformer-neuron-bias": cfg.srformer_neuron_bias,
                "--srformer-neuron-per-head": cfg.srformer_neuron_per_head,
            }
            for words in (words for words, given in asked.items() if given):
                yield f"--srformer-form recomputed does not support {words}; use stored"

    def recomputes(self, schedule: SegmentSchedule) -> bool:
        """Whether the faster form applies: it knows the paper's neuron, segment after segment.

        Its own backward pass, C code and kernels are not for torch.compile, which has the stored
        form.
        """
        plain = self.neuron is not None and self.neuron.plain and not self.clamp
        plain = plain and schedule.step_segments is None and not torch.compiler.is_compiling()
        return plain and self.form != "stored"

    def read(
        self, queries: Tensor, keys: Tensor, values: Tensor, segments: Segments, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """As in `SegmentedAttention.read`."""
        if self.neuron is not None and self.neuron.watched:
            self.observe_neurons(keys, values, segments.schedule)
        if not self.recomputes(segments.schedule):
            return super().read(queries, keys, values, segments, need_weights)
        assert self.neuron is not None
        if self.unit:
            return self.read_at_unit_scale(queries, keys, values, segments)
        weights, mask = None, segments.mask
        if need_weights:
            source = super().prepare(keys, values, segments)
            _, weights = super().attend(queries * self.scaling, source)
        with no_autocast(queries):
            local, recurrent = segmented_recurrent(
                at_least_float32(queries),
                at_least_float32(keys),
                at_least_float32(values),
                *self.neuron.values(),
                self.norm,
                self.rest,
                None if mask is None else mask[:, :, : segments.schedule.steps],
                self.dropout_probability,
                self.scaling,
                self.form == "auto",
                together=self.local and self.learned_mix is None,
            )
            out = local if recurrent is None else self.combine(local, recurrent)
            return saturated(out, values.dtype), weights

    def read_at_unit_scale(
        self, queries: Tensor, keys: Tensor, values: Tensor, segments: Segments
    ) -> tuple[Tensor, Tensor]:
        """As `read`, by the faster form; always with weights."""
        assert self.neuron is not None
        source = super().prepare(keys, values, segments)
        local, weights = super().attend(queries * self.scaling, source)
        with no_autocast(queries):
            scalars = self.neuron.values()
            recurrent = scalars[2] * recurrent_attention(
                unit_queries(at_least_float32(queries)),
                unit_keys(at_least_float32(keys), self.norm),
                at_least_float32(values),
                *scalars,
                self.rest,
                self.form == "auto",
            )
            return saturated(self.combine(local, recurrent), local.dtype), weights

    @torch.no_grad()
    def observe_neurons(self, keys: Tensor, values: Tensor, schedule: SegmentSchedule) -> None:
        """Observe the neurons of a few sentences, whichever form computes their output.

        Args:
            keys, values: (B, H, M, s, D)
            schedule: of the segments
        """
        # fairseq sorts the sentences of a batch by their length.
        some = slice(None, None, -(-keys.size(0) // OBSERVED_SENTENCES))
        order, past_last = (
            None if x is None else x[some]
            for x in (schedule.step_segments, schedule.finished_steps())
        )
        assert self.neuron is not None
        with no_autocast(keys):
            keys, values = at_least_float32(keys[some]), at_least_float32(values[some])
            keys = unit_keys(keys, self.norm) if self.unit else keys
            partial = partial_products(keys, values, order, schedule.steps, self.rest, self.clamp)
            self.neuron.observe_neurons(partial, past_last)

    def prepare(self, keys: Tensor, values: Tensor, segments: Segments) -> PreparedSource:
        """Adds "fired", RAF(P_i) / norm(K) for each step: (B, H, N, D, D)."""
        source, schedule = super().prepare(keys, values, segments), segments.schedule
        with no_autocast(keys):
            keys, values = at_least_float32(keys), at_least_float32(values)
            order = schedule.step_segments, schedule.steps
            norm = None if self.unit else key_norm(keys.flatten(2, 3), self.norm)
            keys = unit_keys(keys, self.norm) if self.unit else keys
            fired = partial_products(keys, values, *order, self.rest, self.clamp)
            if self.neuron is not None:
                fired = self.neuron(fired)
            source["fired"] = fired if norm is None else fired / norm.unsqueeze(2)
        return source

    def attend(self, queries: Tensor, source: PreparedSource) -> tuple[Tensor, Tensor]:
        """As in `SegmentedAttention.attend`."""
        local, weights = super().attend(queries, source)
        with no_autocast(queries):
            queries = at_least_float32(queries)
            queries = unit_queries(queries / self.scaling) if self.unit else queries
            recurrent = torch.matmul(queries, source["fired"])
            return saturated(self.combine(local, recurrent), local.dtype), weights

    def combine(self, local: Tensor, recurrent: Tensor) -> Tensor:
        """O, from O_S and O_R."""
        if not self.local:
            return recurrent
        return local + recurrent if self.learned_mix is None else self.learned_mix(local, recurrent)


def saturated(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert *x*; in float16, clamp it so that the next layer's sums do not overflow.

    The recurrent term is a sum over the source and over the segments, and a potential over a
    threshold. At 0.1 it can be in the thousands for a source of a thousand tokens, before training.
    """
    return (x.clamp(-LARGEST_HALF, LARGEST_HALF) if dtype == torch.float16 else x).to(dtype)
