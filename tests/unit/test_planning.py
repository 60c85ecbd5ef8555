"""The plan's counts compared with real models, and its arithmetic with manual sums."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _device
from torch.utils.flop_counter import FlopCounterMode

from fairseq_recur.cli import main
from fairseq_recur.errors import ConfigError
from fairseq_recur.ops import segmented_recurrent
from fairseq_recur.planning.building import (
    Built,
    build,
    configure,
    model_problems,
    plannable,
    sample,
)
from fairseq_recur.planning.hardware import GPUS, Device, own_device, short_name
from fairseq_recur.planning.memory import bytes_per_parameter, divided, measure
from fairseq_recur.planning.plan import by_part, count_parameters
from fairseq_recur.planning.timing import Assumptions, exchange_seconds, step_seconds
from fairseq_recur.planning.tracing import Operation, _Saved, trace
from tests.conftest import LANGUAGE_MODELS, SMALL, STRUCTURES
from tests.unit.test_memory_model import shrunk, small

WORDS = 64
WITH_MEMORY = ["rsa_xl_lm_tiny", "rsa_brt_lm_tiny", "rsa_tlb_lm_tiny"]
ARCHITECTURES = ["transformer", "bart_base", *STRUCTURES, *LANGUAGE_MODELS, *WITH_MEMORY]
DECODER: list[str] = "--decoder-embed-dim 16 --decoder-ffn-embed-dim 24".split()
"""The sizes of a language model, which has no encoder to take them from."""


def flags_of(arch: str) -> list[str]:
    """A small model, with several segments and without dropout's random masks."""
    if arch in WITH_MEMORY:
        return [*small(arch), *shrunk(arch)]
    sizes = [*SMALL, *DECODER]
    if arch in LANGUAGE_MODELS:
        pairs = list(zip(sizes[::2], sizes[1::2]))
        sizes = [word for pair in pairs if "decoder" in pair[0] for word in pair]
    if arch == "rsa_transformer":  # integers that the model itself asks for
        sizes += "--rsa-heads 0,0,0,0,1,1 --rsa-dilations 2,3 --rsa-form chunked".split()
        sizes += "--encoder-self-attention rsa --decoder-self-attention rsa".split()
    if "biarn" in arch or "rnn" in arch:
        sizes += ["--recurrence-cell", "lstm"]
    if arch.startswith("srformer"):
        sizes += "--segment-size 3 --target-length 7".split()
    return sizes


def make(arch: str, device: str, precision: str = "fp32") -> Built:
    return build(arch, flags_of(arch), WORDS, WORDS, precision, device)


@contextmanager
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Attention and LSTM in torch's plain form, and SRformer's scan in torch instead of C."""
    monkeypatch.setattr(segmented_recurrent, "supports", lambda _: False)
    with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
        yield


def added_product(_: Any, left: Any, right: Any, **__: Any) -> int:
    return 2 * math.prod(left) * right[-1]


IN_PLACE = {torch.ops.aten.baddbmm_: added_product, torch.ops.aten.addmm_: added_product}
"""Products that torch's counter takes for free."""


FIRST = ("transformer", "transformer_biarn", "srformer")


@pytest.mark.parametrize(
    "arch", [pytest.param(a, marks=() if a in FIRST else pytest.mark.slow) for a in ARCHITECTURES]
)
def test_what_is_counted_is_what_the_real_model_does(
    arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parameters, FLOPs and saved bytes at two lengths are equal, except the bytes of a BiRNN."""
    shapes, real = make(arch, "meta"), make(arch, "cpu")
    assert count_parameters(shapes) == count_parameters(real)
    assert all(p.is_meta for p in shapes.model.parameters())
    for source, target in ((7, 5), (19, 23)):
        batch = sample(real, 3, source, target)
        found = trace(shapes, sample(shapes, 3, source, target))
        with as_on_a_gpu(monkeypatch):
            with FlopCounterMode(display=False, custom_mapping=IN_PLACE) as counter:
                _Saved(real).loss(batch).backward()
            saved = _Saved(real)
            loss = saved.loss(batch)
            kept = saved.bytes()
            del loss  # which keeps them
        assert found.flops == counter.get_total_flops() > 0
        # torch's RNNs multiply all inputs at once on a CPU, and step by step elsewhere.
        has_rnn = any(isinstance(module, nn.RNNBase) for module in real.model.modules())
        assert found.saved == pytest.approx(kept, rel=0.05 if has_rnn else 0) and kept > 0
        assert found.peak > found.saved


def test_transformers_has_loaded_a_model_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """While torch listed the functions that make tensors, it had replaced one of them."""
    _device._device_constructors.cache_clear()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(torch, "linspace", lambda *args, **kwargs: None)
            _device._device_constructors()
        assert torch.linspace not in _device._device_constructors()
        built = make("rsa_transformer_tiny", "meta")
        assert [name for name, p in built.model.named_parameters() if not p.is_meta] == []
    finally:
        _device._device_constructors.cache_clear()


@pytest.mark.parametrize("arch", ["transformer", "transformer_biarn_tiny", "rsa_transformer_tiny"])
def test_the_backward_pass_belongs_to_the_same_parts(arch: str) -> None:
    """Each product of the forward pass has two in the backward pass, all parts being inside."""
    built = make(arch, "meta")
    step = trace(built, sample(built, 3, 7, 5))
    sums: dict[str, list[int]] = {}
    for i, operation in enumerate(step.operations):
        sums.setdefault(operation.part, [0, 0])[i >= step.forward] += operation.flops
    counted = {part: flops for part, flops in sums.items() if sum(flops)}
    expected = {"self-attention", "cross-attention", "feed-forward", "output"}
    expected |= {"recurrence encoder"} if "biarn" in arch else set()
    assert counted.keys() == expected
    assert all(backward == 2 * forward for forward, backward in counted.values())


@pytest.mark.parametrize("arch, own", [
    ("rsa_xl_lm_tiny", set()), ("rsa_brt_lm_tiny", {"block-recurrent layer"}),
    ("rsa_tlb_lm_tiny", {"latent bottleneck"}),
])  # fmt: skip
def test_what_a_memory_adds_is_a_part(arch: str, own: set[str]) -> None:
    built = build(arch, [], WORDS, WORDS, "fp32", "meta")
    found = by_part(trace(built, sample(built, 3, 7, 5)), 1)
    assert found.keys() == {"self-attention", "feed-forward", "output"} | own
    assert list(found)[3:] == [*own]


def test_checkpointed_activations_are_computed_twice_and_not_kept() -> None:
    plain = make("transformer", "meta")
    flags = [*flags_of("transformer"), "--checkpoint-activations"]
    checkpointed = build("transformer", flags, WORDS, WORDS, "fp32")
    one, other = (trace(b, sample(b, 3, 19, 23)) for b in (plain, checkpointed))
    assert other.flops > 1.2 * one.flops
    assert other.saved < 0.5 * one.saved and other.peak < one.peak


class Line(nn.Module):
    """One product, and a sum: everything about it is known."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(6, 4, bias=False, device="meta")


def test_a_product_by_hand() -> None:
    """(5, 6) times (6, 4): forward 2 x 120 FLOPs, backward as much for each of the factors."""

    def criterion(model: Line, x: torch.Tensor) -> tuple:
        return (model.fc1(x).square().sum(),)

    built = Built(Line(), criterion, False, WORDS, WORDS, 10)
    step = trace(built, torch.empty(5, 6, device="meta", requires_grad=True))
    assert step.flops == 3 * 2 * 5 * 6 * 4
    assert {o.part for o in step.operations if o.flops} == {"feed-forward"}
    assert step.saved == 4 * (5 * 6 + 5 * 4)  # the input, and the square's; not the weight
    first = next(o for o in step.operations if o.flops)
    assert first.bytes == 4 * (5 * 6 + 6 * 4 + 5 * 4)
    # The product and its square and the square's gradient; at most two more, and the input's.
    assert 4 * 3 * 20 <= step.peak <= 4 * (5 * 20 + 30 + 4)


def test_the_memory_of_earlier_segments_is_counted() -> None:
    """Twice, before and after a step: for each layer, position, stream and channel."""
    flags, found = small("xl_lm_tiny"), []
    for length in ("0", "200"):
        built = build("xl_lm_tiny", [*flags, "--memory-length", length], WORDS, WORDS, "bf16")
        found.append(trace(built, sample(built, 3, 4, 4)))
    without, full = found
    assert full.peak - without.peak > 2 * (3 * 200 * 3 * 16) * 2
    assert full.flops > 5 * without.flops
    assert built.memory.states.size() == (3, 200, 3, 16)
    built = build("brt_lm_tiny", flags, WORDS, WORDS, "bf16")
    built.memory.fill(torch.zeros(3, dtype=torch.int64), torch.zeros(()))
    earlier, carried = built.memory.read(torch.zeros(3, dtype=torch.int64), 6)
    assert earlier.size() == (3, 6, 3, 16) and carried.size() == (3, 128, 16)


@pytest.mark.slow
def test_memory_is_a_line() -> None:
    built = make("transformer_biarn_tiny", "meta", "bf16")
    number, each = count_parameters(built), bytes_per_parameter("bf16", False)
    memory = measure(built, number, each, 8, 1e9, 0.1, 32)
    assert memory.weights == 2 * number and memory.masters == memory.optimizer == 8 * number
    assert memory.buckets == memory.gradients == 2 * number
    assert measure(built, number, each, 1, 1e9, 0.1, 32).buckets == 0
    for sentences in (100, 900):
        peak = trace(built, sample(built, sentences, 32, 32)).peak
        assert memory.activations(sentences * 32) == pytest.approx(peak, rel=0.02)
    most = memory.largest
    room = memory.capacity - memory.reserve - memory.static
    assert memory.activations(most) <= room + 1 < memory.activations(most + 2)


@given(st.integers(1, 500), st.integers(1, 16), st.integers(1, 5000), st.integers(0, 3))
def test_a_batch_is_divided_exactly(parts: int, processes: int, limit: int, rest: int) -> None:
    batch = 64 * parts * processes + rest
    tokens, steps = divided(batch, processes, limit)
    if tokens:
        assert tokens * steps * processes == batch and tokens <= limit
        # No smaller number of steps would do.
        share = batch // processes
        assert all(share % n or share // n > limit for n in range(1, steps))
    else:
        least = -(-(batch // processes) // limit)
        share = batch // processes
        assert batch % processes or all(share % n for n in range(least, 4 * least + 1))


def test_an_operation_takes_what_its_slowest_limit_asks() -> None:
    device = Device("toy", 1e9, 100.0, {"fp32": 1000.0}, 50.0, "this test")
    assumed = Assumptions(matmul=0.5, bandwidth=0.1, overhead=2.0)
    operations = [Operation("a", 5000, 10), Operation("a", 0, 90), Operation("b", 100, 10)]
    assert step_seconds(operations, device, "fp32", assumed) == {
        "products": 10.0, "traffic": 9.0, "latency": 2.0
    }  # fmt: skip
    by_flops = step_seconds(operations, device, "fp32", assumed._replace(mfu=0.1))
    assert by_flops == {"products": pytest.approx(51.0), "traffic": 0.0, "latency": 0.0}


def test_the_sum_of_the_gradients_over_a_ring() -> None:
    assumed = Assumptions(0.5, 0.5, 0.0)
    assert exchange_seconds(1000, 1, 1, 100.0, 10.0, assumed) == 0
    # Each of four sends three quarters of the bytes twice.
    assert exchange_seconds(1000, 4, 1, 100.0, 10.0, assumed) == pytest.approx(1500 / 50)
    assert exchange_seconds(1000, 2, 2, 100.0, 10.0, assumed) == pytest.approx(1500 / 5)


def test_devices() -> None:
    assert own_device("h100", None, None, None) is GPUS["h100"]
    cpu = own_device("custom", 0.05, 8.0, 10.0)
    assert cpu.peak["bf16"] == 5e10 and cpu.memory == 8e9 and cpu.bandwidth == 1e10
    assert own_device("v100-16", None, 12.0, None).peak == GPUS["v100-16"].peak
    for arguments, message in (
        (("v101", None, None, None), "expected one of p100-16, v100-16"),
        (("custom", 1.0, None, None), "needs --memory, --bandwidth"),
        (("h100", -1.0, None, 0.0), "--flops -1.0, --bandwidth 0.0"),
    ):
        with pytest.raises(ConfigError, match=message):
            own_device(*arguments)
    for name, device in GPUS.items():
        assert device.source and device.memory > 1e9 and device.link > 1e9, name
        assert set(device.peak) in ({"fp32", "fp16"}, {"fp32", "fp16", "bf16"})
        assert device.peak["fp16"] > device.peak["fp32"]
        assert short_name(device.name) == name
    changed = own_device("t4", 65.0, None, None)
    assert changed.peak == {"fp32": 65e12, "fp16": 65e12}, "T4 has no bf16"


@pytest.mark.parametrize(
    "printed, known",
    [
        ("Tesla P100-SXM2-16GB", "p100-16"),
        ("Tesla V100-SXM2-32GB", "v100-32"),
        ("Tesla T4", "t4"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A100-SXM4-40GB", "a100-40"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("RTX 4090", "rtx4090"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA H100 80GB HBM2e", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA A100 80GB PCIe", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA A10-24Q", None),
        ("Tesla V100-PCIE-16GB", None),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
    ],
)
def test_names_that_nvidia_smi_prints(printed: str, known: str | None) -> None:
    """Only the table's own cards: other boards of the same chip have other speeds and memory."""
    if known:
        assert own_device(printed, None, None, None) is GPUS[known]
        return
    said = f"--gpu {printed} is unknown; .* custom with --flops, --memory and --bandwidth"
    with pytest.raises(ConfigError, match=said):
        own_device(printed, None, None, None)


def test_flags_that_the_plan_knows_itself_are_refused() -> None:
    with pytest.raises(ConfigError, match="found --max-tokens, --fp16 after --"):
        build("transformer", ["--max-tokens", "5", "--fp16"], WORDS, WORDS, "fp32")
    with pytest.raises(ConfigError, match="--optimizer nag: the plan assumes Adam; leave it out"):
        build("transformer", ["--optimizer=nag"], WORDS, WORDS, "fp32")
    build("transformer_biarn_tiny", ["--optimizer", "adam"], WORDS, WORDS, "fp32")
    with pytest.raises(ConfigError, match="unknown architecture 'transfomer'"):
        build("transfomer", [], WORDS, WORDS, "fp32")


def test_a_given_criterion_has_only_its_own_flags() -> None:
    for flags in (["--criterion", "cross_entropy"], ["--criterion=cross_entropy"]):
        assert configure("transformer", flags).criterion._name == "cross_entropy"
    for flags, smoothing in (([], 0.1), (["--label-smoothing", "0.2"], 0.2)):
        assert configure("transformer", flags).criterion.label_smoothing == smoothing


@pytest.mark.parametrize(
    "arch", ["roberta_base", "masked_lm", "multilingual_transformer", "wav2vec2", "informer"]
)
def test_models_of_another_kind_are_refused(arch: str) -> None:
    (problem,) = model_problems(arch, [])
    assert problem.startswith(f"--arch {arch} cannot be planned; expected an encoder-decoder or a")


@pytest.mark.parametrize(
    "arch, needs",
    [
        ("s2t_transformer_s", "'input_feat_per_channel'"),
        ("nonautoregressive_transformer", "'tgt_tokens'"),
        ("levenshtein_transformer", "'tgt_tokens'"),
    ],
)
def test_models_that_need_more_than_tokens_are_refused(
    arch: str, needs: str, capsys: pytest.CaptureFixture
) -> None:
    """The first cannot be built, and the others cannot be run."""
    assert main(["plan", "--arch", arch, "--gpu", "v100-16", "--vocabulary", "100"]) == 2
    said = capsys.readouterr().err
    assert f"--arch {arch} cannot be planned with its flags (" in said and needs in said
    assert "; expected an encoder-decoder or a language model that reads tokens\n" in said


def test_language_models_of_fairseq_find_their_dictionary() -> None:
    built = build("lstm_lm", [], WORDS, WORDS, "fp32")
    assert built.decoder_only and trace(built, sample(built, 1, 3, 3)).flops > 0


def test_what_the_model_refuses_itself_keeps_its_message() -> None:
    with pytest.raises(ConfigError, match="^wrong options$"), plannable("transformer"):
        raise ConfigError("wrong options")
