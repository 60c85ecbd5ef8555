"""Parts from a user's own package: flags, ranges and checks are those of parts from inside."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from fairseq.checkpoint_utils import load_model_ensemble
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.utils import import_user_module

from fairseq_recur.cli import OWN_COMMANDS, build_parser
from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.reading import read_experiment
from fairseq_recur.models.extending import SLOTS
from tests.conftest import SMALL, TRAIN
from tests.own_parts import loaded_package

Cli = Callable[..., str]

PACKAGE = """
from dataclasses import dataclass

import fairseq_recur
from fairseq_recur.models.extending import add_part
from fairseq_recur.modules.biarn import BiARN
from fairseq_recur.modules.options import option
from fairseq_recur.modules.rem import RecurrenceEncodingMatrices
from fairseq_recur.modules.segmented_attention import SegmentedAttention


class OwnSegments(SegmentedAttention):
    pass


class OwnBiARN(BiARN):
    pass


class OwnMatrices(RecurrenceEncodingMatrices):
    pass


class Scaled(BiARN):
    @dataclass
    class Options(BiARN.Options):
        own_scale: float = option(1.0, "factor of the states", (0.5, 4))
        own_offset: float = option(0.0, "added to them", (-1, 1), {"own_scale": (2.0,)})

    def __init__(self, input_dim, state_dim, cfg):
        super().__init__(input_dim, state_dim, cfg)
        self.scale = cfg.own_scale

    @classmethod
    def problems(cls, cfg, side):
        yield from super().problems(cfg, side)
        if cfg.own_scale == 3:
            yield "--own-scale 3: expected another number"

    def states(self, x, padding):
        return self.scale * super().states(x, padding)


add_part("cross_attention", "own_segments", OwnSegments)
add_part("recurrence", "own_biarn", OwnBiARN)
add_part("encoder_self_attention_mixture", "own_matrices", OwnMatrices)
add_part("recurrence", "scaled", Scaled)
"""

PARTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "--cross-attention own_segments --segment-size 32": (
        "decoder.layers.0.encoder_attn", "OwnSegments", {"size": 32},
    ),
    "--recurrence own_biarn --recurrence-steps 4": (
        "encoder.recurrence_encoder.layers.0.recurrence", "OwnBiARN", {"steps": 4},
    ),
    "--encoder-self-attention-mixture own_matrices --rsa-form dense": (
        "encoder.layers.1.self_attn.mixture", "OwnMatrices", {"form": "dense"},
    ),
    "--encoder-self-attention own_matrices --rsa-form dense --rsa-max-power 3": (
        "encoder.layers.1.self_attn.mixture", "OwnMatrices", {"form": "dense"},
    ),
    "--recurrence scaled --own-scale 2 --own-offset 0.5 --recurrence-layers 2": (
        "encoder.recurrence_encoder.layers.1.recurrence", "Scaled", {"scale": 2.0},
    ),
}  # fmt: skip
"""Flags that choose a part: its place in the model, its class, and what its options set."""

HOST = ["transformer_biarn_tiny", *SMALL, "--recurrence", "none"]


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The user's package, imported as fairseq does; for the tests of this file."""
    folder = tmp_path_factory.mktemp("plugins") / "own_parts_plugin"
    folder.mkdir()
    (folder / "__init__.py").write_text(PACKAGE, encoding="utf-8")
    with loaded_package(folder):
        yield folder


def test_the_tables_are_given_back(tmp_path: Path) -> None:
    """The parts of a package are there for the tests that load it, and only for them."""
    folder = tmp_path / "another_own_package"
    folder.mkdir()
    part = 'add_part("recurrence", "another_own", BiARN)\n'
    imports = PACKAGE[PACKAGE.index("import fairseq_recur") : PACKAGE.index("\n\n\n")]
    (folder / "__init__.py").write_text(f"{imports}\n\n{part}", encoding="utf-8")

    def choices() -> list[str]:
        given = ARCH_MODEL_REGISTRY["transformer_biarn"].config_class
        return list(given.__dataclass_fields__["recurrence"].type.__members__)

    before = {slot: dict(parts) for slot, parts in SLOTS.items()}, choices()
    with loaded_package(folder):
        assert "another_own" in SLOTS["recurrence"] and "another_own" in choices()
    assert ({slot: dict(parts) for slot, parts in SLOTS.items()}, choices()) == before
    assert str(folder) not in import_user_module.memo  # it can be loaded again


def assert_chosen(checkpoint: Path, flags: str) -> None:
    """The checkpoint loads, and its model has the part with its options."""
    (model,), _ = load_model_ensemble([str(checkpoint)])
    name, class_name, values = PARTS[flags]
    module = model.get_submodule(name)
    assert type(module).__name__ == class_name
    assert {key: getattr(module, key) for key in values} == values


@pytest.mark.parametrize("flags", [
    pytest.param(flags, marks=pytest.mark.slow if "own_matrices" in flags else ())
    for flags in PARTS
])  # fmt: skip
def test_a_part_trains_and_its_checkpoint_loads(
    flags: str, plugin: Path, corpus: Path, tmp_path: Path, cli: Cli
) -> None:
    cli(
        "train", corpus / "bin", "--user-dir", plugin, "--arch", *HOST, *flags.split(), *TRAIN,
        "--max-update", 1, "--disable-validation", "--save-dir", tmp_path,
    )  # fmt: skip
    assert_chosen(tmp_path / "checkpoint_last.pt", flags)


def test_hydra_has_its_option(
    plugin: Path, corpus: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cli(
        "hydra_train", "task=translation", f"task.data={corpus / 'bin'}", "hydra.run.dir=.",
        "hydra.output_subdir=null", f"common.user_dir={plugin}", "common.cpu=true",
        "model=transformer_biarn_tiny", "model.encoder_embed_dim=16", "model.recurrence=scaled",
        "model.own_scale=2", "model.own_offset=0.5", "model.recurrence_layers=2",
        "criterion=cross_entropy", "optimizer=adam", "lr_scheduler=fixed",
        "optimization.lr=[0.01]", "optimization.max_update=1", "dataset.max_tokens=400",
        "dataset.num_workers=0", "dataset.disable_validation=true",
    )  # fmt: skip
    checkpoint = tmp_path / "checkpoints" / "checkpoint_last.pt"
    assert_chosen(checkpoint, list(PARTS)[-1])


@pytest.mark.parametrize(
    "flags, said",
    [
        ("--recurrence scaled --own-scale 5", "--own-scale 5.0: expected 0.5 to 4"),
        ("--recurrence scaled --own-scale 3", "--own-scale 3: expected another number"),
        ("--own-scale 2", "--own-scale 2.0 has no effect: it needs --recurrence scaled"),
        (
            "--recurrence scaled --own-offset 0.5",
            "--own-offset 0.5 has no effect with --own-scale 1.0; it needs --own-scale 2.0",
        ),
        (
            "--recurrence-steps 3",
            "--recurrence-steps 3 has no effect: it needs --recurrence biarn or own_biarn",
        ),
        ("--cross-attention own_segments --segment-size 0", "--segment-size 0: expected 1 to"),
        (
            "--encoder-self-attention-mixture own_matrices --rsa-heads 1",
            "--rsa-heads 1: six numbers",
        ),
    ],
)
def test_its_options_are_checked(
    flags: str, said: str, plugin: Path, make_model: Callable[..., torch.nn.Module]
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_model(*HOST, *flags.split())
    assert said in str(caught.value)


def command(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run fairseq-recur in a new process, which has not imported the package."""
    return subprocess.run(
        [sys.executable, "-m", "fairseq_recur", *map(str, arguments)], capture_output=True,
        text=True, **options,
    )  # fmt: skip


def test_the_commands_that_the_page_names_can_load_it() -> None:
    page = Path(__file__).parents[2] / "docs" / "extending.md"
    (named,) = re.findall(
        r"plug-in: fairseq's own, (.*?) and `plan`\. An\s", page.read_text("utf-8"), re.S
    )
    having = set()
    for name in OWN_COMMANDS:
        leaf: Any = build_parser(only=name)
        for word in name.split():
            leaf = leaf._subparsers._group_actions[0].choices[word]
        having |= {name} if "--user-dir" in leaf._option_string_actions else set()
    assert having == {"plan", *re.findall("`(.*?)`", named)}


def test_commands_load_it(plugin: Path, corpus: Path, tmp_path: Path, cli: Cli) -> None:
    """In a process of their own: decoding, and the plan of a training."""
    cli(
        "train", corpus / "bin", "--user-dir", plugin, "--arch", *HOST[:-1], "scaled", *TRAIN,
        "--max-update", 1, "--disable-validation", "--save-dir", tmp_path,
    )  # fmt: skip
    translate = ["translate", tmp_path, "--data", corpus / "bin", "--cpu"]
    done = command(*translate, "--user-dir", plugin, input="w1 w2\nw3\n")
    assert done.returncode == 0 and done.stdout.count("\n") == 2, done.stderr
    planned = ["plan", "--arch", HOST[0], "--gpu", "t4"]
    done = command(*planned, f"--user-dir={plugin}", "--", "--recurrence", "scaled")
    assert done.returncode == 0, done.stderr


def test_an_experiment_loads_it(plugin: Path, corpus: Path, tmp_path: Path) -> None:
    """A key names its folder, relative to the file; every command gets it."""
    flags = {"arch": HOST[0], "recurrence": "scaled", "own-scale": 2, "cpu": True}
    given = {
        "title": "own parts", "data": str(corpus / "bin"), "source": "src", "target": "tgt",
        "baseline": "plain", "user_dir": plugin.name, "checkpoint": "last",
        "train": {"optimizer": "adam", "max-tokens": 400, "max-update": 1},
        "score": {"reference": str(corpus / "test.tgt"), "metrics": ["bleu"]},
        "systems": {"plain": {"flags": {**flags, "own-scale": 1}}, "own": {"flags": flags}},
    }  # fmt: skip
    file = plugin.parent / "t.yaml"
    file.write_text(yaml.safe_dump(given))
    work = ["--work-dir", tmp_path / "work"]
    done = command("experiment", "run", file, *work, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f" --user-dir {plugin} ") == 4  # train and generate, twice
    with pytest.raises(ConfigError, match="train.user-dir: user_dir is a key of the experiment"):
        read_experiment([file], ["train.user-dir=x"])
