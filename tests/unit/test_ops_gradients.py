"""The gradient of every op against finite differences, in float64; and half precision at its edge.

The ops are found in the package: one without a case here fails.
"""

import inspect
import pkgutil
from collections.abc import Callable
from importlib import import_module
from types import FunctionType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from fairseq_recur import ops
from fairseq_recur.ops import (
    accumulate_fire,
    attention,
    block_recurrent,
    label_smoothing,
    mixture,
    padding,
    recurrence_encoder,
    rem,
    segmented_attention,
    segmented_recurrent,
    segments,
    shaw,
    sparse_attention,
    toeplitz,
    transformer_xl,
    unit_scale,
)
from fairseq_recur.ops.precision import at_least_float32

B, H, T, S, D = 2, 2, 3, 4, 3


class Case(NamedTuple):
    """A call of an op on tensors of some shapes.

    Attributes:
        run: the op with all else that it takes
        shapes: of the tensors that have a gradient
        positive: numbers of those that must be positive, such as a threshold
        half: whether the op runs in half precision; the others are called in float32 at least
    """

    run: Callable[..., Any]
    shapes: list[tuple]
    positive: tuple = ()
    half: bool = True


PADDING = torch.tensor([[False] * S, [True, False, False, True]])
ORDER, COUNTS = padding.real_tokens_first(PADDING)
ADDITIVE = torch.tensor([[0.0, -1.0, 0.5, float(torch.finfo(torch.float16).min)]])
SINE = torch.tensor([False, True])
QUERY, KEY, HEADS = (B, H, T, D), (B, H, S, D), (H, 1, 1)


def heads_of(x: Tensor) -> Tensor:
    """Decays, angles and gates between 0 and 1."""
    return torch.sigmoid(x)


CASES: dict[str, Case] = {
    "at_least": Case(lambda x: accumulate_fire.at_least(x, 0.75), [(B, T)], (0,)),
    "additive_attention": Case(
        lambda q, k, w, v: recurrence_encoder.additive_attention(q, k, w, v, PADDING),
        [(B, T, D), (B, S, D), (D,), (B, S, 5)],
    ),
    "coverage_attention": Case(
        lambda q, k, w, v, a, u: recurrence_encoder.coverage_attention(
            q, k, w, v, torch.sigmoid(at_least_float32(a)), u, PADDING
        ),
        [(B, T, D), (B, S, D), (D,), (B, S, 5), (B, T, S), (D,)],
    ),
    "read_by_energy": Case(
        lambda e, v: recurrence_encoder.read_by_energy(e, v, PADDING), [(B, T, S), (B, S, 5)]
    ),
    "dot_product_attention": Case(
        lambda q, k, v: attention.dot_product_attention(q, k, v, ~PADDING[:, None, None]),
        [QUERY, KEY, KEY],
    ),
    "rotary": Case(lambda x: block_recurrent.rotary(x, 2), [KEY]),
    "state_gate": Case(block_recurrent.state_gate, [(B, T, D)] * 4),
    "gru_step": Case(
        recurrence_encoder.gru_step,
        [(2, B, 4), (2, B, D), (2, 3 * D, 4), (2, 3 * D, D), (2, D)],
    ),
    "lstm_step": Case(
        recurrence_encoder.lstm_step,
        [(2, B, 4), (2, B, D), (2, B, D), (2, 4 * D, 4), (2, 4 * D, D), (2, 4 * D)],
    ),
    "attentive_recurrence": Case(
        lambda h, x, u, b: recurrence_encoder.attentive_recurrence(
            torch.tanh, h, x, u, b, steps=3, lengths=torch.tensor([3, 2])
        ),
        [(2, B, D), (2, 3 * D, D), (2, 3 * D, D), (2, D)],
    ),
    "gate": Case(recurrence_encoder.gate, [(B, T, D), (B, T, D), (D, D), (D, D), (D,)]),
    "gated_sum": Case(recurrence_encoder.gated_sum, [(B, T, D), (B, T, D), (D, D), (D, D), (D,)]),
    "label_smoothed_loss": Case(
        lambda x: label_smoothing.label_smoothed_loss(x, torch.tensor([1, 0, 2, 3]), 0.1, 0)[0],
        [(S, 5)],
    ),
    "masked_mean": Case(lambda x: padding.masked_mean(x, PADDING), [(B, S, D)]),
    "restore_order": Case(lambda x: padding.restore_order(x, ORDER.unsqueeze(2), 1), [(B, S, D)]),
    "accumulate_fire": Case(
        accumulate_fire.accumulate_fire, [(D, D), (D, D), (), ()], (2, 3), half=False
    ),
    "key_norm": Case(lambda k: segmented_attention.key_norm(k, "key"), [KEY], half=False),
    "norm_of_squares": Case(
        lambda s: segmented_attention.norm_of_squares(s, "frobenius"), [(B, H, D)], (0,), half=False
    ),
    "attention_map": Case(
        lambda q, k: attention.attention_map(q, k, ADDITIVE.to(q.dtype)), [QUERY, KEY], half=False
    ),
    "mixed_map": Case(
        lambda w, v, p, g: mixture.mixed_map(w, v, p, heads_of(g)),
        [(B, H, T, S), KEY, (H, T, S), HEADS],
    ),
    "mixed_outputs": Case(
        lambda x, r, g: mixture.mixed_outputs(x, r, heads_of(g)),
        [QUERY, (B, 1, T, D), HEADS],
    ),
    "relative_attention": Case(
        lambda q, k, v, a, b: shaw.relative_attention(
            q, k, v, a, b, shaw.table_rows(T, S, 5, q.device), ADDITIVE.to(q.dtype)
        ),
        [QUERY, KEY, KEY, (H, 5, D), (H, 5, D)],
    ),
    "sinusoids": Case(lambda lags: transformer_xl.sinusoids(lags, 5), [(S,)], half=False),
    "relative_shift": Case(
        lambda x: transformer_xl.relative_shift(x, S), [(B, H, T, S + T)], half=False
    ),
    "xl_map": Case(
        lambda *x: transformer_xl.xl_map(*x, ADDITIVE.to(x[0].dtype)),
        [QUERY, KEY, (H, S + T - 1, D), (H, D), (H, D)],
    ),
    "read_values": Case(attention.read_values, [(B, H, T, S), KEY]),
    "directional_attention": Case(
        lambda q, *kv: attention.directional_attention(
            q, *kv, attention.directional_masks(q, None)
        ),
        [QUERY, QUERY, QUERY],
    ),
    "directional_map": Case(
        lambda q, k: attention.directional_map(q, k, attention.directional_masks(q, None)),
        [QUERY, QUERY], half=False,
    ),
    "directional_masks": Case(
        lambda m: torch.cat([torch.softmax(x, -1) for x in
                             attention.directional_masks(m.new_empty(B, H, T, D), m)], 1),
        [(B, H, T, T)], half=False,
    ),
    "prob_sparse_attention": Case(
        lambda q, k, v, p, g: sparse_attention.prob_sparse_attention(
            q, k, v, *sparse_attention.attending_rows(
                q, k, *sparse_attention.sampled_keys(1, COUNTS, S, ORDER, 1), COUNTS, PADDING
            ), COUNTS, PADDING, ADDITIVE.to(q.dtype), matrix=p, gate=heads_of(g),
        )[0],
        [KEY, KEY, KEY, (B, H, 2, S), HEADS],
    ),
    "matrix_rows": Case(
        lambda p: sparse_attention.matrix_rows(p, torch.tensor([[[0, 2], [1, 1]]])), [(H, T, S)],
        half=False,
    ),
    "uniform_read": Case(
        lambda v: torch.cat([sparse_attention.uniform_read(v, COUNTS, c) for c in (True, False)]),
        [KEY], half=False,
    ),
    "uniform_map": Case(
        lambda w: w * sparse_attention.uniform_map(w, COUNTS, PADDING, False),
        [(B, H, S, S)], half=False,
    ),
    "rem_kernel": Case(
        lambda d, a: rem.rem_kernel(heads_of(d), a, SINE, torch.tensor([1, 2]), 5, 3),
        [(H,), (H,)], half=False,
    ),
    "rem_kernel of regular heads": Case(
        lambda d: rem.rem_kernel(heads_of(d), None, None, None, 5, 3), [(H,)], half=False
    ),
    "rem_kernel without sines": Case(
        lambda d, a: rem.rem_kernel(heads_of(d), a, None, torch.tensor([1, 2]), 5, 3),
        [(H,), (H,)], half=False,
    ),
    "powers": Case(
        lambda d, a: rem.powers(heads_of(d), a, torch.arange(4).unsqueeze(0)), [(H,), (H,)],
        half=False,
    ),
    "recurrent_product": Case(
        lambda d, a, v: rem.recurrent_product(heads_of(d), a, SINE, v, 2),
        [(H,), (H,), (B, H, 5, D)], half=False,
    ),
    "carried_states": Case(
        lambda d, a, x: rem.carried_states(heads_of(d), a, x, 2),
        [(H,), (H,), (B, H, 3, 2, D)], half=False,
    ),
    "toeplitz_matrix": Case(
        lambda p, f: toeplitz.toeplitz_matrix(p, f, T, S, 1), [(H, 3), (H, 4)], half=False
    ),
    "at_lags": Case(
        lambda k: torch.cat([toeplitz.at_lags(k, *ends) for ends in ((0, 3), (2, 7), (6, 9))], 1),
        [(H, 4)], half=False,
    ),
    "shared_product": Case(toeplitz.shared_product, [(H, T, S), KEY], half=False),
    "banded_product": Case(
        lambda k, v: toeplitz.banded_product(k, v, 2), [(H, 3), (B, H, 5, D)], half=False
    ),
    "banded_product both ways": Case(
        lambda k, f, v: toeplitz.banded_product(k, v, 2, f), [(H, 3), (H, 4), (B, H, 5, D)],
        half=False,
    ),
    "split_segments": Case(lambda x: segments.split_segments(x, 3), [KEY]),
    "segments_at_steps": Case(
        lambda x: segmented_attention.segments_at_steps(x, torch.tensor([[0, 2], [1, 1]]), 2),
        [(B, H, 3, 2, D)],
    ),
    "attend_segments": Case(
        segmented_attention.attend_segments, [(B, H, 2, T, D), (B, H, 2, S, D), (B, H, 2, S, D)]
    ),
    "spread": Case(
        lambda w: segmented_attention.spread(w, torch.tensor([[0, 0, 1], [0, 1, 1]]), ORDER, S),
        [(B, H, T, 2)],
    ),
    "partial_products": Case(
        lambda k, v: segmented_attention.partial_products(k, v, None, 2),
        [(B, H, 3, 2, D), (B, H, 3, 2, D)], half=False,
    ),
    "of_heads": Case(accumulate_fire.of_heads, [(H,)]),
    "neuron_inputs": Case(
        accumulate_fire.neuron_inputs, [(B, H, 2, D, D), (H, D, D), (H, D)], half=False
    ),
    "recurrent_accumulate_fire": Case(
        accumulate_fire.recurrent_accumulate_fire, [(B, H, 2, D, D), (), ()], (1, 2),
        half=False,
    ),
    "recurrent_attention": Case(
        lambda q, k, v, w, leak, thr: segmented_recurrent.recurrent_attention(
            q, k, v, w, leak, thr, compiled=False
        ),
        [(1, H, 2, 1, D), (1, H, 3, 2, D), (1, H, 3, 2, D), (D, D), (), ()], (4, 5), half=False,
    ),
    "features": Case(unit_scale.features, [KEY], half=False),
    "unit_queries": Case(unit_scale.unit_queries, [QUERY], half=False),
    "unit_keys": Case(
        lambda k: unit_scale.unit_keys(k, "key"), [(B, H, 3, 2, D)], half=False
    ),
    "segmented_recurrent": Case(
        lambda q, k, v, w, leak, thr: segmented_recurrent.segmented_recurrent(
            q, k, v, w, leak, thr, compiled=False
        ),
        [(1, H, 2, 1, D), (1, H, 3, 2, D), (1, H, 3, 2, D), (D, D), (), ()], (4, 5), half=False,
    ),
    "segmented_recurrent in C": Case(
        segmented_recurrent.segmented_recurrent,
        [(1, 1, 2, 1, 16), (1, 1, 2, 2, 16), (1, 1, 2, 2, 16), (16, 16), (), ()], (4, 5),
        half=False,
    ),
}  # fmt: skip

NO_GRADIENT: dict[str, str] = {
    "attending_rows": "whole numbers",
    "sampled_keys": "whole numbers",
    "uniform_draws": "random numbers",
    "sparsity": "an order of queries, without gradients",
    "log_sparse_mask": "added to scores as it is",
    "at_least_float32": "a cast",
    "real_tokens_first": "whole numbers",
    "visible_keys": "booleans",
    "table_rows": "whole numbers",
    "relative_buckets": "whole numbers",
    "segment_counts": "whole numbers",
    "step_of": "whole numbers",
    "segment_of": "whole numbers",
    "_in_places_left_over": "whole numbers",
    "scan_": "in place, without gradients: the forward pass of segmented_recurrent",
    "bmm": "the same",
}


def public_ops() -> dict[str, FunctionType]:
    """The functions of the ops that return tensors, by name."""
    found = {}
    for info in pkgutil.iter_modules(ops.__path__):
        module = import_module(f"{ops.__name__}.{info.name}")
        if info.name == "naive":
            continue
        for name, function in inspect.getmembers(module, inspect.isfunction):
            returned = str(inspect.signature(function).return_annotation)
            if function.__module__ == module.__name__ and "Tensor" in returned:
                found[name] = function
    return found


def inputs(case: Case, dtype: torch.dtype, scale: float = 1.0) -> list[Tensor]:
    """Random tensors, the positive ones between 0.5 and 1.5."""
    made = [scale * torch.randn(shape, dtype=torch.float64) for shape in case.shapes]
    for number in case.positive:
        made[number] = 0.5 + torch.rand_like(made[number])
    return [x.to(dtype).requires_grad_() for x in made]


def test_every_op_has_a_case() -> None:
    named = {name.split(" ")[0] for name in CASES}
    assert named | {*NO_GRADIENT} == public_ops().keys()


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    assert torch.autograd.gradcheck(CASES[name].run, inputs(CASES[name], torch.float64))


def whole(outputs: Any) -> list[Tensor]:
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


OVERFLOWS = {("gru_step", torch.float16)}
"""Where it is left to the loss scaler, which takes the update back: a matrix product over the whole
width, in every layer of the model. `test_precision.py` has such updates."""

FLOAT32_TOO = {
    "mixed_map": [0, 2, 3],
    "mixed_outputs": [1, 2],
    "prob_sparse_attention": [3, 4],
    "read_values": [0],
}
"""Inputs that are always float32: the map, P, P V and the gate."""


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.half])
def test_half_precision_at_its_edge(name: str, dtype: torch.dtype) -> None:
    """Products of the inputs leave float16's range; what float32 makes finite stays finite."""
    case = CASES[name]
    short = inputs(case, dtype, scale=150.0)
    long = [x.detach().float().requires_grad_() for x in short]
    if name in FLOAT32_TOO:
        short = [x if n not in FLOAT32_TOO[name] else long[n] for n, x in enumerate(short)]
    for found, expected in zip(whole(case.run(*short)), whole(case.run(*long))):
        fits = expected.isfinite() & (expected.abs() <= torch.finfo(dtype).max)
        assert fits.any()
        assert found[fits].isfinite().all() != ((name, dtype) in OVERFLOWS)
