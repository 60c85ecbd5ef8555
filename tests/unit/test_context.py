"""The batch context of the layers is computed once per forward pass, at the top."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_recur.modules import directional, parts, relative, self_attention, sparse_attention, xl
from fairseq_recur.modules.context import Padding, Source
from fairseq_recur.modules.latent_bottleneck import LatentBottleneck
from fairseq_recur.modules.recurrence_encoder import RecurrenceLayer
from fairseq_recur.modules.segmented_attention import SegmentedAttention
from fairseq_recur.modules.transformer_layer import DecoderLayer, EncoderLayer
from fairseq_recur.ops import segmented_recurrent
from tests.conftest import SMALL
from tests.unit.test_language_model import MODELS, SMALL_LM
from tests.unit.test_model_properties import sentences, targets

Build = Callable[..., nn.Module]
READS = {
    f"aten::{name}"
    for name in (
        "_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "_unique2",
        "unique_consecutive", "unique_dim", "repeat_interleave", "bincount",
    )
}  # fmt: skip
"""Operations whose value or size the host waits for, which on a GPU stops the queue of kernels."""

INDEXED = {"aten::index", "aten::index_put", "aten::index_put_"}
"""Those that do so if an index is boolean."""

LAYERS = (EncoderLayer, DecoderLayer, RecurrenceLayer, LatentBottleneck)


class HostReads(TorchDispatchMode):
    """Counts what brings numbers to the host inside layers, and lists of numbers outside, too."""

    def __init__(self, model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.depth = 0
        for module in model.modules():
            if isinstance(module, LAYERS):
                module.register_forward_pre_hook(lambda *_: self.enter(1))
                module.register_forward_hook(lambda *_: self.enter(-1))
        for name in ("tolist", "cpu", "numpy"):  # which do not always pass the dispatcher
            method = getattr(Tensor, name)
            monkeypatch.setattr(Tensor, name, lambda x, m=method: self.read("list") or m(x))

    def enter(self, step: int) -> None:
        self.depth += step

    def read(self, kind: str) -> None:
        self.found["layer" if self.depth else kind] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        indices = args[1] if name in INDEXED else ()
        if name in READS or any(i is not None and i.dtype == torch.bool for i in indices):
            self.read("scalar")
        return func(*args, **(kwargs or {}))

    def backward(self, output: Tensor) -> None:
        """Compute the gradients of all parameters; what is read then counts as within a layer."""
        self.enter(1)
        output.sum().backward()
        self.enter(-1)


@pytest.mark.slow_options
def test_no_layer_waits_for_the_device(
    make_model: Build, system: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "srformer" in system[1]:  # its compiled code for the CPU reads leak and threshold
        monkeypatch.setattr(segmented_recurrent, "supports", lambda queries: False)
    flags = [*SMALL, "--encoder-layers", "3", "--decoder-layers", "3", *system[2:]]
    model = make_model(system[1], *flags)
    source, target = sentences([9, 4, 6], "left"), targets(3, 7)
    target[1, 5:] = 1
    with HostReads(model, monkeypatch) as reads:
        reads.backward(model(source, None, target)[0])
        model.eval()
        out, state = model.encoder(source), {}
        for t in range(1, 4):
            model.decoder(target[:, :t], out, incremental_state=state)
    assert reads.found["list"] == 2 + 1 + 3  # true lengths: of each batch, of each step's prefix
    if getattr(model.encoder.cfg, "recurrence", "") != "birnn":  # packing reads lengths on the CPU
        assert reads.found["layer"] == 0


@pytest.mark.parametrize("words", MODELS.values(), ids=MODELS)
def test_no_layer_of_a_language_model_waits_for_the_device(
    make_model: Build, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(words[0], *SMALL_LM, *words[1:])
    text, state = sentences([9, 4, 6], "right"), {}
    with HostReads(model, monkeypatch) as reads:
        reads.backward(model(text)[0])
        model.eval()
        for t in range(1, 4):
            model.decoder(text[:, :t], incremental_state=state)
    assert reads.found["layer"] == 0


def test_what_a_layer_reads_is_found(make_model: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number, a choice by a mask, a list, and a number in the backward pass."""
    x = torch.ones(3, requires_grad=True)
    y = 2 * x
    y.register_hook(lambda gradient: gradient.sum().item() and None)
    reading = [lambda: bool(x.sum() > 0), lambda: x[x > 0], lambda: x.tolist()]
    with HostReads(make_model("srformer", *SMALL), monkeypatch) as reads:
        reads.enter(1)
        for read in (*reading, lambda: reads.backward(y)):
            before = reads.found["layer"]
            read()
            assert reads.found["layer"] > before
        reads.enter(-1)
        assert not reads.found["scalar"]
        x.sum().item()
        assert reads.found["scalar"]


def test_facts_are_computed_once(make_model: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six layers on each side: one order per batch, one mask per stack, one cut of the source."""
    calls: Counter[str] = Counter()

    def counted(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def count(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, count)

    from fairseq_recur.models import decoder, encoder
    from fairseq_recur.modules import context, segments

    counted(context, "real_tokens_first")
    counted(encoder, "additive_mask")
    counted(decoder, "additive_mask")
    counted(segments, "segment_schedule")
    counted(SegmentedAttention, "segments")
    model = make_model(
        "srformer", *SMALL, "--encoder-layers", "6", "--decoder-layers", "6", "--segment-size", "3",
        "--target-length", "7", "--encoder-self-attention", "rsa", "--decoder-self-attention",
        "rsa", "--recurrence", "birnn", "--recurrence-layers", "2",
    )  # fmt: skip
    source, target = sentences([9, 4], "left"), targets(2, 7)
    model(source, None, target)
    assert calls == {
        "real_tokens_first": 1,
        "additive_mask": 2,
        "segment_schedule": 1,
        "segments": 1,
    }
    calls.clear()
    model.eval()
    out, state = model.encoder(source), {}
    for t in range(1, 5):
        model.decoder(target[:, :t], out, incremental_state=state)
    assert calls["segment_schedule"] == calls["segments"] == calls["real_tokens_first"] == 1


@pytest.mark.parametrize("name, made", [
    ("xl", "sinusoids"), ("log_sparse", "log_sparse_mask"), ("directional", "directional_masks"),
    ("relative", "table_rows"),
])  # fmt: skip
def test_what_a_map_needs_is_made_once(
    make_model: Build, monkeypatch: pytest.MonkeyPatch, name: str, made: str
) -> None:
    """Not in each of the three layers, and not again for the recomputed activations."""
    place = next(m for m in (xl, sparse_attention, directional, relative) if hasattr(m, made))
    calls, make = Counter[str](), getattr(place, made)

    def counted(*arguments: Any) -> Any:
        calls[made] += 1
        return make(*arguments)

    monkeypatch.setattr(place, made, counted)
    flags = [
        "--encoder-layers",
        "3",
        "--encoder-self-attention",
        name,
        "--decoder-self-attention",
        "dot",
    ]
    model = make_model("transformer_relpos", *SMALL, *flags, "--checkpoint-activations")
    source, target = sentences([9, 4, 6], "left"), targets(3, 7)
    model(source, None, target)[0].sum().backward()
    assert calls[made] == 1
    model.eval()(source[:, 1:], None, target)
    assert calls[made] == 2


@pytest.mark.parametrize("name", parts.SELF_ATTENTION)
def test_recomputed_layers_have_the_same_gradients(make_model: Build, name: str) -> None:
    """Also those of T5's position bias, which is part of the mask that all layers get."""
    flags = ["--encoder-layers", "3", "--encoder-self-attention", name]
    found = []
    for more in ([], ["--checkpoint-activations"]):
        torch.manual_seed(1)
        model = make_model("t5_small", *SMALL, *flags, *more).double()
        model(sentences([9, 4, 6], "left"), None, targets(3, 7))[0].sum().backward()
        found.append({n: p.grad for n, p in model.named_parameters()})
    assert found[0].keys() == found[1].keys()
    for parameter, gradient in found[0].items():
        torch.testing.assert_close(found[1][parameter], gradient)


@pytest.mark.parametrize("form", ["dense", "chunked"])
def test_a_decoder_without_padding_uses_torchs_causal_rule(
    form: str, make_model: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each layer, for texts of one length; padding needs a mask. Both give the same."""
    model = make_model("rsa_transformer_lm", *SMALL_LM, "--rsa-form", form).double().eval()
    causal: list[tuple[bool, bool]] = []
    attend = self_attention.dot_product_attention
    monkeypatch.setattr(
        self_attention,
        "dot_product_attention",
        lambda *a: causal.append((a[3] is None, a[5])) or attend(*a),
    )
    batch = sentences([7, 4], "right")
    padded, _ = model(batch)
    alone, _ = model(batch[:1])
    assert causal == [(False, False)] * 2 + [(True, True)] * 2
    torch.testing.assert_close(alone[0], padded[0], rtol=1e-9, atol=1e-11)


def test_full_context_is_not_causal(make_model: Build) -> None:
    model = make_model("rsa_transformer", *SMALL, "--rsa-form", "dense").double().eval()
    out, target = model.encoder(sentences([5], "left")), targets(1, 6)
    later = target.clone()
    later[0, 5] = 4 + (later[0, 5] - 3) % 50
    for full in (False, True):
        one, other = (
            model.decoder(t, out, full_context_alignment=full)[0][0, 0] for t in (target, later)
        )
        assert torch.equal(one, other) is not full


def test_padding() -> None:
    assert Padding.of(None) is None
    assert Padding.of(torch.zeros(2, 3, dtype=torch.bool)) is None
    mask = torch.tensor([[True, True, False], [False, False, False], [True, False, True]])
    padding = Padding.of(mask)
    assert padding.lengths == (1, 3, 1) and padding.counts.tolist() == [1, 3, 1]
    assert padding.order[:, 0].tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    "order, beam, groups",
    [
        ([0, 0, 1, 1], 2, [0, 1]),
        ([1, 1], 2, [1]),
        ([0, 0, 1], 1, [0, 0, 1]),
        ([0, 1, 0, 1], 1, [0, 1, 0, 1]),
        ([1, 0], 1, [1, 0]),
    ],
)
def test_rows_of_a_source(order: list[int], beam: int, groups: list[int]) -> None:
    states: Tensor = torch.randn(3, 2, 4)
    source = Source.of(states, None)
    assert source.reordered(torch.arange(2)) is source
    moved = source.reordered(torch.tensor(order))
    assert (moved.beam, moved.groups.tolist()) == (beam, groups)
    assert moved.states is states
    assert source.per_row(states, None) is source
    assert moved.per_row(states[:, order], None).rows.tolist() == list(range(len(order)))
