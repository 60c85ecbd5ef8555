"""Reading hypotheses and references: plain text, or the output of fairseq's decoders."""

import re
from collections.abc import Collection, Sequence
from itertools import count as count_from
from itertools import islice
from pathlib import Path

from fairseq_recur.errors import ConfigError, first_items

# A hypothesis of fairseq-generate or fairseq-interactive, "H-<id>\t<score>\t<text>" (tokens) or
# "D-<id>\t<score>\t<text>" (detokenized). The pattern includes the score, so it does not match
# sentences of plain text. The last tab is optional because an empty hypothesis loses it when
# white space at the end of the line is dropped.
HYPOTHESIS = re.compile(r"([HD])-(\d+)\t-?(?:[\d.]+(?:e[-+]?\d+)?|inf|nan)(?:\t(.*))?", re.DOTALL)
SOURCE = re.compile(r"S-\d+\t")

EXPECTED = "expected text, one sentence per line"
SHOWN = 10  # ids that an error names before it counts the rest
LONGEST_ID = 18  # digits


def read_lines(path: str | Path) -> list[str]:
    """Read a UTF-8 text file with one sentence per line, as sacrebleu's command does.

    Only a newline ends a line; other Unicode separators occur inside sentences. White space at
    the end of a line and a byte order mark are dropped. The file is read once, so it may be a pipe:
    <(zcat ref.gz).

    Raises:
        ConfigError: the file is missing, a directory, empty, or not UTF-8.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="\n") as stream:
            lines = [line.rstrip() for line in stream]
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text ({error}); convert it to UTF-8") from error
    except FileNotFoundError as error:
        raise ConfigError(f"cannot read {path}: there is no such file; {EXPECTED}") from error
    except OSError as error:
        found = "it is a directory" if Path(path).is_dir() else error.strerror
        raise ConfigError(f"cannot read {path}: {found}; {EXPECTED}") from error
    if not lines:
        raise ConfigError(f"{path} is empty; {EXPECTED}")
    return lines


def read_hypotheses(path: str | Path, count: int | None = None) -> list[str]:
    """Read one system's sentences in the order of the test set.

    Time and memory depend on the size of the file, not on the ids in it.

    Args:
        path: plain text with one sentence per line, or the output of fairseq-generate or
            fairseq-interactive, recognised by its ``H-`` and ``D-`` lines. Of the latter, the
            detokenized ``D-`` lines are read, or the ``H-`` lines if there are none. They are
            sorted by sentence id, and the first of an n-best list counts.
        count: the expected number of sentences, if known.

    Returns:
        The sentences: line i of plain text, or the hypothesis with id i.

    Raises:
        ConfigError: the file cannot be read, an id is missing or occurs twice, or the number of
            sentences is not ``count``.
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
    wanted = known if count is None else count
    if len(chosen) < max(wanted, known):
        missing = _missing(chosen, max(wanted, known))
        raise ConfigError(
            f"{path}: fairseq output without {missing} (ids 0 to {wanted - 1} expected, "
            f"{len(chosen)} found); generate again (were long sentences skipped, or is the file "
            "truncated?)"
        )
    if known > wanted:
        raise ConfigError(
            f"{path}: fairseq output with {known} sentences (ids 0 to {known - 1}), "
            f"expected {wanted}"
        )
    return [chosen[i] for i in range(wanted)]


def _collect(lines: Sequence[str], path: str | Path) -> dict[str, dict[int, str]]:
    """Collect the first hypothesis of each id, for the kinds H and D that occur.

    The n hypotheses of an id follow one another. An id that occurs again after another id, or
    after a new source line, belongs to a second output in the same file.
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
        kind, digits, text = match[1], match[2], match[3] or ""
        if len(digits) > LONGEST_ID:
            raise ConfigError(
                f"{path}: found an id of {len(digits)} digits, expected at most {LONGEST_ID}; "
                "generate again"
            )
        index, ids = int(digits), found.setdefault(kind, {})
        if index in ids and block.get(kind) != index:
            raise ConfigError(
                f"{path}: id {index} occurs twice ({kind}-{index}); "
                "expected the output of one run, each sentence once"
            )
        ids.setdefault(index, text)
        block[kind] = index
    return found


def _missing(found: Collection[int], total: int) -> str:
    """Name the first missing ids below ``total``, and count the rest."""
    number = total - len(found)
    first = list(islice((i for i in count_from() if i not in found), min(number, SHOWN)))
    return ("id " if number == 1 else "ids ") + first_items(first, SHOWN, number)
