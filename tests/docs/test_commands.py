"""Every command in every Markdown file and script is accepted by its program."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_recur import cli
from fairseq_recur.cli.experiment_run import runs_from
from fairseq_recur.errors import ConfigError
from tests.docs.commands import (
    ROOT,
    commands,
    known_options,
    markdown_files,
    parse,
    settings_and_commands,
)

FILES = markdown_files()
SCRIPTS = sorted(
    path
    for folder in ("scripts", "examples", "benchmarks", ".ci")
    for path in (ROOT / folder).rglob("*")
    if path.is_file()
    and "work" not in path.relative_to(ROOT).parts
    and path.read_bytes().startswith((b"#!/usr/bin/env bash", b"# What the steps"))
)

COMMANDS = {*cli.OWN_COMMANDS, *cli.GROUPS, *cli.fairseq_commands.COMMANDS, "COMMAND"}

assert len(SCRIPTS) > 5


def identify(path: Path) -> str:
    return str(path.relative_to(ROOT))


PARSED: set[tuple[str, ...]] = set()
"""The commands that were taken: many stand on several pages."""


@pytest.mark.parametrize("path", FILES, ids=identify)
def test_commands_parse(path: Path) -> None:
    for words in commands(path.read_text(encoding="utf-8")):
        if tuple(words) in PARSED:
            continue
        try:
            parse(words)
        except SystemExit as stop:
            assert not stop.code, f"not taken: {' '.join(words)}"
        PARSED.add(tuple(words))


def test_commands_are_found() -> None:
    found = [words for path in FILES for words in commands(path.read_text(encoding="utf-8"))]
    programs = {" ".join(words[:2]) for words in found}
    for program in ("fairseq-recur train", "fairseq-recur interactive", "fairseq-recur hydra-train",
                    "bash scripts/test.sh", "bash examples/quickstart/run.sh"):  # fmt: skip
        assert program in programs


TRAIN = "fairseq-recur train data --optimizer adam --arch transformer_biarn"


@pytest.mark.parametrize("wrong", [
    f"{TRAIN} --recurrence-stepz 3",
    f"{TRAIN} --recurrence-steps 0",
    f"{TRAIN} --recurrence none --recurrence-steps 3",
    f"{TRAIN}n",
    "fairseq-recur score --systems a=b",
    "fairseq-recur nonsense",
    "fairseq-nonsense",
    "bash scripts/none.sh",
    "bash scripts/test.sh --nonsense",
    "bash scripts/test.sh --beam 5",
    "bash benchmarks/gpu/run.sh --beam 5",
    "bash examples/g2p/run.sh data --beam 5",
    "bash examples/summarization/continued.sh data --beam 5",
    "bash examples/summarization/xsum/train.sh --nonsense 5",
    "GPUS=8 bash scripts/none.sh",
    "export GPUS=8 && bash scripts/none.sh",
    "bash scripts/launch/node.sh data --arch transformer_biarn --nonsense",
    "python benchmarks/none.py",
    "python benchmarks/ops.py --nonsense",
    "python -m nonsense",
    "for set in train valid; do subword-nmt apply-bpe --nonsense < $set; done",
    "echo A sentence. | fairseq-recur nonsense",
    "pip install 'fairseq-recur[nonsense]'",
    "make everything",
    "cat file | nonsense > out",
])  # fmt: skip
def test_a_wrong_command_is_detected(wrong: str) -> None:
    pages = [
        f"Text.\n\n```bash\n{wrong}\n```\n", f"1. Text.\n\n   ```bash\n   {wrong}\n   ```\n",
        f"```bash\nfairseq-recur check\n{wrong}\n```\n",
    ]  # fmt: skip
    found, in_a_list, after_another = ([*commands(page)] for page in pages)
    assert in_a_list == found and after_another == [["fairseq-recur", "check"], *found]
    with pytest.raises((SystemExit, AssertionError, ConfigError, ImportError, KeyError)):
        for words in found:
            parse(words)


# What other programs' options are called, and whose they are.
OTHERS = {
    "--config-dir": "hydra", "--config-name": "hydra", "--no-deps": "pip",
    "--nproc_per_node": "torchrun", "--paired-ar": "sacrebleu", "--paired-bs": "sacrebleu",
    "--build-arg": "docker", "--rm": "docker", "--platform": "docker",
    "--requirement": "pip", "--python": "uv",
    "--logdir": "tensorboard", "--print": "scripts/launch", "--signal": "SBATCH",
    "--write-vocabulary": "subword-nmt", "--unsafe_deserialization": "ct2-fairseq-converter",
    "--model_path": "ct2-fairseq-converter", "--data_dir": "ct2-fairseq-converter",
    "--source_lang": "ct2-fairseq-converter", "--target_lang": "ct2-fairseq-converter",
    "--output_dir": "ct2-fairseq-converter",
}  # fmt: skip


def test_the_address_of_torchs_cpu_builds_is_found() -> None:
    """By the command of the page on torch, in the Dockerfile."""
    text = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    command = re.search(r"^    (export PIP_EXTRA_INDEX_URL=.*)$", text, re.M)
    assert command is not None
    script = f'{command[1]}\necho "$PIP_EXTRA_INDEX_URL"'
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert re.fullmatch(r"https://\S+/cpu\n", done.stdout), done


@pytest.mark.parametrize("path", FILES, ids=identify)
def test_options_in_the_text_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for option in set(re.findall(r"(?<![\w-])--[A-Za-z][\w-]*", text)) - known_options():
        assert OTHERS.get(option, option) in text.replace(option, ""), f"there is no {option}"


def readable(folder: Path) -> str:
    """The scripts that a command of an example, or of the launcher, reads its settings in."""
    beside = [folder.parent] if folder.parent != ROOT else []
    files = [path for place in (ROOT / "scripts", *beside, folder) for path in place.rglob("*")]
    return "".join(path.read_text() for path in files if path.suffix in (".sh", ".py", ".sbatch"))


OF_TORCH = {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"}
"""Settings that torch reads, not a script."""


@pytest.mark.parametrize("path", FILES, ids=identify)
def test_settings_of_commands_are_read(path: Path) -> None:
    for names, words in settings_and_commands(path.read_text(encoding="utf-8")):
        if words[:1] == ["export"]:
            names = [word.split("=")[0] for word in words[1:]]
        for name in set(names) - OF_TORCH:
            folder = (ROOT / words[1]).parent if words[:1] == ["bash"] else path.parent
            # A variable of a shell script, a name in quotes, or a field of settings.
            used = rf"\$\{{?{name}\b|[\"']{name}[\"']|^    {name.lower()}: "
            assert re.search(used, readable(folder), re.M), name


@pytest.mark.parametrize("path", FILES, ids=identify)
def test_commands_in_the_text_exist(path: Path) -> None:
    """`fairseq-recur COMMAND`, `bash FILE` and `scripts/FILE` within sentences and tables."""
    text = path.read_text(encoding="utf-8")
    assert set(re.findall(r"^ *```(\w*)", text, re.M)) <= {"", "bash", "python", "math", "bibtex"}
    for program, word in re.findall(
        r"`(?:\w+=\S+ )?(fairseq-recur|bash|python) (\w[\w./-]*)", text
    ):
        if program == "fairseq-recur":
            assert word in COMMANDS, f"there is no {program} {word}"
        elif word != "-":
            found = any((place / word).is_file() for place in (ROOT, path.parent))
            assert found, f"there is no {word}"
    for word in re.findall(r"`((?:benchmarks|scripts|examples|tests)/[\w./-]+\.\w+)`", text):
        assert (ROOT / word).exists(), f"there is no {word}"


@pytest.mark.parametrize("path", FILES, ids=identify)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://")):
            assert (path.parent / target).exists(), f"{identify(path)}: {target}"


@pytest.mark.parametrize("path", SCRIPTS, ids=identify)
def test_scripts_are_valid_bash(path: Path) -> None:
    subprocess.run(["bash", "-n", path], check=True)


def test_every_script_has_help_and_starts_nothing(tmp_path: Path) -> None:
    """Shell scripts print the comment at their beginning; programs print their docstring."""
    for folder in ("examples", "scripts", "benchmarks", ".ci"):
        ignored = shutil.ignore_patterns("work", "data", "__pycache__", "results")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    before = sorted(tmp_path.rglob("*"))
    for script in SCRIPTS:
        if script.read_bytes().startswith(b"#!"):
            done = subprocess.run(
                ["bash", tmp_path / script.relative_to(ROOT), "--help"],
                cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True,
            )  # fmt: skip
            assert (done.returncode, done.stderr) == (0, ""), script
            first, second = script.read_text().splitlines()[:2]
            assert done.stdout.startswith(second.removeprefix("# ")), script
            assert "set -euo" not in done.stdout
    assert sorted(tmp_path.rglob("*")) == before
    for folder in ("benchmarks", "examples", "scripts"):
        for program in (ROOT / folder).rglob("*.py"):
            text = program.read_text(encoding="utf-8")
            if "__main__" in text:
                reads = r"ArgumentParser|command_line\(|draw_results\(|print\(__doc__\)"
                assert re.search(reads, text), program


@pytest.mark.slow
def test_examples_that_are_experiments_parse(tmp_path: Path) -> None:
    """Their commands, and every command of fairseq in their experiments, are accepted."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("work"))
    programs, log = tmp_path / ".venv" / "bin", tmp_path / "calls"
    programs.mkdir(parents=True)
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "help.sh", tmp_path / "scripts")
    (tmp_path / "scripts" / "setup.sh").write_text("exit 0\n")
    # They make the files that the scripts read.
    (programs / "python").write_text(
        '#!/usr/bin/env bash\nif [[ "$1" = */bpe.py ]]; then touch "$3/bpe.model"; fi\n'
    )
    (programs / "fairseq-recur").write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"open({str(log)!r}, 'a').write(json.dumps(sys.argv[1:]) + chr(10))\n"
        "if sys.argv[1] == 'preprocess':\n"
        "    folder = sys.argv[sys.argv.index('--destdir') + 1]\n"
        "    os.makedirs(folder)\n"
        "    open(folder + '/dict.source.txt', 'w')\n"
    )
    for program in programs.iterdir():
        program.chmod(0o755)
    for example in ("quickstart", "summarization"):
        subprocess.run(
            ["bash", tmp_path / "examples" / example / "run.sh"],
            check=True, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    assert [call[0] for call in calls] == ["preprocess", "experiment", "plot"] + [
        "preprocess", "preprocess", "experiment", "experiment", "experiment"
    ], "the last three: a dry run, the model that copies, all others"  # fmt: skip
    for call in calls:
        parse(["fairseq-recur", *call])
        if call[0] == "experiment":
            for run in runs_from(cli.build_parser().parse_args(call)):
                parse(["fairseq-recur", *run.argv("train")])
                parse(["fairseq-recur", *run.argv("generate")])
