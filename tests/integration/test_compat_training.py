"""Precision, the NaN error and the fused optimizer, through fairseq-train."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion

from tests.conftest import SMALL, TRAIN

ADAM = [
    *("--adam-betas", "(0.9, 0.98)", "--adam-eps", "1e-9"),
    *("--weight-decay", "0.01", "--dropout", "0"),
]


@pytest.fixture(scope="module")
def train(corpus: Path, cli: Callable[..., str]) -> Callable[..., str]:
    def run(*flags: object, arch: str = "transformer_biarn_tiny") -> str:
        return cli(
            "train", corpus / "bin", "--arch", arch, *SMALL, *TRAIN, "--log-format", "json",
            "--disable-validation", *flags,
        )  # fmt: skip

    return run


def losses(output: str) -> list[float]:
    """The loss of each update, from the log."""
    lines = re.findall(r'^\{"epoch": .*"num_updates".*\}$', output, re.M)
    return [float(json.loads(line)["loss"]) for line in lines]


@pytest.mark.parametrize(
    "arch", [pytest.param("transformer", marks=pytest.mark.slow), "transformer_biarn_tiny"]
)
@pytest.mark.parametrize("flag", ["--bf16", "--memory-efficient-bf16", "--memory-efficient-fp16"])
def test_half_precision_trains_on_a_cpu(train: Callable, arch: str, flag: str) -> None:
    found = losses(train("--no-save", "--max-update", 8, flag, "--fp16-init-scale", 4, arch=arch))
    assert len(found) == 8 and found[-1] < found[0]


@pytest.mark.parametrize("precision", [[], ["--amp"]])
@pytest.mark.parametrize("arch", ["transformer", "transformer_biarn_tiny"])
def test_a_nan_loss_says_nan(
    train: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: list, arch: str
) -> None:
    compute = LabelSmoothedCrossEntropyCriterion.compute_loss

    def nan(self: object, *args: object, **kwargs: object) -> tuple:
        loss, nll = compute(self, *args, **kwargs)
        return loss * float("nan"), nll

    monkeypatch.setattr(LabelSmoothedCrossEntropyCriterion, "compute_loss", nan)
    monkeypatch.chdir(tmp_path)  # fairseq writes a dump here
    with pytest.raises(FloatingPointError, match="(?i)nan"):
        train("--save-dir", tmp_path, "--max-update", 2, *precision, arch=arch)


def test_the_amp_scale_window_is_the_one_given(monkeypatch: pytest.MonkeyPatch) -> None:
    from fairseq.dataclass.configs import FairseqConfig
    from fairseq.optim import amp_optimizer
    from omegaconf import OmegaConf

    cfg = OmegaConf.structured(FairseqConfig)
    cfg.common.amp_scale_window = 77
    optimizer = amp_optimizer.AMPOptimizer(cfg, [], None)
    assert optimizer.scaler.get_growth_interval() == 77


def test_fused_adamw_trains_as_adam_does(train: Callable, tmp_path: Path) -> None:
    """torch adds eps after the bias correction; with 1e-9 that moves the loss by nothing."""
    found, weights = {}, {}
    for name in ("adam", "adamw_fused"):
        folder = tmp_path / name
        flags = ["--save-dir", folder, "--max-update", 20, "--optimizer", name, *ADAM]
        found[name] = losses(train(*flags))
        weights[name] = torch.load(folder / "checkpoint_last.pt", weights_only=True)["model"]
    assert len(found["adam"]) == 20
    assert found["adamw_fused"] == pytest.approx(found["adam"], abs=1.1e-3)  # 3 decimals logged
    for key, value in weights["adam"].items():
        # A bias of the keys moves no softmax: its gradient is rounding noise, which Adam blows
        # up. The least gradients feel where eps is added: 1% of one step of the learning rate.
        if not key.endswith(("k_proj.bias", "_float_tensor")):
            moved = (value - weights["adamw_fused"][key]).abs().max()
            assert moved < 0.01 * 0.002, key


@pytest.mark.parametrize("precision", [
    [],
    pytest.param(["--amp"], marks=pytest.mark.slow),
    pytest.param(["--memory-efficient-bf16"], marks=pytest.mark.slow),
])  # fmt: skip
def test_fused_adamw_continues_as_if_never_stopped(
    train: Callable, tmp_path: Path, precision: list
) -> None:
    flags = ["--optimizer", "adamw_fused", *ADAM, *precision]
    # Not with --bf16: fairseq saves no float32 weights, so none of its optimizers resumes exactly.
    train("--save-dir", tmp_path / "whole", "--max-update", 6, *flags)
    train("--save-dir", tmp_path / "parts", "--max-update", 3, *flags)
    output = train("--save-dir", tmp_path / "parts", "--max-update", 6, *flags)
    assert "@ 3 updates" in output
    whole, parts = (
        torch.load(tmp_path / name / "checkpoint_last.pt", weights_only=True)
        for name in ("whole", "parts")
    )
    assert losses(output)[-1] > 0
    for key, value in whole["model"].items():
        # fairseq 0.12.2 never fills the buffer of this name.
        assert key.endswith("_float_tensor") or torch.equal(value, parts["model"][key]), key
    states = [c["last_optimizer_state"]["state"] for c in (whole, parts)]
    for key, state in states[0].items():
        assert state["exp_avg_sq"].dtype == torch.float32
        assert torch.equal(state["exp_avg_sq"], states[1][key]["exp_avg_sq"])


@pytest.mark.slow
def test_fused_adamw_learns_in_every_precision(train: Callable) -> None:
    flags = ["--no-save", "--max-update", 20, "--optimizer", "adamw_fused", *ADAM]
    reference = losses(train(*flags))
    for precision in ("--memory-efficient-bf16", "--bf16", "--amp"):
        found = losses(train(*flags, precision))
        assert found == pytest.approx(reference, rel=0.02) and found[-1] < found[0]
        assert found != reference, "it must compute in half precision"


def test_an_interval_has_a_checkpoint_also_where_an_epoch_ends(
    train: Callable, tmp_path: Path
) -> None:
    flags = ("--no-epoch-checkpoints", "--save-interval-updates", 1, "--max-epoch", 2)
    said = train("--save-dir", tmp_path, "--max-tokens", 900, *flags)
    updates = len(losses(said))
    kept = sorted(path.name for path in tmp_path.glob("checkpoint_*_*.pt"))
    assert updates > 2  # more than one in each epoch
    assert {int(name[:-3].split("_")[2]) for name in kept} == {*range(1, updates + 1)}
    assert sum(name.startswith("checkpoint_1_") for name in kept) == updates / 2
