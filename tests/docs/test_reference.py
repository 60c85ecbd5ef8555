"""The generated pages are up to date."""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from fairseq_recur.cli import build_parser
from fairseq_recur.models.model import RecurrentTransformerModel
from fairseq_recur.modules.options import flag
from tests.docs.commands import ROOT

PAGES = ["flags.md", "commands.md"]
OUT_OF_DATE = "out of date: run python scripts/documentation/flags.py"
# In a process of its own: a plug-in that another test loads adds choices to this one.
WRITE = """
import re, sys
from pathlib import Path
from documentation import flags
if "--counted" not in sys.argv:  # the numbers of parameters as the page has them
    page = (flags.DOCS / "flags.md").read_text()
    rows = re.findall(r"^\\| `(\\w+)`.*\\| ([\\d,]+) \\| ([\\d,]+) \\|$", page, re.M)
    known = {name: (words, others) for name, others, words in rows}
    flags.parameters = lambda arch: tuple(int(n.replace(",", "")) for n in known[arch])
for name, page in flags.PAGES.items():
    (Path(sys.argv[1]) / name).write_text(page(), encoding="utf-8")
"""


def written(folder: Path, *arguments: str) -> None:
    path = os.pathsep.join([str(ROOT), str(ROOT / "scripts")])
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WRITE, folder, *arguments],
        env={**os.environ, "PYTHONPATH": path}, check=True,
    )  # fmt: skip


# fairseq 0.12.2 has no --merge-src-tgt-embed, and its Transformer's flags are listed as well.
current_fairseq = pytest.mark.skipif(
    "merge_src_tgt_embed" not in {f.name for f in fields(RecurrentTransformerModel.config_class)},
    reason="the pages list the flags of a later fairseq",
)


@current_fairseq
@pytest.mark.parametrize(
    "arguments", [[], pytest.param(["--counted"], marks=pytest.mark.slow)], ids=["", "counted"]
)
def test_pages_are_up_to_date(tmp_path: Path, arguments: list) -> None:
    written(tmp_path, *arguments)
    for name in PAGES:
        assert (tmp_path / name).read_text() == (ROOT / "docs" / name).read_text(), OUT_OF_DATE


def required(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, str]]:
    """Yield each required option of a command and of those within it: (command, option)."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, inner in action.choices.items():
                yield from required(inner, f"{name} {word}")
        elif action.required and action.option_strings:
            yield from ((name, option) for option in action.option_strings)


def test_every_required_option_is_there() -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    sections = {text.split("\n")[0]: text for text in re.split(r"^#+ ", page, flags=re.M)}
    wanted = set(required(build_parser(), "fairseq-recur"))
    assert ("fairseq-recur experiment new", "--source-lang") in wanted
    assert not {(name, o) for name, o in wanted if f"`{o}`" not in sections[name]}


@current_fairseq
def test_every_flag_of_the_model_is_there() -> None:
    listed = re.findall(r"^\| `(--[\w-]+)` \|", (ROOT / "docs" / "flags.md").read_text(), re.M)
    options = {f.name for f in fields(RecurrentTransformerModel.config_class)} - {"_name"}
    assert not {flag(name) for name in options} - set(listed)
