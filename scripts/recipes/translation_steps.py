"""The steps of a translation recipe: text, tokens, subwords, binary data."""

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TextIO

from fairseq_recur.errors import ConfigError
from recipes import bpe, subwords
from recipes.archives import extract
from recipes.parallel import chunks, in_order
from recipes.steps import Made, binarize, step
from recipes.translation_options import Corpus, Options
from recipes.translation_text import Tokeniser, join_chinese, length, sentences, tidy, tokeniser

Pair = tuple[str, str]


def read(file: Path) -> Iterator[str]:
    """Yield the lines of a text file without newlines; only a newline ends a line."""
    with file.open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield line.rstrip("\n")


def write(file: Path) -> TextIO:
    """Open a text file for writing."""
    return file.open("w", encoding="utf-8", newline="\n")


def text_step(work: Path, corpus: Corpus, archive: Path) -> Made:
    """Extract a corpus from its archive: `text/NAME/text.LANGUAGE`, one sentence per line.

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
            texts = (text for member in members for text in _texts(member, raw[member]))
            with write(folder / f"text.{language}") as out:
                counts[language] = _write_part(texts, out, corpus.every)
        for file in raw.values():
            file.unlink()
        _check_counts(corpus, archive, counts)

    inputs: list[object] = [archive.name, archive.stat().st_size, corpus.archive.sha256]
    inputs += [corpus.members, *([corpus.every] if corpus.every else [])]
    return step(work, f"text/{corpus.name}", inputs, make)


# Lines of train.tags.* that are no sentences; a title and a description are translated, too.
TAGS = re.compile(r"\s*</?(?!title>|description>)[a-z]+[ >]")
TRANSLATED = re.compile(r"</?(?:title|description)>")


def _texts(member: str, raw: Path) -> Iterator[str]:
    """Yield the sentences of a member: plain text, SGML or XML of test sets, or IWSLT's tags."""
    with raw.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        if member.endswith((".sgm", ".xml")):
            yield from sentences(lines, member)
        elif "train.tags." in member:
            yield from (tidy(TRANSLATED.sub("", line)) for line in lines if not TAGS.match(line))
        else:
            yield from map(tidy, lines)


def _write_part(texts: Iterator[str], out: TextIO, every: int) -> int:
    """Write each N-th text for N, all but these for -N, all for 0; return their number."""
    count = 0
    for number, text in enumerate(texts, 1):
        if not every or (number % abs(every) == 0) == (every > 0):
            out.write(f"{text}\n")
            count += 1
    return count


def _check_counts(corpus: Corpus, archive: Path, counts: dict[str, int]) -> None:
    (one, first), (other, second) = counts.items()
    if first != second:
        raise ConfigError(
            f"{corpus.name} of {archive} has {first:,} lines of {one} and {second:,} of {other};"
            " expected the same number: the archive is a different one, or damaged"
        )
    # Published numbers come from `wc -l`, which does not count a last line without newline.
    if corpus.pairs is not None and abs(corpus.pairs - first) > len(corpus.members[one]):
        print(
            f"warning: {corpus.name} has {first:,} pairs, expected {corpus.pairs:,}",
            file=sys.stderr, flush=True,
        )  # fmt: skip


class Clean:
    """Cleans and tokenises pairs of lines.

    Args:
        languages: languages of the two lines
        options: options of tokenizers and cleaning
    """

    def __init__(self, languages: Sequence[str], options: Options) -> None:
        self._words = options.tokenizer == "moses"
        self._tokenise = [line_tokeniser(language, options) for language in languages]
        self._rules = options.rules

    def __call__(self, pairs: list[Pair]) -> tuple[list[Pair], Counter, list[Counter]]:
        """Return the kept pairs, the reasons for the dropped ones, and counts of words."""
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
    """Return the function that prepares a clean line for BPE or SentencePiece."""
    found: Tokeniser = join_chinese if language == "zh" else str
    if options.tokenizer == "moses":
        found = tokeniser(
            language, options.normalise == "1", options.dashes == "1", options.segmentation
        )
    return (lambda line: found(line).lower()) if options.lowercase == "1" else found


def token_options(options: Options) -> list[object]:
    """Return the options on which tokens depend."""
    of_moses = [options.normalise, options.dashes, options.segmentation]
    lower = ["lowercase"] if options.lowercase == "1" else []
    return [options.tokenizer, *(of_moses if options.tokenizer == "moses" else []), *lower]


def tokens_step(work: Path, text: Made, languages: Sequence[str], options: Options) -> Made:
    """Clean and tokenise a training corpus.

    Makes `tokens/NAME` with tokens.LANGUAGE and pairs.json, the numbers of kept pairs and of
    dropped pairs by reason. With Moses, words.LANGUAGE has the word counts.
    """

    def make(folder: Path) -> None:
        one, other = languages
        report: Counter = Counter()
        words: list[Counter] = [Counter(), Counter()]
        pairs = zip(read(text.folder / f"text.{one}"), read(text.folder / f"text.{other}"))
        pairs = islice(pairs, options.sample or None)
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
                bpe.write_counts(counts, folder / f"words.{language}")
        shown = json.dumps(report, sort_keys=True)
        (folder / "pairs.json").write_text(f"{shown}\n")
        print(f"   {text.folder.name}: {shown}", flush=True)

    rules = [options.min_length, options.max_length, options.ratio]
    rules += [options.sample] if options.sample else []
    inputs = [text, list(languages), token_options(options), rules]
    return step(work, f"tokens/{text.folder.name}", inputs, make)


# Chinese has thousands of characters; those that are left out are rare.
COVERAGE = {"zh": 0.9995}


def model_step(
    work: Path, tokens: Sequence[Made], languages: Sequence[str], options: Options
) -> Made:
    """Learn BPE or SentencePiece: `pieces/model`.

    Makes codes.LANGUAGE and vocabulary.LANGUAGE with Moses, model.LANGUAGE with SentencePiece.
    With a joint BPE, both languages have the same codes or model.
    """
    moses = options.tokenizer == "moses"

    def make(folder: Path) -> None:
        for learned in [languages] if options.bpe == "joint" else [[one] for one in languages]:
            if moses:
                _learn_codes(folder, tokens, learned, options.bpe_size)
            else:
                _learn_model(folder, tokens, learned, options.bpe_size)

    inputs = [*tokens, list(languages), options.tokenizer, options.bpe, options.bpe_size]
    return step(work, "pieces/model", inputs, make)


def _learn_codes(folder: Path, tokens: Sequence[Made], learned: Sequence[str], size: int) -> None:
    counts = {
        language: bpe.read_counts(t.folder / f"words.{language}" for t in tokens)
        for language in learned
    }
    together = sum(counts.values(), start=type(counts[learned[0]])())
    bpe.learn_codes(together, size, folder / f"codes.{learned[0]}")
    for language in learned:
        codes = folder / f"codes.{language}"
        if language != learned[0]:
            codes.write_bytes((folder / f"codes.{learned[0]}").read_bytes())
        found = bpe.count_subwords(counts[language], codes)
        bpe.write_counts(found, folder / f"vocabulary.{language}")


def _learn_model(folder: Path, tokens: Sequence[Made], learned: Sequence[str], size: int) -> None:
    files = [t.folder / f"tokens.{language}" for t in tokens for language in learned]

    def lines() -> Iterator[str]:
        for file in files:
            yield from read(file)

    coverage = min(COVERAGE.get(language, 1.0) for language in learned)
    count = sum(1 for _ in lines())
    if not count:
        raise ConfigError(
            "there is no text to learn SentencePiece from: no pair was kept; "
            "check MIN_LENGTH and MAX_LENGTH"
        )
    for language in learned:
        model = folder / f"model.{language}"
        if language == learned[0]:
            subwords.learn_from_lines(lines(), count, size, coverage, model)
        else:
            model.write_bytes((folder / f"model.{learned[0]}").read_bytes())


class Cut:
    """Splits lines into subwords.

    Args:
        model: folder of `model_step`
        language: language of the lines
        options: options of subwords
        raw: whether the lines are raw text, which is not yet cleaned and tokenised
    """

    def __init__(self, model: Path, language: str, options: Options, raw: bool) -> None:
        self._tokenise: Callable[[str], str] = str
        if raw:
            tokenise = line_tokeniser(language, options)
            self._tokenise = lambda line: tokenise(tidy(line))
        if options.tokenizer == "moses":
            self._cut: Callable[[str], str] = bpe.ApplyBpe(
                model / f"codes.{language}",
                model / f"vocabulary.{language}",
                options.bpe_threshold,
            )
        else:
            self._cut = subwords.SentencePieces(model / f"model.{language}")

    def __call__(self, lines: list[str]) -> list[str]:
        """Return each line in subwords."""
        return [self._cut(self._tokenise(line)) for line in lines]


def cut_step(
    work: Path, name: str, made: Sequence[Made], model: Made, languages: Sequence[str],
    options: Options,
) -> Made:  # fmt: skip
    """Split files into subwords: `pieces/NAME/NAME.LANGUAGE`, with all steps concatenated.

    Args:
        work: folder of all steps
        name: "train" for tokenised corpora, or the name of a validation or test set
        made: the steps with the files
        model: the step of `model_step`
        languages: languages of the files
        options: options of subwords
    """
    raw = name != "train"
    kind = "text" if raw else "tokens"

    def make(folder: Path) -> None:
        for language in languages:
            files = [m.folder / f"{kind}.{language}" for m in made]
            lines = (line for file in files for line in read(file))
            done = in_order(
                Cut, (model.folder, language, options, raw), chunks(lines), options.workers,
                f"{name}.{language}",
            )  # fmt: skip
            with write(folder / f"{name}.{language}") as out:
                for cut in done:
                    out.writelines(f"{line}\n" for line in cut)

    inputs: list[object] = [*made, model, list(languages), options.bpe_threshold]
    inputs += token_options(options) if raw else []
    return step(work, f"pieces/{name}", inputs, make)


def binary_step(work: Path, pieces: dict[str, Made], options: Options) -> Made:
    """Make fairseq's binary data: `data-bin.SRC-TGT`.

    Args:
        work: folder of all steps
        pieces: the steps of train, valid and test
        options: the direction, the dictionaries and the number of processes
    """

    def make(folder: Path) -> None:
        prefixes = [
            word
            for name, made in pieces.items()
            for word in (f"--{name}pref", str(made.folder / made.folder.name))
        ]
        sides = (options.source, options.target)
        dictionary = ["--joined-dictionary"] if options.dictionary == "joined" else []
        binarize(folder, sides, prefixes, options.workers, dictionary)

    inputs = [*pieces.values(), options.source, options.target, options.dictionary]
    return step(work, f"data-bin.{options.direction}", inputs, make)
