"""What must hold for every forecaster of time series."""

import itertools
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.data.iterators import EpochBatchIterator
from torch import Tensor, nn

from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.training_log import PER_LAYER
from fairseq_recur.models.monitoring import of_parameters
from fairseq_recur.modules.context import Context
from fairseq_recur.modules.mixture import Mixture
from fairseq_recur.modules.parts import SELF_ATTENTION
from fairseq_recur.modules.series_embedding import SeriesEmbedding
from fairseq_recur.modules.stream_memory import StreamMemory
from fairseq_recur.ops import naive
from fairseq_recur.tasks.time_series import APART
from tests.configuring import model_config
from tests.conftest import FORECASTERS
from tests.series import SIZES, write_series
from tests.systems import RSA_PARAMETERS, without_decay
from tests.unit.test_context import HostReads
from tests.unit.test_modules import attend, feed_forward, norm_of
from tests.unit.test_ops import assert_same
from tests.unit.test_self_attention import attention
from tests.unit.test_time_series import task

Build = Callable[..., nn.Module]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Build a small forecaster in float64: ``make("informer", "--rsa-heads", ...)``."""
    path = write_series(tmp_path_factory.mktemp("series") / "x.csv")

    def build(arch: str, *flags: str) -> nn.Module:
        made = task(path)
        torch.manual_seed(1)
        cfg = model_config("time_series_forecasting", arch, [*SIZES, *flags], data=[])
        return made.build_model(cfg).double().eval()

    return build


def inputs(length: int = 12, horizon: int = 4) -> list[Tensor]:
    sizes = (3, length, 2), (3, length, 4), (3, horizon, 4)
    return [torch.randn(size, dtype=torch.float64) for size in sizes]


@pytest.mark.parametrize("arch", FORECASTERS)
def test_every_parameter_has_a_gradient(make: Build, arch: str) -> None:
    model = make(arch)
    out = model(*inputs())
    assert out.shape == (3, 4, 2)
    (out * torch.randn_like(out)).sum().backward()
    without = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    # A bias shared by all keys does not change the softmax: its gradient is zero, but not None.
    assert [n for n in without if not n.endswith("k_proj.bias")] == []
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("arch", FORECASTERS)
def test_no_layer_waits_for_the_device(
    make: Build, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two batches, the second of which continues the first; a memory reads by how much."""
    model, starts = make(arch).train(), torch.arange(3)
    with HostReads(model, monkeypatch) as reads:
        model(*inputs(), starts)
        reads.backward(model(*inputs(), starts + 3))
    assert reads.found["list"] == (model.encoder.memory is not None)
    assert reads.found["layer"] == 0


@pytest.mark.parametrize("arch", FORECASTERS)
def test_a_window_alone_is_a_window_in_a_batch(make: Build, arch: str) -> None:
    model, batch = make(arch), inputs()
    alone = torch.cat([model(*(x[b : b + 1] for x in batch)) for b in range(3)])
    torch.testing.assert_close(model(*batch), alone, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("arch", FORECASTERS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_near_float32(make: Build, arch: str, dtype: torch.dtype) -> None:
    """Outputs and gradients of a batch that continues another one, also of what a memory adds.

    All queries attend, so that rounding chooses no others.
    """
    every = ["--prob-sparse-factor", "50"] if "informer" in arch else []
    half = make(arch, *every).to(dtype)
    earlier, batch = ([x.to(dtype) for x in inputs(60)] for _ in range(2))
    earlier[0] *= 10  # so that it matters what they were
    weights, found = torch.randn(3, 4, 2), []
    for model in (half, deepcopy(half).float()):
        like, starts = next(model.parameters()), torch.arange(3)
        past, now = ([x.to(like.dtype) for x in given] for given in (earlier, batch))
        model(*past, starts)
        alone, out = model(*now).detach(), model(*now, starts + 60)
        assert out.dtype == like.dtype
        (out.float() * weights).sum().backward()
        gradients = {n: p.grad.float() for n, p in model.named_parameters()}
        found.append((out.detach().float(), alone.float(), gradients))
    (out, _, gradients), (exact, alone, expected) = found
    # About 60 roundings lead to an output, each of eps / 2 at most. They add up to 2 eps, as
    # independent numbers do; the largest of 24 outputs has 3 times that, and 2.4 to 3.4 were found.
    near = 8 * torch.finfo(dtype).eps * exact.std()
    assert (out - exact).abs().max() < near
    if half.encoder.memory is not None:
        assert (alone - exact).abs().max() > 2 * near
    # Twice as many roundings, and sums over rows that cancel; 12 eps were found.
    least = 1e-3 * max(g.norm() for g in expected.values())
    wrong = {n: (gradients[n] - g).norm() / g.norm() for n, g in expected.items()}
    far = [n for n, error in wrong.items() if not error < 32 * torch.finfo(dtype).eps]
    assert [n for n in far if expected[n].norm() > least] == []
    assert all(g.isfinite().all() for g in gradients.values())


@pytest.mark.parametrize("arch", [a for a in FORECASTERS if a.startswith("rsa_")])
def test_rsa_forms_have_their_hosts_weights_and_matrices(make: Build, arch: str) -> None:
    """A matrix in each of the three attentions, mu = 1, and no positions."""
    host, model = make(arch.removeprefix("rsa_")), make(arch)
    known = dict(host.named_parameters()).keys()
    extra = dict(model.named_parameters()).keys() - known
    mixtures = [name for name, m in model.named_modules() if isinstance(m, Mixture)]
    assert mixtures == [
        "encoder.layers.0.self_attn.mixture", "encoder.layers.1.self_attn.mixture",
        "decoder.layers.0.self_attn.mixture", "decoder.layers.0.encoder_attn.mixture",
    ]  # fmt: skip
    assert extra == {f"{name}.{p}" for name in mixtures for p in ("mu", "eta")}
    assert all(m.mu == 1 for m in model.modules() if isinstance(m, Mixture))
    assert not any(m.positions for m in model.modules() if isinstance(m, SeriesEmbedding))


@pytest.mark.parametrize("arch", FORECASTERS)
def test_linear_maps_are_drawn_as_informers(make: Build, arch: str) -> None:
    """Uniformly within 1 / sqrt(inputs), biases too: torch's default, and not fairseq's."""
    maps = [part for part in make(arch).modules() if isinstance(part, nn.Linear)]
    for drawn in (p * part.in_features**0.5 for part in maps for p in part.parameters()):
        assert drawn.abs().max() <= 1
        if drawn.numel() >= 64:
            assert drawn.std().item() == pytest.approx(3**-0.5, abs=0.08)
    assert all(part.bias.any() for part in maps if part.bias is not None)


@pytest.mark.parametrize("arch", FORECASTERS)
def test_the_log_has_the_gate_of_each_attention(make: Build, arch: str) -> None:
    """Also those of one layer's self-attention and cross-attention, under names that plots read."""
    names, places = {*of_parameters(make(arch))}, ("encoder_0", "encoder_1", "decoder_0", "cross_0")
    expected = {f"{name}_{place}" for name in ("gate", "rem") for place in places}
    assert names == (expected if arch.startswith("rsa_") else set())
    assert all(PER_LAYER.fullmatch(f"train_{name}") for name in names)


@pytest.mark.parametrize("arch", FORECASTERS)
def test_weight_decay_leaves_alone_the_matrices_only(make: Build, arch: str) -> None:
    model = make(arch)
    own = {n for n, _ in model.named_parameters() if n.split(".")[-1] in RSA_PARAMETERS}
    assert without_decay(model) == own and bool(own) == arch.startswith("rsa_")


def test_the_cross_attention_knows_the_times(make: Build) -> None:
    """The decoder's first row stands at the label part's beginning: lag 0 is at rows 6 to 11."""
    model = make("rsa_informer")
    seen: list[Any] = []
    mixture = model.decoder.layers[0].encoder_attn.mixture
    between = mixture.between
    mixture.between = lambda *a: seen.append(a) or between(*a)
    model(*inputs())
    assert seen == [(6, 10, 12)]
    diagonal = between(6, 10, 12)[:, torch.arange(6), torch.arange(6, 12)]
    assert not diagonal.any()


def test_the_decoder_does_not_see_later_rows(make: Build) -> None:
    """With a map that is causal itself, a later time changes no earlier forecast."""
    model, (past, past_times, future_times) = make("rsa_log_sparse"), inputs()
    out = model(past, past_times, future_times)
    changed = future_times.clone()
    changed[:, 3] += 1
    again = model(past, past_times, changed)
    # The circular convolution carries values round, and the times are added after it.
    torch.testing.assert_close(again[:, :3], out[:, :3])
    assert not torch.allclose(again[:, 3], out[:, 3])


def test_embedding_is_informers() -> None:
    """A circular convolution of width 3, the times, and sinusoids unless they are left out."""

    class Config:
        encoder = type("Encoder", (), {"embed_dim": 6})
        no_token_positional_embeddings = True
        dropout = 0.0

    module: Any = SeriesEmbedding(Config, 2, 4).double()  # type: ignore[arg-type]
    x, times = torch.randn(1, 5, 2).double(), torch.randn(1, 5, 4).double()
    weight, bias = module.convolution.weight, module.convolution.bias
    expected = torch.stack(
        [
            sum(weight[:, :, k] @ x[0, (t + k - 1) % 5] for k in range(3))
            + bias + module.times(times[0, t])
            for t in range(5)
        ]
    )  # fmt: skip
    torch.testing.assert_close(module(x, times)[:, 0], expected)
    drawn = SeriesEmbedding(Config, 300, 4).convolution.weight  # type: ignore[arg-type]
    # He et al. 2015 for torch's leaky ReLU (a slope of 0.01), over the three rows of all variables.
    deviation = (2 / (1 + 0.01**2) / (3 * 300)) ** 0.5
    assert drawn.std().item() == pytest.approx(deviation, rel=0.1)
    module.positions = True
    added = (module(x, times)[:, 0] - expected)[2]
    waves = torch.tensor([2 / 10000 ** (k / 6) for k in (0, 2, 4)]).double()
    torch.testing.assert_close(added, torch.cat([waves.sin(), waves.cos()]))


@pytest.mark.parametrize(
    "flags, said",
    [
        ("--rsa-heads 1,2", "--rsa-heads 1,2: six numbers"),
        ("--relative-clip 3", "--relative-clip 3 has no effect"),
        ("--decoder-self-attention directional", "this map is for the encoder only"),
        ("--encoder-memory xl", "--encoder-memory xl cannot be read by .* prob_sparse; choose"),
    ],
)
def test_what_cannot_be_used_is_refused(make: Build, flags: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make("rsa_informer", *flags.split())


def test_other_tasks_are_refused(make_model: Build) -> None:
    with pytest.raises(ConfigError, match="give --task time_series_forecasting"):
        make_model("informer", *SIZES)


@pytest.mark.parametrize("mixed", ["none", "rsa", "toeplitz"])
@pytest.mark.parametrize("part", [n for n, p in SELF_ATTENTION.items() if p.reads_memory])
def test_a_memory_is_the_beginning_of_a_longer_window(part: str, mixed: str) -> None:
    """A layer gives the last rows what it gives them in one window with the memory's rows."""
    module = attention(part, "encoder", encoder_self_attention_mixture=mixed)
    x = torch.randn(90, 2, 16, dtype=torch.float64)
    whole = module(x, Context())[0][40:]
    remembered, weights = module(x[40:], Context(memory=x[:40]), need_weights=True)
    torch.testing.assert_close(remembered, whole, rtol=1e-6, atol=1e-8)
    forms = () if module.mixture is None else module.mixture.forms[module.has_map ^ 1 :]
    for form in forms:
        module.mixture.form = form
        remembered = module(x[40:], Context(memory=x[:40]))[0]
        torch.testing.assert_close(remembered, whole, rtol=1e-6, atol=1e-8)


def test_a_memory_continues_windows_that_follow_in_time() -> None:
    memory = StreamMemory(2)
    inputs = [torch.randn(6, 4, 3) for _ in range(2)]
    starts = torch.arange(4) + 10
    assert memory.read(starts, 6)[0] is None
    memory.keep(starts, inputs, None, 6)
    found = memory.read(starts[:3] + 4, 6)[0]
    assert found is not None and torch.equal(found, torch.stack(inputs)[:, :4, :3])
    others = [starts, starts - 4, starts + 7, starts * 2, torch.arange(5) + 14, starts + APART]
    assert [memory.read(other, 6)[0] for other in others] == [None] * 6
    memory.eval()
    assert memory.read(starts + 4, 6)[0] is None  # evaluation has its own
    memory.keep(starts + 1, inputs, None, 6)
    assert memory.read(starts + 4, 6)[0].size(1) == 3
    memory.train()
    assert memory.read(starts + 4, 6)[0].size(1) == 4
    again = StreamMemory(2)
    with memory.saved(None):
        again.load_state_dict(memory.state_dict())
    assert torch.equal(again.read(starts + 4, 6)[0], memory.read(starts + 4, 6)[0])


def test_a_saved_memory_has_the_rows_of_all_processes() -> None:
    """A process finds its own rows again, and none where a stream begins."""
    memory, kept = StreamMemory(1), torch.randn(6, 4, 3)
    starts = torch.arange(4) * 100 + 10
    memory.keep(starts, [kept], None, 6)
    for rows in (slice(0, 2), slice(2, 4)):
        found = memory.read(starts[rows] + 6, 6)[0]
        assert found is not None and torch.equal(found[0], kept[:, rows])
    assert memory.read(starts[1:3] + 6, 6)[0] is None
    assert memory.read(torch.tensor([0, 100]), 6)[0] is None


@pytest.mark.parametrize("length, kept", [(0, 0), (2, 2), (6, 6), (9, 9), (50, 12)])
def test_a_memory_longer_than_a_batch_adds_to_the_one_before(length: int, kept: int) -> None:
    memory, text = StreamMemory(1), torch.randn(18, 2, 3)
    starts, earlier = torch.tensor([1000, 2000]), None
    for first in (0, 6):
        earlier = memory.read(starts + first, length)[0]
        memory.keep(starts + first, [text[first : first + 6]], earlier, length)
    found = memory.read(starts + 12, length)[0]
    if not length:
        assert found is None
    else:
        assert found is not None and torch.equal(found[0], text[12 - kept : 12])


@pytest.mark.parametrize("rows, processes", [(12, 1), (13, 1), (6, 2), (7, 2)])
def test_batches_that_leave_a_memory_empty_are_refused(
    tmp_path: Path, rows: int, processes: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The next batch begins right after the remembered rows at the latest, windows have 12."""
    made = task(write_series(tmp_path / "x.csv"))
    made.load_dataset("train")

    def build() -> EpochBatchIterator:
        data = made.dataset("train")
        return made.get_batch_iterator(data, max_sentences=rows, num_shards=processes)

    build()
    cfg = model_config("time_series_forecasting", "xl_forecaster", SIZES, data=[])
    model = made.build_model(cfg)
    if rows * processes > 12:
        said = f"--encoder-memory xl has no effect: with {processes} x {rows} windows .*smaller"
        with pytest.raises(ConfigError, match=said):
            build()
        made.datasets = {"valid": made.dataset("train")}  # it is only empty there
        made.get_batch_iterator(made.dataset("valid"), max_sentences=rows, num_shards=processes)
        assert "--encoder-memory xl has no effect" in caplog.text
        return
    first, second = itertools.islice(build().next_epoch_itr(), 2)
    for batch in (first, second):
        earlier, _ = model.encoder.memory.read(batch["net_input"]["starts"], 12)
        model(**batch["net_input"])
    assert earlier is not None and earlier.size(1) == 12


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_layer_norms_its_memory_as_its_input(make: Build, norm_first: bool) -> None:
    layer = make("xl_forecaster").encoder.layers[0]
    layer.normalize_before = norm_first
    x = torch.randn(7, 3, layer.embed_dim, dtype=torch.float64)
    whole = layer(x, Context(None, None))[3:]
    torch.testing.assert_close(layer(x[3:], Context(None, None, memory=x[:3])), whole)


@pytest.mark.parametrize("arch", ["xl_forecaster", "rsa_xl_forecaster"])
def test_forecasts_depend_on_the_memory(make: Build, arch: str) -> None:
    """Of the batch before, if it came right before; without starts nothing is kept."""
    model, batch, starts = make(arch), inputs(), torch.arange(3)
    alone = model(*batch)
    torch.testing.assert_close(model(*batch, starts), alone)
    torch.testing.assert_close(model(*batch, starts), alone)
    assert not torch.allclose(model(*batch, starts + 3), alone)
    torch.testing.assert_close(model(*batch, starts + 30), alone)


def layer_by_loops(layer: Any, x: list[Tensor], states: list[Tensor] | None = None) -> list[Tensor]:
    """A post-norm layer: of the encoder, or with the encoder's *states* of the decoder, causal."""
    norms = norm_of(layer.self_attn_layer_norm), norm_of(layer.final_layer_norm)
    out = []
    for t, row in enumerate(x):
        seen = x if states is None else x[: t + 1]
        row = naive.sublayer(row, attend(layer.self_attn, seen), norms[0], before=False)
        if states is not None:
            norm = norm_of(layer.encoder_attn_layer_norm)
            row = naive.sublayer(row, attend(layer.encoder_attn, states), norm, before=False)
        out.append(naive.sublayer(row, feed_forward(layer), norms[1], before=False))
    return out


@pytest.mark.parametrize(
    "length, label, horizon, positions", [(9, 4, 3, True), (7, 2, 5, False), (5, 5, 1, True)]
)
def test_a_forecast_is_informers(
    make: Build, fairseq_in_the_models_precision: None, length: int, label: int, horizon: int,
    positions: bool,
) -> None:  # fmt: skip
    """The rows that encoder and decoder read, their layers, and the rows that are forecast.

    Against the loops, with ordinary attention and ReLU: outputs and all gradients.
    """
    flags = "--encoder-self-attention dot --decoder-self-attention dot --activation-fn relu".split()
    model = make("informer", *flags, *(() if positions else ["--no-token-positional-embeddings"]))
    model.label = label
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    given = [x.requires_grad_() for x in inputs(length, horizon)]
    fast, slow = model(*given), []

    def embedded(stack: Any, values: list[Tensor], times: list[Tensor]) -> list[Tensor]:
        maps = stack.embedding.convolution, stack.embedding.times
        weights = (weight for m in maps for weight in (m.weight, m.bias))
        return naive.series_embedding(values, times, *weights, positions)

    for rows in zip(*given):
        past, past_times, future_times = map(list, rows)
        states = embedded(model.encoder, past, past_times)
        for layer in model.encoder.layers:
            states = layer_by_loops(layer, states)
        states = [norm_of(model.encoder.norm)(state) for state in states]
        x = embedded(model.decoder, *naive.decoder_rows(past, past_times, future_times, label))
        for layer in model.decoder.layers:
            x = layer_by_loops(layer, x, states)
        x = [norm_of(model.decoder.norm)(row) for row in x]
        slow.append(torch.stack([model.projection(row) for row in x[label:]]))
    assert_same(fast, torch.stack(slow), [*given, *model.parameters()])


@pytest.mark.parametrize("arch", FORECASTERS)
def test_every_forecaster_reads_the_same_rows(make: Build, arch: str) -> None:
    """A window of 12 rows, a label part of 6 and 4 rows to forecast, as the task says."""
    model, given, read = make(arch), inputs(), {}
    for side in ("encoder", "decoder"):
        embedding = getattr(model, side).embedding
        embedding.register_forward_hook(lambda m, i, out, side=side: read.setdefault(side, out))
    model(*given)
    for b, (past, past_times, future_times) in enumerate(zip(*given)):
        rows = list(past), list(past_times)
        of_decoder = naive.decoder_rows(*rows, list(future_times), 6)
        for side, (values, times) in (("encoder", rows), ("decoder", of_decoder)):
            maps = (getattr(getattr(model, side).embedding, n) for n in ("convolution", "times"))
            weights = (weight for m in maps for weight in (m.weight, m.bias))
            positions = arch in ("informer", "log_sparse")
            expected = torch.stack(naive.series_embedding(values, times, *weights, positions))
            torch.testing.assert_close(read[side][:, b], expected, rtol=1e-9, atol=1e-11)
