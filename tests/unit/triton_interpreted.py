"""The Triton kernels, run by Triton's interpreter in float64: equal to the loops of `ops.naive`.

`test_triton.py` runs this file in a process of its own, with TRITON_INTERPRET=1, which Triton reads
when it is imported. There, the ops use the kernels on a CPU. A call within a kernel takes the
interpreter about a millisecond: the fast tests have one length per kernel.
"""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_recur.ops import mixture, naive, recurrence_encoder, rem, toeplitz
from fairseq_recur.ops.triton import banded, dispatch, mixed
from fairseq_recur.ops.triton.banded import BandProduct
from fairseq_recur.ops.triton.mixed import MixedMap
from fairseq_recur.ops.triton.recurrence import AdditiveEnergies, GatedStates, gated_states
from fairseq_recur.ops.triton.segment_softmax import SegmentAttention, segment_softmax
from fairseq_recur.ops.triton.segmented_recurrent import FiredSums, fired_sums
from tests.unit import test_ops
from tests.unit.test_model_properties import sentences, small, targets, true_lengths
from tests.unit.test_native import both_terms, small_parameters
from tests.unit.test_srformer import (
    LENGTHS,
    assert_same,
    by_loops,
    heads,
    parameters,
    stored,
    unit_recurrent,
)

random = test_ops.random
slow = pytest.mark.slow
over_lengths = pytest.mark.parametrize(
    "length", [pytest.param(n, marks=() if n == 17 else slow) for n in LENGTHS]
)
FUNCTIONS = (FiredSums, SegmentAttention, BandProduct, MixedMap, AdditiveEnergies, GatedStates)


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Grows with each operation that a kernel computes; each test must use one."""
    made: list[str] = []

    def counting(name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: (made.append(name), forward(*args))[1]

    for function in FUNCTIONS:
        wrapped = staticmethod(counting(function.__name__, function.forward))
        monkeypatch.setattr(function, "forward", wrapped)
    yield made
    assert made


@pytest.fixture
def by_torch(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], Any]:
    """Call a function without the kernels."""

    def call(function: Callable[[], Any]) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(dispatch, "obstacle", lambda: "none")
            return function()

    return call


PRODUCTS: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]]]] = {
    "scan": (fired_sums, [(2, 3, 2, 4), (2, 3, 5, 4), (2, 3, 5, 4), (4, 4), (), ()]),
    "mixed map": (
        lambda *inputs: mixture.mixed_map(*inputs)[0],
        [(2, 2, 5, 6), (2, 2, 6, 4), (2, 5, 6), (2, 1, 1)],
    ),
}
"""Operations that also have products of torch's, and the shapes of their inputs."""


@pytest.mark.parametrize("operation", PRODUCTS)
def test_nothing_changes_within_autocast(operation: str) -> None:
    """Both passes multiply in the precision of the inputs."""
    compute, shapes = PRODUCTS[operation]
    inputs = [torch.rand(s, requires_grad=True) for s in shapes]

    def both_passes() -> list[Tensor]:
        out = compute(*inputs)
        return [out, *torch.autograd.grad(out.square().sum(), inputs)]

    usual = both_passes()
    with torch.autocast("cpu", torch.bfloat16):
        within = both_passes()
    for one, other in zip(within, usual):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


# ---- SRformer's scan


@slow
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("size,target", [(16, 5), (64, 5)])
def test_scan_equals_the_loops(length: int, size: int, target: int) -> None:
    """Segments of one and of two tiles of keys, one of them the whole source; missing keys."""
    inputs = [*heads(length, 7, 1, 4), *parameters(4)]
    assert_same(both_terms(inputs, size, target), by_loops(inputs, size, target), inputs)


@over_lengths
@pytest.mark.parametrize("size,target", [(8, 9), pytest.param(40, 5, marks=slow)])
def test_both_terms_in_one_pass(length: int, size: int, target: int) -> None:
    """Missing keys; at 40 a segment of two tiles of keys, the second of which is not full."""
    inputs = [*heads(length, 7, 1, 4), *parameters(4)]
    slow = sum(by_loops(inputs, size, target))
    assert_same(both_terms(inputs, size, target, together=True), (slow,), inputs)


@slow
def test_more_steps_than_a_word_has_bits() -> None:
    """33 steps, whose spikes take two words."""
    inputs = [*heads(65, 40, 1, 3), *parameters(3)]
    assert_same(both_terms(inputs, 2, 40), by_loops(inputs, 2, 40), inputs)


@slow
def test_segments_that_no_query_reads() -> None:
    """Seven queries of forty: three of 33 segments are steps, and all have a gradient."""
    inputs = [*heads(65, 7, 1, 4), *parameters(4)]
    assert_same(both_terms(inputs, 2, 70), by_loops(inputs, 2, 70), inputs)


@slow
@pytest.mark.parametrize("norm,current", [("frobenius", True), ("none", False)])
def test_scan_knows_norms_and_the_current_segment(norm: str, current: bool) -> None:
    inputs = [*heads(17, 9, 2, 4), *parameters(4)]
    options = {"norm": norm, "current": current}
    assert_same(both_terms(inputs, 6, 9, **options), by_loops(inputs, 6, 9, **options), inputs)


@slow
def test_unit_scale_equals_the_loops() -> None:
    inputs = [*heads(17, 7, 1, 4), *parameters(4)]
    inputs[-1] = torch.tensor(0.05).double().requires_grad_()
    _, slow = by_loops(inputs, 6, 5, unit=True)
    assert_same((unit_recurrent(inputs, 6, 5, "compiled"),), (slow,), inputs)


@slow
@pytest.mark.parametrize("width", [36, 68])
def test_several_blocks_of_columns(width: int) -> None:
    """Two of 32 columns and five of 16; the blocks and the matrices' rows are padded."""
    inputs = [*heads(17, 5, 1, width), *small_parameters(width)]
    assert_same(both_terms(inputs, 6, 5), stored(inputs, 6, 5), inputs)


@slow
def test_several_sentences_and_many_queries(by_torch: Callable[..., Any]) -> None:
    """More queries per step than a tile holds, a scale, and rows of several sentences."""
    shapes = ((2, 2, n, 5) for n in (70, 20, 20))
    inputs = [torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in shapes]
    inputs += parameters(5)
    options = {"size": 10, "target": 70, "scale": 0.3, "masked": False}
    assert_same(
        both_terms(inputs, **options), by_torch(lambda: both_terms(inputs, **options)), inputs
    )


@slow
def test_what_is_not_a_number_stays_visible() -> None:
    """The loss scaler takes such an update back, so the neuron must not hide it."""
    q, k, v, *scalars = (x.detach() for x in (*heads(8, 4, 1, 4), *parameters(4)))
    k[..., 0, 0] = float("nan")
    assert both_terms([q, k, v, *scalars], 4, 4, norm="none", masked=False)[1].isnan().any()


@slow
def test_asked_for_torchs_form_no_kernel_runs(calls: list[str]) -> None:
    inputs = [*heads(17, 5, 1, 4), *parameters(4)]
    by_torch = both_terms(inputs, 6, 5, compiled=False)
    assert calls == []
    assert_same(both_terms(inputs, 6, 5), by_torch, inputs)


# ---- attention within segments


def by_formula(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, kept: Tensor) -> Tensor:
    """What `segment_softmax` computes for heads in pairs, without the added term."""
    steps = q.size(1)
    scores = q @ k[:, :steps].mT + mask.repeat_interleave(2, 0).unsqueeze(2)
    return (scores.softmax(-1) * kept) @ v[:, :steps]


@slow
def test_segments_of_several_sentences() -> None:
    """Two tiles of queries and of keys, a mask per sentence, a segment that no query reads."""
    q, k, v = random(4, 2, 35, 20), random(4, 3, 40, 20), random(4, 3, 40, 20)
    added, unit, mask = random(4, 2, 35, 20), random(4, 20), torch.randn(2, 2, 40).double()
    mask[1, :, 33:] = torch.finfo(torch.float32).min
    slow = by_formula(q, k, v, mask, torch.ones(())) + unit[:, None, None] * added
    inputs = [q, k, v, added, unit]
    test_ops.assert_same(segment_softmax(q, k, v, mask, 2, 0.0, added, unit), slow, inputs)


@slow
def test_dropout_draws_the_same_numbers_again() -> None:
    """Values that are unit vectors show the weights; each step has its own numbers."""
    q, k, v = random(2, 2, 9, 16), random(2, 2, 10, 16), random(2, 2, 10, 16)
    mask = torch.zeros(1, 2, 10).double()

    def run(values: Tensor) -> Tensor:
        torch.manual_seed(3)
        return segment_softmax(q, k, values, mask, 2, 0.75)

    kept = run(torch.eye(10, 16).double().expand(2, 2, -1, -1))[..., :10] != 0
    assert 0.15 < kept.double().mean() < 0.35
    assert len({tuple(x.flatten().tolist()) for x in kept.flatten(0, 1)}) == 4
    slow = by_formula(q, k, v, mask, 4 * kept)  # exact in float32
    test_ops.assert_same(run(v), slow, [q, k, v])


def test_dropout_of_all_weights_gives_zeros() -> None:
    q, k, v = random(2, 2, 9, 16), random(2, 2, 10, 16), random(2, 2, 10, 16)
    out = segment_softmax(q, k, v, None, 2, 1.0)
    assert not out.any()
    assert not torch.stack([x.abs().max() for x in torch.autograd.grad(out.sum(), [q, k, v])]).any()


# ---- RSA


@slow
@pytest.mark.parametrize("length", LENGTHS)
def test_band_equals_the_loops(length: int) -> None:
    """Causal and both ways, with fewer and with more lags than positions."""
    test_ops.REFERENCES["banded_product"](Random(length), length)


@pytest.mark.parametrize("causal", [False, pytest.param(True, marks=slow)])
@over_lengths
def test_gradients_reach_the_parameters_of_the_matrices(length: int, causal: bool) -> None:
    """A regular and a sine head, up to a highest power."""
    decay = torch.tensor([-0.8, 0.9], dtype=torch.float64, requires_grad=True)
    angle = torch.tensor([0.0, 0.7], dtype=torch.float64, requires_grad=True)
    values, places, sine = random(1, 2, length, 3), list(range(length)), [False, True]
    slow = torch.stack([
        naive.rem(decay[h], angle[h], sine[h], 1, places, places, causal, 4) @ values[0, h]
        for h in range(2)
    ])  # fmt: skip
    once = torch.ones(2, dtype=torch.int64)
    kernel = rem.rem_kernel(decay, angle, torch.tensor(sine), once, 5, 4)
    fast = toeplitz.banded_product(kernel, values, 8, None if causal else kernel)
    test_ops.assert_same(fast[0], slow, [decay, angle, values], False)


@slow
def test_band_of_several_sentences(
    by_torch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums over three sentences in two parts; each side has its own entries."""
    monkeypatch.setattr(banded, "PARTS", 2)
    inputs = [random(2, 8), random(2, 5), random(3, 2, 130, 20)]

    def both() -> Tensor:
        return toeplitz.banded_product(inputs[0], inputs[2], 64, inputs[1])

    test_ops.assert_same(both(), by_torch(both), inputs)


@slow
@pytest.mark.parametrize("length", [1, 2, 17, 63, 64])
def test_mixed_map_equals_the_loops(length: int) -> None:
    """With padding, memory, and a head without a matrix."""
    test_ops.REFERENCES["mixed_attention"](Random(length), length)


def test_mixed_map_of_several_sentences(
    by_torch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums over three sentences in two parts, and a gradient of the map itself."""
    monkeypatch.setattr(mixed, "PARTS", 2)
    inputs = [random(3, 2, 5, 20), random(3, 2, 20, 18), random(2, 5, 20), random(2, 1, 1)]

    def both() -> Tensor:
        return torch.cat([x.flatten() for x in mixture.mixed_map(*inputs)])

    test_ops.assert_same(both(), by_torch(both), inputs)


@slow
def test_longer_maps_and_beams_are_torchs(calls: list[str]) -> None:
    maps, values = random(1, 1, 65, 65), random(1, 1, 65, 3)
    mixture.mixed_map(maps, values, random(1, 65, 65), random(1, 1, 1))
    beam = random(2, 1, 3, 9), random(2, 1, 9, 4), random(1, 1, 9), random(1, 1, 1)
    assert mixture.mixed_map(*beam)[0].shape == (2, 1, 3, 4)
    assert calls == []
    mixture.mixed_map(maps[..., :64, :64], values[:, :, :64], random(1, 64, 64), random(1, 1, 1))


# ---- BiARN


@over_lengths
def test_additive_attention_equals_the_loops(length: int) -> None:
    """With padding on either side."""
    test_ops.REFERENCES["additive_attention"](Random(length), length)


def test_gru_equals_the_loops() -> None:
    test_ops.REFERENCES["gru_step"](Random(3), 3)


@slow
def test_several_blocks_of_channels(by_torch: Callable[..., Any]) -> None:
    """Two blocks of channels and of keys, and a sentence without real tokens."""
    inputs = [random(3, 2, 70), random(3, 33, 70), random(70), random(3, 33, 5)]
    mask = torch.zeros(3, 33, dtype=torch.bool)
    mask[0] = mask[1, 20:] = True
    step = [
        random(2, 3, 4),
        random(2, 3, 130),
        random(2, 390, 4),
        random(2, 390, 130),
        random(2, 130),
    ]

    def attend() -> Tensor:
        return recurrence_encoder.additive_attention(*inputs, mask)

    def update() -> Tensor:
        return recurrence_encoder.gru_step(*step)

    test_ops.assert_same(attend(), by_torch(attend), inputs)
    test_ops.assert_same(update(), by_torch(update), step)


@slow
@pytest.mark.parametrize("length", [1, 17, 65])
@pytest.mark.parametrize("first", [True, False])
def test_chain_equals_the_loops(length: int, first: bool, calls: list[str]) -> None:
    """Three steps of both directions, in the first layer and above."""
    test_ops.test_biarn(length, kind="additive", cell="gru", steps=3, first=first)
    assert {"AdditiveEnergies", "GatedStates"} <= {*calls}


@slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_computed_in_single(
    dtype: torch.dtype, by_torch: Callable[..., Any]
) -> None:
    """Outputs and gradients in the dtype of the inputs; beside a state in float32, in float32."""
    shapes = [(2, 2, 6), (2, 5, 6), (6,), (2, 5, 3)], [(2, 3, 4)] * 2 + [(2, 12, 4)] * 2 + [(2, 4)]
    functions = recurrence_encoder.additive_attention, recurrence_encoder.gru_step
    for function, of_inputs in zip(functions, shapes):
        short = [torch.randn(shape).to(dtype).requires_grad_() for shape in of_inputs]
        long = [x.detach().float().requires_grad_() for x in short]
        ours, theirs = function(*short), by_torch(lambda f=function, x=long: f(*x))
        found, expected = (
            [out, *torch.autograd.grad(out.float().square().sum(), inputs)]
            for out, inputs in ((ours, short), (theirs, long))
        )
        assert {x.dtype for x in found} == {dtype}
        for x, y in zip(found, expected):
            torch.testing.assert_close(x.float(), y, rtol=0.05, atol=0.1)
    gates, bias, h = torch.ones(2, 3, 12, dtype=dtype), torch.ones(2, 4), torch.ones(2, 3, 4)
    assert gated_states(gates, gates, bias, h).dtype == torch.float32


@slow
def test_mixed_precision_with_doubles_is_torchs(calls: list[str]) -> None:
    query, keys, score = torch.zeros(1, 2, 3), torch.ones(1, 4, 3), torch.ones(3)
    exact = keys.double()
    recurrence_encoder.additive_attention(query, exact, score.double(), exact)
    assert calls == []
    recurrence_encoder.additive_attention(query, keys, score, keys)


# ---- whole models

RSA = ["--arch", "rsa_transformer", "--rsa-heads", "1,1,1,1,0,0", "--rsa-dilations", "2"]
FOUR = ["--encoder-attention-heads", "4", "--decoder-attention-heads", "4"]
MODELS = {
    "FiredSums": ["--arch", "srformer", "--segment-size", "2", "--target-length", "5"],
    "BandProduct": [*RSA, *FOUR, "--rsa-max-power", "2", "--rsa-form", "chunked"],
    "MixedMap": [*RSA, *FOUR, "--rsa-form", "mixed"],
    "GatedStates": ["--arch", "transformer_biarn"],
}


@slow
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", MODELS)
def test_models_are_the_same_with_and_without(
    make_model: Callable[..., nn.Module], by_torch: Callable[..., Any], calls: list[str],
    name: str, side: str,
) -> None:  # fmt: skip
    """With padding, in float64: logits and all gradients."""
    source, target = sentences([9, 3, 5], side), targets(3, 5)

    def results() -> list[Tensor]:
        torch.manual_seed(1)
        model = small(make_model, MODELS[name])
        logits, _ = model(source, true_lengths(source), target)
        weights = list(model.parameters())
        grads = torch.autograd.grad(logits.square().sum(), weights, allow_unused=True)
        return [logits, *(g for g in grads if g is not None)]

    ours = results()
    assert name in calls
    for a, b in zip(ours, by_torch(results), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)
