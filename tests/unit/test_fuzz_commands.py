"""Every flag and argument of every ``fairseq-recur`` command, with hostile values.

The flags are read from the parsers, so that new flags and commands are tested too.
"""

import argparse
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairseq_recur.cli import build_parser, fairseq_commands, main
from tests import series
from tests.conftest import SMALL
from tests.freeze import FOLDER, files
from tests.fuzzing import HOSTILE, SMALL_LM, TooLong, flag, lines_of, within
from tests.running import run_command
from tests.unit.test_cli_main import root_logger  # noqa: F401  (used by every test)
from tests.unit.test_experiments import content
from tests.unit.test_plot_curves import JSON, write

Leaf = tuple[str, ...]
"""The words of a command: ("probe", "make")."""


def leaves(
    parser: argparse.ArgumentParser, words: Leaf = ()
) -> Iterator[tuple[Leaf, argparse.ArgumentParser]]:
    """The commands of a parser that have no subcommands."""
    below = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not below:
        yield words, parser
    for action in below:
        for name, command in action.choices.items():
            if words or name not in fairseq_commands.COMMANDS:
                yield from leaves(command, (*words, *name.split()))


COMMANDS: dict[Leaf, argparse.ArgumentParser] = dict(leaves(build_parser()))
del COMMANDS[("summarize",)]  # the parser of translate


def table(folder: Path, corpus: Path) -> dict[str, Any]:
    """The settings of a valid experiment."""
    sizes = dict(zip((name[2:] for name in SMALL[::2]), map(int, SMALL[1::2])))
    train = {"arch": "transformer", "cpu": True, "optimizer": "adam", "lr": 0.1, "max-epoch": 2}
    return {
        "data": str(corpus / "bin"), "source": "src", "target": "tgt", "checkpoint": "last",
        "train": {**train, "max-tokens": 400, **sizes},
        "score": {"reference": str(corpus / "test.tgt")},
        "systems": {"a": {"flags": {}}, "b": {"flags": {"arch": "transformer_biarn"}}},
    }  # fmt: skip


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    """A folder with the files that the commands read."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "text").write_text("".join(f"a b c w{i} d e f g\n" for i in range(30)))
    (folder / "line").write_text("w1 w2\n")
    for name in ("bin", "test.tgt"):
        (folder / name).symlink_to(corpus / name)
    write(folder / "log", JSON)
    (folder / "table.yaml").write_text(yaml.safe_dump({**content(), **table(folder, corpus)}))
    (folder / "out.csv").write_text("window,date,a,a actual\n0,1/1/2010 0:00,1,2\n")
    train = series.flags(series.write_series(folder / "series.csv"), "--arch", "rsa_informer")
    save = ["--max-update", 1, "--disable-validation", "--save-dir", folder / "forecaster"]
    run_command("train", *train, *save)
    make = "probe make text --output tasks --tasks Length --sizes 4 2 2 --bins 8-8 9-9"
    (folder / "text9").write_text("".join(f"a b c w{i} d e f g h\n" for i in range(30)))
    (folder / "words").write_text((folder / "text").read_text() + (folder / "text9").read_text())
    here = os.getcwd()
    os.chdir(folder)
    try:
        assert main(make.replace(" text ", " words ").split()) == 0
    finally:
        os.chdir(here)
    return folder


def usual(folder: Path) -> dict[Leaf, dict[str, list[str]]]:
    """A valid command line of each command: {flag or name of an argument: values}."""
    model = str(files("rsa_transformer")["checkpoint"])
    text, log = str(folder / "words"), str(folder / "log")
    biarn = str(files("transformer_biarn")["checkpoint"])
    scored = {"--reference": [text], "--system": [f"a={text}"]}
    return {
        ("check",): {},
        ("path",): {},
        ("average",): {"--inputs": [model], "--output": ["out.pt"]},
        ("convert",): {"--input": [str(files("t5_small")["checkpoint"])], "--output": ["out"]},
        ("export",): {"--input": [model], "--output": ["out"], "--data": [str(FOLDER)]},
        ("score",): scored,
        ("compare",): {**scored, "--baseline": [f"b={text}"], "--samples": ["5"]},
        ("plot", "curves"): {"files": [log], "--output": ["out.png"]},
        ("plot", "checkpoint"): {"files": [model], "--output": ["out.png"]},
        ("plot", "attention"): {
            "checkpoint": [biarn], "--data": [str(FOLDER)], "--source": ["w1 w2"],
            "--output": ["out.png"], "--max-len-b": ["3"],
        },
        ("plot", "forecast"): {"file": [str(folder / "out.csv")], "--output": ["out.png"]},
        ("plot", "recurrence"): {
            "file": [text], "--output": ["out.png"], "--lags": ["20"],
        },
        ("forecast",): {
            "checkpoint": [str(folder / "forecaster" / "checkpoint_last.pt")],
            "--output": ["forecasts.csv"], "--cpu": [],
        },
        ("probe", "make"): {
            "corpus": [text], "--output": ["out"], "--sizes": ["4", "2", "2"],
            "--bins": ["8-8", "9-9"], "--tasks": ["Length"],
        },
        ("probe", "run"): {
            "folder": [str(folder / "tasks")], "--path": [biarn], "--data": [str(FOLDER)],
            "--runs": ["1"], "--hidden": ["0"], "--max-epochs": ["1"], "--cpu": [],
            "--l2": ["0"], "--dropout": ["0"],
        },
        ("experiment", "run"): {
            "files": [str(folder / "table.yaml")], "--work-dir": ["out"], "--dry-run": []
        },
        ("experiment", "new"): {
            "file": ["new.yaml"], "--data": [str(folder / "bin")], "--source-lang": ["src"],
            "--target-lang": ["tgt"], "--reference": [str(folder / "test.tgt")],
        },
        ("translate",): {
            "checkpoint": [biarn], "file": [str(folder / "line")], "--data": [str(FOLDER)],
            "--max-len-b": ["3"], "--cpu": [],
        },
        ("experiment", "score"): {"work_dir": ["out"], "--test": ["a", str(folder / "test")]},
        ("experiment", "status"): {"work_dir": ["out"]},
        ("experiment", "stop"): {"work_dir": ["out"]},
        ("plan",): {
            "--arch": ["rsa_transformer_lm"], "--gpu": ["t4"], "--vocabulary": ["30"],
            "--lengths": ["5", "5"], "--longest": ["50"], "--max-tokens": ["100"],
            "flags": SMALL_LM,
        },
    }  # fmt: skip


def line(command: Leaf, folder: Path, name: str, words: list[str]) -> list[str]:
    """The valid command line with other words for one of its flags, or one of its arguments."""
    given = usual(folder)[command]
    flags = [w for k, v in given.items() if k.startswith("-") and k != name for w in (k, *v)]
    if name.startswith("-"):
        flags += words
    else:
        given[name] = words
    places = [a.dest for a in actions(command) if not a.option_strings]
    rest = [word for place in places for word in given.get(place, [])]
    return [*command, *flags, *["--"] * bool(rest), *rest]


FETCHED = {"spm", "flores101", "flores200", "spBLEU-1K", "comet", "gpt2", "bert", "hf_byte_bpe"}
FETCHED |= {"nltk"}
"""Choices that download something."""


def hostile(action: argparse.Action) -> Iterator[tuple[str, list[str]]]:
    """The name of a flag or an argument, with hostile words for it."""
    if not action.option_strings:
        for value in HOSTILE:
            yield action.dest, [value]
    else:
        for words in lines_of(action):
            if words[0].split("=")[-1] not in FETCHED:
                yield flag(action), words


def actions(command: Leaf) -> list[argparse.Action]:
    """The flags and arguments of a command, except --help."""
    return [a for a in COMMANDS[command]._actions if a.dest != "help"]


def run(command: Leaf, folder: Path, name: str, words: list[str], where: Path,
        capfd: pytest.CaptureFixture[str]) -> str:  # fmt: skip
    """Run a command line in an empty folder.

    Returns:
        "done", or the one error that it printed; after an error the folder must be empty
    """
    where.mkdir()
    before = os.getcwd()
    os.chdir(where)
    argv = line(command, folder, name, words)
    try:
        with within(30):
            status = main(argv)
    except SystemExit as left:
        status = left.code
    finally:
        os.chdir(before)
    told = capfd.readouterr().err
    assert status in ((0, 1, 2) if command == ("check",) else (0, 2)), (argv, status)
    if status != 2:
        return "done"
    assert "error: " in told and "Traceback" not in told, (argv, told)
    value = "".join(words[-1:]).split("=")[-1]
    if value.startswith("${"):
        return told  # of fairseq's own making
    if any(value in (action.choices or ()) for action in actions(command)):
        return told  # a valid value that this folder or machine cannot serve
    absent = usual(folder)[command].get("work_dir", [])  # of an experiment
    names = [f"argument {a.metavar}" for a in actions(command) if a.dest == name]
    if name.startswith("-"):
        names = [name, name[2:].replace("-", "_")]
    values = [w for w in (value, repr(value)[1:-1], *value.split(",")) if w.strip()]
    named = [
        w for w in (*names, *values, *absent) if re.search(rf"(?<!\w){re.escape(w)}(?!\w)", told)
    ]
    assert named, (argv, told)
    assert not [p for p in where.rglob("*") if p.is_file()], argv
    return told


def test_every_command_is_fuzzed(inputs: Path) -> None:
    assert usual(inputs).keys() == COMMANDS.keys()
    for command, given in usual(inputs).items():
        names = {flag(a) or a.dest for a in actions(command)}
        assert given.keys() <= names, command


SLOW = [
    ("translate",),
    ("summarize",),
    ("plan",),
    ("probe", "run"),
    ("plot", "attention"),
    ("experiment", "run"),
]
"""Commands that take a second or more."""


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_usual_line_is_right(
    command: Leaf, inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """So that the error of another command line is caused by its hostile value."""
    if command in (("convert",), ("export",)):
        pytest.importorskip("safetensors")
    if command[0] == "plot":
        pytest.importorskip("matplotlib")
    came = run(command, inputs, "", [], tmp_path / "run", capfd)
    empty = [("experiment", action) for action in ("score", "status", "stop")]
    assert came == "done" or command in empty, came  # there is no experiment


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_with_hostile_values(
    command: Leaf, inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    turn = random.Random(" ".join(command))
    chosen = [turn.choice(list(hostile(a))) for a in actions(command) for _ in range(2)]
    few = 2 if command in SLOW or command[0] == "plot" else 5  # a figure takes a second
    chosen = turn.sample(chosen, min(few, len(chosen)))
    for number, (name, words) in enumerate(chosen):
        run(command, inputs, name, words, tmp_path / str(number), capfd)


@pytest.mark.slow  # minutes per command; only every eighth value of slow commands
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_with_all_hostile_values(
    command: Leaf, inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong = []
    for action in actions(command):
        chosen = list(hostile(action))[:: 8 if command in SLOW else 1]
        for number, (name, words) in enumerate(chosen):
            try:
                run(command, inputs, name, words, tmp_path / f"{action.dest}{number}", capfd)
            except (Exception, TooLong) as error:
                wrong.append(f"{name} {words}: {type(error).__name__}: {error}"[:400])
    assert not wrong, "\n".join(wrong)
