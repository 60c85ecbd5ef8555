"""The text of a folder: read it, check it, and write it as fairseq's binary data."""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq.data import Dictionary

from fairseq_recur.errors import ConfigError, Problems
from fairseq_recur.experiments.other_sets import write_binary
from fairseq_recur.files import read_json, write_json
from fairseq_recur.scoring.generation import read_lines

SETS = {"train": {"train"}, "valid": {"valid", "val", "dev"}, "test": {"test"}}
"""What the names of their files have, between dots, hyphens and underscores."""
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""What a blank becomes where characters are the tokens, as in SentencePiece."""
RESERVED = {"<s>", "<pad>", "</s>"}
"""Words that fairseq's dictionary has for itself; `<unk>` is a word like others."""


@dataclass(frozen=True)
class Text:
    """Three sets of text.

    Attributes:
        lines: set -> lines of tokens, separated by blanks; a line's end is one more token
        digest: of all that was read
    """

    lines: dict[str, list[str]]
    digest: str

    def length(self, part: str) -> int:
        """Return the number of tokens of a set."""
        return sum(map(length, self.lines[part]))

    def counts(self) -> dict[str, int]:
        """Return the tokens of each set, the different ones, and those of the test not among them.

        Only the training set counts for the different ones; ``<unk>`` is one of them.
        """
        known = {token for line in self.lines["train"] for token in line.split()}
        test = [token for line in self.lines["test"] for token in line.split()]
        return {
            **{part: self.length(part) for part in SETS},
            "different": len(known),
            "unknown_in_test": sum(token not in known for token in test),
        }


def length(line: str) -> int:
    """Return the number of tokens of a line, with its end."""
    return len(line.split()) + 1


def tokens(line: str, units: str) -> str:
    """Return the tokens of a line, separated by blanks.

    Args:
        line: of text
        units: "words", separated by white space, or "characters"
    """
    if units == "words":
        return " ".join(line.split())
    return " ".join(SPACE if c.isspace() else c for c in line.strip())


def find(folder: Path, part: str) -> Path:
    """Return the file of a set: PART.txt, or the only one that has its name in it.

    Raises:
        ConfigError: there is none, or several
    """
    if (folder / f"{part}.txt").is_file():
        return folder / f"{part}.txt"
    found = [
        path
        for path in sorted(folder.iterdir())
        if path.is_file() and SETS[part] & {*re.split(r"[._-]", path.name)}
    ]
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "no file"
        raise ConfigError(
            f"{folder} has {names} for {part}; expected {part}.txt, or one file such as "
            f"wiki.{part}.tokens"
        )
    return found[0]


def read(folder: Path, units: str) -> Text:
    """Read the three sets of a folder.

    Raises:
        ConfigError: lists everything that is wrong
    """
    if not folder.is_dir():
        raise ConfigError(
            f"there is no folder {folder}; expected one with train.txt, valid.txt and test.txt"
        )
    problems = Problems(f"{folder} cannot be used; nothing was trained")
    lines: dict[str, list[str]] = {}
    digest = hashlib.sha256(units.encode())
    for part in SETS:
        with problems.gathered():
            file = find(folder, part)
            first, *others = read_lines(file)
            text = [first.removeprefix("\ufeff"), *others]
            lines[part] = [tokens(line, units) for line in text]
            digest.update(file.read_bytes())
            if not any(lines[part]):
                problems.add(f"{file} has only blank lines; expected text")
            own = sorted(RESERVED & {token for line in lines[part] for token in line.split()})
            if own:
                problems.add(
                    f"{file} has the words {', '.join(own)}, which fairseq's dictionary needs for "
                    "itself; replace them"
                )
    problems.raise_all()
    return Text(lines, digest.hexdigest())


def check_length(text: Text, share: int, least: int) -> None:
    """Refuse a training text that does not fill one batch.

    Args:
        text: of the folder
        share: the smallest part of the training text that is used, in %
        least: tokens of a batch

    Raises:
        ConfigError: there are fewer
    """
    found = text.length("train") * share // 100
    if found < least:
        raise ConfigError(
            f"{share} % of the training text are {found:,} tokens; expected at least {least:,}, "
            "BATCH times TOKENS; decrease one of them, increase SHARES, or give more text"
        )


def check_prepared(text: Text, work: Path) -> None:
    """Refuse a folder in which a training on another text has begun.

    Raises:
        ConfigError: it has such a training
    """
    if any(work.glob("share*/*/seed*/state.json")) and of_another_text(text, work):
        raise ConfigError(
            f"{work} has trainings on another text or on other UNITS; choose another folder with "
            "WORK, or remove it"
        )


def of_another_text(text: Text, work: Path) -> list[Path]:
    """Return the files that say of which text the data are, where that is another one."""
    counts = text.counts()  # the same text divided in another way has the same digest
    return [
        file
        for file in sorted(work.glob("data/*/prepared.json"))
        if (found := read_json(file))["digest"] != text.digest
        or found.get("counts", counts) != counts
    ]


def beginning(lines: Sequence[str], share: int) -> list[str]:
    """Return the first tokens of a text, rounded down.

    Args:
        lines: tokens separated by blanks
        share: in %
    """
    left, kept = sum(map(length, lines)) * share // 100, []
    for line in lines:
        if left <= 0:
            break
        kept.append(" ".join(line.split()[: left - 1]))  # the line's end is one of them
        left -= length(line)
    return kept


def prepare(text: Text, shares: Sequence[int], work: Path) -> None:
    """Write binary data for each share of the training text, if it is not there.

    All of them have the dictionary of the whole training text, and the same other sets. Data of
    another text are replaced: `check_prepared` has found that nothing is trained on them.

    Args:
        text: of the folder
        shares: in %
        work: gets ``data/shareN``
    """
    for file in of_another_text(text, work):
        file.unlink()
    missing = [n for n in shares if not (work / f"data/share{n}/prepared.json").is_file()]
    if not missing:
        return
    dictionary = Dictionary()
    for token, count in Counter(" ".join(text.lines["train"]).split()).items():
        dictionary.add_symbol(token, count)
    dictionary.finalize(padding_factor=1)
    for share in missing:
        folder = work / f"data/share{share}"
        folder.mkdir(parents=True, exist_ok=True)
        dictionary.save(str(folder / "dict.txt"))
        cut = {**text.lines, "train": beginning(text.lines["train"], share)}
        for part in SETS:
            write_binary(cut[part], dictionary, folder / part)
        write_json(folder / "prepared.json", {"digest": text.digest, "counts": text.counts()})
