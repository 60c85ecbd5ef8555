"""torch.compile and torch.export, of every structure and beside fairseq's own models."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_recur.modules.birnn import BiRNN
from fairseq_recur.modules.block_recurrent import BlockAttention
from tests.conftest import FORECASTERS, LANGUAGE_MODELS, MEMORY_KINDS, SEGMENTS, SMALL, STRUCTURES
from tests.unit.test_context import LAYERS, HostReads
from tests.unit.test_forecaster import inputs, make  # noqa: F401
from tests.unit.test_language_model import SMALL_LM
from tests.unit.test_memory_model import SEGMENT, STARTS, shrunk, small
from tests.unit.test_memory_model import text as stream
from tests.unit.test_model_properties import sentences, targets

Build = Callable[..., nn.Module]
Batch = tuple[tuple[Any, ...], dict[str, Tensor]]
"""Arguments of a forward pass."""

ALL = "--recurrence birnn --encoder-self-attention rsa --decoder-self-attention rsa".split()
SYSTEMS = [*STRUCTURES, "all-three", *LANGUAGE_MODELS, *MEMORY_KINDS, *FORECASTERS]


STILL = "--dropout 0 --attention-dropout 0 --activation-dropout 0".split()


def has_memory(name: str) -> bool:
    """Whether a system continues an earlier batch."""
    return name in MEMORY_KINDS or "xl_forecaster" in name


def needs_lengths(name: str) -> bool:
    """Whether shapes depend on what a batch says: lengths of sentences, or where a text goes on."""
    return has_memory(name) or any(part in name for part in ("srformer", "rnn", "all-three"))


@pytest.fixture
def made(make_model: Build, make: Build) -> Build:  # noqa: F811
    """A small system, or fairseq's own model, by its name."""

    def build(name: str, *flags: str) -> nn.Module:
        if name in FORECASTERS:
            return make(name, *flags).float()
        if name in MEMORY_KINDS:
            return make_model(name, *small(name), *shrunk(name), *flags).eval()
        if "_lm" in name:
            return make_model(name, *SMALL_LM, *flags).eval()
        arch, own = ("srformer", ALL) if name == "all-three" else (name, [])
        segments = SEGMENTS if "srformer" in arch else []
        return make_model(arch, *SMALL, *segments, *own, *flags).eval()

    return build


def batches(name: str, dtype: torch.dtype = torch.float32) -> list[Batch]:
    """Two batches: with padding and without, or one that continues the other."""
    if name in FORECASTERS:
        numbers = torch.arange(3)
        return [((*(x.to(dtype) for x in inputs()), numbers + n), {}) for n in (0, 3)]
    if name in MEMORY_KINDS:
        parts = stream(2 * SEGMENT).split(SEGMENT, dim=1)
        return [((part,), {"starts": STARTS + n * SEGMENT}) for n, part in enumerate(parts)]
    whole = targets(3, 7)
    padded = whole.clone()
    padded[1, 5:] = 1
    if "_lm" in name:
        return [((padded,), {}), ((whole,), {})]
    ragged, even = sentences([9, 4, 6], "left"), sentences([9] * 3, "left")
    return [((ragged, None, padded), {}), ((even, None, whole), {})]


def outputs(model: nn.Module, batch: Batch) -> Tensor:
    """Logits or forecasts."""
    found = model(*batch[0], **batch[1])
    return found[0] if isinstance(found, tuple) else found


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_graph_depends_on_shapes_only(
    made: Build, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a graph may not read is read nowhere, or in the functions between two graphs."""
    model, both = made(name), batches(name)
    expected = [outputs(model, batch) for batch in both]
    # Not the function: the compiler knows it by identity, and other tests would find another one.
    monkeypatch.setattr(torch.compiler, "_is_compiling_flag", True)
    assert torch.compiler.is_compiling()
    with HostReads(model, monkeypatch) as reads:
        found = [outputs(model, batch) for batch in both]
    assert bool(reads.found["list"] + reads.found["layer"]) is needs_lengths(name)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def breaks(model: nn.Module, batch: Batch) -> int:
    """Breaks in the graph of a forward pass."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        explained = torch._dynamo.explain(model)(*batch[0], **batch[1])
    return int(explained.graph_break_count)


def compile_layers(model: nn.Module) -> int:
    """Make each layer a graph by itself, or an error where it would be several; count them."""
    torch._dynamo.reset()
    found = [module for module in model.modules() if isinstance(module, (*LAYERS, BlockAttention))]
    found = [layer for layer in found if not packs(layer)]
    for layer in found:
        layer.compile(fullgraph=True, backend="eager")
    return len(found)


def packs(layer: nn.Module) -> bool:
    """Whether torch packs sentences in a layer."""
    return any(isinstance(module, BiRNN) for module in layer.modules())


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_no_layer_breaks_the_graph(made: Build, name: str) -> None:
    """Nor does a model but where shapes need what the batch says, see `between_graphs`."""
    model, both = made(name), batches(name)
    for mode in (True, False):
        outputs(model.train(mode), both[0])
        assert bool(breaks(model, both[1 if has_memory(name) else 0])) is needs_lengths(name)
    expected = [outputs(model, batch) for batch in both]
    assert compile_layers(model)
    with torch._dynamo.config.patch(recompile_limit=64):  # all layers are one function
        found = [outputs(model, batch) for batch in both]
        outputs(model.train(), both[0]).sum().backward()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_break_in_a_layer_is_found(made: Build) -> None:
    model, (batch, _) = made("rsa_transformer"), batches("rsa_transformer")
    assert compile_layers(model) == 4
    attention = model.encoder.layers[1].self_attn
    forward = attention.forward
    attention.forward = lambda x, context: forward(x if x.sum() > 0 else -x, context)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        outputs(model, batch)
    assert breaks(made("transformer"), batch) > 0


def assert_compiled_equals(
    model: nn.Module, both: list[Batch], backend: str, rtol: float, atol: float
) -> None:
    """Outputs and all gradients of the compiled model and of the model as it is."""
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend)
    runs = []
    for call in (model, compiled):
        found = []
        torch.manual_seed(1)
        for batch in both:
            model.zero_grad()
            out = outputs(call, batch)
            out.square().sum().backward()
            found.append([out.detach(), *(p.grad for p in model.parameters())])
        runs.append(found)
    torch.testing.assert_close(*runs, rtol=rtol, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_graphs_compute_the_same(made: Build, name: str) -> None:
    both = batches(name, torch.float64)
    assert_compiled_equals(made(name).double(), both, "eager", 1e-6, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_compiled_by_inductor(made: Build, name: str) -> None:
    """torch's default compiler, which generates C++ for a CPU; in training."""
    model = made(name, *STILL).train()
    assert_compiled_equals(model, batches(name), "inductor", 1e-3, 1e-4)


def exported(model: nn.Module, batch: Batch) -> Any:
    """The module of an exported program."""
    torch._dynamo.reset()
    return torch.export.export(model, *batch, strict=True).module()


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_exported(made: Build, name: str) -> None:
    """A program for every batch of a shape, or the reason; fairseq's own cannot be exported."""
    model = made(name)
    both = batches(name)
    try:
        program = exported(model, both[0])
    except Exception as error:
        assert "torch.export cannot export" in str(error), error
        assert needs_lengths(name)
        return
    for batch in both:
        torch.testing.assert_close(outputs(program, batch), outputs(model, batch))
    with pytest.raises(Exception, match="Data-dependent"):
        exported(made("transformer"), batches("transformer")[0])
