"""SRformer's cross-attention and its comparison systems, against Algorithm 1 written as loops."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from fairseq_recur.models.presets import PRESETS
from fairseq_recur.modules.context import Padding, Source
from fairseq_recur.modules.segmented_attention import SegmentedAttention
from fairseq_recur.modules.segmented_comparisons import sum_of_tokens
from fairseq_recur.modules.standalone import SRformerCrossAttention
from fairseq_recur.ops import naive
from fairseq_recur.ops.accumulate_fire import (
    SMALLEST_THRESHOLD,
    accumulate_fire,
    at_least,
    neuron_inputs,
    recurrent_accumulate_fire,
)
from fairseq_recur.ops.segmented_attention import (
    NORMS,
    attend_segments,
    key_norm,
    partial_products,
    segments_at_steps,
)
from fairseq_recur.ops.segmented_recurrent import recurrent_attention, segmented_recurrent
from fairseq_recur.ops.segments import segment_schedule, split_segments
from fairseq_recur.ops.unit_scale import UNIT_NORMS, unit_keys, unit_queries
from tests.conftest import SMALL
from tests.unit.test_model_properties import sentences, small, targets, true_lengths

CPU = torch.device("cpu")
Build = Callable[..., nn.Module]
pytestmark = pytest.mark.usefixtures("fairseq_in_the_models_precision")


# ---- which segment a query reads

LENGTHS = [1, 2, 17, 63, 64, 65]


@pytest.mark.parametrize("size", [1, 3, 8, 64])
@pytest.mark.parametrize("target", [1, 5, 16, 40])
def test_queries_read_the_segments_of_algorithm_1(size: int, target: int) -> None:
    queries = 23
    plan = segment_schedule(tuple(LENGTHS), (target,) * len(LENGTHS), queries, size, CPU)
    slots = plan.query_slots
    if slots is None:
        slots = torch.arange(queries).expand(len(LENGTHS), -1)
    for row, length in enumerate(LENGTHS):
        count = -(-length // size)
        for t in range(queries):
            step = int(slots[row, t]) // plan.queries_per_step
            read = step if plan.step_segments is None else int(plan.step_segments[row, step])
            assert read == min(t * count // target, count - 1)
        assert len(set(slots[row].tolist())) == queries, "two queries in one place"
        steps = slots[row] // plan.queries_per_step
        assert (steps[1:] - steps[:-1]).ge(0).all() and steps[0] == 0


@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize("queries", [1, 9, 23])
def test_queries_at_padding_take_what_is_left_over(queries: int, size: int) -> None:
    """They make no block larger: only one of real queries, or room for all, does."""
    lengths = (65, 64, 17, 40)
    real = tuple(max(1, queries - 7 * row) for row in range(len(lengths)))
    for asked in (real, (5,) * len(lengths)):
        plan = segment_schedule(lengths, asked, queries, size, CPU, real)
        slots = plan.query_slots
        if slots is None:
            slots = torch.arange(queries).expand(len(lengths), -1)
        steps = slots // plan.queries_per_step
        fullest = 0
        for row, length in enumerate(lengths):
            count, own = -(-length // size), steps[row, : real[row]]
            read = own if plan.step_segments is None else plan.step_segments[row, own]
            segments = [min(t * count // asked[row], count - 1) for t in range(real[row])]
            assert read.tolist() == segments
            assert len(set(slots[row].tolist())) == queries, "two queries in one place"
            assert int(slots[row].max()) < plan.steps * plan.queries_per_step
            assert int(plan.last_step[row]) == int(own.max())
            fullest = max(fullest, int(own.bincount().max()))
        assert plan.queries_per_step == max(fullest, -(-queries // plan.steps))


def test_the_padding_of_targets_makes_no_block_larger(make_model: Build) -> None:
    flags = "--target-length-mode reference --segment-size 4".split()
    part = make_model("srformer", *SMALL, *flags).decoder.layers[0].encoder_attn
    source = Source.of(torch.zeros(32, 2, 16), None)
    padding = torch.tensor([[False] * 16, [False] * 2 + [True] * 14])
    for mask in (padding, padding.flip(1)):
        schedule = part.segments(source, 16, Padding.of(mask)).schedule
        assert (schedule.steps, schedule.queries_per_step) == (8, 2)
        assert schedule.last_step.flatten().tolist() == [7, 1]


def test_blocks_give_the_queries_back() -> None:
    plan = segment_schedule((17, 3, 64), (5, 5, 5), 9, 4, CPU)
    queries = torch.randn(3, 2, 9, 4)
    blocks = plan.to_blocks(queries)
    assert blocks.shape == (3, 2, plan.steps, plan.queries_per_step, 4)
    assert torch.equal(plan.from_blocks(blocks), queries)
    assert blocks.abs().sum() == pytest.approx(float(queries.abs().sum()))


# ---- the fast forms against the loops


def parameters(width: int) -> list[Tensor]:
    """W, leak and a threshold that some potentials exceed and some do not."""
    values = [torch.randn(width, width) / 2, torch.tensor(0.9), torch.tensor(0.4)]
    return [v.double().requires_grad_() for v in values]


def heads(length: int, queries: int, count: int, width: int) -> list[Tensor]:
    """Q, K and V of one sentence: (1, H, T or S, D)."""
    return [
        torch.randn(1, count, n, width, dtype=torch.float64, requires_grad=True)
        for n in (queries, length, length)
    ]


def by_loops(
    inputs: list[Tensor], size: int, target: int, **options: object
) -> tuple[Tensor, Tensor]:
    """O_S and O_R head by head: (1, H, T, D)."""
    q, k, v, *scalars = inputs
    both = [
        naive.srformer_head(
            list(q[0, h]), list(k[0, h]), list(v[0, h]), size, target, *scalars, **options
        )
        for h in range(q.size(1))
    ]
    return tuple(torch.stack(side).unsqueeze(0) for side in zip(*both))


def last_mask(length: int, size: int, steps: int) -> Tensor:
    """Mask the missing positions of the last segment: (1, 1, N, 1, s)."""
    missing = torch.arange(-(-length // size) * size) >= length
    mask = torch.zeros(missing.size(), dtype=torch.float64).masked_fill(missing, -1e300)
    return mask.view(1, 1, -1, 1, size)[:, :, :steps]


def stored(
    inputs: list[Tensor], size: int, target: int, norm: str = "key", clamp: float = 0.0,
    current: bool = False, neuron: bool = True, surrogate: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The form that torch differentiates."""
    q, k, v, weight, leak, threshold = inputs
    plan = segment_schedule((k.size(2),), (target,), q.size(2), size, CPU)
    blocks, k, v = plan.to_blocks(q), split_segments(k, size), split_segments(v, size)
    mask = last_mask(inputs[1].size(2), size, k.size(2))
    if plan.step_segments is not None:
        mask = mask[:, :, plan.step_segments[0]]
    steps = plan.step_segments, plan.steps
    local, _ = attend_segments(
        blocks, segments_at_steps(k, *steps), segments_at_steps(v, *steps), mask[:, :, : plan.steps]
    )
    fired = partial_products(k, v, *steps, rest=not current, clamp=clamp)
    if neuron:
        x = neuron_inputs(fired, weight)
        fired = recurrent_accumulate_fire(x, leak, threshold, surrogate)
    divisor = key_norm(k.flatten(2, 3), norm)
    recurrent = torch.matmul(blocks, fired)
    recurrent = recurrent if divisor is None else recurrent / divisor.unsqueeze(2)
    return plan.from_blocks(local), plan.from_blocks(recurrent)


def recomputed(
    inputs: list[Tensor], size: int, target: int, norm: str = "key", current: bool = False
) -> tuple[Tensor, Tensor]:
    """The form with a hand-written backward pass."""
    q, k, v, *scalars = inputs
    plan = segment_schedule((k.size(2),), (target,), q.size(2), size, CPU)
    assert plan.step_segments is None
    local, recurrent = segmented_recurrent(
        plan.to_blocks(q), split_segments(k, size), split_segments(v, size), *scalars, norm=norm,
        rest=not current, mask=last_mask(k.size(2), size, plan.steps),
    )  # fmt: skip
    return plan.from_blocks(local), plan.from_blocks(recurrent)


def unit_recurrent(
    inputs: list[Tensor], size: int, target: int, form: str, norm: str = "key",
    current: bool = False,
) -> Tensor:  # fmt: skip
    """O_R at the unit scale, (1, H, T, D), in each form."""
    q, k, v, weight, leak, threshold = inputs
    plan = segment_schedule((k.size(2),), (target,), q.size(2), size, CPU)
    keys, values = unit_keys(split_segments(k, size), norm), split_segments(v, size)
    queries, scalars = plan.to_blocks(unit_queries(q)), ((1 - leak) * weight, leak, threshold)
    if form == "stored":
        steps = plan.step_segments, plan.steps
        partial = partial_products(keys, values, *steps, rest=not current)
        x = neuron_inputs(partial, scalars[0])
        found = torch.matmul(queries, recurrent_accumulate_fire(x, *scalars[1:]))
    else:
        found = recurrent_attention(
            queries, keys, values, *scalars, not current, compiled=form == "compiled"
        )
    return plan.from_blocks(threshold * found)


def assert_same(
    fast: tuple[Tensor, Tensor], slow: tuple[Tensor, Tensor], inputs: list[Tensor]
) -> None:
    """Outputs and all gradients; a gradient that only one has is a difference."""
    for ours, theirs in zip(fast, slow):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    weights = [torch.randn_like(x) for x in slow]
    grads = [
        torch.autograd.grad(
            sum((x * w).sum() for x, w in zip(side, weights)),
            inputs,
            allow_unused=True,
            retain_graph=True,
        )  # fmt: skip
        for side in (fast, slow)
    ]
    for ours, theirs in zip(*grads):
        ours, theirs = (torch.zeros(()) if g is None else g for g in (ours, theirs))
        torch.testing.assert_close(ours, theirs.expand_as(ours).to(ours), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("size,target", [(64, 5), (16, 5), (16, 2), (2, 70)])
def test_forms_equal_the_loops(length: int, size: int, target: int) -> None:
    inputs = [*heads(length, 7, 2, 4), *parameters(4)]
    slow = by_loops(inputs, size, target)
    assert_same(stored(inputs, size, target), slow, inputs)
    if target >= -(-length // size):
        assert_same(recomputed(inputs, size, target), slow, inputs)


@pytest.mark.parametrize("size", [2, 4, 6], ids=lambda s: f"s{s}")
@pytest.mark.parametrize("norm,current", product(NORMS, [False, True]))
def test_both_forms_support_norms_and_the_current_segment(
    size: int, norm: str, current: bool
) -> None:
    """Segments smaller than, as large as, and larger than a head: W is folded in or not."""
    inputs = [*heads(17, 12, 2, 4), *parameters(4)]
    slow = by_loops(inputs, size, 12, norm=norm, current=current)
    assert_same(stored(inputs, size, 12, norm=norm, current=current), slow, inputs)
    assert_same(recomputed(inputs, size, 12, norm=norm, current=current), slow, inputs)


@pytest.mark.parametrize(
    "options", [{"clamp": 0.7}, {"neuron": False}, {"surrogate": True}], ids=str
)
def test_stored_form_knows_every_option(options: dict[str, object]) -> None:
    inputs = [*heads(17, 8, 2, 4), *parameters(4)]
    assert_same(stored(inputs, 4, 8, **options), by_loops(inputs, 4, 8, **options), inputs)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("form,width", [("stored", 4), ("recomputed", 4), ("compiled", 16)])
@pytest.mark.parametrize(
    "norm,current", [("key", False), ("frobenius", True), ("none", False), ("sum", False)]
)
def test_unit_scale_equals_the_loops(
    length: int, form: str, width: int, norm: str, current: bool
) -> None:
    heads_of_width = 2 if width == 4 or length < 17 else 1
    inputs = [*heads(length, 7, heads_of_width, width), *parameters(width)]
    inputs[-1] = torch.tensor(0.05).double().requires_grad_()  # the inputs are of the size of one
    for size, target in ((16, 5), (3, 22)):
        options = {"norm": norm, "current": current}
        _, slow = by_loops(inputs, size, target, unit=True, **options)
        assert_same((unit_recurrent(inputs, size, target, form, **options),), (slow,), inputs)


@pytest.mark.parametrize("norm", UNIT_NORMS)
def test_dead_channels_have_gradients(norm: str) -> None:
    """A key channel that is negative everywhere has a norm of zero."""
    keys = -torch.rand(1, 1, 2, 3, 4)
    keys.requires_grad_()
    unit_keys(keys, norm).sum().backward()
    assert keys.grad is not None and keys.grad.isfinite().all()


def potential(scale: str, length: int, norm: str = "key") -> Tensor:
    """Deviation of the neurons' potential in a fresh part, for keys and values of size one."""
    torch.manual_seed(1)
    part = SRformerCrossAttention(
        64, 2, segment_size=length // 16, target_length=16, srformer_scale=scale, srformer_norm=norm
    )
    neuron = part.attention.neuron
    neuron.watch(CPU)
    with torch.no_grad():
        part(torch.randn(2, 16, 64), torch.randn(2, length, 64))
    count, total, squares = neuron.unwatch()[1]
    threshold = neuron.values()[2].detach()
    return threshold * (squares / count - (total / count) ** 2).sqrt()


def test_unit_scale_stays_near_one() -> None:
    """For 64 times as many keys the paper's potential grows 46-fold, the unit scale's 5-fold."""
    short, long = potential("unit", 64), potential("unit", 4096)
    assert 0.2 < short < long < 3
    assert potential("paper", 4096) / potential("paper", 64) > 30 and long / short < 8


def test_a_mean_of_the_values_is_no_larger_for_long_sources() -> None:
    """The deviation of the potential is 0.12 for 64 keys and 0.07 for 4,096."""
    short, long = potential("unit", 64, "sum"), potential("unit", 4096, "sum")
    assert short / 2 < long < short
    keys, values = torch.randn(1, 1, 50, 20, 4), torch.randn(1, 1, 50, 20, 4)
    partial = partial_products(unit_keys(keys, "sum"), values, None, 50)
    assert partial.abs().max() <= values.abs().max()


def test_error_of_segments_is_appendix_a1() -> None:
    """O = c_s/c O_S + c_r/c O_R, and O - O_S = c_r/c (O_R - O_S), with O_R the exact softmax."""
    (q,), (k,), (v,) = (x.detach()[0] for x in heads(17, 5, 1, 4))
    for t in range(5):
        own = torch.arange(17) // 4 == t
        weights = torch.exp(k @ q[t])
        local = naive.softmax_sum([q[t].dot(x) for x in k[own]], list(v[own]))
        rest = naive.softmax_sum([q[t].dot(x) for x in k[~own]], list(v[~own]))
        whole = torch.softmax(k @ q[t], 0) @ v
        share = weights[~own].sum() / weights.sum()
        torch.testing.assert_close(whole, (1 - share) * local + share * rest)
        torch.testing.assert_close(whole - local, share * (rest - local))
        segments = segment_schedule((17,), (5,), 5, 4, CPU)
        cut, mask = (split_segments(x[None, None], 4) for x in (k, v)), last_mask(17, 4, 5)
        ours, _ = attend_segments(segments.to_blocks(q[None, None]), *cut, mask)
        torch.testing.assert_close(segments.from_blocks(ours)[0, 0, t], local)


def test_neurons_fire_in_these_tests() -> None:
    """Some outputs are zero and some are not; otherwise equality would prove little."""
    inputs = [*heads(17, 12, 2, 4), *parameters(4)]
    k, v = split_segments(inputs[1], 4), split_segments(inputs[2], 4)
    x = neuron_inputs(partial_products(k, v, None, 5), inputs[3])
    fired = recurrent_accumulate_fire(x, *inputs[4:])
    assert 0.1 < float((fired > 0).double().mean()) < 0.9


def test_dropout_of_the_recomputed_form() -> None:
    """The backward pass drops what the forward pass dropped, and only O_S has dropout."""
    inputs = [*heads(12, 6, 2, 4), *parameters(4)]

    def run(*tensors: Tensor) -> Tensor:
        torch.manual_seed(3)
        plan = segment_schedule((12,), (6,), 6, 4, CPU)
        return sum(segmented_recurrent(
            plan.to_blocks(tensors[0]), *(split_segments(x, 4) for x in tensors[1:3]),
            *tensors[3:5], inputs[5].detach(), dropout=0.4,
        ))  # fmt: skip

    free = [x.detach().clone().requires_grad_() for x in inputs[:5]]
    assert torch.autograd.gradcheck(run, free)
    torch.manual_seed(3)
    plan = segment_schedule((12,), (6,), 6, 4, CPU)
    blocks, k, v = (
        plan.to_blocks(inputs[0]),
        split_segments(inputs[1], 4),
        split_segments(inputs[2], 4),
    )
    local, recurrent = segmented_recurrent(blocks, k, v, *inputs[3:], dropout=0.4)
    whole, same = segmented_recurrent(blocks, k, v, *inputs[3:])
    assert not torch.allclose(local, whole) and torch.equal(recurrent, same)


@pytest.mark.parametrize("form", ["recomputed", "stored"])
@pytest.mark.parametrize("name", ["leak", "threshold"])
def test_a_neuron_that_changes_before_the_backward_pass_is_noticed(form: str, name: str) -> None:
    """As torch notices it of every tensor that a gradient needs."""
    module = SRformerCrossAttention(24, 2, segment_size=5, target_length=6, srformer_form=form)
    found = module(torch.randn(2, 6, 24), torch.randn(2, 17, 24)).square().sum()
    with torch.no_grad():
        next(p for n, p in module.named_parameters() if name in n).add_(0.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.backward()


def test_neuron_against_the_pseudo_code() -> None:
    """Appendix A.2, by hand: it fires at 0.5, keeps 0.1 after the reset, and fires again."""
    leak, threshold = torch.tensor(0.5).double(), torch.tensor(0.4).double()
    memory, outs = torch.zeros(()).double(), []
    for x in (0.5, 0.3, 0.2):
        out, memory = accumulate_fire(torch.tensor(x).double(), memory, leak, threshold)
        outs.append(float(out))
    assert outs == pytest.approx([0.25, 0.0, 0.0])
    assert float(memory) == pytest.approx(0.5 * (0.5 * 0.1 + 0.3) + 0.2)


# ---- the part in the model


@pytest.mark.parametrize("flags", [
    ["srformer"], ["segmented"], ["xl"], ["global"], ["global", "--global-tokens", "transient"],
], ids=" ".join)  # fmt: skip
def test_decoding_of_sources_that_fill_their_segments(make_model: Build, flags: list[str]) -> None:
    """There is no padding then, and no mask."""
    cut = ["--segment-size", "3", "--target-length", "7", "--cross-attention"]
    model = make_model("srformer", *SMALL, *cut, *flags).double().eval()
    source, prefix, state = sentences([6, 6, 6], "left"), targets(3, 7), {}
    out = model.encoder(source, true_lengths(source))
    forced, _ = model.decoder(prefix, encoder_out=out)
    for step in range(1, 8):
        logits, _ = model.decoder(prefix[:, :step], encoder_out=out, incremental_state=state)
        torch.testing.assert_close(logits[:, -1], forced[:, step - 1], rtol=1e-9, atol=1e-11)


def test_weights_of_targets_that_are_padded_on_the_left(make_model: Build) -> None:
    model = make_model("srformer", *SMALL, "--segment-size", "3", "--target-length", "4")
    model = model.double().eval()
    source, (short, long) = sentences([7, 7], "left"), targets(2, 4)
    padded = torch.stack([torch.cat([torch.full((2,), 1), short[:2]]), long])
    found = model(source, true_lengths(source), padded)[1]["attn"][0]
    for row, real in ((0, short[:2]), (1, long)):
        alone = model(source[row : row + 1], torch.tensor([7]), real[None])[1]["attn"][0]
        torch.testing.assert_close(found[row, -len(real) :], alone[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("form", ["recomputed", "auto"])
def test_the_backward_pass_within_autocast(form: str) -> None:
    """Users of torch alone write it so; the width has no compiled form."""
    torch.manual_seed(0)
    module = SRformerCrossAttention(
        24, 2, segment_size=20, target_length=6, srformer_form=form, srformer_threshold_init=0.1
    )
    memory, x = torch.randn(2, 50, 24), torch.randn(2, 6, 24)
    with torch.autocast("cpu", torch.bfloat16):
        module(x, memory).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())


def test_global_tokens_of_long_segments_are_finite_in_float16(make_model: Build) -> None:
    """A sum of 1,024 values of 70 leaves its range, their mean does not."""
    assert sum_of_tokens(torch.full((1, 2, 1024, 4), 70.0).half()).isfinite().all()
    flags = ["--cross-attention", "global", "--segment-size", "1024"]
    attention = make_model("srformer", *SMALL, *flags).decoder.layers[0].encoder_attn
    source = Source.of(torch.zeros(1024, 1, 16).half(), None)
    segments = attention.segments(source, 3, None)
    values = torch.full((1, 2, 1, 1024, 8), 70.0).half()
    prepared = attention.prepare(values, values, segments)
    assert (prepared["memory_values"] == 70).all()


@pytest.mark.parametrize("scale", ["paper", "unit"])
def test_a_tiny_initial_threshold_has_a_gradient(make_model: Build, scale: str) -> None:
    """It is raised to the smallest one, and not below it, where it would never learn."""
    flags = ["--srformer-threshold-init", "1e-5", "--srformer-scale", scale]
    neuron = make_model("srformer", *SMALL, *flags).decoder.layers[0].encoder_attn.neuron
    threshold = neuron.values()[2]
    assert threshold.item() == pytest.approx(SMALLEST_THRESHOLD)
    threshold.backward()
    assert neuron.threshold.grad != 0


def test_a_threshold_below_the_smallest_one_can_rise_again() -> None:
    """A gradient that raises it passes; one that would lower it further does not."""
    learned = torch.tensor([-2.0, 1e-5, SMALLEST_THRESHOLD, 0.5], requires_grad=True)
    for slope, passed in ((-1.0, [-1.0, -1.0, -1.0, -1.0]), (1.0, [0.0, 0.0, 1.0, 1.0])):
        learned.grad = None
        used = at_least(learned, SMALLEST_THRESHOLD)
        assert used.tolist() == torch.clamp(learned, min=SMALLEST_THRESHOLD).tolist()
        (slope * used).sum().backward()
        assert learned.grad is not None and learned.grad.tolist() == passed


def test_ratios_are_not_rounded_up_by_the_binary_form(make_model: Build) -> None:
    ratio = ["--target-length-mode", "ratio", "--target-ratio"]
    model = make_model("srformer", *SMALL, *ratio, "1.1")
    attention = model.decoder.layers[0].encoder_attn
    assert attention.targets((50, 100, 51), None) == (55, 110, 57)


SEGMENTED = [n for n, options in PRESETS.items() if options.get("cross_attention", "dot") != "dot"]
PARTS = ["srformer", "segmented"]


@pytest.mark.parametrize("part", PARTS)
def test_one_segment_is_the_stock_transformer(make_model: Build, part: str) -> None:
    """With one segment, the recurrent term is exactly zero.

    fairseq's softmax over the encoder is float32, also in float64.
    """
    model = make_model("srformer", *SMALL, "--cross-attention", part).double().eval()
    stock = make_model("transformer", *SMALL).double().eval()
    model.load_state_dict({**model.state_dict(), **stock.state_dict()})
    source, target = sentences([6, 3, 5], "left"), targets(3, 5)
    ours, extra = model(source, true_lengths(source), target)
    theirs, stock_extra = stock(source, true_lengths(source), target)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    torch.testing.assert_close(extra["attn"][0], stock_extra["attn"][0].double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("arch", SEGMENTED)
def test_segments_change_the_model(make_model: Build, arch: str) -> None:
    """The counterpart of the test above: with more segments, the model differs."""
    flags = ["--segment-size", "2", "--target-length", "5"]
    model = small(make_model, ["--arch", arch, *flags])
    source, target = sentences([6, 3, 5], "left"), targets(3, 5)
    short, _ = model(source, true_lengths(source), target)
    for module in model.modules():
        if isinstance(module, SegmentedAttention):
            module.size = 64
    whole, _ = model(source, true_lengths(source), target)
    assert (short - whole).abs().max() > 1e-3


@pytest.mark.parametrize("size", [2, 3, 64])
def test_weights_are_over_the_segment_that_is_read(make_model: Build, size: int) -> None:
    flags = ["--segment-size", str(size), "--target-length", "4", "--encoder-layers", "1"]
    model = small(make_model, ["--arch", "srformer", *flags])
    source = sentences([7, 4], "left")
    _, extra = model(source, true_lengths(source), targets(2, 4))
    attention = extra["attn"][0]
    torch.testing.assert_close(attention.sum(-1), torch.ones(2, 4).double())
    for row, length in enumerate((7, 4)):
        count, first = -(-length // size), 7 - length
        for t in range(4):
            i = min(t * count // 4, count - 1)
            seen = attention[row, t].nonzero().flatten().tolist()
            assert seen == list(range(first + i * size, min(first + (i + 1) * size, 7)))


def test_what_depends_on_the_source_is_computed_once_a_sentence(make_model: Build) -> None:
    """It is not computed per beam or per step, and re-ordering moves none of it."""
    model = small(make_model, ["--arch", "srformer", "--segment-size", "2", "--target-length", "5"])
    source, target = sentences([6, 3, 5], "left"), targets(3, 5)
    attention, rows = model.decoder.layers[0].encoder_attn, []
    attention.k_proj.register_forward_hook(lambda m, i, o: rows.append(o.size(1)))
    with torch.no_grad():
        out = model.encoder(source, true_lengths(source))
        out = model.encoder.reorder_encoder_out(out, torch.arange(3).repeat_interleave(4))
        state: dict[str, dict[str, Tensor]] = {}
        beams = target.repeat_interleave(4, 0)
        for t in range(1, 4):
            model.decoder(beams[:, :t], out, incremental_state=state)
            kept = attention.get_incremental_state(state, "source")
            before = {name: x.data_ptr() for name, x in kept.items()}
            order = torch.tensor([1, 0, 3, 3, 5, 4, 7, 6, 9, 9, 8, 11])
            model.decoder.reorder_incremental_state_scripting(state, order)
            assert model.encoder.reorder_encoder_out(out, order) is out
            after = attention.get_incremental_state(state, "source")
            assert {name: x.data_ptr() for name, x in after.items()} == before
            assert kept["keys"].size(0) == 3
    assert rows == [3]


def test_reference_mode_reads_the_targets_true_lengths(make_model: Build) -> None:
    flags = "--segment-size 2 --target-length-mode reference --target-length 9".split()
    model = small(make_model, ["--arch", "srformer", *flags])
    source, target = sentences([7, 7], "left"), targets(2, 6)
    target[1, 4:] = 1
    both, _ = model(source, true_lengths(source), target)
    alone, _ = model(source[1:], true_lengths(source[1:]), target[1:, :4])
    torch.testing.assert_close(both[1, :4], alone[0])
