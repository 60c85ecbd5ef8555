"""The first steps of a translation recipe: text out of archives, then clean pairs of tokens."""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from fairseq_recur.errors import ConfigError
from recipes import sgm
from recipes.archives import extract
from recipes.bpe import write_counts
from recipes.clean import join_chinese, length, tidy
from recipes.options import Options
from recipes.parallel import chunks, in_order
from recipes.recipe import Corpus
from recipes.steps import Made, step
from recipes.tokenise import Tokeniser, tokeniser

Pair = tuple[str, str]


def read(file: Path) -> Iterator[str]:
    """The lines of a text file without their ends; nothing but a newline ends one."""
    with file.open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield line.rstrip("\n")


def write(file: Path) -> TextIO:
    """A text file to write."""
    return file.open("w", encoding="utf-8", newline="\n")


def text_step(work: Path, corpus: Corpus, archive: Path) -> Made:
    """Take a corpus out of its archive: `text/NAME/text.LANGUAGE`, a sentence a line.

    Raises:
        ConfigError: the archive is damaged, or the two languages have different numbers of lines
    """

    def make(folder: Path) -> None:
        raw = {
            member: folder / f"raw.{language}.{number}"
            for language, members in corpus.members.items()
            for number, member in enumerate(members)
        }
        extract(archive, raw)
        counts = {}
        for language, members in corpus.members.items():
            with write(folder / f"text.{language}") as out:
                counts[language] = sum(_convert(m, raw[m], out) for m in members)
        for file in raw.values():
            file.unlink()
        _check_counts(corpus, archive, counts)

    inputs = [archive.name, archive.stat().st_size, corpus.archive.sha256, corpus.members]
    return step(work, f"text/{corpus.name}", inputs, make)


def _convert(member: str, raw: Path, out: TextIO) -> int:
    """Write a member's sentences; how many they are."""
    count = 0
    with raw.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        texts = sgm.sentences(lines, member) if member.endswith(".sgm") else map(tidy, lines)
        for count, text in enumerate(texts, start=1):
            out.write(f"{text}\n")
    return count


def _check_counts(corpus: Corpus, archive: Path, counts: dict[str, int]) -> None:
    (one, first), (other, second) = counts.items()
    if first != second:
        raise ConfigError(
            f"{corpus.name} of {archive} has {first:,} lines of {one} and {second:,} of {other};"
            " expected the same number: the archive is another one, or damaged"
        )
    # Published figures are of `wc -l`, which does not count a last line without an end.
    if corpus.pairs is not None and abs(corpus.pairs - first) > len(corpus.members[one]):
        print(
            f"warning: {corpus.name} has {first:,} pairs, expected {corpus.pairs:,}",
            file=sys.stderr, flush=True,
        )  # fmt: skip


class Clean:
    """Pairs of lines to those that are kept, as tokens, and what became of the others.

    Args:
        languages: of the two lines
        options: of tokenisers and cleaning
    """

    def __init__(self, languages: Sequence[str], options: Options) -> None:
        self._words = options.tokenizer == "moses"
        self._tokenise = [line_tokeniser(language, options) for language in languages]
        self._rules = options.rules

    def __call__(self, pairs: list[Pair]) -> tuple[list[Pair], Counter, list[Counter]]:
        kept: list[Pair] = []
        faults: Counter = Counter()
        words: list[Counter] = [Counter(), Counter()]
        for pair in pairs:
            fault = self._rules.fault(*pair)
            if fault is None:
                one, other = (tokenise(text) for tokenise, text in zip(self._tokenise, pair))
                fault = self._rules.misfit(self._length(one), self._length(other))
            if fault is not None:
                faults[fault] += 1
                continue
            kept.append((one, other))
            if self._words:
                words[0].update(one.split(" "))
                words[1].update(other.split(" "))
        return kept, faults, words

    def _length(self, text: str) -> int:
        return len(text.split()) if self._words else length(text)


def line_tokeniser(language: str, options: Options) -> Tokeniser:
    """What makes of a tidy line that which BPE or SentencePiece reads."""
    if options.tokenizer == "sentencepiece":
        return join_chinese if language == "zh" else str
    return tokeniser(
        language, options.normalise == "1", options.dashes == "1", options.segmentation
    )


def token_options(options: Options) -> list[object]:
    """The options that tokens depend on."""
    of_moses = [options.normalise, options.dashes, options.segmentation]
    return [options.tokenizer, *(of_moses if options.tokenizer == "moses" else [])]


def tokens_step(work: Path, text: Made, languages: Sequence[str], options: Options) -> Made:
    """Clean and tokenise a training corpus.

    Makes `tokens/NAME` with tokens.LANGUAGE; with Moses words.LANGUAGE, the counts of words; and
    pairs.json: how many pairs were kept, and how many dropped, and why.
    """

    def make(folder: Path) -> None:
        one, other = languages
        report: Counter = Counter()
        words: list[Counter] = [Counter(), Counter()]
        pairs = zip(read(text.folder / f"text.{one}"), read(text.folder / f"text.{other}"))
        done = in_order(
            Clean, (languages, options), chunks(pairs), options.workers, text.folder.name
        )
        with write(folder / f"tokens.{one}") as left, write(folder / f"tokens.{other}") as right:
            for kept, faults, counted in done:
                left.writelines(f"{line}\n" for line, _ in kept)
                right.writelines(f"{line}\n" for _, line in kept)
                report.update(faults)
                report["kept"] += len(kept)
                for total, more in zip(words, counted):
                    total.update(more)
        if options.tokenizer == "moses":
            for language, counts in zip(languages, words):
                write_counts(counts, folder / f"words.{language}")
        shown = json.dumps(report, sort_keys=True)
        (folder / "pairs.json").write_text(f"{shown}\n")
        print(f"   {text.folder.name}: {shown}", flush=True)

    rules = [options.min_length, options.max_length, options.ratio]
    inputs = [text, list(languages), token_options(options), rules]
    return step(work, f"tokens/{text.folder.name}", inputs, make)
