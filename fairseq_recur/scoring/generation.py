"""Reading what is to be scored: plain text, or the output of fairseq's decoders."""

import re
from collections.abc import Sequence
from pathlib import Path

from fairseq_recur.errors import ConfigError

# A hypothesis of fairseq-generate or fairseq-interactive, "H-<id>\t<score>\t<text>" (tokens) or
# "D-<id>\t<score>\t<text>" (detokenized). The score is in the pattern so that no sentence of
# plain text is taken for one; the last tab is optional because an empty hypothesis loses it
# when the white space at the line's end is dropped.
HYPOTHESIS = re.compile(r"([HD])-(\d+)\t-?(?:[\d.]+(?:e[-+]?\d+)?|inf|nan)(?:\t(.*))?", re.DOTALL)
SOURCE = re.compile(r"S-\d+\t")

SHOWN = 10  # ids named in an error before it says how many more there are


def read_lines(path: str | Path) -> list[str]:
    """Read a UTF-8 text file, one sentence a line, as sacrebleu's command does.

    Only a newline ends a line (not the other Unicode separators, which occur inside
    sentences), and white space at a line's end is dropped.

    Raises ConfigError if the file is absent, a directory, empty or not UTF-8.
    """
    path = Path(path)
    if not path.is_file():
        found = "it is a directory" if path.is_dir() else "there is no such file"
        raise ConfigError(f"cannot read {path}: {found}; expected text, one sentence a line")
    try:
        with open(path, encoding="utf-8", newline="\n") as stream:
            lines = [line.rstrip() for line in stream]
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text ({error}); convert it to UTF-8") from error
    if not lines:
        raise ConfigError(f"{path} is empty; expected text, one sentence a line")
    return lines


def read_hypotheses(path: str | Path, count: int | None = None) -> list[str]:
    """Read one system's sentences, in the order of the test set.

    Args:
        path: plain text, one sentence a line; or the output of fairseq-generate or
            fairseq-interactive, recognised by its ``H-`` and ``D-`` lines. Of that the
            detokenized ``D-`` lines are read, or the ``H-`` lines where there are none,
            sorted by sentence id; of an n-best list the first, which is the best.
        count: how many sentences there must be, if that is known.

    Returns:
        the sentences; line i of plain text, or the one with id i.

    Raises ConfigError if the file cannot be read, if an id is missing or there twice,
    or if there are not `count` sentences.
    """
    lines = read_lines(path)
    by_kind = _collect(lines, path)
    if not by_kind:
        if count is not None and len(lines) != count:
            raise ConfigError(f"{path} has {len(lines)} lines, expected {count}")
        return lines
    # Detokenized text is what users read and what scores are comparable on.
    chosen = by_kind.get("D") or by_kind["H"]
    # With both kinds, an id that has an H line must have a D line too.
    known = max(max(ids) for ids in by_kind.values()) + 1
    wanted = count if count is not None else known
    missing = [i for i in range(max(wanted, known)) if i not in chosen]
    if missing:
        raise ConfigError(
            f"{path}: fairseq output without {_some(missing)} (ids 0 to {wanted - 1} expected, "
            f"{len(chosen)} found); generate again (were long ones skipped, or is the file cut off?)"
        )
    if known > wanted:
        raise ConfigError(
            f"{path}: fairseq output with {known} sentences (ids 0 to {known - 1}), "
            f"expected {wanted}"
        )
    return [chosen[i] for i in range(wanted)]


def _collect(lines: Sequence[str], path: str | Path) -> dict[str, dict[int, str]]:
    """Gather the first hypothesis of each id, for the kinds H and D that occur.

    The n hypotheses of an id follow one another; an id that comes back after another
    one, or after a new source line, is a second output in the same file.
    """
    found: dict[str, dict[int, str]] = {}
    block: dict[str, int] = {}  # the id whose n-best list is being read, for each kind
    for line in lines:
        if SOURCE.match(line):
            block.clear()
            continue
        match = HYPOTHESIS.fullmatch(line)
        if match is None:
            continue
        kind, index, text = match[1], int(match[2]), match[3] or ""
        ids = found.setdefault(kind, {})
        if index in ids and block.get(kind) != index:
            raise ConfigError(
                f"{path}: id {index} is there twice ({kind}-{index}); "
                "expected the output of one run, each sentence once"
            )
        ids.setdefault(index, text)
        block[kind] = index
    return found


def _some(ids: Sequence[int]) -> str:
    """Name the first few ids and count the rest."""
    text = ("id " if len(ids) == 1 else "ids ") + ", ".join(str(i) for i in ids[:SHOWN])
    return text + (f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else "")
