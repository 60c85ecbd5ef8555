"""Select the texts and summaries of the example from the full corpus, reproducibly.

    python build_corpus.py PATH/TO/debsum [OUTPUT_FOLDER]

For each set X in train, valid and test, the full corpus has three files: `X.source` (descriptions
of Debian packages), `X.target` (synopses, one line each) and `X.origin.tsv` (binary and source
packages). The sets share no source package and little wording. This program keeps

- packages of certain kinds: libraries for Python, Perl and Java, development files and
  documentation. Their wording is repetitive, so a model can learn it from few texts. A summary
  needs information from both ends of the text: what the software is, and what the package contains;
- texts of 20 to 140 words, with summaries of 3 to 15 words;
- texts without a web address, mail address, host name or similar, by the rules of the quick start.

The order is that of the full corpus. `X.origin.tsv` has one row per line.
"""

import argparse
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

QUICKSTART = Path(__file__).resolve().parents[2] / "quickstart" / "data" / "build_corpus.py"
ADDRESS = runpy.run_path(str(QUICKSTART))["ADDRESS"]
"""What counts as an address: one rule for all texts in this project."""

KINDS = re.compile(r"^python3-|-(perl|java|dev|doc)$")
SOURCE_WORDS = range(20, 141)
TARGET_WORDS = range(3, 16)
SETS = ("train", "valid", "test")
ENDINGS = ("origin.tsv", "source", "target")


def wanted(origin: str, source: str, target: str) -> bool:
    """Return whether a text belongs to the example, by the rules at the top of this file."""
    return (
        KINDS.search(origin.split("\t")[0]) is not None
        and len(source.split()) in SOURCE_WORDS
        and len(target.split()) in TARGET_WORDS
        and not ADDRESS.search(source)
        and not ADDRESS.search(target)
    )


def read_set(folder: Path, name: str) -> Iterator[tuple[str, str, str]]:
    """Yield origin, source and target of the selected texts of one set."""
    columns = [
        (folder / f"{name}.{ending}").read_text(encoding="utf-8").splitlines() for ending in ENDINGS
    ]
    for row in zip(*columns, strict=True):
        if wanted(*row):
            yield row


def main() -> None:
    """Write the nine files of the corpus."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="the unpacked folder debsum")
    parser.add_argument("output", type=Path, nargs="?", default=Path(__file__).parent)
    args = parser.parse_args()
    if not (args.source / "train.origin.tsv").is_file():
        parser.error(f"{args.source} has no train.origin.tsv; expected the unpacked folder debsum")
    for name in SETS:
        columns = list(zip(*read_set(args.source, name)))
        for ending, lines in zip(ENDINGS, columns):
            text = "".join(line + "\n" for line in lines)
            (args.output / f"{name}.{ending}").write_text(text, encoding="utf-8")
        print(f"{name}: {len(columns[0])} texts")


if __name__ == "__main__":
    main()
