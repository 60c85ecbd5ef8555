"""Preparing a summarization data set: archives, texts, pieces, fairseq's binary format."""

import shutil
from pathlib import Path
from typing import Any

import yaml

from fairseq_recur import cli
from fairseq_recur.errors import ConfigError
from recipes.archives import extract
from recipes.binary import binarize
from recipes.fetch import SUMS, Archive, fetch, sha256
from recipes.steps import Made, need_space, step
from recipes.summary_choices import Choices
from recipes.summary_data import SPLITS, DataSet, Source, archive
from recipes.summary_pieces import SPIECE, encode_all, learn, load_pieces
from recipes.summary_texts import READERS, write_texts

TEXT_TO_ALL = 3.5
"""Bytes of texts, pieces and binary data together, for each byte of text."""

PACKED = 5
"""Bytes of text for each byte of an archive whose text's size is not known."""


class Preparation:
    """The preparation of one data set.

    Args:
        data: the data set
        choices: the user's settings
        work: where everything is written
        models: the file models.yaml
        mirror: a folder or an address with the archives; None for their own addresses
    """

    def __init__(
        self, data: DataSet, choices: Choices, work: Path, models: Path,
        mirror: str | None,
    ) -> None:  # fmt: skip
        self.data, self.choices, self.work = data, choices, work
        self.mirror = mirror
        self.models: dict[str, Any] = yaml.safe_load(models.read_text(encoding="utf-8"))

    def run(self) -> None:
        """Do all steps that are not done.

        Raises:
            ConfigError: an archive cannot be got, is damaged or another one, or no room is left
        """
        self.check_sources()
        self.check_space()
        start = self.start()
        texts = self.texts()
        prepared = self.work / self.choices.folder
        model = self.pieces_model(prepared, texts, start)
        pieces = self.pieces(prepared, texts, model)
        self.binary(prepared, pieces, model)
        print(f"Prepared: {prepared / 'data-bin'}")

    def own_sums(self) -> bool:
        """Whether the mirror says that it has other versions of the files."""
        return self.local_mirror() and (Path(self.mirror or "") / SUMS).is_file()

    def local_mirror(self) -> bool:
        """Whether the mirror is a folder."""
        return self.mirror is not None and "://" not in self.mirror

    def check_sources(self) -> None:
        """Look whether there is a way to every file.

        Raises:
            ConfigError: there is none; the message says what a person has to do
        """
        if self.local_mirror() and not Path(self.mirror or "").is_dir():
            raise ConfigError(
                f"SUMMARIZATION_MIRROR={self.mirror}: there is no such folder; "
                "make it and put the files there"
            )
        lacking = [
            f"{source.archive.name}: {source.how or 'no address is known'}"
            for source in self.data.sources.values()
            if self.mirror is None and not source.archive.urls
            and not (self.work / "downloads" / source.archive.name).is_file()
        ]  # fmt: skip
        if lacking:
            raise ConfigError(
                "some files have no address that a program could use:\n- "
                + "\n- ".join(lacking) + "\nthen say SUMMARIZATION_MIRROR=FOLDER, where all are"
            )  # fmt: skip

    def check_space(self) -> None:
        """Look for room on the disk before anything is got.

        Raises:
            ConfigError: there is not enough
        """
        files = [s.archive for s in self.data.sources.values()]
        text = float(self.data.text_bytes)
        if self.own_sums():
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
        """Get a file; those of a folder are in a folder of that name here and on mirrors."""
        mirror = f"{self.mirror}/{folder}" if self.mirror and folder else self.mirror
        return fetch(wanted, self.work / "downloads" / folder, mirror)

    def fetch_source(self, source: Source) -> Path:
        """Get a file of the data set.

        Raises:
            ConfigError: as `fetch`; the message says what else a person can do
        """
        try:
            return self.fetch(source.archive)
        except ConfigError as error:
            if not source.how:
                raise
            raise ConfigError(f"{error}\n{source.how}") from error

    def texts(self) -> Made:
        """Write texts and summaries, one a line."""
        files = {role: self.fetch_source(source) for role, source in self.data.sources.items()}
        expected = None if self.own_sums() else self.data.documents
        sums = {role: sha256(file) for role, file in files.items()}

        def make(folder: Path) -> None:
            documents = READERS[self.data.format](files, self.data.options)
            write_texts(documents, folder, expected)

        return step(self.work, "text", [self.data.format, self.data.options, sums, expected], make)

    def start(self) -> Made | None:
        """Get the model to start from, in fairseq's format; None if there is none."""
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
        """Make the folder with what encodes text: pieces, and their dictionary if it is given."""
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
        size = self.choices.vocabulary
        return step(prepared, "model", [kind, texts, size], lambda f: learn(texts.folder, f, size))

    def pieces(self, prepared: Path, texts: Made, model: Made) -> Made:
        """Write all texts in pieces."""
        choices = self.choices
        limits = {"source": choices.max_source - 1, "target": choices.max_target - 1}

        def make(folder: Path) -> None:
            encode_all(
                choices.pieces, model.folder, texts.folder, folder, limits, self.choices.workers
            )

        return step(prepared, "pieces", [texts, model, limits], make)

    def binary(self, prepared: Path, pieces: Made, model: Made) -> Made:
        """Write fairseq's binary format."""
        given = model.folder / "dict.txt"
        words = ["--joined-dictionary"]
        if given.is_file():
            words = ["--srcdict", str(given), "--tgtdict", str(given)]
        prefixes = [w for s in SPLITS for w in (f"--{s}pref", str(pieces.folder / s))]

        def make(folder: Path) -> None:
            binarize(folder, ("source", "target"), prefixes, self.choices.workers, words)

        return step(prepared, "data-bin", [pieces, model], make)


def convert(source: Path, target: Path) -> None:
    """Convert a model of Hugging Face's format.

    Raises:
        ConfigError: it cannot be converted
    """
    inner = target / "converted"
    if cli.main(["convert", "--input", str(source), "--output", str(inner)]):
        raise ConfigError(
            f"{source} cannot be converted, see above; mend that and run prepare.sh again"
        )
    for file in inner.iterdir():
        file.rename(target / file.name)
    inner.rmdir()
