"""The recurrent parts in training logs, in TensorBoard, and in figures."""

import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from fairseq.logging import progress_bar

from fairseq_recur.cli import main
from fairseq_recur.experiments.training_log import TrainingLog, read_log
from fairseq_recur.modules.parts import quantities
from fairseq_recur.plotting.curves import choose_panels, draw
from tests.conftest import SEGMENTS, SMALL, TRAIN
from tests.running import USER_DIR, saved_weights

# Every kind of part that is monitored.
MODEL: list[str] = [
    "--arch", "srformer", *SMALL, *SEGMENTS, "--srformer-learned-mix",
    *"--recurrence biarn --recurrence-fusion gated_sum --recurrence-fused-layers all".split(),
    *"--encoder-self-attention rsa --decoder-self-attention rsa".split(),
]  # fmt: skip
SHOWN = [
    *(f"{name}_{side}_{i}" for name in ("gate", "rem") for side in ("encoder", "decoder")
      for i in (0, 1)),
    *(f"{name}_decoder_{i}" for name in ("spike", "membrane", "membrane_sd", "fusion_gate", "sigma")
      for i in (0, 1)),
    "recurrent_norm_recurrence_0", "saturation_recurrence_0",
    "step_distance_recurrence_0", "step_time",
]  # fmt: skip


class Run(NamedTuple):
    """A training: its log and its folder."""

    text: str
    log: TrainingLog
    folder: Path


@pytest.fixture(scope="module")
def run(
    tmp_path_factory: pytest.TempPathFactory, corpus: Path, cli: Callable[..., str]
) -> Callable[..., Run]:
    """Train the model with some flags."""

    def train(*flags: Any) -> Run:
        folder = tmp_path_factory.mktemp("run")
        text = cli(
            "train", corpus / "bin", "--user-dir", USER_DIR, *MODEL, *TRAIN, "--save-dir", folder,
            "--no-epoch-checkpoints", *flags,
        )  # fmt: skip
        (folder / "train.log").write_text(text)
        return Run(text, read_log(folder / "train.log"), folder)

    return train


DIVIDED = "--max-update 4 --update-freq 2 --validate-interval-updates 2".split()


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of TensorBoard's files."""
    return tmp_path_factory.mktemp("board")


@pytest.fixture(scope="module")
def watched(run: Callable[..., Run], board: Path) -> Run:
    """A training that is monitored at every second update, with validations in between."""
    progress_bar._tensorboard_writers.clear()  # of other trainings of this process
    flags = ["--log-format", "json", "--monitor-interval", 2, "--tensorboard-logdir", board]
    training = run(*DIVIDED, *flags)
    for writer in progress_bar._tensorboard_writers.values():
        writer.close()
    progress_bar._tensorboard_writers.clear()
    return training


def test_every_line_of_training_has_every_number(watched: Run) -> None:
    assert list(watched.log.steps) == [1, 2, 3, 4]
    for updates, line in watched.log.steps.items():
        for name in SHOWN:
            assert math.isfinite(line[name]), (updates, name)
    first, second, third, fourth = watched.log.steps.values()
    for name in ("rem_encoder_0", "rem_decoder_1", "recurrent_norm_recurrence_0"):
        # Parameters are read before updates 1 and 3.
        assert first[name] == second[name] and third[name] == fourth[name]
    assert len({line["membrane_decoder_0"] for line in (first, second, third)}) == 3
    mean = (first["step_time"] + second["step_time"]) / 2
    assert watched.log.epochs[2]["step_time"] == pytest.approx(mean, rel=0.02) and mean > 0
    assert 0 < first["spike_decoder_0"] < 1 and 0 < first["fusion_gate_decoder_1"] < 1
    assert first["gate_encoder_0"] == pytest.approx(0.2689, abs=1e-4)  # mu = -1, srformer's


def test_validation_has_none_of_it(watched: Run) -> None:
    assert len(watched.log.valid["valid"]) == 2
    for line in watched.log.valid["valid"].values():
        assert "loss" in line and not set(SHOWN) & set(line)


def test_training_is_the_same_without(watched: Run, run: Callable[..., Run]) -> None:
    off = run(*DIVIDED, "--log-format", "simple", "--monitor-interval", 0)
    assert not set(SHOWN) & {name for line in off.log.steps.values() for name in line}
    names = watched.folder / "checkpoint_last.pt", off.folder / "checkpoint_last.pt"
    one, other = (saved_weights(name) for name in names)
    assert one.keys() == other.keys() and len(one) > 50
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_half_precision_and_tqdm(watched: Run, run: Callable[..., Run]) -> None:
    half = run(
        "--max-update", 1, "--update-freq", 2, "--memory-efficient-fp16", "--log-format", "tqdm"
    )
    (line,) = half.log.epochs.values()
    first = watched.log.steps[1]
    for name in set(SHOWN) - {"step_time"}:
        assert line[name] == pytest.approx(first[name], rel=0.05, abs=0.02), name


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The curves in TensorBoard's files: records of length, checksum, message, checksum."""
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    curves: dict[str, list[tuple[int, float]]] = {}
    for file in folder.glob("events*"):
        data = file.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            event, data = Event.FromString(data[12 : 12 + length]), data[16 + length :]
            for value in event.summary.value:
                curves.setdefault(value.tag, []).append((event.step, value.simple_value))
    return curves


def test_tensorboard_has_what_the_log_has(watched: Run, board: Path) -> None:
    curves = events(board / "train_inner")
    for name in SHOWN:
        assert [step for step, _ in curves[name]] == [1, 2, 3, 4]
        values = [value for _, value in curves[name]]
        assert values == pytest.approx(
            [line[name] for line in watched.log.steps.values()], rel=1e-5
        )


def test_figures_of_several_runs(
    watched: Run, run: Callable[..., Run], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    stock = tmp_path / "stock.log"
    stock.write_text(
        "epoch 001:      1 / 4 loss=8, num_updates=1, wall=10\n"
        "epoch 001:      2 / 4 loss=7, num_updates=2, wall=20\n"
    )
    output = tmp_path / "parts.png"
    own = str(watched.folder / "train.log")
    command = ["plot", "curves", own, own, "--output", str(output)]
    command += ["--label", "a", "--label", "b", "--metric"]
    families = list(dict.fromkeys(name.rsplit("_", 2)[0] for name in SHOWN[:-1]))
    assert main([*command, "spike", "step_time"]) == 0
    assert output.read_bytes().startswith(b"\x89PNG")
    drawing = tmp_path / "parts.svg"
    assert main(["plot", "curves", own, "--metric", "spike", "--output", str(drawing)]) == 0
    assert "share of the accumulate-and-fire neurons" in drawing.read_text(), "the part's unit"
    panels = choose_panels([watched.log, watched.log], [*families, "step_time"])
    assert {name for names in panels.values() for name in names} == {f"train_{n}" for n in SHOWN}
    of_layers = ["train_membrane_decoder_0", "train_membrane_decoder_1"]
    assert choose_panels([watched.log], ["membrane"]) == {"membrane": of_layers}
    figure = draw([("a", watched.log), ("b", watched.log)], panels, "updates", quantities())
    assert len(figure.axes) == len(families) + 1 == 11
    assert all(axes.get_ylabel() not in panels for axes in figure.axes), "each axis has a unit"
    spike = next(axes for axes in figure.axes if "fire" in axes.get_ylabel())
    labels = [line.get_label() for line in spike.lines]
    assert labels == ["a, decoder 0", "a, decoder 1", "b, decoder 0", "b, decoder 1"]
    expected = [line["spike_decoder_1"] for line in watched.log.steps.values()]
    assert list(spike.lines[1].get_ydata()) == expected
    capsys.readouterr()

    assert main(["plot", "curves", str(stock), "--output", str(output), "--metric", "spike"]) == 2
    assert (
        "no metric spike in the logs; choose from those they have: train_loss, train_wall"
        in capsys.readouterr().err
    )
    assert (
        main(["plot", "curves", own, str(stock), "--output", str(output), "--metric", "spike"]) == 2
    )
    assert (
        "stock has no metric of spike; choose from train_loss, train_wall"
        in capsys.readouterr().err
    )
