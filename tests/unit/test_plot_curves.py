"""Reading training logs, and drawing curves from them."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from fairseq_recur.cli import main
from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.training_log import TrainingLog, read_log
from fairseq_recur.plotting.curves import choose_panels, draw
from fairseq_recur.plotting.figures import ranges
from tests.unit.test_cli_main import root_logger  # noqa: F401  (used by every test)

# The same training in fairseq's log formats: two epochs of four updates, a step logged
# every two, validation after each epoch on two subsets.
JSON = [
    'train_inner | {"epoch": 1, "update": 0.5, "loss": "8", "num_updates": "2", "wall": "10"}',
    'train_inner | {"epoch": 1, "update": 1.0, "loss": "6", "num_updates": "4", "wall": "20"}',
    'valid | {"epoch": 1, "valid_loss": "5.5", "valid_bleu": "1.5", "valid_num_updates": "4"}',
    'dev_2 | {"epoch": 1, "dev_2_loss": "5", "dev_2_num_updates": "4"}',
    'train | {"epoch": 1, "train_loss": "7", "train_num_updates": "4", "train_wall": "24"}',
    'train_inner | {"epoch": 2, "update": 1.5, "loss": "4", "num_updates": "6", "wall": "34"}',
    'train_inner | {"epoch": 2, "update": 2.0, "loss": "3", "num_updates": "8", "wall": "44"}',
    'valid | {"epoch": 2, "valid_loss": "2.5", "valid_bleu": "9", "valid_num_updates": "8"}',
    'dev_2 | {"epoch": 2, "dev_2_loss": "2", "dev_2_num_updates": "8"}',
    'train | {"epoch": 2, "train_loss": "3.5", "train_num_updates": "8", "train_wall": "48"}',
]
SIMPLE = [
    "train_inner | epoch 001:      2 / 4 loss=8, num_updates=2, wall=10",
    "train_inner | epoch 001:      4 / 4 loss=6, num_updates=4, wall=20",
    "valid | epoch 001 | valid on 'valid' subset | loss 5.5 | bleu 1.5 | num_updates 4",
    "dev_2 | epoch 001 | valid on 'dev_2' subset | loss 5 | num_updates 4",
    "train | epoch 001 | loss 7 | num_updates 4 | wall 24",
    "train_inner | epoch 002:      2 / 4 loss=4, num_updates=6, wall=34",
    "train_inner | epoch 002:      4 / 4 loss=3, num_updates=8, wall=44",
    "valid | epoch 002 | valid on 'valid' subset | loss 2.5 | bleu 9 | num_updates 8",
    "dev_2 | epoch 002 | valid on 'dev_2' subset | loss 2 | num_updates 8",
    "train | epoch 002 | loss 3.5 | num_updates 8 | wall 48",
]
OTHER = [
    "INFO | fairseq_cli.train | end of epoch 1 (average epoch stats below)",
    'INFO | fairseq_cli.train | {"_name": null, "common": {"seed": 1}}',
    "Traceback (most recent call last):",
    "{ not json",
    "",
]


def write(path: Path, lines: list[str], prefix: str = "2026-01-31 12:00:00 | INFO | ") -> Path:
    """A log as on stdout; without a prefix as --log-file writes it."""
    if not prefix:
        lines = [line.split(" | ", 1)[1] for line in lines]
    path.write_text("".join(f"{line}\n" for line in OTHER + [prefix + line for line in lines]))
    return path


def test_the_time_is_that_of_the_later_line(tmp_path: Path) -> None:
    """A training that was interrupted does some updates twice, and its clock begins anew."""
    log = read_log(write(tmp_path / "log", [*JSON[:2], *JSON[:2]]))
    assert log.timeline == [(2, 0.5, 30.0), (4, 1.0, 40.0)]


def test_a_clock_that_stands_still_gives_no_time(tmp_path: Path) -> None:
    """As fairseq's does after a resume within an epoch."""
    standing = [re.sub('"wall": "[0-9.]+"', '"wall": "0"', line) for line in JSON[2:]]
    log = read_log(write(tmp_path / "log", [*JSON[:2], *standing]))
    assert [log.position(n, "seconds") for n in (2, 4, 6, 8)] == [10, 20, None, None]
    later = [line.replace('"num_updates": "', '"num_updates": "1') for line in JSON[5:7]]
    again = read_log(write(tmp_path / "again", [*JSON[:2], *standing, *later]))
    assert [again.position(n, "seconds") for n in (4, 16, 18)] == [20, None, None]
    with pytest.raises(ConfigError, match="does not record the seconds; use --x updates"):
        draw([("a", log)], {"loss": ["train_loss"]}, "seconds")


FORMS: dict[str, tuple] = {
    "json": (JSON, "2026-01-31 12:00:00 | INFO | "),
    "simple": (SIMPLE, "2026-01-31 12:00:00 | INFO | "),
    "json file": (JSON, ""),
    "simple file": (SIMPLE, ""),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_log_gives_the_same_curves(tmp_path: Path, form: str) -> None:
    log = read_log(write(tmp_path / "log", *FORMS[form]))
    assert log.curve("train_loss") == [(2, 8.0), (4, 6.0), (6, 4.0), (8, 3.0)]
    assert log.curve("valid_loss") == [(4, 5.5), (8, 2.5)]
    assert log.curve("valid_bleu") == [(4, 1.5), (8, 9.0)]
    assert log.curve("dev_2_loss") == [(4, 5.0), (8, 2.0)]
    assert log.curve("valid_ppl") == log.curve("train_bleu") == log.curve("loss") == []
    assert [log.position(n, "updates") for n in (0, 4)] == [0, 4]
    # Between two lines of training, and past the last.
    assert [log.position(n, "epoch") for n in (0, 2, 3, 4, 8, 9)] == [0, 0.5, 0.75, 1, 2, 2]
    assert [log.position(n, "seconds") for n in (1, 4, 5)] == [5, 20, 27]


def test_the_means_of_epochs_that_the_parts_report(tmp_path: Path) -> None:
    lines = [
        f"train | epoch 00{n} | loss 7 | gate_encoder_10 {gate} | gate 1 | num_updates {4 * n}"
        for n, gate in ((1, 0.5), (2, 0.25))
    ]
    step = "train_inner | epoch 001:    2 / 4 loss=8, gate_encoder_10=0.9, num_updates=2"
    log = read_log(write(tmp_path / "log", [step, *lines]))
    assert log.of_layers() == {"gate_encoder_10": [(4, 0.5), (8, 0.25)]}
    log = read_log(write(tmp_path / "log", [step]))
    assert log.of_layers() == {}


def test_epochs_alone(tmp_path: Path) -> None:
    lines = [line for line in SIMPLE if not line.startswith("train_inner")]
    log = read_log(write(tmp_path / "log", lines))
    assert log.curve("train_loss") == [(4, 7.0), (8, 3.5)]
    assert [log.position(n, "epoch") for n in (4, 8)] == [1, 2]


def test_a_stop_within_an_epoch_is_not_its_end(tmp_path: Path) -> None:
    """fairseq writes the summary of an epoch there, too, with the whole epoch's number."""
    steps = [
        f"train_inner | epoch 001:    {n} / 1000 loss=8, num_updates={n}, wall={n}"
        for n in (100, 200, 300, 400)
    ]
    early, stop, end = (
        f"train | epoch 001 | loss 7 | num_updates {n} | wall {n}" for n in (50, 250, 1000)
    )
    valid = ["valid | epoch 001 | valid on 'valid' subset | loss 5 | num_updates 275"]
    log = read_log(write(tmp_path / "log", [*steps[:2], stop]))
    assert log.timeline == [(100, 0.1, 100.0), (200, 0.2, 200.0), (250, 0.25, 250.0)]
    log = read_log(write(tmp_path / "log", [*steps[:2], stop, *valid, *steps[2:]]))
    assert log.position(275, "epoch") == pytest.approx(0.275)
    log = read_log(write(tmp_path / "log", [early, *steps]))
    assert [line[0] for line in log.timeline] == [100, 200, 300, 400], "no step was before it"
    log = read_log(write(tmp_path / "log", [*steps[:3], end]))
    assert log.timeline[-1] == (1000, 1.0, 1000.0)


def test_what_was_done_again_after_an_interruption_counts(tmp_path: Path) -> None:
    again = [line.replace("loss=4", "loss=4.5") for line in SIMPLE[5:]]
    log = read_log(write(tmp_path / "log", SIMPLE[:6] + again))
    assert log.curve("train_loss") == [(2, 8.0), (4, 6.0), (6, 4.5), (8, 3.0)]


ODD = [
    'train_inner | {"epoch": 1, "update": 0.5, "loss": "8", "num_updates": "nan"}',
    'train_inner | {"epoch": 1, "update": 0.5, "loss": "8", "num_updates": Infinity}',
    'train_inner | {"epoch": {"a": 1}, "loss": "8", "num_updates": "3"}',
    'valid | {"epoch": "one", "valid_loss": "8", "valid_num_updates": "3"}',
    "train_inner | epoch 001:      1 / 0 loss=9, num_updates=3",
]


@pytest.mark.parametrize("line", ODD)
def test_a_line_that_is_only_similar_is_skipped(tmp_path: Path, line: str) -> None:
    assert read_log(write(tmp_path / "odd", [*JSON, line])) == read_log(write(tmp_path / "a", JSON))


def test_a_log_from_a_pipe(tmp_path: Path) -> None:
    file = Path(write(tmp_path / "a", JSON))
    os.mkfifo(pipe := tmp_path / "pipe")
    writer = Thread(target=pipe.write_bytes, args=[file.read_bytes()], daemon=True)
    writer.start()
    assert read_log(pipe) == read_log(file)
    writer.join()


def test_a_log_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no line of training or validation; expected"):
        read_log(write(tmp_path / "log", []))
    with pytest.raises(ConfigError, match="no such log"):
        read_log(tmp_path / "none")


def test_panels() -> None:
    log = TrainingLog(
        steps={1: {"loss": 1.0, "ppl": 2.0}}, valid={"valid": {1: {"loss": 1.0, "bleu": 1.0}}}
    )
    assert choose_panels([log], ["loss"]) == {"loss": ["train_loss", "valid_loss"]}
    assert choose_panels([log], ["valid_loss", "bleu", "loss"]) == {
        "loss": ["valid_loss", "train_loss"],
        "bleu": ["valid_bleu"],
    }
    with pytest.raises(
        ConfigError,
        match="no metric wer, cer in the logs; choose from those they have: train_loss, train_ppl",
    ):
        choose_panels([log], ["wer", "loss", "cer"])


def test_curves_labels_and_units(tmp_path: Path) -> None:
    lines = [line.replace('"valid_bleu"', '"valid_ppl": "4", "valid_bleu"') for line in JSON]
    runs = [(name, read_log(write(tmp_path / name, lines))) for name in ("one", "two")]
    figure = draw(runs, {"loss": ["train_loss", "valid_loss"], "bleu": ["valid_bleu"]}, "seconds")
    loss, bleu = figure.axes
    assert loss.get_xlabel() == bleu.get_xlabel() == "training time (seconds)"
    assert (loss.get_ylabel(), bleu.get_ylabel()) == ("loss (bits per target token)", "BLEU")
    errors = read_log(write(tmp_path / "errors", JSON))
    for drawn, label in (([errors], "loss"), ([runs[0][1], errors], "loss"),
                         ([runs[0][1]], "loss (bits per target token)")):  # fmt: skip
        figure = draw([("", log) for log in drawn], {"loss": ["valid_loss"]}, "updates")
        assert figure.axes[0].get_ylabel() == label, "a loss of tokens has a perplexity"
    labels = [text.get_text() for text in loss.get_legend().get_texts()]
    assert labels == ["one, training", "one, validation", "two, training", "two, validation"]
    training, validation, other, _ = loss.lines
    assert training.get_xydata().tolist() == [[10, 8], [20, 6], [34, 4], [44, 3]]
    assert validation.get_xydata().tolist() == [[20, 5.5], [44, 2.5]]
    assert training.get_color() == validation.get_color() != other.get_color()
    assert training.get_linestyle() != validation.get_linestyle()


def test_subsets_with_similar_names_have_their_own_labels() -> None:
    log = TrainingLog(valid={s: {1: {"loss": 1.0}} for s in ("valid", "valid_long")})
    log.timeline = [(1, 1.0, 1.0)]
    figure = draw([("one", log)], {"loss": ["valid_loss", "valid_long_loss"]}, "updates")
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels == ["one, validation", "one, valid_long"]


def test_the_command_draws_what_layers_log(tmp_path: Path) -> None:
    """In a process of its own, in which nothing is registered yet."""
    line = '{"epoch": 1, "update": 0.5, "loss": "8", "num_updates": "2", "gate_encoder_0": "0.3"}'
    log, output = write(tmp_path / "log", [f"train_inner | {line}"]), tmp_path / "gates.svg"
    words = ["plot", "curves", str(log), "--metric", "gate", "--output", str(output)]
    subprocess.run([sys.executable, "-m", "fairseq_recur", *words], check=True)
    assert output.read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize(
    "suffix, magic", [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")]
)
def test_figure_is_written(
    tmp_path: Path, suffix: str, magic: bytes, capsys: pytest.CaptureFixture
) -> None:
    logs = [str(write(tmp_path / name, JSON)) for name in ("a", "b")]
    output = tmp_path / f"figure{suffix}"
    assert (
        main(["plot", "curves", *logs, "--output", str(output), "--metric", "loss", "valid_bleu"])
        == 0
    )
    assert output.read_bytes().startswith(magic)
    assert capsys.readouterr().out == f"{output}\n"


def test_wrong_use_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    log = str(write(tmp_path / "log", [line for line in JSON if line.startswith("valid")]))
    output = ["--output", str(tmp_path / "a.png")]
    for arguments, message in (
        ([log, "--output", str(tmp_path / "a.gif")], "ends in .png, .pdf or .svg"),
        ([log, log, "--label", "one", *output], "1 --label for 2 files"),
        ([log, "--x", "seconds", *output], "does not record the seconds; use --x updates"),
        ([str(tmp_path / "none"), *output], "no such log"),
    ):
        assert main(["plot", "curves", *arguments]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "a.png").exists()


def test_everything_that_is_wrong_is_reported_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    files = [str(tmp_path / name) for name in ("one", "two")]
    words = [*files, "--label", "a", "--output", "a.gif"]
    assert main(["plot", "curves", *words]) == 2
    printed = capsys.readouterr().err
    for said in (*files, "1 --label for 2 files", "--output a.gif: expected"):
        assert said in printed
    log = TrainingLog(steps={1: {"loss": 1.0}}, valid={})
    with pytest.raises(ConfigError, match="one has no metric of bleu.*\n- two has no metric of bl"):
        draw([("one", log), ("two", log)], {"bleu": ["valid_bleu"]}, "updates")


def test_matplotlib_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    log = str(write(tmp_path / "log", JSON))
    assert main(["plot", "curves", log, "--output", str(tmp_path / "a.png")]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err


def test_a_run_has_its_colour_in_all_panels() -> None:
    """And a layer its line style; of a single run the layers have the colours."""
    names = [f"spike_decoder_{layer}" for layer in (0, 1)]
    steps = {update: {"loss": 1.0, **dict.fromkeys(names, 0.5)} for update in (1, 2)}
    log = TrainingLog(steps=steps, valid={})
    panels = choose_panels([log], ["loss", "spike"])
    loss, spikes = draw([("a", log), ("b", log)], panels, "updates").axes
    colours = [line.get_color() for line in loss.lines]
    assert len({*colours}) == 2
    assert [line.get_color() for line in spikes.lines] == [c for c in colours for _ in names]
    assert [line.get_linestyle() for line in spikes.lines] == ["-", "--"] * 2
    _, axes = draw([("a", log)], panels, "updates").axes
    assert len({line.get_color() for line in axes.lines}) == 2


def test_the_layers_of_one_run_can_be_told_apart() -> None:
    """Eight layers, more than there are colours, beside a run that has none."""
    names = [f"gate_{side}_{layer}" for side in ("decoder", "encoder") for layer in range(4)]
    plain = TrainingLog(steps={update: {"loss": 1.0} for update in (1, 2)}, valid={})
    steps = {update: {"loss": 1.0, **dict.fromkeys(names, 0.5)} for update in (1, 2)}
    log = TrainingLog(steps=steps, valid={})
    panels = choose_panels([plain, log], ["loss", "gate"])
    _, gates = draw([("a", plain), ("b", log)], panels, "updates").axes
    assert len({(line.get_color(), line.get_linestyle()) for line in gates.lines}) == len(names)


def test_a_single_value_has_no_error_bar() -> None:
    found = ranges([2.0, 5.0], [[1.0, 4.0], [5.0]])
    assert found is not None
    below, above = found
    assert (below[0], above[0]) == (1.0, 2.0)
    assert math.isnan(below[1]) and math.isnan(above[1])
    assert ranges([2.0, 5.0], [[2.0], [5.0]]) is None
