"""The later steps of a translation recipe: tokens to pieces, to fairseq's binary data."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fairseq_recur.errors import ConfigError
from recipes import bpe, sentencepieces
from recipes.binary import binarize
from recipes.clean import tidy
from recipes.corpora import line_tokeniser, read, token_options, write
from recipes.options import Options
from recipes.parallel import chunks, in_order
from recipes.steps import Made, step

# Chinese has thousands of characters; those that are left out are rare.
COVERAGE = {"zh": 0.9995}


def model_step(
    work: Path, tokens: Sequence[Made], languages: Sequence[str], options: Options
) -> Made:
    """Learn BPE or SentencePiece: `pieces/model`.

    Makes with Moses codes.LANGUAGE and vocabulary.LANGUAGE; with SentencePiece model.LANGUAGE. The
    two languages have the same codes or model where BPE is joint.
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
    bpe.learn(together, size, folder / f"codes.{learned[0]}")
    for language in learned:
        codes = folder / f"codes.{language}"
        if language != learned[0]:
            codes.write_bytes((folder / f"codes.{learned[0]}").read_bytes())
        found = bpe.pieces_of(counts[language], codes)
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
            "there is nothing to learn SentencePiece on: no pair was kept; "
            "check MIN_LENGTH and MAX_LENGTH"
        )
    for language in learned:
        model = folder / f"model.{language}"
        if language == learned[0]:
            sentencepieces.learn(lines(), count, size, coverage, model)
        else:
            model.write_bytes((folder / f"model.{learned[0]}").read_bytes())


class Cut:
    """Lines to lines of pieces.

    Args:
        model: the folder of `model_step`
        language: of the lines
        options: of pieces
        raw: whether the lines are text as it is, not yet tidy and tokenised
    """

    def __init__(self, model: Path, language: str, options: Options, raw: bool) -> None:
        self._tokenise: Callable[[str], str] = str
        if raw:
            tokenise = line_tokeniser(language, options)
            self._tokenise = lambda line: tokenise(tidy(line))
        if options.tokenizer == "moses":
            self._cut: Callable[[str], str] = bpe.Apply(
                model / f"codes.{language}",
                model / f"vocabulary.{language}",
                options.bpe_threshold,
            )
        else:
            self._cut = sentencepieces.Apply(model / f"model.{language}")

    def __call__(self, lines: list[str]) -> list[str]:
        return [self._cut(self._tokenise(line)) for line in lines]


def cut_step(
    work: Path, name: str, made: Sequence[Made], model: Made, languages: Sequence[str],
    options: Options,
) -> Made:  # fmt: skip
    """Cut files into pieces: `pieces/NAME/NAME.LANGUAGE`, the files of several steps joined.

    Args:
        work: the folder for everything
        name: "train" for corpora that are tokens already, else of a validation or test set
        made: the steps with the files
        model: `model_step`
        languages: of the files
        options: of pieces
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
        work: the folder for everything
        pieces: the steps with train, valid and test
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
