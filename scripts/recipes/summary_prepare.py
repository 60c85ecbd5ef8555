"""Preparing a summarization data set: archives, texts, subwords, fairseq's binary format."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from fairseq_recur import cli
from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.settings import misread
from recipes.archives import extract
from recipes.fetch import SUMS, Archive, fetch, sha256
from recipes.parallel import chunks, in_order
from recipes.steps import Made, binarize, need_space, step
from recipes.subwords import SPIECE, load_pieces, train_sentencepiece
from recipes.summary_extracts import EXTRACTS, count_words, write_extracts
from recipes.summary_options import (
    SIDES,
    SPLITS,
    Choices,
    DataSet,
    Source,
    archive,
    find_file,
)
from recipes.summary_readers import READERS, own_texts
from recipes.summary_texts import write_texts

MIRROR = "SUMMARIZATION_MIRROR"
"""The variable that names a folder, or an address, with the archives."""

TEXT_TO_ALL = 3.5
"""Total bytes of texts, subwords and binary data per byte of text."""

PACKED = 5
"""Bytes of text per byte of an archive, where the size of the text is unknown."""


CHUNK = 200
"""Words per training sentence of SentencePiece, which skips long lines."""

MOST_BYTES = 4192
"""Bytes of the longest line that SentencePiece reads; a character has at most four."""

MOST_WORDS = 20_000_000
"""Words from which a SentencePiece model is learned; larger texts are sampled evenly."""


class Preparation:
    """The preparation of one data set.

    Args:
        data: the data set
        choices: the user's settings
        work: output folder
        models: the file models.yaml
        mirror: folder or address of the archives; None for their own addresses
    """

    def __init__(
        self, data: DataSet, choices: Choices, work: Path, models: Path,
        mirror: str | None,
    ) -> None:  # fmt: skip
        self.data, self.choices, self.work = data, choices, work
        self.sources = {} if choices.texts else data.files
        self.mirror = mirror
        self.models: dict[str, Any] = yaml.safe_load(models.read_text(encoding="utf-8"))

    def run(self) -> None:
        """Do all steps that are not done.

        Raises:
            ConfigError: fairseq misreads the name of the output folder; an archive cannot be
                downloaded, is damaged or a different one; or the disk is full
        """
        self.check_name()
        self.check_sources()
        self.check_space()
        if self.choices.download_only == "1":
            self.download()
            print(f"All files of {self.data.name} are downloaded")
            return
        start = self.start()
        texts = self.texts()
        step(self.work, EXTRACTS, [texts], lambda folder: write_extracts(texts.folder, folder))
        prepared = self.work / self.choices.folder
        model = self.pieces_model(prepared, texts, start)
        pieces = self.pieces(prepared, texts, model)
        self.binary(prepared, pieces, model)
        print(f"Prepared: {prepared / 'data-bin'}")

    def check_name(self) -> None:
        """Check that fairseq can read data in the output folder.

        Raises:
            ConfigError: its path has a character that means something else in a path of data
        """
        if mark := misread(str(self.work.absolute())):
            raise ConfigError(
                f"WORK={self.work}: fairseq misreads {mark!r} in its path; choose another folder"
            )

    def own_sums(self) -> bool:
        """Return whether the mirror has other versions of the files, with its own checksums."""
        return self.local_mirror() and (Path(self.mirror or "") / SUMS).is_file()

    def local_mirror(self) -> bool:
        """Return whether the mirror is a folder."""
        return self.mirror is not None and "://" not in self.mirror

    def check_sources(self) -> None:
        """Check that every file can be downloaded or is in the mirror.

        Raises:
            ConfigError: a file has no address; the message says how a person gets it
        """
        if self.local_mirror() and not Path(self.mirror or "").is_dir():
            raise ConfigError(
                f"{MIRROR}={self.mirror}: there is no such folder; "
                "create it and put the files there"
            )
        lacking = [
            f"{source.archive.name}: {source.how or 'no address is known'}"
            for source in self.sources.values()
            if self.mirror is None and not source.archive.urls
            and not (self.work / "downloads" / source.archive.name).is_file()
        ]  # fmt: skip
        if lacking:
            raise ConfigError(
                "some files have no address that a program could use:\n- "
                + "\n- ".join(lacking)
                + f"\nput all files into a folder and set {MIRROR}=FOLDER"
            )  # fmt: skip

    def check_space(self) -> None:
        """Check the free space of the disk before any download.

        Raises:
            ConfigError: there is not enough space
        """
        files = [s.archive for s in self.sources.values()]
        text = float(self.data.text_bytes)
        if self.choices.texts:
            text = sum(file.stat().st_size for file in self.own_files().values())
        elif self.own_sums():
            found = (Path(self.mirror or "") / a.name for a in files)
            text = PACKED * sum(f.stat().st_size for f in found if f.is_file())
        size = 0.0
        if not (self.work / self.choices.folder / "data-bin").is_dir():
            size += TEXT_TO_ALL * text
        if not self.local_mirror():
            downloads = self.work / "downloads"
            size += sum(a.size or 0 for a in files if not (downloads / a.name).is_file())
        need_space(self.work, int(size), f"the data set {self.data.name}")

    def fetch(self, wanted: Archive, folder: str = "") -> Path:
        """Download a file; the files of a folder are in a folder of that name on mirrors, too."""
        mirror = f"{self.mirror}/{folder}" if self.mirror and folder else self.mirror
        return fetch(wanted, self.work / "downloads" / folder, mirror, MIRROR)

    def fetch_source(self, source: Source) -> Path:
        """Download a file of the data set.

        Raises:
            ConfigError: see `fetch`; the message also says how a person gets the file
        """
        try:
            return self.fetch(source.archive)
        except ConfigError as error:
            if not source.how:
                raise
            raise ConfigError(f"{error}\n{source.how}") from error

    def download(self) -> None:
        """Download every file that the preparation reads."""
        for source in self.sources.values():
            self.fetch_source(source)
        name = "t5-small" if self.choices.pieces == "t5" else self.choices.start
        names = [name] if name != "none" else []
        names += ["gpt2"] if self.choices.pieces == "gpt2" else []
        for one in names:
            for fields in self.models[one]["files"]:
                self.fetch(archive(fields), one if one == "t5-small" else "")

    def texts(self) -> Made:
        """Write texts and summaries, one per line."""
        files = {role: self.fetch_source(source) for role, source in self.sources.items()}
        expected, read = self.data.documents, READERS[self.data.format]
        if self.choices.texts:
            files, expected, read = self.own_files(), None, own_texts
        elif self.own_sums():
            expected = None
        sums = {role: sha256(file) for role, file in files.items()}

        def make(folder: Path) -> None:
            write_texts(read(files, self.data.options), folder, expected, self.choices.sample)

        inputs: list[object] = [read.__name__, self.data.options, sums, expected]
        inputs += [self.choices.sample] if self.choices.sample else []
        return step(self.work, "text", inputs, make, self.trainings(*self.work.glob("*")))

    def trainings(self, *prepared: Path) -> list[Path]:
        """The folders of trainings that read prepared data: continued.sh's, and the recipe's."""
        of_continued = [self.work / name for name in ("copying", "runs")]
        return [*of_continued, *sorted(folder / "runs" for folder in prepared)]

    def own_files(self) -> dict[str, Path]:
        """Return the files of the user's own texts by name."""
        names = [f"{split}.{side}" for split in SPLITS for side in SIDES]
        return {name: find_file(Path(self.choices.texts), name) for name in names}

    def start(self) -> Made | None:
        """Download the pretrained model and convert it to fairseq's format; None without one."""
        name = "t5-small" if self.choices.pieces == "t5" else self.choices.start
        if name == "none":
            return None
        folder = name if name == "t5-small" else ""
        files = [self.fetch(archive(fields), folder) for fields in self.models[name]["files"]]

        def make(target: Path) -> None:
            if name == "t5-small":
                convert(files[0].parent, target)
            else:
                extract(files[0], {f"{name}/model.pt": target / "model.pt"})

        return step(self.work, name, [sha256(file) for file in files], make)

    def pieces_model(self, prepared: Path, texts: Made, start: Made | None) -> Made:
        """Make the folder of the subword model, with its dictionary if there is a published one."""
        kind = self.choices.pieces
        if kind == "gpt2":
            files = [self.fetch(archive(fields)) for fields in self.models["gpt2"]["files"]]

            def copy(folder: Path) -> None:
                for file in files:
                    shutil.copyfile(file, folder / file.name)
                load_pieces(kind, folder)

            return step(prepared, "model", [kind, *(sha256(file) for file in files)], copy)
        if kind == "t5":
            assert start is not None

            def take(folder: Path) -> None:
                shutil.copyfile(start.folder / SPIECE, folder / SPIECE)
                shutil.copyfile(start.folder / "dict.source.txt", folder / "dict.txt")

            return step(prepared, "model", [kind, start], take)
        if self.choices.pieces_from:
            given = self.choices.given_pieces

            def adopt(folder: Path) -> None:
                for name, file in given.items():
                    shutil.copyfile(file, folder / name)

            inputs = [kind, *(sha256(f) for f in given.values())]
            return step(prepared, "model", inputs, adopt, self.trainings(prepared))
        size = self.choices.vocabulary
        return step(
            prepared,
            "model",
            [kind, texts, size],
            lambda f: learn_from_documents(texts.folder, f, size),
            self.trainings(prepared),
        )

    def pieces(self, prepared: Path, texts: Made, model: Made) -> Made:
        """Write all texts in subwords."""
        choices = self.choices

        def make(folder: Path) -> None:
            encode_all(
                choices.pieces, model.folder, texts.folder, folder, choices.limits, choices.workers
            )

        inputs = [texts, model, choices.limits]
        return step(prepared, "pieces", inputs, make, self.trainings(prepared))

    def binary(self, prepared: Path, pieces: Made, model: Made) -> Made:
        """Write the texts in fairseq's binary format."""
        given = model.folder / "dict.txt"
        words = ["--joined-dictionary"]
        if given.is_file():
            words = ["--srcdict", str(given), "--tgtdict", str(given)]
        prefixes = [w for s in SPLITS for w in (f"--{s}pref", str(pieces.folder / s))]

        def make(folder: Path) -> None:
            binarize(folder, ("source", "target"), prefixes, self.choices.workers, words)

        return step(prepared, "data-bin", [pieces, model], make, self.trainings(prepared))


def convert(source: Path, target: Path) -> None:
    """Convert a model in the Hugging Face format.

    Raises:
        ConfigError: it cannot be converted
    """
    inner = target / "converted"
    if cli.main(["convert", "--input", str(source), "--output", str(inner)]):
        raise ConfigError(
            f"{source} cannot be converted, see above; correct that and run prepare.sh again"
        )
    for file in inner.iterdir():
        file.rename(target / file.name)
    inner.rmdir()


def learn_from_documents(texts: Path, folder: Path, size: int) -> None:
    """Learn SentencePiece from both sides of the training set, for summarization.

    Args:
        texts: folder with train.source and train.target
        folder: output folder of spiece.model
        size: number of subwords

    Raises:
        ConfigError: the texts have more characters than subwords are asked for
    """
    words = sum(map(count_words, _training_lines(texts)))
    distance = max(1, -(-words // MOST_WORDS))
    chosen = islice(_chunks(texts), 0, None, distance)
    train_sentencepiece(chosen, size, folder / SPIECE, character_coverage=0.9999)


def _training_lines(texts: Path) -> Iterator[str]:
    for side in SIDES:
        with open(texts / f"train.{side}", encoding="utf-8", newline="\n") as lines:
            yield from lines


def _chunks(texts: Path) -> Iterator[str]:
    for line in _training_lines(texts):
        words = line.split()
        for begin in range(0, len(words), CHUNK):
            text = " ".join(words[begin : begin + CHUNK])
            step = len(text) if len(text.encode()) <= MOST_BYTES else MOST_BYTES // 4
            yield from (text[i : i + step] for i in range(0, len(text), step))


class Encode:
    """Encodes lines.

    Args:
        kind: one of KINDS
        model: folder with the files of that kind
        limit: maximum number of subwords of a line; 0 for no limit
        first: symbols before the subwords of each line
    """

    def __init__(self, kind: str, model: Path, limit: int, first: Sequence[str] = ()) -> None:
        self.encode, self.limit, self.first = load_pieces(kind, model).encode, limit, first

    def __call__(self, lines: list[str]) -> list[tuple[str, bool]]:
        """Return each line in subwords, and whether it was truncated."""
        return [self.line(line) for line in lines]

    def line(self, line: str) -> tuple[str, bool]:
        """Return a line in subwords, and whether it was truncated."""
        pieces = self.encode(line)
        cut = bool(self.limit) and len(pieces) > self.limit
        return " ".join([*self.first, *(pieces[: self.limit] if cut else pieces)]), cut


def _words(lines: Iterable[str], limit: int) -> Iterator[str]:
    """Drop the words that are beyond a limit in any case, as each has at least one subword."""
    for line in lines:
        yield " ".join(line.split(None, limit + 1)[: limit + 1]) if limit else line.rstrip("\n")


def encode_all(
    kind: str, model: Path, texts: Path, folder: Path, limits: dict[str, int], workers: int,
    first: Sequence[str] = (),
) -> None:  # fmt: skip
    """Write all texts in subwords, line by line.

    All sources are truncated. Summaries are truncated only in the training set, because those of
    the other sets are references.

    Args:
        kind: one of KINDS
        model: folder with the files of that kind
        texts: folder with SPLIT.source and SPLIT.target
        folder: output folder; the files have the same names
        limits: maximum number of subwords of a source and of a target, without the end symbol
        workers: number of processes
        first: symbols before the subwords of each line, which the limits do not count
    """
    for split in SPLITS:
        for side in SIDES:
            limit = limits[side] if side == "source" or split == "train" else 0
            name, count = f"{split}.{side}", 0
            with (
                open(texts / name, encoding="utf-8", newline="\n") as lines,
                open(folder / name, "w", encoding="utf-8", newline="\n") as out,
            ):
                parts = chunks(_words(lines, limit))
                for part in in_order(Encode, (kind, model, limit, first), parts, workers, name):
                    for pieces, cut in part:
                        out.write(pieces + "\n")
                        count += cut
            if limit:
                print(f"{name}: {count:,} texts are truncated to {limit:,} subwords", flush=True)
