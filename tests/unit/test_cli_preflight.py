"""Missing input is reported before anything is loaded, in one message."""

import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy
import pytest
import torch
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder

from fairseq_recur.cli import main, option_check, preflight
from fairseq_recur.errors import ConfigError
from tests.conftest import PRESETS
from tests.unit.test_cli_main import root_logger  # noqa: F401  (used by every test)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder that looks like the output of preprocess."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("dict.en.txt", "dict.de.txt"):
        (folder / name).touch()
    for split in ("train", "valid", "test"):
        for language in ("en", "de"):
            write_binary(folder / f"{split}.en-de.{language}", [[3, 2], [2]])
    return folder


def write_binary(name: Path, sentences: list[list[int]]) -> None:
    """Write the two files of binary data as preprocess does."""
    builder = MMapIndexedDatasetBuilder(f"{name}.bin", dtype=numpy.uint16)
    for tokens in sentences:
        builder.add_item(torch.tensor(tokens))
    builder.finalize(f"{name}.idx")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    file = tmp_path / "checkpoint_best.pt"
    file.touch()
    return file


def error_of(arguments: list[object], capsys: pytest.CaptureFixture) -> str:
    """Run a command that must fail before it loads anything; return its message."""
    assert main([str(a) for a in arguments]) == 2
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == 1 and printed[0].startswith("fairseq-recur: error: ")
    return printed[0]


def passes(command: str, arguments: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run only the check, with valid arguments."""
    argv = [str(a) for a in arguments]
    monkeypatch.setattr("sys.argv", [command, *argv])
    preflight.check(command, argv)


TRAIN = ["--arch", "transformer_tiny", "--max-tokens", "10"]


def test_what_is_there_passes(
    data: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes("train", [data, *TRAIN], monkeypatch)
    other_way = ["-a", "transformer", "--batch-size=2", "-s", "de", "-t", "en"]
    passes("train", [data, *other_way], monkeypatch)
    passes("validate", [data, "--path", checkpoint, "--batch-size", "1"], monkeypatch)
    passes("generate", [data, "--path", f"{checkpoint}:{checkpoint}"], monkeypatch)
    passes("interactive", [data, "--path", checkpoint], monkeypatch)
    passes("interactive", [data, "--path", checkpoint, "--input", checkpoint], monkeypatch)


@pytest.mark.parametrize("flags", ["--arch {}", "-a {}", "--arch={}"])
def test_unknown_architecture(flags: str, data: Path, capsys: pytest.CaptureFixture) -> None:
    message = error_of(["train", data, *flags.format("transformer_tiy").split()], capsys)
    assert "unknown architecture 'transformer_tiy'; did you mean transformer_tiny" in message


def test_an_architecture_with_its_words_in_another_order() -> None:
    """The part begins some names, such as rsa_transformer, and ends others."""
    with pytest.raises(ConfigError, match="did you mean rsa_transformer_tiny[?]"):
        preflight.check_architecture(["--arch", "transformer_rsa_tiny"])


@pytest.mark.parametrize("name", PRESETS)
def test_misspelled_preset(name: str) -> None:
    wrong = name[:-3] + name[-2] + name[-3] + name[-1]  # two letters exchanged
    with pytest.raises(ConfigError, match=f"did you mean .*{name}"):
        preflight.check_architecture(["--arch", wrong])


def test_misspelled_option(data: Path, capsys: pytest.CaptureFixture) -> None:
    arguments = ["train", data, "-a", "transformer_biarn", "--max-tokens", 9]
    message = error_of([*arguments, "--recurrence-stepz", "3"], capsys)
    assert "train: unknown argument '--recurrence-stepz'; did you mean --recurrence-step" in message
    assert "unknown argument 'more'; remove it" in error_of([*arguments, "more"], capsys)


def test_what_must_be_given(data: Path, capsys: pytest.CaptureFixture) -> None:
    assert "train needs --arch NAME" in error_of(["train", data], capsys)
    assert "train needs a batch size" in error_of(["train", data, "-a", "transformer"], capsys)
    assert "generate needs --path" in error_of(["generate", data], capsys)
    with pytest.raises(SystemExit) as left:
        main(["train", *TRAIN])
    assert left.value.code == 2
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == 2 and "required: data" in printed[1]


def test_data_folder(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    absent, empty = tmp_path / "absent", tmp_path / "empty"
    empty.mkdir()
    assert f"no data folder {absent}" in error_of(["train", absent, *TRAIN], capsys)
    message = error_of(["train", empty, *TRAIN], capsys)
    assert "it contains no files" in message and "fairseq-recur preprocess" in message
    # A second shard of the training data.
    message = error_of(["train", f"{data}:{empty}", *TRAIN], capsys)
    assert f"no train.en-de.en.bin and .idx in {empty}" in message


@pytest.mark.parametrize(
    "removed, arguments, wanted",
    [
        ("dict.de.txt", ["train", *TRAIN], "no dict.de.txt in"),
        ("train.en-de.en.bin", ["train", *TRAIN], "no train.en-de.en.bin and .idx in"),
        ("valid.en-de.en.idx", ["train", *TRAIN], "no valid.en-de.en.bin and .idx in"),
        ("test.en-de.en.bin", ["generate", "--path", "CHECKPOINT"], "no test.en-de.en.bin"),
    ],
)
def test_incomplete_data(
    removed: str,
    arguments: list,
    wanted: str,
    data: Path,
    checkpoint: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    (data / removed).unlink()
    arguments = [str(checkpoint) if a == "CHECKPOINT" else a for a in arguments]
    message = error_of([arguments[0], data, *arguments[1:]], capsys)
    assert f"{wanted}" in message and "; it contains dict." in message


@pytest.mark.parametrize(
    "file, change, said",
    [
        ("train.en-de.en.idx", lambda found: b"", "en.idx: damaged: 0 bytes that are not an index"),
        ("train.en-de.de.idx", lambda found: found[:26], "de.idx: damaged: 26 bytes"),
        ("valid.en-de.en.idx", lambda found: found[:-8], "en.idx: damaged"),
        ("train.en-de.en.idx", lambda found: b"garbage" * 99, "en.idx: damaged"),
        ("train.en-de.en.bin", lambda found: b"", "en.bin: damaged: 0 bytes, but its index exp"),
        ("valid.en-de.de.bin", lambda found: found[:3], "de.bin: damaged: 3 bytes, but its index "),
        ("train.en-de.en.bin", lambda found: b"\x09" * 6, "en.bin: found the token number 2,313, "
         "but its dictionary has only 4 symbols"),
        ("dict.de.txt", lambda found: b"a 1\n\n", "dict.de.txt, line 2: '' is not a word"),
    ],
)  # fmt: skip
def test_damaged_data(
    file: str, change: Callable, said: str, data: Path, capsys: pytest.CaptureFixture
) -> None:
    (data / file).write_bytes(change((data / file).read_bytes()))
    assert said in error_of(["train", data, *TRAIN], capsys)


@pytest.mark.parametrize("task", ["language_modeling", "language_modeling_with_memory"])
def test_data_of_language_models(
    task: str, data: Path, checkpoint: Path, capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    arch = "transformer_lm" if task == "language_modeling" else "xl_lm_tiny"
    train = ["train", data, "--task", task, "--arch", arch, "--max-tokens", "10"]
    test = ["eval-lm", data, "--task", task, "--path", checkpoint]
    assert "no dict.txt in" in error_of(train, capsys)
    (data / "dict.txt").write_text("a 1\nb 1\n")
    for split in ("train", "valid", "test"):
        write_binary(data / split, [[4, 5, 2], [4, 2]])
    passes("train", train[1:], monkeypatch)
    passes("eval-lm", test[1:], monkeypatch)
    write_binary(data / "test", [])
    assert "test.idx" in error_of(test, capsys)
    write_binary(data / "valid", [[99, 2]])
    assert "valid.bin: found the token number 99, but its dictionary" in error_of(train, capsys)
    (data / "train.bin").write_bytes(b"x")
    assert "damaged" in error_of([*train, "--disable-validation"], capsys)


def test_sides_of_different_length(data: Path, capsys: pytest.CaptureFixture) -> None:
    write_binary(data / "train.en-de.de", [[2]])
    message = error_of(["train", data, *TRAIN], capsys)
    assert "train.en-de.en has 2 and" in message
    assert "train.en-de.de has 1 sentences, expected the same number" in message


def test_only_the_default_format_is_read(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for index in data.glob("*.idx"):
        index.write_bytes(b"TNTIDX\x00\x00")
    passes("train", [data, *TRAIN], monkeypatch)
    for text in ("train.en-de.en", "train.en-de.de", "valid.en-de.en", "valid.en-de.de"):
        (data / text).write_text("a\n")
    passes("train", [data, *TRAIN, "--dataset-impl", "raw"], monkeypatch)


def test_back_translation_has_no_pair_of_files(data: Path, tmp_path: Path) -> None:
    """It has no --source-lang either; its folder is checked."""
    args = Namespace(task="online_backtranslation", data=str(data))
    preflight.check_data("train", args)
    args.data = str(tmp_path / "none")
    with pytest.raises(ConfigError, match="no data folder"):
        preflight.check_data("train", args)


def test_languages_and_subsets_are_checked(
    data: Path, checkpoint: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no dict.fr.txt" in error_of(["train", data, *TRAIN, "-s", "fr", "-t", "de"], capsys)
    for flags in (["--train-subset", "x"], ["--valid-subset", "valid,x"]):
        assert "no x.en-de.en.bin" in error_of(["train", data, *TRAIN, *flags], capsys)
    flags = ["--path", checkpoint, "--gen-subset", "x"]
    assert "no x.en-de.en.bin" in error_of(["generate", data, *flags], capsys)
    passes("train", [data, *TRAIN, "--valid-subset", "x", "--disable-validation"], monkeypatch)


def test_checkpoints(data: Path, checkpoint: Path, capsys: pytest.CaptureFixture) -> None:
    folder = checkpoint.parent
    for path, wanted in (
        (folder / "x.pt", f"x.pt: no such file in {folder}; it contains checkpoint_best.pt"),
        (f"{checkpoint}:{folder / 'x.pt'}", "x.pt: no such file"),
        (folder, "this is a folder; it contains checkpoint_best.pt"),
        (folder / "none" / "x.pt", f"no folder {folder / 'none'}"),
    ):
        for command in ("generate", "interactive"):
            assert wanted in error_of([command, data, "--path", path], capsys)
    wanted = f"--finetune-from-model {folder / 'x.pt'}: no such file"
    assert wanted in error_of(
        ["train", data, *TRAIN, "--finetune-from-model", folder / "x.pt"], capsys
    )


def test_what_fairseq_would_ignore_is_refused(
    data: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(option_check, "find_spec", lambda name: None)
    words = ["train", data, *TRAIN, "--write-checkpoints-asynchronously"]
    assert "needs the package iopath, and none is installed" in error_of(words, capsys)
    words = ["interactive", data, "--path", checkpoint, "--lm-path", checkpoint]
    assert f"--lm-path {checkpoint}: interactive reads no language" in error_of(words, capsys)
    words = ["eval-lm", data, "--path", f"{checkpoint}:{checkpoint}"]
    assert "eval-lm reads one checkpoint; give one" in error_of(words, capsys)


def test_interactive_input(data: Path, checkpoint: Path, capsys: pytest.CaptureFixture) -> None:
    arguments = ["interactive", data, "--path", checkpoint, "--input", data / "none"]
    assert f"--input {data / 'none'}: no such file" in error_of(arguments, capsys)


def test_text_for_preprocess(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("train.en", "train.de", "valid.en", "a,b.en", "a,b.de"):
        (tmp_path / name).write_text("a\n")
    for name in ("empty.en", "empty.de"):
        (tmp_path / name).touch()
    new = ["--destdir", tmp_path / "new"]
    train, pair = ["--trainpref", tmp_path / "train"], ["-s", "en", "-t", "de"]
    passes("preprocess", [*pair, *train, *new], monkeypatch)
    passes("preprocess", ["-s", "en", "--only-source", *train, *new], monkeypatch)
    passes("preprocess", [*pair, *new, "--trainpref", tmp_path / "a,b"], monkeypatch)
    several = f"{tmp_path / 'train'},{tmp_path / 'train'}"
    dictionaries = ["--srcdict", data / "dict.en.txt", "--tgtdict", data / "dict.de.txt"]
    for arguments, wanted in (
        ([*train, *new], f"no file {tmp_path / 'train'} (name the languages with -s and -t)"),
        ([*pair, *train, *new, "--validpref", tmp_path / "valid"], "no file"),
        ([*pair, *new, "--trainpref", tmp_path / "x"], f"no file {tmp_path / 'x'}.en"),
        ([*pair, *new, "--trainpref", several], f"no file {several}.en"),
        ([*pair, *train, *new, "--joined-dictionary", *dictionaries], "remove one of the three"),
        ([*pair, *new], "no text to build dictionaries from"),
        ([*pair, *new, "--trainpref", tmp_path / "empty"], "empty.de: found no lines"),
        ([*pair, *train, *new, "--srcdict", "x.txt"], "--srcdict x.txt: no such file"),
        ([*pair, *train, "--destdir", data], f"{data / 'dict.en.txt'} exists already"),
        ([*pair, *train, *new, *dictionaries[:2]], "dict.en.txt: found no words; give the dict"),
        ([*pair, *train, *new, *dictionaries[2:]], f"--tgtdict {dictionaries[3]}: found no words"),
        ([*pair, *train, *new, "--workers", 0], "--workers 0: expected at least 1; leave it out"),
    ):
        assert wanted in error_of(["preprocess", *arguments], capsys)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "alignments, said",
    [
        ("0-0 1-2\n2-1\n", ""),
        ("0-0\n", "train.en has 2 and train.de has 2 and train.align has 1 lines; expected the"),
        ("0-0 2-0\n\n", "train.align, line 1: found '2-0', expected SOURCE-TARGET, numbers of"),
        ("\n0-3\n", "line 2: found '0-3'.*; line 2 of train.en and train.de has 3 and 2 words"),
        ("0-0\n0 0\n", "line 2: found '0', expected SOURCE-TARGET"),
    ],
)
def test_alignments_for_preprocess(
    alignments: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.en").write_text("a b\na b c\n")
    Path("train.de").write_text("x y z\nx y\n")
    Path("train.align").write_text(alignments)
    text = ["-s", "en", "-t", "de", "--trainpref", "train", "--destdir", "new"]
    for given in (["--align-suffix", "align"], ["--alignfile", "train.align"]):
        with pytest.raises(ConfigError, match=said) if said else nullcontext():
            passes("preprocess", [*text, *given], monkeypatch)
    with pytest.raises(ConfigError, match="--align-suffix x: expected a file train.x; correct"):
        passes("preprocess", [*text, "--align-suffix", "x"], monkeypatch)
    with pytest.raises(ConfigError, match="aligns both sides of --trainpref; give --trainpref"):
        given = ["--alignfile", "train.align", "--only-source"]
        passes("preprocess", [*text, *given], monkeypatch)


def test_a_validation_does_not_ignore_its_task(
    corpus: Path, stock_checkpoint: Path, capsys: pytest.CaptureFixture
) -> None:
    task = ["--task", "language_modeling", "--batch-size", 1, "--cpu"]
    arguments = ["validate", corpus / "bin", "--path", stock_checkpoint, *task]
    assert main([str(a) for a in arguments]) == 2
    said = f"{stock_checkpoint} was trained with --task translation, and only that task can"
    assert f"--task language_modeling: {said}" in capsys.readouterr().err


def test_hydra_data_folder_becomes_absolute(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data.parent)
    given = ["task.data=bin", "model=bin", "task.data=${env:DATA}", "+task.data='bin'"]
    expected = [f"task.data='{data}'", *given[1:3], f"+task.data='{data}'"]
    assert preflight.absolute_overrides(given) == expected
    with pytest.raises(ConfigError, match="task.data=none: no such data folder"):
        preflight.absolute_overrides(["task.data=none"])


@pytest.mark.parametrize(
    "name, said",
    [
        ("with:colon", "fairseq splits it at ':'; rename it"),
        ("with${x}", "${...} stands for another option; rename it"),
        ("with\udcff", "is not UTF-8; rename the file or folder"),
    ],
)
def test_names_that_fairseq_misreads(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture, name: str, said: str
) -> None:
    other = data.rename(tmp_path / name)
    assert said in error_of(["train", other, *TRAIN], capsys)
    (tmp_path / f"{name}.pt").touch()
    path = ["--path", tmp_path / f"{name}.pt"]
    assert said in error_of(["interactive", other.rename(data), *path], capsys)


def test_closed_standard_input(
    data: Path, checkpoint: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    said = error_of(["interactive", data, "--path", checkpoint], capsys)
    assert "standard input is closed" in said


def test_a_full_disk_has_one_message(
    stock_checkpoint: Path, tmp_path: Path, capfd: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """So has a checkpoint without what a command draws."""
    for arguments, said in (
        (["average", "--inputs", stock_checkpoint, "--output", "/dev/full"], "could not be writt"),
        (["plot", "checkpoint", stock_checkpoint, "--output", tmp_path / "a.png"], "has no recurr"),
    ):
        assert main([str(a) for a in arguments]) == 2
        printed = capfd.readouterr().err.splitlines()
        assert len(printed) == 1 and said in printed[0]
    code = "from fairseq_recur.cli import main; import sys; sys.exit(main(['path']))"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.argv = ['fairseq-recur']; {code}"],
            stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "No space left on device: the output; free some space" in done.stderr


@pytest.mark.parametrize("command", ["translate", "summarize"])
def test_a_text_from_closed_standard_input_is_refused(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert main([command, "folder"]) == 2
    assert "standard input, which is closed; name a text file" in capsys.readouterr().err
