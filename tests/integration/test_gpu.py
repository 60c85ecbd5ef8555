"""On a CUDA device: every precision, decoding, and equality with the CPU."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fairseq_recur.modules.sparse_attention import ProbSparseSelfAttention
from fairseq_recur.ops import mixture, recurrence_encoder, segmented_recurrent, toeplitz
from fairseq_recur.ops.triton import dispatch
from tests.conftest import FORECASTERS, MEMORY_KINDS, SMALL, TRAIN, preset_flags
from tests.distributed.test_presets_by_several import NEURON, has_neuron
from tests.unit.test_context import LAYERS
from tests.unit.test_forecaster import inputs as windows
from tests.unit.test_forecaster import make  # noqa: F401  (a fixture)
from tests.unit.test_memory_model import SEGMENT, shrunk, small
from tests.unit.test_model_properties import (
    EVAL,
    PAD,
    encode,
    expected_length,
    lengthened,
    sentences,
    targets,
    true_lengths,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
ON_GPU: list[str] = [flag for flag in TRAIN if flag != "--cpu"]
PRECISIONS = {
    "fp32": [],
    "fp16": ["--fp16"],
    "fp16-memory-efficient": ["--memory-efficient-fp16"],
    "bf16": ["--bf16"],
    "bf16-memory-efficient": ["--memory-efficient-bf16"],
    "amp": ["--amp"],
}

TOLERANCES = {
    "fp32": (torch.float32, 1e-3),
    "fp16": (torch.float16, 0.01),
    "bf16": (torch.bfloat16, 0.05),
}
"""The dtypes of models, and the mean difference that rounding may make, by the logits' spread."""


def losses(log: str) -> list[float]:
    """The training loss of each update in a log."""
    return [float(x) for x in re.findall(r"^epoch \d+:.* loss=([\d.]+|nan|inf)", log, re.M)]


@pytest.mark.parametrize("precision", PRECISIONS.values(), ids=PRECISIONS.keys())
def test_training_and_decoding(
    corpus: Path, cli: Callable[..., str], tmp_path: Path, preset: str, precision: list[str]
) -> None:
    """Forty updates lower the loss by a tenth; the checkpoint decodes in half precision."""
    log = cli(
        "train", corpus / "bin", "--arch", preset, *SMALL, *ON_GPU, *precision,
        *preset_flags(preset), "--max-update", 40, "--save-dir", tmp_path, "--no-epoch-checkpoints",
    )  # fmt: skip
    seen = losses(log)
    assert len(seen) >= 35 and all(0 < loss < 10 for loss in seen)
    assert sum(seen[-5:]) < 0.9 * sum(seen[:5])
    for flag in ([], ["--fp16"], ["--bf16"]):
        out = cli(
            "generate",
            corpus / "bin",
            "--path",
            tmp_path / "checkpoint_last.pt",
            *flag,
            "--beam",
            5,
        )
        assert len(re.findall(r"^H-\d+\t-?\d", out, re.M)) == 20


def test_systems_train_in_half_precision(
    corpus: Path, cli: Callable[..., str], tmp_path: Path, system: list[str]
) -> None:
    for precision in ("--fp16", "--bf16"):
        log = cli(
            "train", corpus / "bin", *system, *SMALL, *ON_GPU,
            precision, "--max-update", 40, "--no-save", "--save-dir", tmp_path,
        )  # fmt: skip
        seen = losses(log)
        assert len(seen) >= 35 and sum(seen[-5:]) < 0.9 * sum(seen[:5])


Operation = tuple[Callable[..., torch.Tensor], list[tuple[int, ...]]]
OPERATIONS: dict[str, Operation] = {
    "scan": (
        lambda q, k, v, w: segmented_recurrent.recurrent_attention(
            q, k, v, w / 8, q.new_tensor(0.9), q.new_tensor(4.0)
        ),
        [(2, 4, 40, 9, 64), (2, 4, 40, 64, 64), (2, 4, 40, 64, 64), (64, 64)],
    ),
    "both terms": (
        lambda q, k, v, w: segmented_recurrent.segmented_recurrent(
            q / 8, k, v, w / 8, q.new_tensor(0.9), q.new_tensor(4.0), together=True
        )[0],
        [(2, 4, 39, 70, 64), (2, 4, 40, 64, 64), (2, 4, 40, 64, 64), (64, 64)],
    ),
    "additive attention": (
        recurrence_encoder.additive_attention,
        [(8, 2, 512), (8, 60, 512), (512,), (8, 60, 512)],
    ),
    "gru": (
        lambda x, h, w_x, w_h, b: recurrence_encoder.gru_step(x, h, w_x / 16, w_h / 16, b),
        [(2, 9, 512), (2, 9, 512), (2, 1536, 512), (2, 1536, 512), (2, 512)],
    ),
    "band": (
        lambda past, future, v: toeplitz.banded_product(past, v, 64, future),
        [(4, 201), (4, 150), (3, 4, 700, 64)],
    ),
    "mixed map": (
        lambda a, v, p, g: mixture.mixed_map(a, v, p, g)[0],
        [(5, 4, 50, 60), (5, 4, 60, 64), (4, 50, 60), (4, 1, 1)],
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_kernels_equal_torchs_operations_in_double_precision(name: str) -> None:
    """Outputs and gradients. Rounding can make a neuron fire, so scans may differ a little."""
    run, shapes = OPERATIONS[name]
    exact = [torch.randn(s, device="cuda", dtype=torch.float64, requires_grad=True) for s in shapes]
    short = [x.detach().float().requires_grad_() for x in exact]
    if not dispatch.usable(short[-1], widest=None):
        pytest.skip("Triton is not installed, or has no kernels for this GPU")
    results = []
    for inputs in (short, exact):
        out = run(*inputs)
        results.append([out, *torch.autograd.grad(out.square().mean(), inputs)])
    for ours, theirs in zip(*results):
        far = (ours - theirs).abs() > 1e-3 * theirs.abs().max()
        allowed = 0.02 if name in ("scan", "both terms") else 0.0
        assert ours.dtype == torch.float32 and far.double().mean() <= allowed


def attend_to_all(model: nn.Module) -> None:
    """Let ProbSparse choose all positions: rounding changes which ones a smaller factor chooses."""
    for module in model.modules():
        if isinstance(module, ProbSparseSelfAttention):
            module.factor = 300


@pytest.mark.parametrize("precision", TOLERANCES)
def test_invariants_in_every_precision(
    make_model: Callable, system: list[str], precision: str
) -> None:
    """Finite gradients; a sentence alone, and step by step, gives what it gives in a batch.

    At the threshold of NEURON, at which rounding does not make SRformer's neurons fire earlier.
    """
    dtype, tolerance = TOLERANCES[precision]
    neuron = NEURON if has_neuron(system) else []
    model = make_model(system[1], *SMALL, *system[2:], *EVAL, *neuron).cuda().to(dtype)
    attend_to_all(model)
    lengths = [9, 1, 5, 2]
    source, target = sentences(lengths, "left").cuda(), targets(4, 6).cuda()
    logits, _ = model(source, true_lengths(source), target)
    logits.float().logsumexp(-1).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    model.eval()

    def assert_near(found: Tensor, expected: Tensor) -> None:
        apart = (found.float() - expected.float()).abs().mean()
        assert apart < tolerance * expected.float().std()

    with torch.no_grad():
        whole, _ = model(source, true_lengths(source), target)
        for row, words, prefix in zip(whole, source, target):
            real = words[words.ne(PAD)].unsqueeze(0)
            alone, _ = model(real, true_lengths(real), prefix.unsqueeze(0))
            assert_near(alone[0], row)
        out, state = encode(model, source), {}
        for t in range(1, target.size(1) + 1):
            step, _ = model.decoder(target[:, :t], encoder_out=out, incremental_state=state)
            whole = lengthened(target[:, :t], expected_length(system))
            forced, _ = model.decoder(whole, encoder_out=out)
            assert_near(step[:, -1], forced[:, t - 1])


def test_no_layer_waits_for_the_device(make_model: Callable, system: list[str]) -> None:
    """Where torch says so; what a batch's context reads is read before the layers."""
    model = make_model(system[1], *SMALL, *system[2:]).cuda()
    if any(isinstance(module, nn.RNNBase) for module in model.modules()):
        pytest.skip("packing reads the lengths")
    source, target = sentences([9, 4, 6], "left").cuda(), targets(3, 7).cuda()
    reads_are = torch.cuda.set_sync_debug_mode

    def update() -> None:
        output = model(source, None, target)[0].sum()
        reads_are("error")
        output.backward()
        reads_are("default")

    try:
        update()  # which makes the libraries' handles
        for module in model.modules():
            if isinstance(module, LAYERS):
                module.register_forward_pre_hook(lambda *_: reads_are("error"))
                module.register_forward_hook(lambda *_: reads_are("default"))
        update()
        model.eval()
        with torch.no_grad():
            out, state = model.encoder(source), {}
            for t in range(1, 4):
                model.decoder(target[:, :t], out, incremental_state=state)
    finally:
        reads_are("default")


def assert_equal_on_both(model: nn.Module, run: Callable[[str], Tensor]) -> None:
    """Outputs and gradients, in float64; *run* computes on a device, where the model then is."""
    results = []
    for device in ("cpu", "cuda"):
        model.zero_grad()  # before the model moves: gradients that are kept would move with it
        model.to(device)
        out = run(device)
        weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=device)
        (out * weights.view_as(out)).sum().backward()
        gradients = [p.grad.cpu() for p in model.parameters() if p.grad is not None]
        results.append([out.detach().cpu(), *gradients])
    assert len(results[0]) == len(results[1]) > 1
    for on_cpu, on_gpu in zip(*results):
        torch.testing.assert_close(on_cpu, on_gpu, rtol=1e-6, atol=1e-9)


def test_gpu_equals_cpu(
    make_model: Callable, fairseq_in_the_models_precision: None, system: list[str]
) -> None:
    """With padding."""
    still = "--dropout 0 --attention-dropout 0 --activation-dropout 0".split()
    model = make_model(system[1], *SMALL, *system[2:], *still).double()
    attend_to_all(model)
    source = torch.randint(4, 60, (3, 9))
    source[1, :4], source[2, :7] = 1, 1
    arguments = source, source.ne(1).sum(1), torch.randint(4, 60, (3, 5))
    assert_equal_on_both(model, lambda device: model(*(a.to(device) for a in arguments))[0])


@pytest.mark.parametrize("arch", MEMORY_KINDS)
def test_language_models_equal_those_on_the_cpu(
    make_model: Callable, fairseq_in_the_models_precision: None, arch: str
) -> None:
    """A segment, and one that reads what the memory has of it."""
    model = make_model(arch, *small(arch), *shrunk(arch)).double().eval()
    segments = torch.randint(4, 60, (2, 2 * SEGMENT)).split(SEGMENT, dim=1)

    def read(device: str) -> Tensor:
        model.decoder.memory.clear()
        starts = torch.tensor([1000, 5000], device=device)
        logits = [model(part.to(device), starts=starts + i * SEGMENT)[0]
                  for i, part in enumerate(segments)]  # fmt: skip
        return torch.cat(logits, dim=1)

    assert_equal_on_both(model, read)


@pytest.mark.parametrize("arch", FORECASTERS)
def test_forecasters_equal_those_on_the_cpu(
    make: Callable, fairseq_in_the_models_precision: None, arch: str
) -> None:
    """A batch of windows, and one that reads what the memory has of it."""
    model, batch = make(arch), windows()
    attend_to_all(model)

    def forecast(device: str) -> Tensor:
        if model.encoder.memory is not None:
            model.encoder.memory.clear()
        moved, starts = [x.to(device) for x in batch], torch.arange(3, device=device)
        return torch.cat([model(*moved, starts), model(*moved, starts + 3)])

    assert_equal_on_both(model, forecast)


def test_fused_adamw_equals_adam(corpus: Path, cli: Callable[..., str], tmp_path: Path) -> None:
    flags = list(ON_GPU)
    seen = []
    for optimizer in ("adam", "adamw_fused"):
        flags[flags.index("--optimizer") + 1] = optimizer
        log = cli(
            "train", corpus / "bin", "--arch", "transformer_biarn_tiny", *SMALL, *flags,
            "--weight-decay", 0.01, "--max-update", 20, "--no-save", "--save-dir", tmp_path,
        )  # fmt: skip
        seen.append(losses(log))
    assert len(seen[0]) == 20
    assert seen[0] == pytest.approx(seen[1], abs=2e-3)
