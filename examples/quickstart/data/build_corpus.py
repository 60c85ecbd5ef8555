"""Choose the quick start's corpus from the full English-German one, the same way every time.

    python build_corpus.py PATH/TO/en-de [OUTPUT_FOLDER]

The full corpus holds `X.en`, `X.de` and `X.origin.tsv` (kind, package, document; one line
a pair) for X in train, valid and test, whose documents do not overlap. From each set this
keeps the pairs

- of LibreOffice's help (package libreoffice-help-de): one source, one licence, full sentences;
- of its pages for Writer, Calc, Impress, Draw and what they share, so that a model which sees
  its corpus a few times only can learn the vocabulary;
- with 3 to 18 words on the English side and no more than 22 on the German one;
- without a web address, a mail address, a host name or anything that looks like one.

Pairs are written page by page. `X.origin.tsv` has a row for each page: its first and last
line in the files, the package and the page.
"""

import argparse
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

PACKAGE = "libreoffice-help-de"
AREAS = {"shared", "swriter", "scalc", "simpress", "sdraw"}
ENGLISH_WORDS = range(3, 19)
GERMAN_WORDS = range(2, 23)
SETS = ("train", "valid", "test")

# Too much is dropped rather than too little: any dot inside a word of two characters and
# more (www.x.org, example.com, but also file.txt and Sheet1.A1), and four joined numbers.
ADDRESS = re.compile(
    r"""@ | :// | \bwww\b | \bhttps?\b | \bs?ftp\b | \bmailto\b | \blocalhost\b
      | \w\.[^\W\d_]{2} | \w{2}\.[^\W\d_]   # example.com, x.org:80, file.txt, Sheet1.A1
      | \d+\.\d+\.\d+\.\d+                  # 192.0.2.1
      | [0-9a-f]*:[0-9a-f]*:[0-9a-f]+       # 2001:db8::1
      | [\\/]{2}\w                          # //host/share, \\host\share
    """,
    re.VERBOSE | re.IGNORECASE,
)


class Pair(NamedTuple):
    """One segment in both languages and the help page that it comes from."""

    page: str
    english: str
    german: str


def wanted(package: str, pair: Pair) -> bool:
    """Say whether a pair belongs to the quick start, by the rules at the top of this file."""
    return (
        package == PACKAGE
        and pair.page.split("/")[0] in AREAS
        and len(pair.english.split()) in ENGLISH_WORDS
        and len(pair.german.split()) in GERMAN_WORDS
        and not ADDRESS.search(pair.english)
        and not ADDRESS.search(pair.german)
    )


def read_pairs(source: Path, name: str) -> Iterator[Pair]:
    """Yield the wanted pairs of one set in the order of the full corpus."""
    columns = [
        (source / f"{name}.{ending}").read_text(encoding="utf-8").splitlines()
        for ending in ("origin.tsv", "en", "de")
    ]
    for origin, english, german in zip(*columns, strict=True):
        _kind, package, page = origin.split("\t")
        pair = Pair(page, english, german)
        if wanted(package, pair):
            yield pair


def write_set(pairs: list[Pair], output: Path, name: str) -> None:
    """Write `name.en`, `name.de` and `name.origin.tsv`; pairs are sorted by page already."""
    rows, first = ["first_line\tlast_line\tpackage\tpage"], 1
    for page, group in groupby(pairs, key=lambda pair: pair.page):
        last = first + len(list(group)) - 1
        rows.append(f"{first}\t{last}\t{PACKAGE}\t{page}")
        first = last + 1
    lines = {
        "en": [pair.english for pair in pairs],
        "de": [pair.german for pair in pairs],
        "origin.tsv": rows,
    }
    for ending, text in lines.items():
        (output / f"{name}.{ending}").write_text("\n".join(text) + "\n", encoding="utf-8")


def main() -> None:
    """Read the command line and write the nine files of the corpus."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="the unpacked folder en-de")
    parser.add_argument("output", type=Path, nargs="?", default=Path(__file__).parent)
    args = parser.parse_args()
    if not (args.source / "train.origin.tsv").is_file():
        parser.error(f"{args.source} holds no train.origin.tsv: give the unpacked folder en-de")

    held_out: set[str] = set()
    for name in reversed(SETS):
        pairs = sorted(read_pairs(args.source, name), key=lambda pair: pair.page)
        pairs = [pair for pair in pairs if not {pair.english, pair.german} & held_out]
        if name != "train":
            held_out.update(*((pair.english, pair.german) for pair in pairs))
        write_set(pairs, args.output, name)
        print(f"{name}: {len(pairs)} pairs of {len({pair.page for pair in pairs})} pages")


if __name__ == "__main__":
    main()
