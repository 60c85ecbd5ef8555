"""The recurrence encoding matrices of a layer: parameters, initial values, products."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fairseq_recur.modules.mixture import LagMixture
from fairseq_recur.modules.rem_heads import RemHeads
from fairseq_recur.ops.precision import at_least_float32
from fairseq_recur.ops.rem import recurrent_product, rem_kernel
from fairseq_recur.ops.toeplitz import banded_product

CHUNK = 64
"""Rows of a chunk of the chunked product."""

MONITORED_LAGS = 1000
"""Lags over which the sum of an unlimited kernel is watched."""


@dataclass(frozen=True)
class RemOptions:
    """Options of the matrices.

    Attributes:
        heads: which matrix each head has
        max_power: highest power of a decay, 0 for no limit
        share: whether the j-th cosine and the j-th sine head share decay and angle
        gate: initial mu
        eta: range of the initial eta (lambda = tanh(eta)) in absolute value
        nu: range of the initial nu (gamma = sigma(nu))
        theta: initial angle
        normalize: divide rows that add up to more than one
    """

    heads: RemHeads
    max_power: int
    share: bool
    gate: float
    eta: tuple[float, float]
    nu: tuple[float, float]
    theta: float
    normalize: bool


class RecurrenceEncodingMatrices(LagMixture):
    """P of Huang et al. 2023, section 3: one or two parameters a head, no weight decay on them.

    Args:
        slot: the slot of the attention that it belongs to
        options: of the matrices
        heads: all heads of the layer, H
        causal: "masked" in the paper; else symmetric, "unmasked"
    """

    def __init__(self, slot: str, options: RemOptions, heads: int, causal: bool) -> None:
        spec = options.heads
        super().__init__(slot, spec.total, heads, causal, options.gate, options.normalize)
        self.max_power = options.max_power
        regular = spec.counts[0], spec.counts[3]
        self.pairs = [cyclical_pairs(*spec.counts[i : i + 2], options.share) for i in (1, 4)]
        cyclical = [max((*c, *s, -1)) + 1 for c, s in self.pairs]
        self.regular = regular
        self.cyclical = cyclical
        if sum(regular):
            self.eta = nn.Parameter(torch.cat([two_sided(n, *options.eta) for n in regular]))
        if sum(cyclical):
            nu = [torch.linspace(*options.nu, n) if n else torch.empty(0) for n in cyclical]
            self.nu = nn.Parameter(torch.cat(nu))
            self.theta = nn.Parameter(torch.full((sum(cyclical),), options.theta))
        sine = [kind in (2, 5) for kind, n in enumerate(spec.counts) for _ in range(n)]
        self.register_buffer("sine", torch.tensor(sine), persistent=False)
        self.register_buffer("dilation", torch.tensor(spec.all_dilations), persistent=False)
        self.exempt_from_decay()

    def heads_parameters(self) -> tuple[Tensor, Tensor]:
        """Decay and angle of each head, (H',) each, in float32 or more."""
        decays: list[Tensor] = []
        angles: list[Tensor] = []
        if sum(self.regular):
            lam = torch.tanh(at_least_float32(self.eta)).split(self.regular)
        if sum(self.cyclical):
            gamma = torch.sigmoid(at_least_float32(self.nu)).split(self.cyclical)
            theta = at_least_float32(self.theta).split(self.cyclical)
        for group in (0, 1):
            if self.regular[group]:
                decays.append(lam[group])
                angles.append(torch.zeros_like(lam[group]))
            for heads in self.pairs[group]:
                if heads:
                    decays.append(gamma[group][heads])
                    angles.append(theta[group][heads])
        return torch.cat(decays), torch.cat(angles)

    def kernels(self, length: int) -> tuple[Tensor, Tensor | None]:
        """F over lags (eq. 3); the unmasked matrix is symmetric: (H', L), and itself or None."""
        decay, angle = self.heads_parameters()
        past = rem_kernel(decay, angle, self.sine, self.dilation, length, self.max_power)
        return past, None if self.causal else past

    def product(self, values: Tensor, padding: Tensor | None, form: str) -> Tensor:
        """P V; see `Mixture.product`. The chunked form goes dilation by dilation."""
        if form == "dense":
            return super().product(values, padding, form)
        decay, angle = self.heads_parameters()
        outputs, order = [], []
        for dilation in sorted(set(self.dilation.tolist())):
            heads = (self.dilation == dilation).nonzero().squeeze(1)
            parameters = decay[heads], angle[heads], self.sine[heads]

            def causal(x: Tensor) -> Tensor:
                return self.chunked(*parameters, x)

            outputs.append(dilated(self.both_ways(causal), values[:, heads], dilation))
            order.append(heads)
        back = torch.cat(order).argsort()
        return torch.cat(outputs, dim=1)[:, back]

    def chunked(self, decay: Tensor, angle: Tensor, sine: Tensor, values: Tensor) -> Tensor:
        """The causal product at dilation 1: a band where the highest power cuts, else recurrent."""
        last = values.size(2) - 1
        if not self.max_power or last <= self.max_power:
            return recurrent_product(decay, angle, sine, values, CHUNK)
        once = torch.ones_like(sine, dtype=torch.int64)
        kernel = rem_kernel(decay, angle, sine, once, self.max_power + 1)
        return banded_product(kernel, values, CHUNK)

    def both_ways(self, causal: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """A causal product as it is, or with its mirror image added for the unmasked matrix."""
        if self.causal:
            return causal
        return lambda x: causal(x) + causal(x.flip(2)).flip(2)

    def row_sum(self) -> Tensor:
        """As in `Mixture`; of an unlimited kernel, over a thousand lags."""
        lags = self.max_power or MONITORED_LAGS
        once = torch.ones_like(self.dilation)
        kernel = rem_kernel(*self.heads_parameters(), self.sine, once, lags + 1)
        return kernel.abs().sum(dim=1).max() * (1 if self.causal else 2)


def two_sided(count: int, low: float, high: float) -> Tensor:
    """Half of the values spread over [low, high], the others over [-high, -low]: (count,)."""
    positive = count - count // 2
    return torch.cat([torch.linspace(low, high, positive), -torch.linspace(low, high, count // 2)])


def cyclical_pairs(cosines: int, sines: int, share: bool) -> tuple[list[int], list[int]]:
    """Which (nu, theta) each cosine and each sine head has."""
    first = 0 if share else cosines
    return list(range(cosines)), list(range(first, first + sines))


def dilated(function: Callable[[Tensor], Tensor], values: Tensor, dilation: int) -> Tensor:
    """Apply *function* to the sub-sequences of positions that a dilation connects.

    Args:
        function: maps (B', H, T', D) to the same shape
        values: (B, H, T, D)
        dilation: distance of neighbours in a sub-sequence

    Returns:
        (B, H, T, D)
    """
    if dilation == 1:
        return function(values)
    batch, heads, length, width = values.shape
    steps = -(-length // dilation)
    padded = nn.functional.pad(values, (0, 0, 0, steps * dilation - length))
    parts = padded.view(batch, heads, steps, dilation, width).permute(0, 3, 1, 2, 4)
    out = function(parts.reshape(batch * dilation, heads, steps, width))
    out = out.view(batch, dilation, heads, steps, width).permute(0, 2, 3, 1, 4)
    return out.reshape(batch, heads, steps * dilation, width)[:, :, :length]
