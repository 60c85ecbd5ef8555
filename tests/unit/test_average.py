"""Averaging: the selection of checkpoints, their mean, and refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairseq_recur.cli import main
from fairseq_recur.cli.average import average_checkpoints, choose_inputs
from fairseq_recur.errors import CheckpointError, ConfigError
from fairseq_recur.loading.states import read_state


def write(path: Path, model: dict[str, torch.Tensor], **more: Any) -> Path:
    torch.save({"args": None, "cfg": {"model": {}}, "model": model, **more}, path)
    return path


def parameters(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    # Of very different sizes, so that a sum in a short type shows.
    weight = torch.randn(5, 7, generator=generator) * 10.0 ** torch.arange(-3, 4)
    return {"weight": weight.to(dtype), "counter": torch.tensor([3, 4])}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_mean_is_numpys(tmp_path: Path, dtype: torch.dtype) -> None:
    models = [parameters(seed, dtype) for seed in range(5)]
    files = [write(tmp_path / f"{i}.pt", model) for i, model in enumerate(models)]
    averaged = average_checkpoints(files)["model"]
    mean = np.mean([model["weight"].double().numpy() for model in models], axis=0)
    assert averaged["weight"].dtype == dtype
    torch.testing.assert_close(
        averaged["weight"], torch.from_numpy(mean).to(dtype), rtol=torch.finfo(dtype).eps, atol=0
    )
    assert averaged["counter"].tolist() == [3, 4]


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    """The file is no larger than the inputs, and what one of them has untied is averaged so."""
    files = []
    for seed in (1, 2, 3):
        table = torch.randn(3000, 8, generator=torch.Generator().manual_seed(seed))
        names = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "projection")
        tied = {name: table.detach() for name in names}
        tied |= {"square": table[:8], "turned": table[:8].t()}
        files.append(write(tmp_path / f"{seed}.pt", tied))
    state = average_checkpoints(files)
    torch.save(state, tmp_path / "average.pt")
    assert (tmp_path / "average.pt").stat().st_size < 1.2 * files[0].stat().st_size
    averaged = read_state(tmp_path / "average.pt")["model"]
    models = [read_state(file)["model"] for file in files]
    for name, tensor in averaged.items():
        expected = sum(model[name].double() for model in models) / 3
        torch.testing.assert_close(tensor, expected.float(), rtol=1e-6, atol=1e-7)
    assert averaged[names[0]].data_ptr() == averaged[names[2]].data_ptr()
    models[1]["projection"] = models[1]["projection"] + 3
    write(files[1], models[1])
    untied = average_checkpoints(files)["model"]
    torch.testing.assert_close(untied["projection"], averaged["projection"] + 1)
    assert torch.equal(untied[names[0]], averaged[names[0]])


@pytest.mark.parametrize("failed", [0, 1])
def test_weights_of_a_failed_training_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], failed: int
) -> None:
    models = [parameters(0), parameters(1)]
    models[failed]["weight"][0, 0] = float("nan")
    files = [str(write(tmp_path / f"{i}.pt", model)) for i, model in enumerate(models)]
    output = tmp_path / "average.pt"
    assert main(["average", "--inputs", *files, "--output", str(output)]) != 0
    assert f"{files[failed]}: its weight weight has NaN values" in capsys.readouterr().err
    assert not output.exists()


def test_the_rest_comes_from_the_first_without_its_optimizer(tmp_path: Path) -> None:
    files = [
        write(
            tmp_path / f"{i}.pt",
            parameters(i),
            last_optimizer_state={"state": i},
            optimizer_history=[{"num_updates": i}],
            extra_state={"epoch": i, "ema": parameters(i)},
        )
        for i in (7, 8)
    ]
    state = average_checkpoints(files)
    assert state["last_optimizer_state"] is None
    assert state["extra_state"] == {"epoch": 7, "averaged": {str(f): int(f.stem) for f in files}}
    assert state["optimizer_history"] == [{"num_updates": 7}]
    assert state["cfg"] == {"model": {}}


def test_a_memory_is_left_out(tmp_path: Path) -> None:
    """It is of the last batch, and its sizes differ; what has a similar name is a weight."""
    files = []
    for i in (1, 2):
        memory = {"decoder.memory.starts": torch.ones(i).long(), "memory.carried": torch.ones(i, 2)}
        weights = {f"decoder.memory.{n}": torch.ones(2) for n in ("gate", "states.weight")}
        files.append(write(tmp_path / f"{i}.pt", {**parameters(i), **weights, **memory}))
    averaged = average_checkpoints(files)["model"]
    assert averaged.keys() == {*parameters(1), *weights}


def test_newest_checkpoints_of_a_folder(tmp_path: Path) -> None:
    names = [f"checkpoint{e}.pt" for e in (1, 2, 9, 10, 11)]
    names += [f"checkpoint_{e}_{u}.pt" for e, u in ((1, 100), (2, 900), (10, 1000))]
    for name in [*names, "checkpoint_best.pt", "checkpoint_last.pt", "checkpoint12.pt.tmp"]:
        (tmp_path / name).touch()

    def chosen(*arguments: Any) -> list:
        return [path.name for path in choose_inputs([str(tmp_path)], *arguments)]

    assert chosen(3) == ["checkpoint11.pt", "checkpoint10.pt", "checkpoint9.pt"]
    assert chosen(2, False, 10) == ["checkpoint10.pt", "checkpoint9.pt"]
    assert chosen(2, True) == ["checkpoint_10_1000.pt", "checkpoint_2_900.pt"]
    assert chosen(2, True, 999) == ["checkpoint_2_900.pt", "checkpoint_1_100.pt"]
    said = "has 2 files checkpointE.pt up to 3; it contains .*9.* larger --checkpoint-upper-bound"
    with pytest.raises(ConfigError, match=said):
        chosen(3, False, 3)


@pytest.mark.parametrize(
    "names, options, message",
    [
        (["a.pt"], {"last": 1}, "select from a folder, but --inputs is .*; remove them"),
        (["a.pt", "."], {"last": 1}, "give only the folder"),
        (["a.pt", "b.pt"], {}, "no such checkpoint: .*b.pt"),
        (["nowhere"], {"last": 2}, "which does not exist"),
        (["."], {}, "--last N"),
        (["."], {"last": 0}, "--last N"),
        (["."], {"last": 1}, "0 files checkpointE.pt; it contains a.pt.* Name the files: --inputs"),
        (["of_updates"], {"last": 1}, "contains checkpoint_1_10.pt. For the .* add --updates"),
    ],
)
def test_options_that_contradict_each_other(
    names: list[str], options: dict[str, int], message: str, tmp_path: Path
) -> None:
    (tmp_path / "a.pt").touch()
    (tmp_path / "of_updates").mkdir()
    (tmp_path / "of_updates" / "checkpoint_1_10.pt").touch()
    with pytest.raises(ConfigError, match=message):
        choose_inputs([str(tmp_path / name) for name in names], **options)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda model: model.pop("weight"), "b.pt does not match .*a.pt: it lacks weight"),
        (lambda model: model.update(gate=torch.zeros(1)), "adds gate"),
        (
            lambda model: model.update(weight=torch.zeros(7, 5)),
            r"weight of shape \(7, 5\) instead of \(5, 7\)",
        ),
        (
            lambda model: model.update(counter=torch.tensor([3.0, 4.0])),
            "counter of type torch.float32 instead of torch.int64",
        ),
        (
            lambda model: model.update(counter=torch.tensor([3, 5])),
            "values of counter .* differ from those in .*a.pt",
        ),
    ],
)
def test_other_parameters_are_named(tmp_path: Path, change: Any, message: str) -> None:
    other = parameters(2)
    change(other)
    files = [write(tmp_path / "a.pt", parameters(1)), write(tmp_path / "b.pt", other)]
    with pytest.raises(CheckpointError, match=message):
        average_checkpoints(files)


@pytest.mark.parametrize(
    "inputs, output, message",
    [
        ("a.pt b.pt", "b.pt", "b.pt is one of the inputs; give another name"),
        ("a.pt b.pt", "link.pt", "link.pt is one of the inputs"),
        (". --last 1", "checkpoint7.pt", "checkpoint7.pt is one of the inputs"),
        ("a.pt b.pt", "checkpoint7.pt", "checkpoint7.pt exists, and a training may resume from"),
        ("a.pt b.pt", "checkpoint_7_90.pt", "give another name, such as average.pt"),
        ("a.pt b.pt", "checkpoint_last.pt", "but not from an average"),
        ("a.pt b.pt", "checkpoint_best.pt", "but not from an average"),
        ("a.pt b.pt", "checkpoint.best_bleu_27.310.pt", "but not from an average"),
    ],
)
def test_no_training_is_lost(
    inputs: str, output: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for name in {"a.pt", "b.pt", "checkpoint7.pt", output} - {"link.pt"}:
        write(tmp_path / name, parameters(1))
    (tmp_path / "link.pt").symlink_to("a.pt")
    before = (tmp_path / output).read_bytes()
    assert main(["average", "--inputs", *inputs.split(), "--output", output]) == 2
    assert message in capsys.readouterr().err
    assert (tmp_path / output).read_bytes() == before
    # A new file may have any name, and an earlier average is replaced.
    for free in ("checkpoint_8_99.pt", "checkpoint_avg.pt", "checkpoint_avg.pt"):
        assert main(["average", "--inputs", "a.pt", "--output", free]) == 0
