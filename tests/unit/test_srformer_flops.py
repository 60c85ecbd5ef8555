"""The formulas of benchmarks/srformer_counts.py agree with torch's FLOP counter."""

import json
import math
import runpy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import (
    FlopCounterMode,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from fairseq_recur.modules.context import Context, Source
from fairseq_recur.ops.segments import SegmentSchedule, segment_schedule
from tests.conftest import SMALL

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# By path, because another distribution has a package "benchmarks".
counts = SimpleNamespace(**runpy.run_path(str(BENCHMARKS / "srformer_counts.py")))

Make = Callable[..., nn.Module]
Shape = tuple[int, ...]
BATCH, HEADS, WIDTH, MODEL = 3, 2, 8, 16  # the last three as in SMALL

# q, k, s: segments shorter than the width of a head, equal to it, and longer; all blocks full.
SETTINGS = [(12, 24, 4), (20, 20, 2), (6, 24, 8), (6, 48, 16)]
# In the last setting the last segment is padded.
WITH_A_REST = [*SETTINGS, (12, 22, 4)]


def added_product(_: Shape, left: Shape, right: Shape, **__: Any) -> int:
    """FLOPs of adding a product of (..., X, Y) and (..., Y, Z) in place."""
    return 2 * math.prod(left) * right[-1]


UNCOUNTED = {
    torch.ops.aten.baddbmm_: added_product,
    torch.ops.aten.addmm_: added_product,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: (
        lambda q, k, v, *_, out_shape=None, **__: sdpa_flop_count(q, k, v)
    ),
}
"""Operations that FlopCounterMode does not count by itself."""


def flops(run: Callable[[], Any]) -> int:
    """Count the FLOPs of a call with torch."""
    with FlopCounterMode(display=False, custom_mapping=UNCOUNTED) as counter:
        run()
    return counter.get_total_flops()


def of_a_head(run: Callable[[], Any]) -> float:
    """Count the multiply-adds of one head of one sentence."""
    return flops(run) / 2 / BATCH / HEADS


def inputs(q: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw queries, keys and values, (B, H, T or S, D)."""
    return tuple(torch.randn(BATCH, HEADS, n, WIDTH, requires_grad=True) for n in (q, k, k))


def schedule(q: int, k: int, s: int) -> tuple[SegmentSchedule, Any]:
    """The schedule of a batch without padding, and as much of its segments as a layer reads."""
    plan = segment_schedule((k,) * BATCH, (q,) * BATCH, q, s, torch.device("cpu"))
    return plan, SimpleNamespace(schedule=plan, mask=None)


@pytest.fixture(scope="module")
def model_of(make_model: Make) -> Callable[[str], nn.Module]:
    """Build a small model: ``model_of("dot")``, or with one of SRformer's forms.

    The tests give segment sizes and target lengths themselves; the sizes of SETTINGS[0] are used
    where a model runs as a whole. Few different flags save time.
    """

    def make(form: str) -> nn.Module:
        if form == "dot":
            return make_model("srformer", *SMALL, "--cross-attention", "dot")
        q, _, s = SETTINGS[0]
        sizes = ["--target-length", str(q), "--segment-size", str(s)]
        return make_model("srformer", *SMALL, *sizes, "--srformer-form", form)

    return make


def test_full_attention() -> None:
    q, k = 5, 13
    queries, keys, values = inputs(q, k)

    def forward() -> Tensor:
        return torch.softmax(queries @ keys.transpose(2, 3), -1) @ values

    def both() -> None:
        forward().sum().backward()

    assert of_a_head(forward) == counts.full(q, k, WIDTH)
    assert of_a_head(both) == counts.full_training(q, k, WIDTH, fused=False)
    shapes = [x.size() for x in (queries, queries, keys, values)]
    fused = sdpa_backward_flop_count(*shapes) / 2 / BATCH / HEADS + counts.full(q, k, WIDTH)
    assert fused == counts.full_training(q, k, WIDTH, fused=True)


@pytest.mark.parametrize("form", ["dot", "stored"])
def test_a_module_with_its_projections(model_of: Make, form: str) -> None:
    q, k, s = SETTINGS[0]
    model = model_of(form)
    query, key = torch.randn(q, BATCH, MODEL), torch.randn(k, BATCH, MODEL)
    module = model.decoder.layers[0].encoder_attn
    # With weights, because fairseq's attention then uses plain products.
    source = Source.of(key, None)
    segments = None if form == "dot" else module.segments(source, q, None)
    context = Context(encoder_out=key, source=source, segments=segments)
    found = of_a_head(lambda: module(query, context, need_weights=True))
    head = counts.full(q, k, WIDTH) if form == "dot" else counts.srformer(q, k, s, WIDTH)
    assert found == head + counts.projections(q, k, WIDTH, MODEL)


@pytest.mark.parametrize("form", ["stored", "recomputed"])
@pytest.mark.parametrize("setting", WITH_A_REST)
def test_training(model_of: Make, setting: Shape, form: str) -> None:
    """The forward pass, with and without backward, of a module without its projections."""
    (q, k, s), (queries, keys, values) = setting, inputs(*setting[:2])
    module = model_of(form).decoder.layers[0].encoder_attn
    plan, segments = schedule(q, k, s)
    assert plan.steps * plan.queries_per_step == q, "all blocks must be full"
    missing = -k % s
    keys, values = (
        nn.functional.pad(x, (0, 0, 0, missing)).unflatten(2, (-1, s)) for x in (keys, values)
    )

    def forward() -> Tensor:
        return module.read(plan.to_blocks(queries), keys, values, segments, False)[0]

    folded = form == "recomputed" and s < WIDTH
    assert of_a_head(forward) == counts.srformer(q, k, s, WIDTH, folded)
    formula = {"stored": counts.stored_training, "recomputed": counts.recomputed_training}[form]
    assert of_a_head(lambda: forward().sum().backward()) == formula(q, k, s, WIDTH)


@pytest.mark.parametrize("setting", WITH_A_REST)
def test_decoding(model_of: Make, setting: Shape) -> None:
    (q, k, s), beam = setting, 3
    module = model_of("auto").decoder.layers[0].encoder_attn
    plan, segments = schedule(q, k, s)
    keys = torch.randn(BATCH, HEADS, plan.steps, s, WIDTH)
    kept = {}
    once = of_a_head(lambda: kept.update(module.prepare(keys, keys, segments)))
    assert once == counts.source_once(k, s, WIDTH, folded=False)
    read = {name: x[:, :, :1] for name, x in kept.items()}
    step = of_a_head(lambda: module.attend(torch.randn(BATCH, HEADS, 1, beam, WIDTH), read))
    assert step == beam * counts.srformer_step(s, WIDTH)
    assert counts.srformer_decoding(q, beam, k, s, WIDTH) == q * step + once
    assert counts.srformer_decoding(q, beam, k, s, WIDTH, shared=False) == q * step + beam * once


def test_a_decoding_step_of_full_attention() -> None:
    beam, k = 3, 13
    queries, keys, values = inputs(beam, k)
    step = of_a_head(lambda: torch.softmax(queries @ keys.transpose(2, 3), -1) @ values)
    assert step == counts.full_decoding(1, beam, k, WIDTH) == beam * counts.full_step(k, WIDTH)


@pytest.mark.parametrize("form", ["dot", "auto"])
def test_a_whole_model(model_of: Make, form: str) -> None:
    q, k, s = SETTINGS[0]
    model = model_of(form)
    words = model.decoder.output_projection.out_features
    sizes = counts.Model(width=MODEL, heads=HEADS, layers=2, inner=24, words=words)  # as in SMALL
    source, target = torch.randint(4, 60, (BATCH, k)), torch.randint(4, 60, (BATCH, q))
    head = counts.full(q, k, WIDTH) if form == "dot" else counts.srformer(q, k, s, WIDTH, True)
    expected = (
        counts.encoder(k, sizes)
        + counts.decoder_without_cross(q, sizes)
        + counts.cross_attention(head + counts.projections(q, k, WIDTH, MODEL), sizes)
    )
    found = flops(lambda: model(source, torch.full((BATCH,), k), target))
    assert found / 2 / BATCH == expected
    # A step also includes the query and output projections of the cross-attention.
    steps = counts.decoder_without_cross(q, sizes) + 2 * 2 * q * MODEL**2
    assert q * counts.decoder_step(q, sizes) == steps


def test_the_papers_figures() -> None:
    """Table 1, and the reductions that sections 3.5 and 4.4.1 draw from it."""
    q, k, d, s = 128, 1024, 64, 64
    full, srformer = counts.paper_full(q, k, d), counts.paper_srformer(q, k, s, d)
    memory, less = counts.paper_full_memory(q, k, d), counts.paper_srformer_memory(q, k, s, d)
    figures = [full, counts.paper_segmented(q, s, d), srformer, memory, less]
    assert all(abs(a / 1000 - b) < 1 for a, b in zip(figures, [8389, 524, 4718, 197, 139]))
    assert int(100 * (1 - srformer / full)) == 43
    assert round(100 * (1 - less / memory)) == 29
    longest = counts.paper_srformer(1024, 8192, s, d) / counts.paper_full(1024, 8192, d)
    assert round(100 * (1 - longest)) == 93


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("s", [8, 16, 64, 128])
def test_break_even(s: int, folded: bool) -> None:
    """Full attention takes fewer multiply-adds below the break-even length, more above it."""
    k, d = 2048, 64
    even = counts.break_even(k, s, d, folded)
    for q in (math.floor(even), math.floor(even) + 1):
        cheaper = counts.srformer(q, k, s, d, folded) < counts.full(q, k, d)
        assert cheaper == (q > even)
    paper = math.floor(counts.paper_break_even(k, s, d))
    assert counts.paper_srformer(paper, k, s, d) >= counts.paper_full(paper, k, d)
    assert counts.paper_srformer(paper + 1, k, s, d) < counts.paper_full(paper + 1, k, d)
    length = counts.break_even_source(128, s, d, folded)
    if length is None:
        for n in (1, 10**6):
            assert counts.srformer(128, s * n, s, d, folded) > counts.full(128, s * n, d)
        return
    for n in (math.floor(length / s), math.floor(length / s) + 1):
        cheaper = counts.srformer(128, n * s, s, d, folded) < counts.full(128, n * s, d)
        assert cheaper == (n * s > length)


def test_the_recorded_figures_are_current(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "out.json"
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr("sys.argv", ["srformer_flops.py", "--output", str(written)])
    runpy.run_path(str(BENCHMARKS / "srformer_flops.py"), run_name="__main__")
    recorded = (BENCHMARKS / "results" / "srformer_flops.json").read_text()
    assert json.loads(written.read_text()) == json.loads(recorded)
    assert "| Table 1 | 128, 1024, 64 | 8,389 | 4,719 | 56.2 % |" in capsys.readouterr().out
