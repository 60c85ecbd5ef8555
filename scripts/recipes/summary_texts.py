"""From the files of a data set to texts and summaries, one a line."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fairseq_recur.errors import ConfigError
from recipes import summary_papers, summary_stories
from recipes.summary_data import SPLITS
from recipes.summary_document import Document

Reader = Callable[[dict[str, Path], dict[str, Any]], Iterator[Document]]

READERS: dict[str, Reader] = {
    "cnn_dm": summary_stories.cnn_dm,
    "xsum": summary_stories.xsum,
    "arxiv": summary_papers.arxiv,
    "mediasum": summary_papers.mediasum,
}
SIDES = ("source", "target")
COUNTS = "counts.json"


def one_line(text: str) -> str:
    """A text as a line: white space of any kind, line separators too, becomes a blank.

    A surrogate without its other half, which JSON can have and UTF-8 cannot, becomes "?".
    """
    return " ".join(text.split()).encode("utf-8", "replace").decode("utf-8")


def write_texts(
    documents: Iterable[Document], folder: Path, expected: dict[str, int] | None = None
) -> None:
    """Write SPLIT.source and SPLIT.target, and counts.json.

    A document of the training set without text or summary is left out. In the other sets it
    stays, so that figures are of the whole set, and is warned of.

    Args:
        documents: in any order of the splits
        folder: where to write
        expected: how many documents each split must have; None where that is not known

    Raises:
        ConfigError: there are fewer or more, or none
    """
    counts = {s: {"documents": 0, "without_text": 0, "without_summary": 0} for s in SPLITS}
    total = sum(expected.values()) if expected else None
    with ExitStack() as stack:
        files = {
            (split, side): stack.enter_context(
                open(folder / f"{split}.{side}", "w", encoding="utf-8", newline="\n")
            )
            for split in SPLITS
            for side in SIDES
        }
        for document in tqdm(documents, total=total, unit=" documents", mininterval=1):
            texts = (one_line(document.source), one_line(document.summary))
            count = counts[document.split]
            count["documents"] += 1
            count["without_text"] += not texts[0]
            count["without_summary"] += not texts[1]
            if document.split != "train" or all(texts):
                for side, text in zip(SIDES, texts):
                    files[document.split, side].write(text + "\n")
                    count["lines"] = count.get("lines", 0) + (side == "source")
    check_counts(counts, expected)
    (folder / COUNTS).write_text(json.dumps(counts, indent=1) + "\n")


def check_counts(counts: dict[str, dict[str, int]], expected: dict[str, int] | None) -> None:
    """Print what was found, and compare it with what is known.

    Raises:
        ConfigError: they differ, or a split is empty
    """
    problems = []
    for split, count in counts.items():
        lines, kept = count.get("lines", 0), "left out" if split == "train" else "kept"
        print(f"{split}: {count['documents']:,} documents, {lines:,} lines")
        for what in ("without_text", "without_summary"):
            if count[what]:
                print(f"  warning: {count[what]:,} {what.replace('_', ' ')}, {kept}")
        if expected and count["documents"] != expected[split]:
            problems.append(
                f"{split} has {count['documents']:,} documents, expected {expected[split]:,}"
            )
        elif not lines:
            problems.append(f"{split} is empty; remove downloads and prepare again")
    if problems:
        raise ConfigError("the data set is incomplete or another one:\n- " + "\n- ".join(problems))
