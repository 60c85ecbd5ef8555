"""Half precision is finite wherever float32 is: training, decoding, large activations."""

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import SMALL, TRAIN, preset_flags
from tests.running import USER_DIR, generate, hypotheses, update_losses

Cli = Callable[..., str]

WITHOUT_DROPOUT = "--dropout 0 --attention-dropout 0 --activation-dropout 0".split()
FEW = 16
"""A parameter with fewer values counts as scalars."""

TRAINING_MODES = ["--bf16", "--memory-efficient-bf16", "--memory-efficient-fp16", "--amp"]


@pytest.fixture(scope="module")
def losses(cli: Cli, corpus: Path) -> Callable[..., list[float]]:
    """The losses of five updates with some flags; each set of flags is trained once."""
    return functools.lru_cache(maxsize=None)(functools.partial(train, cli, corpus))


def slow(case: Any) -> Any:
    """A case for the slow run only."""
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)


def train(cli: Cli, corpus: Path, *flags: Any) -> list[float]:
    log = cli(
        "train", corpus / "bin", "--user-dir", USER_DIR, *SMALL, *TRAIN, "--max-update", 5,
        "--disable-validation", "--no-save", "--dropout", 0, "--attention-dropout", 0,
        "--activation-dropout", 0,
        "--fp16-init-scale", 4, "--lr", 0.01, *flags,
    )  # fmt: skip
    found = update_losses(log)
    assert list(found) == [1, 2, 3, 4, 5]
    return list(found.values())


def assert_trains_like_float32(found: list[float], expected: list[float], updates: int) -> None:
    """All losses are finite, and the first *updates* of them are close to float32.

    The memory-efficient modes keep no float32 copy of the weights and lose updates that are
    small compared with their weights, so only their first loss is comparable.
    """
    assert all(math.isfinite(loss) for loss in found)
    assert found[:updates] == pytest.approx(expected[:updates], abs=0.05)


@pytest.mark.parametrize(
    "mode", [mode if mode == "--bf16" else slow(mode) for mode in TRAINING_MODES]
)
@pytest.mark.slow_presets
def test_every_preset_trains(preset: str, mode: str, losses: Callable[..., list[float]]) -> None:
    arch = ["--arch", preset, *preset_flags(preset)]
    updates = 1 if "memory" in mode else 5
    found, expected = losses(*arch, mode), losses(*arch)
    assert_trains_like_float32(found, expected, updates)
    for losses_ in (found, expected):
        assert losses_[-1] < losses_[0] - 0.05, "the training must change the model"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["--memory-efficient-fp16", "--memory-efficient-bf16"])
def test_every_system_trains(
    system: list[str], mode: str, losses: Callable[..., list[float]]
) -> None:
    found, expected = losses(*system, mode), losses(*system)
    assert_trains_like_float32(found, expected, updates=1)
    assert found[-1] < found[0], "the training must change the model"


@pytest.mark.slow_presets
@pytest.mark.parametrize("flag", [slow("--fp16"), "--bf16"])
def test_every_preset_decodes(
    preset: str, flag: str, corpus: Path, trained: Callable[[str], Path]
) -> None:
    checkpoint = trained(preset) / "checkpoint_last.pt"
    flags = ["--batch-size", 8, "--required-batch-size-multiple", 1]
    expected = hypotheses(generate(corpus / "bin", checkpoint, *flags))
    found = hypotheses(generate(corpus / "bin", checkpoint, flag, *flags))
    assert found.keys() == expected.keys()
    scores = [(found[n][0].score, expected[n][0].score) for n in expected]
    assert all(math.isfinite(score) for score, _ in scores)
    mean = sum(abs(one - other) for one, other in scores) / len(scores)
    assert 0 < mean < 0.1, "half precision must be in use, and close to float32"


def batch(sources: int, length: int, words: int) -> list[Tensor]:
    """Source tokens (B, S) padded on the left, source lengths, and shifted target tokens.

    The longest sentence repeats one word, whose embeddings add up.
    """
    lengths = torch.linspace(length, max(1, length // 7), sources).long()
    tokens = torch.randint(4, words, (sources, length))
    tokens[0] = tokens[0, 0]
    tokens[torch.arange(length) < (length - lengths).unsqueeze(1)] = 1
    return [tokens, lengths, torch.randint(4, words, (sources, 12))]


def all_finite(model: nn.Module, inputs: list[Tensor]) -> bool:
    """Whether a training step's loss and gradients, and the logits in evaluation, are finite."""
    model.train()
    logits = model(*inputs)[0]
    model.get_normalized_probs((logits, None), log_probs=True).float().mean().backward()
    gradients = all(
        p.grad is not None and p.grad.isfinite().all() for p in model.parameters()
    )  # fmt: skip
    model.zero_grad()
    with torch.no_grad():
        model.eval()
        evaluated = model(*inputs)[0].isfinite().all()
    return bool(logits.isfinite().all() and gradients and evaluated)


@pytest.mark.slow_options
# float16 has a narrower range than float32, bfloat16 the same.
@pytest.mark.parametrize("dtype", [torch.float16, slow(torch.bfloat16)], ids=["fp16", "bf16"])
@pytest.mark.parametrize("length, scale", [slow((1000, 1)), slow((1000, 100)), (40, 200)])
def test_finite_where_float32_is(
    system: list[str],
    length: int,
    scale: float,
    dtype: torch.dtype,
    make_model: Callable[..., nn.Module],
) -> None:
    """Long sources, and embeddings *scale* times larger than initialised."""
    model = make_model(system[1], *SMALL, *system[2:], "--max-source-positions", "1024")
    inputs = batch(3, length, 64)
    with torch.no_grad():
        model.encoder.embed_tokens.weight.mul_(scale)
    assert all_finite(model, inputs), "float32 must be finite for this case"
    assert all_finite(model.to(dtype), inputs)


def gradients(model: nn.Module, inputs: list[Tensor], scale: float) -> dict[str, Tensor]:
    """The gradients of the mean cross-entropy of the targets themselves, in float32.

    Args:
        scale: of the loss before the backward pass, as a loss scaler does
    """
    log_probs = model.get_normalized_probs(model(*inputs), log_probs=True).float()
    loss = nn.functional.nll_loss(log_probs.flatten(0, 1), inputs[2].flatten())
    (loss * scale).backward()
    return {n: p.grad.float() / scale for n, p in model.named_parameters() if p.grad is not None}


def test_fp16_gradients_point_where_those_of_float32_do(
    system: list[str], make_model: Callable[..., nn.Module]
) -> None:
    """In float16, of every parameter; a gradient that vanished would still be finite.

    Those of scalars, such as decays, are sums of large numbers that cancel: their sign and rough
    size count. All positions attend, so that rounding chooses no others. With the current segment a
    source of one word would fire at a threshold of 0.1, and its only key divides that: where it is
    near zero, rounding changes its size.
    """
    well = ["--prob-sparse-factor", "50"] if "prob_sparse" in system else []
    well += ["--srformer-threshold-init", "1"] if "--srformer-current-segment" in system else []
    model = make_model(system[1], *SMALL, *system[2:], *WITHOUT_DROPOUT, *well).train()
    inputs = batch(4, 12, 64)
    half = gradients(model.half(), inputs, 256)
    model.zero_grad()
    whole = gradients(model.float(), inputs, 1)
    assert half.keys() == whole.keys()
    least = 1e-4 * max(float(g.norm()) for g in whole.values())
    wrong = {}
    for name, expected in whole.items():
        if expected.norm() < least:  # such as the bias of a key, which softmax cancels
            continue
        found = half[name]
        cosine = nn.functional.cosine_similarity(found.flatten(), expected.flatten(), dim=0)
        ratio = found.norm() / expected.norm()
        few = expected.numel() < FEW
        least_cosine, factor = (0.9, 5) if few else (0.98, 1.25)
        if cosine < least_cosine or not 1 / factor < ratio < factor:
            wrong[name] = (round(float(cosine), 4), round(float(ratio), 4))
    assert not wrong


@pytest.mark.slow_presets
def test_the_loss_scaler_repeats_updates_that_overflow(preset: str, cli: Cli, corpus: Path) -> None:
    """A scale at which all gradients overflow is halved until they fit; no update is lost."""
    log = cli(
        "train", corpus / "bin", "--user-dir", USER_DIR, "--arch", preset, *SMALL, *TRAIN,
        *preset_flags(preset), "--max-update", 3, "--disable-validation", "--no-save",
        "--memory-efficient-fp16", "--fp16-init-scale", 2**26, "--threshold-loss-scale", 1,
    )  # fmt: skip
    assert log.count("gradient overflow detected, ignoring gradient") >= 3
    found = update_losses(log)
    assert list(found) == [1, 2, 3] and all(math.isfinite(loss) for loss in found.values())
