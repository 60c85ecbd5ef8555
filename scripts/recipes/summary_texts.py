"""Texts and summaries, one per line."""

import json
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from tqdm import tqdm

from fairseq_recur.errors import ConfigError
from recipes.summary_options import SIDES, SPLITS
from recipes.summary_readers import Document

COUNTS = "counts.json"


def one_line(text: str) -> str:
    """Return a text as one line: any white space, including line separators, becomes a space.

    A lone surrogate, which JSON can represent and UTF-8 cannot, becomes "?".
    """
    return " ".join(text.split()).encode("utf-8", "replace").decode("utf-8")


def write_texts(
    documents: Iterable[Document],
    folder: Path,
    expected: dict[str, int] | None = None,
    sample: int = 0,
) -> None:
    """Write SPLIT.source and SPLIT.target, and counts.json.

    Incomplete documents, which lack text or summary, are left out of the training set. The other
    sets keep them, with a warning, so that results cover the whole set.

    Args:
        documents: the splits may be mixed
        folder: output folder
        expected: number of documents per split; None if unknown
        sample: how many training documents to write; 0 for all

    Raises:
        ConfigError: the numbers differ, or a split is empty
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
            enough = 0 < sample <= count.get("lines", 0)
            if document.split != "train" or (all(texts) and not enough):
                for side, text in zip(SIDES, texts):
                    files[document.split, side].write(text + "\n")
                    count["lines"] = count.get("lines", 0) + (side == "source")
    check_counts(counts, expected)
    (folder / COUNTS).write_text(json.dumps(counts, indent=1) + "\n")


def check_counts(counts: dict[str, dict[str, int]], expected: dict[str, int] | None) -> None:
    """Print the counts, and compare them with the expected ones.

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
            remedy = "remove downloads and prepare again" if expected else "give it some lines"
            problems.append(f"{split} has no text; {remedy}")
    if problems:
        raise ConfigError(
            "the data set is incomplete or a different one:\n- " + "\n- ".join(problems)
        )
