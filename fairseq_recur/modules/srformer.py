"""SRformer: segmented recurrent cross-attention (Long et al. 2023)."""

import torch
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_recur.modules.observed import Observed
from fairseq_recur.modules.part import Part
from fairseq_recur.modules.segmented_attention import SegmentedAttention, Source
from fairseq_recur.ops.accumulate_fire import (
    SMALLEST_THRESHOLD,
    recurrent_accumulate_fire,
    scan_,
)
from fairseq_recur.ops.precision import at_least_float32, no_autocast
from fairseq_recur.ops.segmented_attention import key_norm, partial_products
from fairseq_recur.ops.segmented_recurrent import segmented_recurrent
from fairseq_recur.ops.segments import SegmentSchedule

FORMS = ("stored", "recomputed")
"""Of the scan over the segments: its matrices kept for the backward pass, or computed again."""

LARGEST_HALF = 2048.0
"""A head's output in float16; a row of the output projection has up to 1024 of them."""


OBSERVED = 4
"""Sentences of a batch whose neurons are observed, from all of its lengths."""


class AccumulateFire(Observed, Part, nn.Module):
    """The neuron's parameters, shared by the heads of a layer (section 3.3, appendix A.2).

    Args:
        cfg: the host's configuration
        width: of a head, D
    """

    slot = "cross-attention"
    means = ("spike", "membrane")
    deviations = ("membrane",)

    def __init__(self, cfg: TransformerConfig, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)
        self.leak = nn.Parameter(torch.tensor(float(cfg.srformer_leak_init)))
        self.threshold = nn.Parameter(torch.tensor(float(cfg.srformer_threshold_init)))
        for scalar in (self.leak, self.threshold):
            # Weight decay would pull them to values that mean something.
            scalar.optim_overrides = {"optimizer": {"weight_decay": 0.0}}

    def values(self) -> tuple[Tensor, Tensor, Tensor]:
        """W, leak and threshold, the threshold positive, in float32 or more."""
        weight, leak, threshold = (
            at_least_float32(x) for x in (self.linear.weight, self.leak, self.threshold)
        )
        return weight, leak, threshold.clamp(min=SMALLEST_THRESHOLD)

    def show(self, partial: Tensor, past_last: Tensor | None) -> None:
        """Observe which neurons fire, and the membrane before its reset over the threshold.

        Args:
            partial: P_i (B, H, N, D, D)
            past_last: (B, N) bool, True at steps that do not count, or None
        """
        weight, leak, threshold = self.values()
        membrane = torch.matmul(partial, weight.t())
        scan_(membrane.flatten(0, 1), float(leak), float(threshold))
        padding = None if past_last is None else past_last[:, None, :, None, None]
        self.observe("spike", membrane > threshold, padding)
        self.observe("membrane", membrane / threshold, padding)


class Sigma(Observed, Part, nn.Module):
    """sigma of eq. 10, learned: O = sigma O_S + (1 - sigma) O_R; it starts at a half."""

    slot = "cross-attention"

    def __init__(self) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.zeros(()))
        self.logit.optim_overrides = {"optimizer": {"weight_decay": 0.0}}

    def monitored(self) -> dict[str, Tensor]:
        """Sigma."""
        return {"sigma": torch.sigmoid(at_least_float32(self.logit))}

    def forward(self, local: Tensor, recurrent: Tensor) -> Tensor:
        """O, of O_S and O_R of the same shape."""
        sigma = self.monitored()["sigma"]
        return sigma * local + (1 - sigma) * recurrent


class SRformerAttention(SegmentedAttention):
    """O[t] = O_S[t] + Q_t RAF(P_i) / norm(K) (eqs. 11 and 13).

    Args:
        cfg: the host's configuration
    """

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__(cfg)
        self.neuron = None if cfg.srformer_no_neuron else AccumulateFire(cfg, self.head_dim)
        self.sigma = Sigma() if cfg.srformer_sigma else None
        self.local = not cfg.srformer_no_segmented_term
        self.rest = not cfg.srformer_current_segment
        self.norm, self.clamp = cfg.srformer_norm, cfg.srformer_clamp
        self.surrogate = cfg.srformer_surrogate == "piecewise"
        self.form = cfg.srformer_form

    def recomputes(self, schedule: SegmentSchedule) -> bool:
        """Whether the faster form can be used: it knows the paper's neuron, in order."""
        plain = self.neuron is not None and not self.clamp and not self.surrogate
        return plain and schedule.step_segments is None and self.form != "stored"

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
        """As in `SegmentedAttention.read`."""
        if self.neuron is not None and self.neuron.watched:
            self.show(keys, values, schedule)
        if not self.recomputes(schedule):
            return super().read(queries, keys, values, schedule, mask, hidden, need_weights)
        weights = None
        if need_weights:
            source = super().prepare(keys, values, schedule, mask, hidden)
            _, weights = super().attend(queries * self.scaling, source)
        with no_autocast(queries):
            local, recurrent = segmented_recurrent(
                *(at_least_float32(x) for x in (queries, keys, values)),
                *self.neuron.values(),
                self.norm,
                self.rest,
                None if mask is None else mask[:, :, : schedule.steps],
                self.dropout_probability,
                self.scaling,
                self.form == "auto",
            )
            return saturated(self.combine(local, recurrent), values.dtype), weights

    @torch.no_grad()
    def show(self, keys: Tensor, values: Tensor, schedule: SegmentSchedule) -> None:
        """Observe the neurons of a few sentences, whatever computes their output.

        Args:
            keys, values, schedule: as in `SegmentedAttention.prepare`
        """
        # fairseq sorts the sentences of a batch by their length.
        some = slice(None, None, -(-keys.size(0) // OBSERVED))
        segments, past_last = (
            None if x is None else x[some]
            for x in (schedule.step_segments, schedule.finished_steps())
        )
        with no_autocast(keys):
            keys, values = at_least_float32(keys[some]), at_least_float32(values[some])
            partial = partial_products(
                keys, values, segments, schedule.steps, self.rest, self.clamp
            )
            self.neuron.show(partial, past_last)

    def prepare(
        self,
        keys: Tensor,
        values: Tensor,
        schedule: SegmentSchedule,
        mask: Tensor | None,
        hidden: Tensor,
    ) -> Source:
        """Beside the segments "fired", RAF(P_i) / norm(K) for each step: (B, H, N, D, D)."""
        source = super().prepare(keys, values, schedule, mask, hidden)
        with no_autocast(keys):
            keys, values = at_least_float32(keys), at_least_float32(values)
            fired = partial_products(
                keys, values, schedule.step_segments, schedule.steps, self.rest, self.clamp
            )
            if self.neuron is not None:
                fired = recurrent_accumulate_fire(fired, *self.neuron.values(), self.surrogate)
            norm = key_norm(keys.flatten(2, 3), self.norm)
            source["fired"] = fired if norm is None else fired / norm.unsqueeze(2)
        return source

    def attend(self, queries: Tensor, source: Source) -> tuple[Tensor, Tensor]:
        """As in `SegmentedAttention.attend`."""
        local, weights = super().attend(queries, source)
        with no_autocast(queries):
            recurrent = torch.matmul(at_least_float32(queries), source["fired"])
            return saturated(self.combine(local, recurrent), local.dtype), weights

    def combine(self, local: Tensor, recurrent: Tensor) -> Tensor:
        """O of O_S and O_R."""
        if not self.local:
            return recurrent
        return local + recurrent if self.sigma is None else self.sigma(local, recurrent)


def saturated(x: Tensor, dtype: torch.dtype) -> Tensor:
    """*x* in a dtype; where that is float16, at most so large that the next layer's sums fit.

    The recurrent term is a sum over the source and over the segments, and a potential over a
    threshold. At 0.1 it can be in the thousands for a source of a thousand tokens, before training.
    """
    return (x.clamp(-LARGEST_HALF, LARGEST_HALF) if dtype == torch.float16 else x).to(dtype)
