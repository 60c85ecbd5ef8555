"""Every command in every Markdown file and script is one that the programs take."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import List

import pytest

from tests.docs.commands import ROOT, commands, markdown_files, parse

FILES = markdown_files()
SCRIPTS = sorted(
    path
    for folder in ("scripts", "examples", ".ci")
    for path in (ROOT / folder).rglob("*")
    if path.is_file()
    and "work" not in path.relative_to(ROOT).parts
    and path.read_bytes().startswith((b"#!/usr/bin/env bash", b"# What the steps"))
)


assert len(SCRIPTS) > 5


def identify(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=identify)
def test_commands_parse(path: Path) -> None:
    for words in commands(path.read_text(encoding="utf-8")):
        try:
            parse(words)
        except SystemExit as stop:
            assert not stop.code, f"not taken: {' '.join(words)}"


def test_commands_are_found_and_a_wrong_flag_is_seen() -> None:
    found = [words for path in FILES for words in commands(path.read_text(encoding="utf-8"))]
    programs = {" ".join(words[:2]) for words in found}
    for program in ("fairseq-recur train", "fairseq-recur interactive", "fairseq-recur hydra-train",
                    "bash scripts/test.sh", "bash examples/quickstart/run.sh"):  # fmt: skip
        assert program in programs
    for wrong in (
        "fairseq-train data --arch transformer_biarn --recurrence-stepz 3",
        "fairseq-train data --arch transformer_biern",
        "fairseq-recur score --systems a=b",
        "fairseq-recur nonsense",
    ):
        with pytest.raises(SystemExit):
            parse(wrong.split())
    with pytest.raises(AssertionError):
        parse(["bash", "scripts/none.sh"])


@pytest.mark.parametrize("path", FILES, ids=identify)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://")):
            assert (path.parent / target).exists(), f"{identify(path)}: {target}"


@pytest.mark.parametrize("path", SCRIPTS, ids=identify)
def test_scripts_are_valid_bash(path: Path) -> None:
    subprocess.run(["bash", "-n", path], check=True)


def calls_of_the_quick_start(tmp_path: Path) -> List[List[str]]:
    """Run the quick start with programs that only write down how they are called."""
    shutil.copytree(
        ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("work")
    )
    programs, log = tmp_path / ".venv" / "bin", tmp_path / "calls"
    programs.mkdir(parents=True)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "setup.sh").write_text("exit 0\n")
    (programs / "python").write_text("#!/usr/bin/env bash\nexit 0\n")
    (programs / "fairseq-recur").write_text(
        "#!/usr/bin/env python3\nimport json, pathlib, sys\n"
        f"open({str(log)!r}, 'a').write(json.dumps(sys.argv[1:]) + chr(10))\n"
        "if sys.argv[1] == 'average':\n"
        "    pathlib.Path(sys.argv[sys.argv.index('--output') + 1]).touch()\n"
    )
    for program in programs.iterdir():
        program.chmod(0o755)
    for script in ("run.sh", "translate.sh"):
        subprocess.run(
            ["bash", tmp_path / "examples" / "quickstart" / script],
            check=True, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_quick_start_calls_parse(tmp_path: Path) -> None:
    calls = calls_of_the_quick_start(tmp_path)
    called = [call[0] for call in calls]
    for command in ("preprocess", "train", "average", "generate", "score", "plot", "interactive"):
        assert command in called
    assert called.count("train") == 2
    for call in calls:
        parse(["fairseq-recur", *call])
