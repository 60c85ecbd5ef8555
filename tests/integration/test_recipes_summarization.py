"""The summarization recipes from archives to results, on mirrors with little text."""

import json
import multiprocessing
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recipes import summarization
from recipes.subwords import SPIECE, SentencePieces
from recipes.summary_texts import one_line

from tests import huggingface
from tests.running import USER_DIR, programs_in, run_command, tree
from tests.summarization_mirror import COUNTS, MAKERS, SHAPE, Pairs, add_sums, make_mirror

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "examples" / "summarization"
NAMES = list(MAKERS)
ONE_FAST = [pytest.param(name, marks=[pytest.mark.slow] * (name != "xsum")) for name in NAMES]
BART, SCRATCH = "srformer_bart_base", "transformer_biarn"


class Mirror:
    """A mirror's folder, and its contents."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.pairs: Pairs = make_mirror(folder, name)


@pytest.fixture(scope="session")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Mirror]:
    """Make a data set's mirror, once."""
    made: dict[str, Mirror] = {}

    def make(name: str) -> Mirror:
        if name not in made:
            made[name] = Mirror(tmp_path_factory.mktemp("mirror") / name, name)
        return made[name]

    return make


def words(of: Mirror, work: Path, arch: str = SCRATCH, folder: Path | None = None) -> list[str]:
    options = {
        "recipe": RECIPES / of.name, "work-dir": work, "mirror": folder or of.folder,
        "arch": arch, "vocabulary": 300, "workers": 2,
        "settings": "scratch" if arch == SCRATCH else "paper",
    }  # fmt: skip
    return ["prepare", *(f"--{name}={value}" for name, value in options.items())]


def prepare(of: Mirror, work: Path, arch: str = SCRATCH, folder: Path | None = None) -> int:
    return summarization.main(words(of, work, arch, folder))


@pytest.fixture(scope="session")
def prepared(
    mirror: Callable[[str], Mirror], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """The folder, with blanks in its name, of a data set's preparation. Copy it to change it."""
    folders: dict[tuple[str, str], Path] = {}

    def make(name: str, arch: str = SCRATCH) -> Path:
        if (name, arch) not in folders:
            work = tmp_path_factory.mktemp("w o r k")
            assert prepare(mirror(name), work, arch) == 0
            folders[name, arch] = work
        return folders[name, arch]

    return make


def expected_source(name: str, text: str) -> str:
    """Return the expected form of a text, according to the formats' definitions."""
    if name == "mediasum":
        utterances = text.split(". ")
        return one_line(" ".join(f"SPEAKER {i % 2}, host: {u}" for i, u in enumerate(utterances)))
    if name == "arxiv":
        return one_line(" ".join(text.split(". ")))
    if name == "samsum":
        turns = [one_line(turn) for turn in text.replace(". ", ".\n").split("\n")]
        return " <n> ".join(filter(None, turns))
    if name == "qmsum":
        said = [f"Speaker {i % 2}: {turn}" for i, turn in enumerate(text.split(". "))]
        return one_line(f"What was said? </q> {' '.join(said)}")
    if name == "cnn_dm":
        paragraphs = text.replace(". ", ".\n\n").split("\n")
        lines = [one_line(line) for line in paragraphs if line.strip()]
        ends = tuple(".!?'`\")\u2019\u201d")
        return " ".join(line if line.endswith(ends) else f"{line} ." for line in lines)
    return one_line(text)


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_FAST)
def test_archives_become_lines(
    mirror: Callable[[str], Mirror], tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Every text is on the line of its summary, and fairseq counts the same number of them."""
    of = mirror(name)
    caplog.set_level("INFO")
    assert summarization.main([*words(of, tmp_path), "--download-only=1"]) == 0
    assert not (tmp_path / "text").exists()
    assert prepare(of, tmp_path) == 0
    for split, pairs in of.pairs.items():
        complete = [pair for pair in pairs if split != "train" or all(pair)]
        assert len(complete) == COUNTS[split] - 2 * (split == "train")
        found = [
            (tmp_path / "text" / f"{split}.{side}").read_text("utf-8").split("\n")[:-1]
            for side in ("source", "target")
        ]
        by_source = dict(zip(*found, strict=True))
        assert len(by_source) == len(complete)
        for text, summary in complete:
            line = by_source[expected_source(name, text)]
            assert line.startswith(one_line(summary))
        pieces = tmp_path / "sentencepiece-300-1024-128" / "pieces"
        model = SentencePieces(pieces.parent / "model" / SPIECE)
        encoded = (pieces / f"{split}.target").read_text("utf-8").split("\n")[:-1]
        decoded = [model.decode(line.split()) for line in encoded]
        assert len(decoded) == len(complete)
        if split != "train":  # not cut
            assert sum(a == b for a, b in zip(decoded, found[1])) >= len(complete) - 1
    assert f"train.source: {COUNTS['train'] - 2} sents" in caplog.text
    extracts = json.loads((tmp_path / "extracts" / "scores.json").read_text())
    kinds = ["lead", "longest"] if name == "samsum" else ["lead"]
    assert [extract.split("-")[0] for extract in extracts] == kinds


@pytest.mark.slow
def test_own_texts_replace_the_data_set(
    mirror: Callable[[str], Mirror], prepared: Callable[..., Path], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Nothing is downloaded, and what is prepared is what the data set gives."""
    of, texts = mirror("xsum"), tmp_path / "texts"
    shutil.copytree(prepared("xsum") / "text", texts)
    for side in ("source", "target"):
        train = (texts / f"train.{side}").read_text(encoding="utf-8")
        lines = [*train.split("\n"), ""]  # a pair of empty lines is left out
        (texts / f"train.{side}").write_bytes("\r\n".join(lines).encode("utf-8-sig"))
        (texts / f"valid.{side}").rename(texts / f"{'val' if side == 'source' else 'dev'}.{side}")
    options = [w for w in words(of, tmp_path / "second") if not w.startswith("--mirror")]
    assert summarization.main([*options, f"--texts={texts}"]) == 0
    first, second = tree(prepared("xsum")), tree(tmp_path / "second")
    assert {k: v for k, v in first.items() if ".key" not in k and "counts" not in k} == {
        k: v for k, v in second.items() if ".key" not in k and "counts" not in k
    }
    with open(texts / "dev.target", "a", encoding="utf-8") as file:
        file.write("one more\n")
    assert summarization.main([*options, f"--texts={texts}"]) == 2
    assert f"val.source ends after {COUNTS['valid']} lines" in capsys.readouterr().err
    (texts / "test.target").unlink()
    assert summarization.main([*options, f"--texts={texts}"]) == 2
    assert f"TEXTS={texts}: no test.target there" in capsys.readouterr().err


def test_pieces_of_other_data_are_taken(
    mirror: Callable[[str], Mirror], prepared: Callable[..., Path], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Data of other texts then has the same dictionary, so that a model can go on with it."""
    of, folder = mirror("xsum"), "sentencepiece-300-1024-128"
    first = prepared("xsum") / folder
    texts = tmp_path / "texts"
    texts.mkdir()
    for file in (prepared("xsum") / "text").glob("*.*e*"):
        lines = file.read_text(encoding="utf-8").split("\n")
        (texts / file.name).write_text("\n".join(lines[-9:]), encoding="utf-8")
    options = [*words(of, tmp_path / "second"), f"--texts={texts}"]
    assert summarization.main([*options, f"--pieces-from={first}"]) == 0
    second = tmp_path / "second" / folder
    for name in (f"model/{SPIECE}", "data-bin/dict.source.txt", "data-bin/dict.target.txt"):
        assert (first / name).read_bytes() == (second / name).read_bytes()
    assert (second / "pieces" / "train.source").read_text().count("\n") < COUNTS["train"] - 2
    trained = second.parent / "runs"  # by continued.sh
    trained.mkdir()
    capsys.readouterr()
    assert summarization.main(options) == 2, "with pieces of its own"
    assert f"made from other files, which {trained} was trained on" in capsys.readouterr().err
    assert (first / "model" / SPIECE).read_bytes() == (second / "model" / SPIECE).read_bytes()
    trained.rmdir()
    wrong = [*options, f"--pieces-from={texts}"]
    assert summarization.main(wrong) == 2
    said = capsys.readouterr().err
    assert f"there is no {texts}/model/{SPIECE}; expected a folder of prepared data" in said
    assert summarization.main([*wrong, "--pieces=gpt2"]) == 2
    assert "needs PIECES=sentencepiece, not gpt2" in capsys.readouterr().err


def prepare_until(opened: int, of: Mirror, work: Path, arch: str, count: Path) -> None:
    """Prepare, and be killed once this many files below the work folder have been opened."""
    seen, pid = 0, os.getpid()  # not of the processes that it starts

    def watch(event: str, arguments: Any) -> None:
        nonlocal seen
        ours = os.getpid() == pid and event == "open"
        if ours and str(arguments[0]).startswith(str(work)):
            seen += 1
            if seen > opened:
                os.kill(pid, signal.SIGKILL)

    sys.addaudithook(watch)
    status = prepare(of, work, arch)
    count.write_text(str(seen))
    os._exit(status)


def check_kills(of: Mirror, folder: Path, arch: str, kills: int) -> None:
    """A preparation killed again and again ends with the same files as an uninterrupted one."""

    def start(work: Path, opened: int) -> int:
        fork = multiprocessing.get_context("fork")
        process = fork.Process(
            target=prepare_until, args=(opened, of, work, arch, folder / "count")
        )
        process.start()
        process.join()
        assert process.exitcode is not None
        return process.exitcode

    whole, work, rng = folder / "whole", folder / "killed", random.Random(1)
    assert start(whole, 10**9) == 0
    files = int((folder / "count").read_text())
    for i in range(kills):  # each from where the last one came to
        found = start(work, rng.randrange(files // (2 if i % 2 else 5)))
        assert found in (0, -signal.SIGKILL)
        if i == 0:
            assert found == -signal.SIGKILL
    assert prepare(of, work, arch) == 0
    assert tree(work) == tree(whole)


@pytest.mark.slow
def test_a_killed_preparation_continues(mirror: Callable[[str], Mirror], tmp_path: Path) -> None:
    check_kills(mirror("xsum"), tmp_path, SCRATCH, kills=3)


@pytest.mark.slow
@pytest.mark.parametrize("arch", [SCRATCH, BART])
@pytest.mark.parametrize("name", NAMES)
def test_a_preparation_that_is_killed_often_continues(
    mirror: Callable[[str], Mirror], tmp_path: Path, name: str, arch: str
) -> None:
    check_kills(mirror(name), tmp_path, arch, kills=20)


@pytest.mark.parametrize("name", ONE_FAST)
def test_a_wrong_archive_is_named(
    mirror: Callable[[str], Mirror], prepared: Callable[..., Path], tmp_path: Path, name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """By its checksum; where nobody knows that, by what is in it. Then nothing is left behind."""
    of, folder, work = mirror(name), tmp_path / "mirror", tmp_path / "work"
    shutil.copytree(of.folder, folder)
    file = max(
        (f for f in folder.iterdir() if f.name not in ("bart.base.tar.gz", "SHA256SUMS")),
        key=lambda f: f.stat().st_size,
    )
    content = file.read_bytes()
    file.write_bytes(content[: len(content) * 2 // 3])
    assert prepare(of, work, SCRATCH, folder) == 2
    assert f"{file} is truncated or a different file: sha256" in capsys.readouterr().err
    add_sums(folder)
    assert prepare(of, work, SCRATCH, folder) == 2
    error = capsys.readouterr().err
    assert str(file) in error and "truncated" in error
    assert not (work / "text").exists()
    file.write_bytes(content)
    add_sums(folder)
    assert prepare(of, work, SCRATCH, folder) == 0
    assert tree(work) == tree(prepared(name))


def test_other_numbers_than_the_real_ones_are_refused(
    mirror: Callable[[str], Mirror], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Without SHA256SUMS a mirror has what is described: the whole set."""
    of, folder = mirror("mediasum"), tmp_path / "mirror"
    shutil.copytree(of.folder, folder)
    (folder / "SHA256SUMS").unlink()
    monkeypatch.setattr("recipes.summary_prepare.need_space", lambda *args: None)
    assert prepare(of, tmp_path / "work", SCRATCH, folder) == 2
    assert "train has 60 documents, expected 443,596" in capsys.readouterr().err


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    return programs_in(tmp_path / "programs")


def copy_of_the_project(root: Path) -> Path:
    """The scripts and recipes without a separate environment."""
    (root / "examples").mkdir(parents=True)
    ignored = shutil.ignore_patterns("work", "data", "results")
    shutil.copytree(RECIPES, root / "examples" / "summarization", ignore=ignored)
    shutil.copytree(ROOT / "scripts", root / "scripts")
    return root


def run(root: Path, programs: Path | None, script: str, *flags: str, **variables: Any) -> str:
    """Run a script of a recipe; return its output, with the status in the last line."""
    path = os.pathsep.join([*([str(programs)] if programs else []), "/usr/bin", "/bin"])
    environment = {
        "PATH": path, "HOME": str(root), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
        "GPUS": "0", "WORKERS": "1", "VOCABULARY": "300",
        "SETTINGS": "scratch" if variables.get("ARCH") == SCRATCH else "paper",
        **{name: str(value) for name, value in variables.items()},
    }  # fmt: skip
    done = subprocess.run(
        ["bash", str(root / "examples" / "summarization" / script), *flags], env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, cwd=root,
    )  # fmt: skip
    return f"{done.stdout}\nstatus {done.returncode}"


TRAINING = (
    *SHAPE, "--max-update", "4", "--num-workers", "0", "--log-interval", "1",
    "--log-format", "simple",
)  # fmt: skip
SEARCH = ("--max-len-b", "8", "--min-len", "1", "--num-workers", "0")


def end_to_end(root: Path, programs: Path, of: Mirror, **variables: Any) -> dict[str, Any]:
    """Prepare, train and evaluate; return the contents of results.json."""
    work = root / "w o r k"
    common = {"SUMMARIZATION_MIRROR": of.folder, "WORK": work, **variables}
    outputs = {}
    for script, flags in (("prepare", ()), ("train", TRAINING), ("evaluate", SEARCH)):
        output = run(root, programs, f"{of.name}/{script}.sh", *flags, **common)
        assert output.endswith("status 0"), output[-5000:]
        outputs[script] = output
    (file,) = work.glob("*/runs/*/results.json")
    return {**json.loads(file.read_text()), "folder": file.parent, "outputs": outputs}


def check_results(results: dict[str, Any], of: Mirror, arch: str) -> None:
    assert (results["data"], results["arch"]) == (of.name, arch)
    assert [score["metric"] for score in results["scores"]] == [
        "rouge1", "rouge2", "rougeL", "rougeLsum",
    ]  # fmt: skip
    assert all(0 <= score["score"] <= 100 for score in results["scores"])
    lines = (results["folder"] / "test.txt").read_text("utf-8").split("\n")
    assert len(lines) == COUNTS["test"] + 1
    log = (results["folder"] / "train.log").read_text()
    assert "num_updates 4 |" in log


def plan(of: Mirror, work: Path, command: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The arguments of a script, one per line."""
    capsys.readouterr()
    assert summarization.main([command, *words(of, work, BART)[1:]]) == 0
    return capsys.readouterr().out.split("\n")[:-1]


@pytest.mark.slow
def test_from_archives_to_results(
    mirror: Callable[[str], Mirror], prepared: Callable[..., Path], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """SRformer from BART's weights on CNN/DailyMail, with the paper's settings, in this process."""
    of = mirror("cnn_dm")
    shutil.copytree(prepared("cnn_dm", BART), tmp_path, dirs_exist_ok=True)
    data, folder, unit, size, longest, _, *flags = plan(of, tmp_path, "train", capsys)
    assert (unit, size, longest) == ("documents", "8", "1024")
    flags += ["--user-dir", USER_DIR, "--optimizer", "adam", "--max-sentences", size, "--cpu"]
    Path(folder).mkdir(parents=True)
    log = run_command("train", data, *flags, *TRAINING, "--log-file", f"{folder}/train.log")
    assert "lr=4.975e-05" in log and "embedding of <mask>" in log
    search = " ".join([*SEARCH, "--cpu", "--max-tokens", "9999"])
    options = [*words(of, tmp_path, BART)[1:], f"--search={search}"]
    assert summarization.main(["evaluate", *options]) == 0
    results = json.loads((Path(folder) / "results.json").read_text())
    check_results({**results, "folder": Path(folder)}, of, BART)
    assert summarization.main(["evaluate", *options, "--baseline", "other"]) == 2
    assert "BASELINE=other: no test.txt there" in capsys.readouterr().err


@pytest.mark.slow
def test_the_script_starts_the_launcher(
    prepared: Callable[..., Path], tmp_path: Path, programs: Path
) -> None:
    """With the paper's 8 documents divided among the processes; printing leaves nothing behind.

    A step holds the longest text.
    """
    root = copy_of_the_project(tmp_path / "project")
    work = root / "w o r k"
    shutil.copytree(prepared("cnn_dm", BART), work)
    common: dict[str, Any] = {"WORK": work, "PRINT": 1}
    output = run(root, programs, "cnn_dm/train.sh", "--dropout", "0.2", PROCESSES=2, **common)
    assert output.endswith("status 0"), output
    (command,) = [line for line in output.split("\n") if " -m fairseq_recur train " in line]
    words_ = shlex.split(command)
    for flag, value in (("--max-sentences", "4"), ("--max-tokens", "4096"), ("--update-freq", "1"),
                        ("--nproc_per_node", "2"), ("--arch", BART)):  # fmt: skip
        assert words_[words_.index(flag) + 1] == value
    assert str(work / "gpt2-1024-128" / "data-bin") in words_ and words_.count("0.2") == 1
    assert not (work / "gpt2-1024-128" / "runs").exists()
    scratch = {**common, "ARCH": "transformer", "PIECES": "gpt2", "START": "none"}
    for longer in ("MAX_SOURCE", "MAX_TARGET"):
        output = run(root, programs, "cnn_dm/train.sh", GPUS=0, **scratch, **{longer: 4096})
        words_ = shlex.split(output)
        assert words_[words_.index("--max-tokens") + 1] == str(8 * 4096), output


@pytest.mark.parametrize(
    "given, found",
    [
        ({}, ("16", "98304", "1")),
        ({"MAX_TOKENS": 24576}, ("4", "24576", "4")),  # the command of ectsum's page
        ({"MAX_TOKENS": 24576, "PROCESSES": 2}, ("4", "24576", "2")),
        ({"MAX_TOKENS": "06144", "PROCESSES": "08"}, ("1", "6144", "2")),
    ],
)
def test_documents_of_a_step_make_the_batch_of_an_update(
    given: dict[str, Any], found: tuple[str, ...], tmp_path: Path
) -> None:
    """Sixteen documents on all processes in all steps, however many tokens fit into a step."""
    words_ = batch("documents 16 6144", tmp_path, **given).stdout.split()
    flags = ("--max-sentences", "--max-tokens", "--update-freq")
    assert tuple(words_[words_.index(flag) + 1] for flag in flags) == found


def test_documents_that_no_steps_can_share_are_refused(tmp_path: Path) -> None:
    done = batch("documents 16 6144", tmp_path, MAX_TOKENS=32768)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == (
        "error: a batch of 16 documents cannot be divided among 1 processes with 3 steps each "
        "(MAX_TOKENS=32768); set MAX_TOKENS=98304 for one step\n"
    )
    done = batch("documents 16 1024", tmp_path, MAX_TOKENS="many", PROCESSES="two")
    for name in ("MAX_TOKENS=many", "PROCESSES=two"):  # the launcher's message
        assert f"- {name}: expected a whole number, at least 1\n" in done.stderr


@pytest.mark.parametrize(
    "longest, processes, tokens, steps",
    [
        (1024, 1, "2048", "4"),
        (1024, 8, "1024", "1"),
        (4096, 1, "4096", "2"),
        (3000, 1, "4096", "2"),  # the launcher takes equal steps only
        (8192, 1, "8192", "1"),
    ],
)
def test_a_step_holds_the_longest_text(
    longest: int, processes: int, tokens: str, steps: str, tmp_path: Path
) -> None:
    """fairseq would leave out longer ones in training, and end at the first validation."""
    words_ = batch(f"tokens 8192 {longest}", tmp_path, PROCESSES=processes).stdout.split()
    found = [words_[words_.index(flag) + 1] for flag in ("--max-tokens", "--update-freq")]
    assert found == [tokens, steps]


@pytest.mark.parametrize(
    "size, given",
    [
        ("tokens 8192", {"PROCESSES": 16}),
        ("tokens 8192", {"MAX_TOKENS": 512}),
        ("documents 16", {"MAX_TOKENS": 512}),
    ],
)
def test_a_step_that_cannot_hold_a_text_is_refused(
    size: str, given: dict[str, Any], tmp_path: Path
) -> None:
    done = batch(f"{size} 1024", tmp_path, **given)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(
        "error: MAX_TOKENS=512: a step of one process cannot hold a text of 1024 tokens "
    )


def test_training_says_how_many_segments_there_are(tmp_path: Path) -> None:
    """For the last value of each flag; nothing without fixed numbers, or where nothing is done."""
    pieces = tmp_path / "a b"
    pieces.mkdir()
    (pieces / "train.source").write_text(" ".join("a" * 159) + "\n")
    (pieces / "train.target").write_text("a b\n")

    def shown(*words: str, **given: Any) -> tuple[str, str]:
        done = sourcing(f"show_segments '{pieces}' {' '.join(words)}", tmp_path, **given)
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    sizes = ["--segment-size", "16", "--target-length=24"]
    assert shown(*sizes) == (
        "segments of 16 pieces: the training texts have 10.0 on average, at most 10; 0.0% have "
        "more than 24, the target length\n",
        "",
    )
    output, warning = shown(*sizes, "--target-length", "9", "--arch", "srformer")
    assert "100.0% have more than 9, the target" in output and warning.startswith("warning: there")
    assert shown("--arch", "transformer") == ("", "")
    assert shown(*sizes, "--target-length-mode", "reference") == ("", "")
    assert shown(*sizes, PRINT=1) == ("", "")


@pytest.mark.parametrize(
    "given, words, found",
    [
        ({}, "", ""),
        ({"GPUS": ""}, "--beam 2 --prefix 'a b'", "--beam 2 --prefix a\\ b "),
        ({"GPUS": 0, "PRECISION": "fp16"}, "", "--cpu --fp16 "),
    ],
)
def test_the_flags_of_the_search(
    given: dict[str, Any], words: str, found: str, tmp_path: Path
) -> None:
    """Without any, there is no empty word, which generate would refuse."""
    commands = f"recipe() {{ printf '<%s>' \"$@\"; }}; evaluate {words}"
    done = sourcing(commands, tmp_path, **{"GPUS": "2", **given})
    assert done.stdout == f"<evaluate><--search={found}>", done.stderr


def batch(size: str, folder: Path, **given: Any) -> "subprocess.CompletedProcess[str]":
    """The launcher's command, on the CPU, for a batch: its unit, size and longest text."""
    launcher = f"PRINT=1 bash {ROOT}/scripts/launch/node.sh DATA"
    return sourcing(
        f'set_batch {size}\n{launcher} ${{documents[@]+"${{documents[@]}}"}}', folder, **given
    )


def sourcing(commands: str, folder: Path, **given: Any) -> "subprocess.CompletedProcess[str]":
    """Run commands as a step of a recipe does, with its functions."""
    (folder / "train.sh").write_text(f"set -euo pipefail; source {RECIPES}/recipe.sh; {commands}\n")
    variables = {"GPUS": "0", **{name: str(value) for name, value in given.items()}}
    return subprocess.run(
        ["bash", folder / "train.sh"], env={**os.environ, **variables}, capture_output=True,
        text=True,
    )  # fmt: skip


@pytest.mark.slow
def test_a_training_has_one_name_and_its_processes_divide_the_batch(
    mirror: Callable[[str], Mirror], tmp_path: Path, programs: Path
) -> None:
    of, root = mirror("cnn_dm"), copy_of_the_project(tmp_path / "project")
    work = root / "work"
    assert prepare(of, work, BART) == 0
    flags = ["cnn_dm/train.sh", *TRAINING]
    first = run(root, programs, *flags, WORK=work)
    again = run(root, programs, *flags, WORK=work)
    assert first.endswith("status 0") and again.endswith("status 0")
    assert "num_updates=4" in first and "num_updates=1," not in again
    other = run(root, programs, *flags, "--dropout", "0.2", WORK=work)
    assert "was trained with other data or settings" in other and other.endswith("status 2")
    odd = run(root, programs, *flags, PROCESSES=3, RUN=f"{BART}-other", WORK=work)
    assert "8 documents cannot be divided among 3 processes" in odd and odd.endswith("status 2")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("arch", ["bart_base", BART, SCRATCH])
def test_each_data_set_on_two_processes(
    mirror: Callable[[str], Mirror], tmp_path: Path, programs: Path, name: str, arch: str
) -> None:
    root = copy_of_the_project(tmp_path / "project")
    variables = {} if arch != SCRATCH else {"BATCH_TOKENS": 4096, "MAX_TOKENS": 2048}
    results = end_to_end(root, programs, mirror(name), ARCH=arch, PROCESSES=2, **variables)
    check_results(results, mirror(name), arch)
    if arch == BART:  # the batch of both processes together has 8 documents
        log = results["outputs"]["train"]
        assert re.findall(r"bsz=(\d+), num_updates=(\d+), lr", log) == [
            ("8", str(i)) for i in range(1, 5)
        ]


@pytest.mark.slow
def test_t5(mirror: Callable[[str], Mirror], tmp_path: Path, programs: Path) -> None:
    of = Mirror(tmp_path / "mirror", "xsum")
    source = tmp_path / "t5"
    huggingface.save_t5(source, "v1.0", spare=100)  # T5 has 100 sentinels
    (of.folder / "t5-small").mkdir()
    for name in ("config.json", "model.safetensors", "spiece.model"):
        shutil.copyfile(source / name, of.folder / "t5-small" / name)
    add_sums(of.folder / "t5-small")
    root = copy_of_the_project(tmp_path / "project")
    work = root / "work"
    common = {"SUMMARIZATION_MIRROR": of.folder, "WORK": work, "ARCH": "srformer_t5_small"}
    common["PREFIX"] = "summarize"  # the small model has no colon
    more = "--encoder-layers 2 --decoder-layers 2 --encoder-ffn-embed-dim 24 --t5-head-dim 8"
    flags = [*TRAINING, *more.split(), "--decoder-ffn-embed-dim", "24"]
    for script, words_ in (("prepare", ()), ("train", flags), ("evaluate", SEARCH)):
        output = run(root, programs, f"xsum/{script}.sh", *words_, **common)
        assert output.endswith("status 0"), output[-5000:]
    (file,) = work.glob("t5-1024-128/runs/*/results.json")
    assert json.loads(file.read_text())["start"] == "t5-small"


@pytest.mark.slow
def test_a_baseline_and_averaged_checkpoints(
    mirror: Callable[[str], Mirror], tmp_path: Path, programs: Path
) -> None:
    of, root = mirror("xsum"), copy_of_the_project(tmp_path / "project")
    common = {"ARCH": SCRATCH, "AVERAGE": 2, "BATCH_TOKENS": 2048}
    flags = (*TRAINING, "--max-epoch", "2", "--max-update", "99")
    common.update(SUMMARIZATION_MIRROR=of.folder, WORK=root / "work")
    for seed, more in ((1, {}), (2, {"BASELINE": f"{SCRATCH}-scratch-seed1"})):
        for script, words_ in (("prepare", ()), ("train", flags), ("evaluate", SEARCH)):
            output = run(root, programs, f"xsum/{script}.sh", *words_, **common, SEED=seed, **more)
            assert output.endswith("status 0"), output[-5000:]
    (file,) = (root / "work").glob("*/runs/*seed2/results.json")
    results = json.loads(file.read_text())
    assert results["checkpoint"] == "average2.pt" and results["compared"]
    assert results["baseline"].endswith("seed1")


def test_without_an_environment_it_says_what_to_do(tmp_path: Path) -> None:
    root = copy_of_the_project(tmp_path / "project")
    output = run(root, None, "xsum/prepare.sh")
    assert "bash scripts/setup.sh" in output and output.endswith("status 2")


def test_wrong_settings_are_refused_before_anything_is_done(
    mirror: Callable[[str], Mirror], tmp_path: Path, programs: Path
) -> None:
    root = copy_of_the_project(tmp_path / "project")
    output = run(root, programs, "xsum/prepare.sh", ARCH="srformer_bart", PIECES="bpe",
                 SUMMARIZATION_MIRROR=mirror("xsum").folder, WORK=root / "work")  # fmt: skip
    assert "- ARCH=srformer_bart: there is no such" in output and "- PIECES=bpe" in output
    assert output.endswith("status 2") and not (root / "work").exists()
