"""SRformer's neuron: its parameters, and what is observed of it (Long et al. 2023)."""

import torch
import torch.nn.functional as F
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_recur.modules.part import FreshWeights, MonitoredModule, exempt_from_decay
from fairseq_recur.ops.accumulate_fire import (
    SMALLEST_THRESHOLD,
    at_least,
    neuron_inputs,
    of_heads,
    recurrent_accumulate_fire,
    scan_,
)
from fairseq_recur.ops.precision import at_least_float32

DEFAULT_LEAK = {"paper": 1.0, "unit": 0.5}
"""Initial leak for each scale."""


class AccumulateFire(MonitoredModule, FreshWeights, nn.Module):
    """The neuron's parameters (section 3.3, appendix A.2), by default shared by a layer's heads.

    Args:
        cfg: the host's configuration
        width: of a head, D
        heads: H
    """

    slot = "cross-attention"
    quantities = {
        "spike": "share of the accumulate-and-fire neurons that fire",
        "membrane": "membrane, mean (thresholds)",
        "membrane_sd": "membrane, standard deviation (thresholds)",
    }
    means = ("spike", "membrane")
    deviations = ("membrane",)

    def __init__(self, cfg: TransformerConfig, width: int, heads: int) -> None:
        super().__init__()
        self.per_head, self.width = cfg.srformer_neuron_per_head, width
        self.surrogate = cfg.srformer_surrogate == "piecewise"
        self.unit = cfg.srformer_scale == "unit"
        shape = (heads,) if self.per_head else ()
        # The rows are those of W, or of the heads' W one below the other.
        outputs = heads * width if self.per_head else width
        self.linear = nn.Linear(width, outputs, bias=cfg.srformer_neuron_bias)
        # `values` raises a lower one, which could then only grow.
        initial = max(cfg.srformer_threshold_init, SMALLEST_THRESHOLD)
        leak, threshold = cfg.srformer_leak_init, torch.tensor(float(initial))
        leak = torch.tensor(DEFAULT_LEAK[cfg.srformer_scale] if leak is None else float(leak))
        if self.unit:  # of the sigmoid and of the softplus, which always have a gradient
            leak, threshold = torch.logit(leak), threshold + torch.log(-torch.expm1(-threshold))
        self.leak, self.threshold = (
            nn.Parameter(x.expand(shape).clone()) for x in (leak, threshold)
        )
        exempt_from_decay(self.leak, self.threshold)

    @property
    def plain(self) -> bool:
        """Whether this is the neuron that the fast forms of the scan know."""
        return not (self.per_head or self.surrogate or self.linear.bias is not None)

    def values(self) -> tuple[Tensor, Tensor, Tensor]:
        """W, leak and threshold, the threshold positive, in float32 or more.

        W is (D, D), or (H, D, D) for neurons of each head, and the others () or (H,). At the unit
        scale W has the factor 1 - leak of the neurons' inputs.
        """
        weight, leak, threshold = (
            at_least_float32(x) for x in (self.linear.weight, self.leak, self.threshold)
        )
        if self.per_head:
            weight = weight.unflatten(0, (-1, self.width))
        if self.unit:
            leak = torch.sigmoid(leak)
            return of_heads(1 - leak) * weight, leak, F.softplus(threshold)
        return weight, leak, at_least(threshold, SMALLEST_THRESHOLD)

    def bias(self, leak: Tensor) -> Tensor | None:
        """The bias of the neurons' inputs, (D,) or (H, D), or None; with W's factor 1 - leak."""
        if self.linear.bias is None:
            return None
        bias = at_least_float32(self.linear.bias)
        if self.per_head:
            bias = bias.unflatten(0, (-1, self.width))
        return (1 - leak).unsqueeze(-1) * bias if self.unit else bias

    def forward(self, partial: Tensor) -> Tensor:
        """RAF(P_i), at the unit scale times the threshold: (B, H, N, D, D) to the same shape."""
        weight, leak, threshold = self.values()
        inputs = neuron_inputs(partial, weight, self.bias(leak))
        fired = recurrent_accumulate_fire(inputs, leak, threshold, self.surrogate)
        return of_heads(threshold).unsqueeze(-1) * fired if self.unit else fired

    def observe_neurons(self, partial: Tensor, past_last: Tensor | None) -> None:
        """Observe which neurons fire, and the membrane potential before its reset.

        Args:
            partial: P_i (B, H, N, D, D)
            past_last: (B, N) bool, True at steps that do not count, or None
        """
        weight, leak, threshold = self.values()
        membrane = neuron_inputs(partial, weight, self.bias(leak))
        of_rows = membrane.shape[:2] + (1, 1)  # a row is a head of a sentence
        rows = [of_heads(x).expand(of_rows).flatten(0, 1) for x in (leak, threshold)]
        scan_(membrane.flatten(0, 1), *rows)
        padding = None if past_last is None else past_last[:, None, :, None, None]
        bound = of_heads(threshold).unsqueeze(-1)
        self.observe("spike", membrane > bound, padding)
        self.observe("membrane", membrane / bound, padding)
