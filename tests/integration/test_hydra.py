"""fairseq-hydra-train with the shipped configuration."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import yaml
from omegaconf import OmegaConf

from fairseq_recur.errors import ConfigError
from fairseq_recur.models.config import HostConfig, encoder_decoder_config
from tests.conftest import PRESETS, SMALL
from tests.running import USER_DIR, generate, hypotheses, saved_weights, update_losses

Cli = Callable[..., str]

CONFIG = Path(USER_DIR) / "config" / "translation.yaml"
SHIPPED = ["--config-dir", str(CONFIG.parent), "--config-name", "translation"]
FAST = (
    "optimization.max_update=2 dataset.max_tokens=400 dataset.num_workers=0 common.cpu=true "
    "common.log_interval=1 checkpoint.save_dir=saved"
).split()
SIZES: dict[str, int] = {
    flag[2:].replace("-", "_"): int(value) for flag, value in zip(SMALL[::2], SMALL[1::2])
}
SMALL_MODEL = [f"+model.{name}={value}" for name, value in SIZES.items()]
OVERRIDE_MODEL = [flag[1:] for flag in SMALL_MODEL]


@pytest.fixture
def here(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which holds only the data folder "bin"."""
    (tmp_path / "bin").symlink_to(corpus / "bin")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def model_config(cli: Cli, program: str, *arguments: Any) -> dict[str, Any]:
    """The configuration of the model that a program would train."""
    name = {"train": "fairseq_cli.train.main", "hydra_train": "fairseq_cli.hydra_train.pre_main"}
    seen: list[Any] = []
    with patch(name[program], seen.append):
        cli(program, *arguments)
    return OmegaConf.to_container(seen[0], resolve=True, enum_to_str=True)["model"]


@pytest.mark.parametrize(
    "sized",
    [pytest.param(p, marks=() if p == "srformer" else pytest.mark.slow) for p in PRESETS],
)
@pytest.mark.parametrize(
    "choice", ["model={}", pytest.param("model._name={}", marks=pytest.mark.slow)]
)
def test_preset_has_its_own_defaults(sized: str, choice: str, here: Path, cli: Cli) -> None:
    """The full-size configuration equals that of --arch; nothing is trained."""
    expected = model_config(
        cli, "train", "bin", "--user-dir", USER_DIR, "--arch", sized, "--max-tokens", 400
    )
    found = model_config(cli, "hydra_train", *SHIPPED, "task.data=bin", *FAST, choice.format(sized))
    assert found.pop("_name") == sized
    assert found == {name: expected[name] for name in found}
    assert found.keys() >= {"recurrence_steps", "encoder_embed_dim", "dropout"}


@pytest.mark.slow_presets
def test_shipped_config_trains_every_preset(
    preset: str, here: Path, cli: Cli, trained: Callable[[str], Path]
) -> None:
    """Relative paths work, and only checkpoints are written."""
    chosen = [f"model={preset}", *OVERRIDE_MODEL]
    log = cli("hydra_train", *SHIPPED, "task.data=bin", *FAST, *chosen)
    assert list(update_losses(log)) == [1, 2]
    assert sorted(os.listdir()) == ["bin", "saved"]
    found, expected = (
        {name: weight.shape for name, weight in saved_weights(checkpoint).items()}
        for checkpoint in ("saved/checkpoint_last.pt", trained(preset) / "checkpoint_last.pt")
    )
    assert found == expected
    assert sorted(hypotheses(generate("bin", "saved/checkpoint_last.pt"))) == list(range(20))


def test_options_are_overridden_by_name(here: Path, cli: Cli) -> None:
    """Options of the recurrence encoder need no plus sign: the configuration lists them."""
    chosen = {
        "recurrence": "biarn",
        "recurrence_layers": 2,
        "recurrence_cell": "lstm",
        "recurrence_lr_scale": 2.0,
        "recurrence_steps": 4,
        "recurrence_attention": "additive",
        "recurrence_coverage": True,
        "recurrence_fusion": "gated_sum",
        "recurrence_fusion_init": "closed",
        "recurrence_fused_layers": "all",
        "recurrence_gate": "scalar",
        "recurrence_input": "embeddings",
        "recurrence_positions": True,
        "dropout": 0.25,
    }
    overrides = [f"model.{name}={value}" for name, value in chosen.items()]
    cli("hydra_train", *SHIPPED, "task.data=bin", *FAST, *SMALL_MODEL, *overrides)
    state = torch.load("saved/checkpoint_last.pt", weights_only=True)
    found = OmegaConf.to_container(OmegaConf.create(state["cfg"]), enum_to_str=True)["model"]
    assert {name: found[name] for name in chosen} == chosen
    assert state["model"]["decoder.layers.0.fusion.gate_d.weight"].shape == (1, 16)


def test_shipped_config_lists_every_option_of_the_parts() -> None:
    options = yaml.safe_load(CONFIG.read_text())["model"]
    host = HostConfig.__dataclass_fields__.keys()
    own = encoder_decoder_config().__dataclass_fields__.keys() - host
    assert "rsa_heads" in own and own == options.keys() - host
    assert all(value == "???" for name, value in options.items() if name != "_name")


def test_mistyped_option_is_refused(here: Path, cli: Cli) -> None:
    with pytest.raises(ConfigError, match="recurrence_stepz.*did you mean.*recurrence_steps"):
        cli(
            "hydra_train", *SHIPPED, "task.data=bin", *FAST, *SMALL_MODEL,
            "+model.recurrence_stepz=4",
        )  # fmt: skip
    assert os.listdir() == ["bin"]


slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "wrong, said",
    [
        ("model.recurrence_fusion=sum", "stack, gated_sum"),
        slow("model.recurrence_steps=0", "--recurrence-steps 0: expected at least 1, or -1"),
        slow("model.recurrence_fused_layers=3", "--recurrence-fused-layers 3: the decoder has 2"),
    ],
)
def test_wrong_value_is_refused(here: Path, cli: Cli, wrong: str, said: str) -> None:
    with pytest.raises(Exception, match=said):
        cli("hydra_train", *SHIPPED, "task.data=bin", *FAST, *SMALL_MODEL, wrong)
    assert not list(here.rglob("saved/*.pt"))


@pytest.mark.slow
def test_resume(here: Path, cli: Cli) -> None:
    arguments = ["hydra_train", *SHIPPED, "task.data=bin", *FAST, *SMALL_MODEL]
    assert list(update_losses(cli(*arguments))) == [1, 2]
    assert list(update_losses(cli(*arguments, "optimization.max_update=5"))) == [3, 4, 5]


@pytest.mark.slow
def test_fairseqs_own_program_with_the_user_dir(here: Path) -> None:
    """In a new process that finds the plug-in only through ``common.user_dir``."""
    done = subprocess.run(
        [sys.executable, "-m", "fairseq_cli.hydra_train", *SHIPPED, "task.data=bin", *FAST,
         *SMALL_MODEL, f"common.user_dir={USER_DIR}", "model._name=transformer_biarn_tiny",
         "model.recurrence_steps=3"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(os.listdir()) == ["bin", "saved"]
    assert hypotheses(generate("bin", "saved/checkpoint_last.pt"))
