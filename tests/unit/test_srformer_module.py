"""SRformer's cross-attention as a module of a model, against Algorithm 1 written as loops.

The loops read the options from the flags, so that a flag without effect is found.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_recur.modules.context import Context, Padding, Source
from fairseq_recur.modules.options import declared
from fairseq_recur.modules.srformer import LARGEST_HALF, SRformerAttention, saturated
from fairseq_recur.ops import naive
from fairseq_recur.ops.accumulate_fire import SMALLEST_THRESHOLD
from tests.conftest import SMALL
from tests.systems import option_values
from tests.unit.test_native import calls  # noqa: F401  (a fixture)

Build = Callable[..., nn.Module]

SIZE, TARGET, QUERIES = 3, 5, 7
LENGTHS = (8, 5)
"""Of the sources: three segments and two. The last queries are past the target length."""

NARROW, WIDE = ["--encoder-embed-dim", "8"], ["--encoder-embed-dim", "32"]
"""Two heads of width 4, and of width 16, which the compiled code supports."""

VARIANTS: dict[str, str] = {
    "paper": "",
    "recomputed": "--srformer-form recomputed",
    "stored": "--srformer-form stored",
    "leaky": "--srformer-leak-init 0.5 --srformer-threshold-init 0.3",
    "frobenius": "--srformer-norm frobenius",
    "frobenius-stored": "--srformer-norm frobenius --srformer-form stored",
    "no-norm": "--srformer-norm none",
    "clamp": "--srformer-clamp 0.5",
    "surrogate": "--srformer-surrogate piecewise",
    "clamp-surrogate-current": (
        "--srformer-clamp 0.5 --srformer-surrogate piecewise --srformer-current-segment"
    ),
    "no-segmented-term": "--srformer-no-segmented-term",
    "no-segmented-term-stored": "--srformer-no-segmented-term --srformer-form stored",
    "no-neuron": "--srformer-no-neuron",
    "no-neuron-clamp-frobenius": (
        "--srformer-no-neuron --srformer-clamp 0.5 --srformer-norm frobenius"
    ),
    "current-segment": "--srformer-current-segment",
    "current-segment-stored": "--srformer-current-segment --srformer-form stored",
    "learned-mix": "--srformer-learned-mix",
    "learned-mix-stored": "--srformer-learned-mix --srformer-form stored",
    "unit": "--srformer-scale unit",
    "unit-stored": "--srformer-scale unit --srformer-form stored",
    "unit-frobenius": "--srformer-scale unit --srformer-norm frobenius",
    "unit-sum": "--srformer-scale unit --srformer-norm sum",
    "unit-no-norm-clamp-surrogate": (
        "--srformer-scale unit --srformer-norm none --srformer-clamp 0.5 "
        "--srformer-surrogate piecewise"
    ),
    "unit-current-segment": "--srformer-scale unit --srformer-current-segment",
    "unit-learned-mix": "--srformer-scale unit --srformer-learned-mix --srformer-leak-init 0.2",
    "unit-no-segmented-term": "--srformer-scale unit --srformer-no-segmented-term",
    "bias": "--srformer-neuron-bias",
    "per-head": "--srformer-neuron-per-head",
    "per-head-bias-surrogate": (
        "--srformer-neuron-per-head --srformer-neuron-bias --srformer-surrogate piecewise"
    ),
    "unit-bias": "--srformer-scale unit --srformer-neuron-bias",
    "unit-per-head-bias-skipped-segments": (
        "--srformer-scale unit --srformer-neuron-per-head --srformer-neuron-bias --target-length 2"
    ),
    "skipped-segments": "--target-length 2 --srformer-learned-mix",
    "ratio": "--target-length-mode ratio --target-ratio 0.5",
    "reference": "--target-length-mode reference",
}
"""Each value of each option, in the forms of computation that know it."""

COMPILED = ("paper", "current-segment", "unit")
"""Variants that are compared once more at a width that the code in C supports."""


def attention(make_model: Build, flags: list[str]) -> SRformerAttention:
    """The lowest layer's cross-attention of a fresh model."""
    segments = ["--segment-size", str(SIZE)]
    if "ratio" not in flags:
        segments += ["--target-length", str(TARGET)]
    found = make_model("srformer", *SMALL, *segments, *flags).decoder.layers[0].encoder_attn
    assert isinstance(found, SRformerAttention)
    return found


def option(flags: list[str], name: str) -> str | None:
    """The value that the flags give to an option of SRformer; "" of a switch, None without one."""
    return option_values(["--arch", "srformer", *flags]).get(name)


def target_length(flags: list[str], length: int) -> int:
    """q for a source of this length."""
    mode = option(flags, "target_length_mode") or "fixed"
    if mode == "reference":
        return QUERIES
    if mode == "ratio":
        return math.ceil(float(option(flags, "target_ratio") or 1) * length)
    return int(option(flags, "target_length") or TARGET)


def neuron_of_head(
    p: dict[str, Tensor], head: int, flags: list[str], no_weight: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """W (D, D), leak, threshold and bias, from the parameters *p*; any without a neuron."""
    if option(flags, "srformer_no_neuron") is not None:
        return no_weight, no_weight.new_zeros(()), no_weight.new_ones(()), None
    weight, bias = p["neuron.linear.weight"], p.get("neuron.linear.bias")
    leak, threshold = p["neuron.leak"], p["neuron.threshold"]
    if option(flags, "srformer_neuron_per_head") is not None:
        rows = slice(head * len(no_weight), (head + 1) * len(no_weight))
        weight, bias = weight[rows], None if bias is None else bias[rows]
        leak, threshold = leak[head], threshold[head]
    if option(flags, "srformer_scale") == "unit":
        leak, threshold = torch.sigmoid(leak), torch.log(1 + torch.exp(threshold))
    return weight, leak, threshold, bias


def by_loops(
    module: SRformerAttention, flags: list[str], heads: int, x: Tensor, source: Tensor
) -> Tensor:
    """The outputs for one sentence, (T, C) and (S, C) to (T, C); of *module* only parameters."""
    p = dict(module.named_parameters())
    unit = option(flags, "srformer_scale") == "unit"
    q, k, v = (
        (states @ p[f"{name}_proj.weight"].t() + p[f"{name}_proj.bias"]).chunk(heads, dim=1)
        for name, states in (("q", x), ("k", source), ("v", source))
    )
    width = q[0].size(1)
    options: dict[str, Any] = {
        "norm": option(flags, "srformer_norm") or "key",
        "clamp": float(option(flags, "srformer_clamp") or 0),
        "current": option(flags, "srformer_current_segment") is not None,
        "neuron": option(flags, "srformer_no_neuron") is None,
        "surrogate": option(flags, "srformer_surrogate") == "piecewise",
        "unit": unit,
    }
    outputs = []
    for head, (queries, keys, values) in enumerate(zip(q, k, v)):
        *neuron, options["bias"] = neuron_of_head(p, head, flags, x.new_zeros(width, width))
        scaled, rest = queries / width**0.5, (list(keys), list(values), SIZE)
        rest = (*rest, target_length(flags, len(source)), *neuron)
        local, recurrent = naive.srformer_head(list(scaled), *rest, **options)
        if unit:  # its queries are scaled by themselves
            _, recurrent = naive.srformer_head(list(queries), *rest, **options)
        if option(flags, "srformer_no_segmented_term") is not None:
            outputs.append(recurrent)
        elif option(flags, "srformer_learned_mix") is not None:
            sigma = 1 / (1 + torch.exp(-p["learned_mix.logit"]))
            outputs.append(sigma * local + (1 - sigma) * recurrent)
        else:
            outputs.append(local + recurrent)
    return torch.cat(outputs, dim=1) @ p["out_proj.weight"].t() + p["out_proj.bias"]


def by_module(module: SRformerAttention, x: Tensor, sources: list[Tensor]) -> Tensor:
    """The outputs for a batch of sources padded on the left: (T, B, C)."""
    longest = max(map(len, sources))
    padded = [torch.cat([s.new_ones(longest - len(s), s.size(1)), s]) for s in sources]
    states = torch.stack(padded, dim=1)
    padding = torch.tensor([[i < longest - len(s) for i in range(longest)] for s in sources])
    source = Source.of(states, Padding.of(padding))
    segments = module.segments(source, x.size(0), None)
    context = Context(encoder_out=states, encoder_padding=padding, source=source, segments=segments)
    return module(x, context)[0]


def randomize(module: SRformerAttention, unit: bool) -> None:
    """Set the parameters to values at which some neurons fire and some do not."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4)
    if module.neuron is not None:
        for scalar, mean in ("leak", 0.3 if unit else 0.9), ("threshold", -3.0 if unit else 0.4):
            values = getattr(module.neuron, scalar)
            steps = torch.linspace(0, 0.1, values.numel()).view_as(values)  # differ over the heads
            values.data.copy_(mean + steps)


@pytest.mark.parametrize(
    "name, wide", [*((n, False) for n in VARIANTS), *((n, True) for n in COMPILED)]
)
def test_module_equals_algorithm_1(
    make_model: Build,
    name: str,
    wide: bool,
    calls: list[bool],  # noqa: F811
) -> None:
    """Outputs and the gradients of the inputs and of every parameter."""
    flags = VARIANTS[name].split()
    heads = 2
    module = attention(make_model, [*(WIDE if wide else NARROW), *flags]).double()
    randomize(module, option(flags, "srformer_scale") == "unit")
    width = module.q_proj.weight.size(1)
    x = torch.randn(QUERIES, len(LENGTHS), width, dtype=torch.float64, requires_grad=True)
    sources = [
        torch.randn(length, width, dtype=torch.float64, requires_grad=True) for length in LENGTHS
    ]
    found = by_module(module.train(), x, sources)
    assert bool(calls) == wide
    slow = [by_loops(module, flags, heads, x[:, b], s) for b, s in enumerate(sources)]
    expected = torch.stack(slow, dim=1)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    inputs = {"x": x, **{f"source {len(s)}": s for s in sources}, **dict(module.named_parameters())}
    weights = torch.randn_like(expected)
    ours, theirs = (
        torch.autograd.grad((out * weights).sum(), list(inputs.values()), allow_unused=True)
        for out in (found, expected)
    )
    for key, one, other in zip(inputs, ours, theirs):
        one, other = (torch.zeros_like(inputs[key]) if g is None else g for g in (one, other))
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9, msg=key)
        # A bias of all keys changes no softmax; without a neuron they act through the products.
        assert other.any(), f"{key} has no effect"


@pytest.mark.parametrize("learned", [-2.0, 0.0, 1e-5])
def test_a_threshold_stays_positive_whatever_training_makes_of_it(
    make_model: Build,
    learned: float,
    calls: list[bool],  # noqa: F811
) -> None:
    """Neurons have the smallest one then, and all forms compute the same."""
    x = torch.randn(QUERIES, len(LENGTHS), 32, dtype=torch.float64)
    sources = [torch.randn(length, 32, dtype=torch.float64) for length in LENGTHS]
    found, weights = [], None
    for form in ("auto", "recomputed", "stored"):
        module = attention(make_model, [*WIDE, "--srformer-form", form]).double()
        if weights is None:
            randomize(module, unit=False)
            nn.init.constant_(module.neuron.threshold, learned)
            weights = module.state_dict()
        module.load_state_dict(weights)
        assert module.neuron.values()[2] == SMALLEST_THRESHOLD == 1e-3
        found.append(by_module(module, x, sources))
    assert len(calls) == 1, "the first form is that of the code in C"
    assert all(out.isfinite().all() for out in found)
    for out in found[1:]:
        torch.testing.assert_close(out, found[0], rtol=1e-9, atol=1e-9)


def test_outputs_are_saturated_in_float16_alone() -> None:
    """So that the sums of the next layer do not overflow."""
    large = torch.tensor([1e5, -1e5, 3.0])
    half = saturated(large, torch.float16)
    assert half.dtype == torch.float16 and half.tolist() == [LARGEST_HALF, -LARGEST_HALF, 3.0]
    assert LARGEST_HALF == 2048
    for dtype in (torch.bfloat16, torch.float32):
        assert torch.equal(saturated(large, dtype), large.to(dtype))


def test_every_option_is_compared() -> None:
    """Each value of each option of the part, whatever is added to it."""
    given = [option_values(["--arch", "srformer", *flags.split()]) for flags in VARIANTS.values()]
    apart = {"segment_size"}  # of all variants
    for name, made in declared(SRformerAttention).items():
        values = {flags[name] for flags in given if name in flags}
        if hasattr(made.type, "__members__"):
            choices = {e.value for e in made.type}
            assert choices - {made.default} <= values, name
        else:
            assert values or name in apart, f"no variant has --{name.replace('_', '-')}"


@pytest.mark.parametrize("flags, leak", [
    ("", 1.0), ("--srformer-scale unit", 0.5), ("--srformer-leak-init 0.3", 0.3),
    ("--srformer-leak-init 0.3 --srformer-scale unit", 0.3),
])  # fmt: skip
@pytest.mark.parametrize("initial, threshold", [("", 0.1), ("--srformer-threshold-init 2", 2.0)])
def test_fresh_values(
    make_model: Build, flags: str, leak: float, initial: str, threshold: float
) -> None:
    """A leak of 1 and a threshold of 0.1 (appendix A.2); 0.5 at the unit scale (docs/srformer.md).

    At the unit scale the inputs have the factor 1 - leak. The mix starts at one half.
    """
    words = [*flags.split(), *initial.split(), "--srformer-learned-mix"]
    module = attention(make_model, words)
    assert module.neuron is not None and module.learned_mix is not None
    weight, *scalars = module.neuron.values()
    assert [x.item() for x in scalars] == pytest.approx([leak, threshold])
    factor = 1 - leak if re.search("unit", flags) else 1.0
    torch.testing.assert_close(weight, factor * module.neuron.linear.weight)
    local, recurrent = torch.randn(2, 3)
    torch.testing.assert_close(module.learned_mix(local, recurrent), (local + recurrent) / 2)
