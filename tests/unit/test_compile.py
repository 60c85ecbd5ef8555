"""torch.compile and torch.export, of every structure and beside fairseq's own models."""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import LANGUAGE_MODELS, SEGMENTS, SMALL, STRUCTURES
from tests.unit.test_context import HostReads
from tests.unit.test_language_model import SMALL_LM
from tests.unit.test_model_properties import sentences, targets

Build = Callable[..., nn.Module]
ALL = "--recurrence birnn --encoder-self-attention rsa --decoder-self-attention rsa".split()
SYSTEMS = {**{name: [] for name in STRUCTURES + LANGUAGE_MODELS}, "all-three": ALL}


def needs_lengths(name: str) -> bool:
    """Whether a system has segments or packs sentences, whose shapes depend on the lengths."""
    return any(part in name for part in ("srformer", "rnn", "all-three"))


def made(make_model: Build, name: str) -> nn.Module:
    """A system, or fairseq's own model."""
    arch = "srformer" if name == "all-three" else name
    if "_lm" in name:
        return make_model(arch, *SMALL_LM).eval()
    segments = SEGMENTS if "srformer" in arch else []
    return make_model(arch, *SMALL, *segments, *SYSTEMS.get(name, [])).eval()


def batches(name: str) -> list[tuple[Tensor, ...]]:
    """A batch with padding and one without."""
    whole = targets(3, 7)
    padded = whole.clone()
    padded[1, 5:] = 1
    if "_lm" in name:
        return [(padded,), (whole,)]
    return [(sentences([9, 4, 6], "left"), None, padded), (sentences([9] * 3, "left"), None, whole)]


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_graph_depends_on_shapes_only(
    make_model: Build, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a graph may not read is read nowhere, or in the functions between two graphs."""
    model, both = made(make_model, name), batches(name)
    expected = [model(*batch)[0] for batch in both]
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with HostReads(model, monkeypatch) as reads:
        found = [model(*batch)[0] for batch in both]
    assert bool(reads.found["list"] + reads.found["layer"]) is needs_lengths(name)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@cache
def breaks_of_stock(make_model: Build, arch: str) -> int:
    """Breaks in the graph of fairseq's own model."""
    return breaks(made(make_model, arch), batches(arch)[0])


def breaks(model: nn.Module, batch: tuple[Tensor, ...]) -> int:
    """Breaks in the graph of a forward pass."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return int(torch._dynamo.explain(model)(*batch).graph_break_count)


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_compiled(make_model: Build, name: str) -> None:
    """At most the breaks of fairseq's own model; the same outputs and gradients."""
    model = made(make_model, name).double()
    stock = breaks_of_stock(make_model, "transformer_lm" if "_lm" in name else "transformer")
    counted = [breaks(model.train(mode), batches(name)[0]) for mode in (True, False)]
    assert max(counted) <= stock, counted
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager")
    for batch in batches(name):
        found = []
        for call in (model, compiled):
            model.zero_grad()
            out = call(*batch)[0]
            out.square().sum().backward()
            found.append([out.detach(), *(p.grad for p in model.parameters())])
        torch.testing.assert_close(*found, rtol=1e-6, atol=1e-9)


def exported(model: nn.Module, batch: tuple[Tensor, ...]) -> Any:
    """The module of an exported program."""
    torch._dynamo.reset()
    return torch.export.export(model, batch, strict=True).module()


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_exported(make_model: Build, name: str) -> None:
    """A program for every batch of a shape, or the reason; fairseq's own cannot be exported."""
    model = made(make_model, name)
    both = batches(name)
    try:
        program = exported(model, both[0])
    except Exception as error:
        assert "torch.export cannot export" in str(error), error
        assert needs_lengths(name)
        return
    for batch in both:
        torch.testing.assert_close(program(*batch)[0], model(*batch)[0])
    with pytest.raises(Exception, match="Data-dependent"):
        exported(made(make_model, "transformer"), batches("transformer")[0])
