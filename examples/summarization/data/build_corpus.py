"""Choose the example's texts and summaries from the full corpus, the same way every time.

    python build_corpus.py PATH/TO/debsum [OUTPUT_FOLDER]

The full corpus holds `X.source` (the description of a Debian package), `X.target` (its synopsis,
a line that says what the package is) and `X.origin.tsv` (binary and source package) for X in
train, valid and test, which share no source package and little wording. From each set this keeps

- the packages of some kinds: libraries for Python, Perl and Java, development files and
  documentation. Their wording repeats, so that a model which sees few texts can learn it; and
  what a summary of them needs is at both ends of the text: what the software is at the
  beginning, what of it the package holds at the end;
- those with 60 to 140 words, so that a text has several segments, and 3 to 15 in the summary;
- those without a web address, a mail address, a host name or anything that looks like one, by
  the rules of the quick start's corpus.

The order is that of the full corpus. `X.origin.tsv` has a row for each line.
"""

import argparse
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

QUICKSTART = Path(__file__).resolve().parents[2] / "quickstart" / "data" / "build_corpus.py"
ADDRESS = runpy.run_path(str(QUICKSTART))["ADDRESS"]
"""What an address looks like: one rule for all the text that the project ships."""

KINDS = re.compile(r"^python3-|-(perl|java|dev|doc)$")
SOURCE_WORDS = range(60, 141)
TARGET_WORDS = range(3, 16)
SETS = ("train", "valid", "test")
ENDINGS = ("origin.tsv", "source", "target")


def wanted(origin: str, source: str, target: str) -> bool:
    """Say whether a text belongs to the example, by the rules at the top of this file."""
    return (
        KINDS.search(origin.split("\t")[0]) is not None
        and len(source.split()) in SOURCE_WORDS
        and len(target.split()) in TARGET_WORDS
        and not ADDRESS.search(source)
        and not ADDRESS.search(target)
    )


def read_set(folder: Path, name: str) -> Iterator[tuple[str, str, str]]:
    """Yield origin, source and target of the wanted texts of one set."""
    columns = [
        (folder / f"{name}.{ending}").read_text(encoding="utf-8").splitlines() for ending in ENDINGS
    ]
    for row in zip(*columns, strict=True):
        if wanted(*row):
            yield row


def main() -> None:
    """Read the command line and write the nine files of the corpus."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="the unpacked folder debsum")
    parser.add_argument("output", type=Path, nargs="?", default=Path(__file__).parent)
    args = parser.parse_args()
    if not (args.source / "train.origin.tsv").is_file():
        parser.error(f"{args.source} holds no train.origin.tsv: give the unpacked folder debsum")
    for name in SETS:
        columns = list(zip(*read_set(args.source, name)))
        for ending, lines in zip(ENDINGS, columns):
            text = "".join(line + "\n" for line in lines)
            (args.output / f"{name}.{ending}").write_text(text, encoding="utf-8")
        print(f"{name}: {len(columns[0])} texts")


if __name__ == "__main__":
    main()
