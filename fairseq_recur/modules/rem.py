"""The recurrence encoding matrices of a layer: parameters, initial values, products."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_recur.modules.context import Padding
from fairseq_recur.modules.mixture import LagMixture
from fairseq_recur.modules.options import flag, option
from fairseq_recur.modules.part import exempt_from_decay
from fairseq_recur.modules.rem_heads import parse_range, parse_rem_heads
from fairseq_recur.modules.text_memory import TextMemory
from fairseq_recur.ops.precision import at_least_float32
from fairseq_recur.ops.rem import recurrent_product, rem_kernel
from fairseq_recur.ops.toeplitz import banded_product

CHUNK = 64
"""Rows of a chunk of the chunked product."""

MONITORED_LAGS = 1000
"""Lags over which the sum of an unlimited kernel is watched."""


class RecurrenceEncodingMatrices(LagMixture):
    """P of Huang et al. 2023, section 3: one or two parameters per head, without weight decay.

    The matrix is "masked" in a decoder; in an encoder it is symmetric, "unmasked".
    """

    about = "Huang et al. 2023"

    @dataclass
    class Options(LagMixture.Options):
        """Options of the matrices."""

        rsa_heads: str = option(
            "",
            "numbers of heads with each kind of recurrence encoding matrix, as six numbers "
            "K1,...,K6: regular, cosine, sine, and dilated regular, cosine, sine; these heads "
            "come first, the remaining ones are ordinary; all: as many as there are heads; "
            "empty: every head is regular",
        )
        rsa_dilations: str = option(
            "",
            "dilations of the dilated heads in their order, comma-separated, or one number for all",
        )
        rsa_max_power: int = option(
            200, "highest power K of a decay, entries beyond it are 0; 0: no limit"
        )
        rsa_untie_conjugates: bool = option(
            False,
            "give the j-th cosine and the j-th sine head a decay and an angle of their own; by "
            "default they share them, as a conjugate pair of eigenvalues does",
        )
        rsa_eta_init: str = option(
            "1,2",
            "range LOW,HIGH over which eta of the regular heads is spread initially, half of the "
            "values negated; lambda = tanh(eta); a negative LOW needs an equals sign: "
            "--rsa-eta-init=-0.5,0.5",
        )
        rsa_nu_init: str = option(
            "1,2",
            "range LOW,HIGH over which nu of the cyclical heads is spread initially; "
            "gamma = sigmoid(nu); a negative LOW needs an equals sign: --rsa-nu-init=-0.5,0.5",
        )
        rsa_theta_init: float = option(
            math.pi / 4, "initial angle theta of the cyclical heads, in radians", (-1e4, 1e4)
        )

    sine: Tensor
    dilation: Tensor
    back: Tensor

    def __init__(self, cfg: TransformerConfig, side: str) -> None:
        heads = getattr(cfg, side).attention_heads
        spec = parse_rem_heads(cfg.rsa_heads, cfg.rsa_dilations, heads)
        super().__init__(cfg, side, spec.total)
        self.max_power = cfg.rsa_max_power
        regular = spec.counts[0], spec.counts[3]
        tied = not cfg.rsa_untie_conjugates
        self.pairs = [cyclical_pairs(spec.counts[i], spec.counts[i + 1], tied) for i in (1, 4)]
        cyclical = [max(c.stop, s.stop) for c, s in self.pairs]
        self.regular, self.cyclical = regular, cyclical
        if sum(regular):
            eta = parse_range(cfg.rsa_eta_init)
            self.eta = nn.Parameter(torch.cat([two_sided(n, *eta) for n in regular]))
        if sum(cyclical):
            low, high = parse_range(cfg.rsa_nu_init)
            nu = [torch.linspace(low, high, n) if n else torch.empty(0) for n in cyclical]
            self.nu = nn.Parameter(torch.cat(nu))
            self.theta = nn.Parameter(torch.full((sum(cyclical),), cfg.rsa_theta_init))
        sine = [kind in (2, 5) for kind, n in enumerate(spec.counts) for _ in range(n)]
        self.register_buffer("sine", torch.tensor(sine), persistent=False)
        self.register_buffer("dilation", torch.tensor(spec.all_dilations), persistent=False)
        self.turning, self.has_sine = sum(cyclical) > 0, any(sine)
        # The heads of each dilation, where the product needs them: on the device.
        self.dilations = sorted(set(spec.all_dilations))
        order: list[int] = []
        for dilation in self.dilations:
            heads_of = [h for h, d in enumerate(spec.all_dilations) if d == dilation]
            self.register_buffer(f"heads_{dilation}", torch.tensor(heads_of), persistent=False)
            order += heads_of
        self.register_buffer("back", torch.tensor(order).argsort(), persistent=False)
        exempt_from_decay(*self.parameters())

    @classmethod
    def problems(cls, cfg: Any, side: str) -> Iterator[str]:
        """Problems with the combination of this part's options, one message each."""
        yield from super().problems(cfg, side)
        try:
            heads = getattr(cfg, f"{side}_attention_heads")
            parse_rem_heads(cfg.rsa_heads, cfg.rsa_dilations, heads)
        except ValueError as error:
            yield f"{error} ({side})"
        for name in ("rsa_eta_init", "rsa_nu_init"):
            try:
                parse_range(getattr(cfg, name))
            except ValueError as error:
                yield f"{flag(name)} {error}"

    @classmethod
    def zero_with(cls, memory: type[TextMemory], cfg: Any) -> Iterator[str]:
        """As in `Mixture.zero_with`: no dilation is less than the number of visible positions."""
        seen = memory.visible(cfg)
        try:
            heads = parse_rem_heads(cfg.rsa_heads, cfg.rsa_dilations, cfg.decoder_attention_heads)
        except ValueError:  # which `problems` reports
            return
        least = min(heads.all_dilations)
        if seen is not None and least >= seen:
            yield (
                f"--rsa-heads: the smallest dilation is {least}, but a position sees at most "
                f"{seen} positions, itself included, so all matrices are zero; give smaller "
                f"--rsa-dilations or a longer {memory.limit}"
            )

    @classmethod
    def unread_options(cls, cfg: Any, side: str) -> Iterator[tuple[str, str]]:
        """Options for kinds of heads that the layer lacks, each with the reason."""
        try:
            heads = getattr(cfg, f"{side}_attention_heads")
            counts = parse_rem_heads(cfg.rsa_heads, cfg.rsa_dilations, heads).counts
        except ValueError:  # which `problems` reports
            return
        regular, cosine, sine = map(sum, zip(counts[:3], counts[3:]))
        given = f"--rsa-heads {cfg.rsa_heads}" if cfg.rsa_heads else "the default of --rsa-heads"
        if not regular:
            yield "rsa_eta_init", f"{given} has no regular heads"
        if not cosine + sine:
            yield "rsa_nu_init", f"{given} has no cosine or sine heads"
            yield "rsa_theta_init", f"{given} has no cosine or sine heads"
        if not min(counts[1:3]) + min(counts[4:]):
            yield "rsa_untie_conjugates", f"{given} has no cosine head with a sine head to share"

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
                if heads.start < heads.stop:
                    decays.append(gamma[group][heads])
                    angles.append(theta[group][heads])
        return torch.cat(decays), torch.cat(angles)

    def kernels(self, length: int) -> tuple[Tensor, Tensor | None]:
        """f over lags (entries of eq. 3): (H', L); and itself if unmasked (symmetric), or None."""
        decay, angle = self.heads_parameters()
        dilation = None if self.dilations == [1] else self.dilation
        past = self.kernel(decay, angle, self.sine, dilation, length, self.max_power)
        return past, None if self.causal else past

    def kernel(
        self, decay: Tensor, angle: Tensor, sine: Tensor, dilation: Tensor | None, *limits: int
    ) -> Tensor:
        """`rem_kernel` of some heads, without what no head of this layer has."""
        turn = angle if self.turning else None
        return rem_kernel(decay, turn, sine if self.has_sine else None, dilation, *limits)

    def product(self, values: Tensor, queries: int, padding: Padding | None, form: str) -> Tensor:
        """As `Mixture.product`; the chunked form goes dilation by dilation."""
        if form == "dense":
            return super().product(values, queries, padding, form)
        decay, angle = self.heads_parameters()
        outputs = []
        longest = self.longest_lag()
        if longest is not None:
            values = values[:, :, -(queries + longest) :]
        for dilation in self.dilations:
            heads = self.get_buffer(f"heads_{dilation}")
            chunked = partial(
                self.chunked, self.highest(dilation), decay[heads], angle[heads], self.sine[heads]
            )
            # Positions that no other one is connected with form sub-sequences of one.
            spacing = min(dilation, values.size(2))
            outputs.append(dilated(chunked, values[:, heads], spacing))
        return torch.cat(outputs, dim=1)[:, self.back, -queries:]

    def highest(self, dilation: int) -> int | None:
        """The highest power that occurs at a dilation, or None without a limit."""
        limits = [self.max_power] if self.max_power else []
        if self.reach is not None:
            limits.append((self.reach - 1) // dilation)
        return min(limits, default=None)

    def longest_lag(self) -> int | None:
        """The longest lag with an entry, or None without a limit."""
        longest = [(self.highest(dilation), dilation) for dilation in self.dilations]
        lags = [highest * dilation for highest, dilation in longest if highest is not None]
        return max(lags, default=None)

    def chunked(
        self, highest: int | None, decay: Tensor, angle: Tensor, sine: Tensor, values: Tensor
    ) -> Tensor:
        """The product at dilation 1: a band where the highest power cuts, else recurrent."""
        steps = values.size(2)
        chunk = min(CHUNK, steps)  # sub-sequences of dilated heads may be short
        if highest is None or steps - 1 <= highest:
            out = recurrent_product(decay, angle, sine, values, chunk)
            if self.causal:
                return out
            # The unmasked matrix is the causal one with its mirror image added.
            return out + recurrent_product(decay, angle, sine, values.flip(2), chunk).flip(2)
        kernel = self.kernel(decay, angle, sine, None, highest + 1)
        return banded_product(kernel, values, chunk, None if self.causal else kernel)

    def row_sum(self) -> Tensor:
        """As in `Mixture.row_sum`; of an unlimited kernel, over a thousand lags."""
        lags = self.max_power or MONITORED_LAGS
        kernel = self.kernel(*self.heads_parameters(), self.sine, None, lags + 1)
        if self.reach is not None:
            highest = (self.reach - 1) // self.dilation.unsqueeze(1)
            powers = torch.arange(lags + 1, device=kernel.device)
            kernel = kernel.masked_fill(powers > highest, 0.0)
        return kernel.abs().sum(dim=1).max() * (1 if self.causal else 2)


def two_sided(count: int, low: float, high: float) -> Tensor:
    """Half of the values spread over [low, high], the others over [-high, -low]: (count,)."""
    positive = count - count // 2
    return torch.cat([torch.linspace(low, high, positive), -torch.linspace(low, high, count // 2)])


def cyclical_pairs(cosines: int, sines: int, tied: bool) -> tuple[slice, slice]:
    """Where the (nu, theta) of the cosine and of the sine heads are: shared if *tied*."""
    first = 0 if tied else cosines
    return slice(0, cosines), slice(first, first + sines)


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
