"""Pronunciation data: find it, check it, and write it as fairseq's binary data."""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from fairseq.data import Dictionary

from fairseq_recur.errors import ConfigError, Problems, first_items
from fairseq_recur.experiments.other_sets import write_binary
from fairseq_recur.experiments.settings import misread
from fairseq_recur.files import read_json, write_json, write_text
from fairseq_recur.scoring.generation import read_lines

SETS = {"train": "train", "dev": "valid", "test": "test"}
"""Their names in the files, and fairseq's."""
VALIDATION = ("valid", "val")
"""What the files and folders of dev may be called, too."""
FILE = re.compile(rf"(?P<language>[^.].*)_(?P<set>train|dev|test|{'|'.join(VALIDATION)})\.tsv")
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""What a blank within a word becomes, as in SentencePiece."""
SHOWN = 3
"""Number of wrong lines of a file that an error shows."""
FORMS = ("NFC", "NFD")
"""Unicode's forms of the words: with composed characters, such as Hangul syllables, or without."""
UNKNOWN = 0.02
"""Share of unknown characters above which the other form is recommended."""

Entry = tuple[str, str]
"""Characters and phones, separated by blanks."""


@dataclass(frozen=True)
class Language:
    """A language's words.

    Attributes:
        name: the beginning of its files' names
        entries: set -> words in the order of the file
        digest: of all that was read
        form: of the words, one of `FORMS`; the phones are in NFC
    """

    name: str
    entries: dict[str, list[Entry]]
    digest: str
    form: str = "NFC"

    def pronunciations(self) -> dict[str, list[str]]:
        """Return the words of the test set, each with all its different pronunciations."""
        found: dict[str, list[str]] = {}
        for word, phones in self.entries["test"]:
            of_word = found.setdefault(word, [])
            if phones not in of_word:
                of_word.append(phones)
        return found

    def unknown(self, form: str) -> float:
        """Return the share of the development words' characters that training lacks in a form."""
        train, dev = (
            "".join(word for word, _ in self.entries[part]).replace(" ", "")
            for part in ("train", "dev")
        )
        known, found = ({*unicodedata.normalize(form, train)}, unicodedata.normalize(form, dev))
        return sum(character not in known for character in found) / len(found)

    def phones_per_character(self) -> float:
        """Return the quotient of the training words' numbers of phones and of characters."""
        phones, characters = (
            sum(len(entry[side].split()) for entry in self.entries["train"]) for side in (1, 0)
        )
        return phones / characters

    def counts(self) -> dict[str, int | str]:
        """Return the numbers of lines, symbols, and words that occur again or have new symbols.

        The form of the words stands beside them; records of before lack it, and are in NFC.
        """
        train, test = self.entries["train"], self.pronunciations()
        known = {word for word, _ in train}
        characters = {c for word, _ in train for c in word.split()}
        phones = {p for _, phones in train for p in phones.split()}
        return {
            "normalization": self.form,
            "train": len(train),
            "dev": len(self.entries["dev"]),
            "test": len(test),
            "characters": len(characters),
            "phones": len(phones),
            "train_repeated": len(train) - len(known),
            "test_repeated": len(self.entries["test"]) - len(test),
            "test_in_train": len(known & test.keys()),
            "test_new_characters": sum(not characters.issuperset(word.split()) for word in test),
            "test_new_phones": sum(
                not phones.issuperset(" ".join(all_of).split()) for all_of in test.values()
            ),
        }


def read(folder: Path, languages: Sequence[str] = (), form: str = "NFC") -> list[Language]:
    """Read the languages of a folder.

    Args:
        folder: with LANG_train.tsv, LANG_dev.tsv and LANG_test.tsv, or with such files in its
            folders train, dev and test
        languages: the first parts of the names; empty for all
        form: of the words, one of `FORMS`

    Raises:
        ConfigError: lists everything that is wrong
    """
    if form not in FORMS:
        raise ConfigError(f"NORMALIZATION={form}: expected {' or '.join(FORMS)}")
    problems = Problems(f"{folder} cannot be used; nothing was trained")
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}; expected one with files LANG_train.tsv")
    files: dict[str, dict[str, Path]] = {}
    for place in (folder, *(folder / name for name in (*SETS, *VALIDATION))):
        for path in sorted(place.glob("*.tsv")):
            match = FILE.fullmatch(path.name)
            if match:
                part = "dev" if match["set"] in VALIDATION else match["set"]
                first = files.setdefault(match["language"], {}).setdefault(part, path)
                if first != path:
                    problems.add(f"found both {first} and {path}; remove one of them")
    if not files:
        problems.add(f"{folder} has no LANG_train.tsv, LANG_dev.tsv or LANG_test.tsv; add them")
    for name in languages:
        if name not in files:
            known = ", ".join(sorted(files)) or "none"
            problems.add(
                f"--languages {name}: {folder} has no such language; expected some of: {known}"
            )
    found = [
        _language(name, sets, folder, form, problems)
        for name, sets in sorted(files.items())
        if name in languages or not languages
    ]
    problems.raise_all()
    return found


def _language(
    name: str, files: dict[str, Path], folder: Path, form: str, problems: Problems
) -> Language:
    """Read the three sets of a language."""
    if mark := misread(name):
        file = next(iter(files.values()))
        problems.add(f"{file}: fairseq misreads {mark!r} in {name}; rename the language's files")
    entries: dict[str, list[Entry]] = {}
    for part in SETS:
        if part in files:
            entries[part] = _entries(files[part], form, problems)
            if part == "train":
                _check_phones(files[part], entries[part], problems)
        else:
            problems.add(f"{folder} has no {name}_{part}.tsv; add it, or leave {name} out")
    digest = hashlib.sha256(repr(entries).encode()).hexdigest()
    return Language(name, entries, digest, form)


def _entries(path: Path, form: str, problems: Problems) -> list[Entry]:
    """Read the lines of a file: a word, a tab, phones separated by blanks; none if one is wrong.

    Empty lines at the end are no lines.
    """
    found, wrong = [], []
    try:
        lines = read_lines(path)
    except ConfigError as error:
        problems.add(str(error))
        return []
    while len(lines) > 1 and not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, 1):
        normal = unicodedata.normalize("NFC", line).removeprefix("\ufeff")
        word, _, phones = normal.partition("\t")
        if not word.strip() or not phones.strip() or "\t" in phones:
            wrong.append(f"line {number} {line[:50]!r}")
        symbols = unicodedata.normalize(form, word.strip())
        characters = " ".join(SPACE if c.isspace() else c for c in symbols)
        found.append((characters, " ".join(phones.split())))
    if wrong:
        problems.add(
            f"{path}: found {first_items(wrong, SHOWN)}; expected a word, one tab, and phones "
            "separated by blanks in every line"
        )
        return []
    return found


def _check_phones(path: Path, entries: Sequence[Entry], problems: Problems) -> None:
    """Note a file whose pronunciations are not divided into phones."""
    long = [phones for word, phones in entries if " " in word]
    whole = sum(" " not in phones for phones in long)
    if 2 * whole > len(long):
        problems.add(
            f"{path}: {whole} of {len(long)} words of several characters have a single phone; "
            "separate the phones by blanks"
        )


def check_prepared(languages: Iterable[Language], work: Path) -> None:
    """Refuse a folder in which a training on other words has begun.

    Raises:
        ConfigError: naming the languages
    """
    changed = [
        language.name
        for language in languages
        if (before := read_json(work / language.name / "data" / "prepared.json")) is not None
        and before["digest"] != language.digest
        and any((work / language.name).glob("*/seed*/state.json"))
    ]
    if changed:
        raise ConfigError(
            f"{work} has trainings on other words for {', '.join(changed)}; choose another "
            "--work-dir, or remove these folders"
        )


def prepare(language: Language, folder: Path) -> str:
    """Write a language's binary data and references, and the part of its experiment that differs.

    Data of other words are replaced: `check_prepared` has found that nothing is trained on them.

    Args:
        language: its words
        folder: of its experiment; gets ``data`` and ``data.yaml``

    Returns:
        what it has, in words, and advice on the form of the words
    """
    data = folder / "data"
    before = read_json(data / "prepared.json")
    if before is None or before["digest"] != language.digest:
        data.mkdir(parents=True, exist_ok=True)
        # A kill must not leave the record beside other data, nor these words more references.
        for old in (data / "prepared.json", *data.glob("test.*.phones")):
            old.unlink(missing_ok=True)
        for side, suffix in enumerate(("word", "phones")):
            symbols = Dictionary()
            for entry in language.entries["train"]:
                symbols.encode_line(entry[side], add_if_not_exist=True)
            symbols.finalize(padding_factor=8)
            symbols.save(str(data / f"dict.{suffix}.txt"))
            for part, name in SETS.items():
                lines = [entry[side] for entry in language.entries[part]]
                if part == "test":
                    pairs = language.pronunciations().items()
                    lines = [(word, all_of[0])[side] for word, all_of in pairs]
                write_binary(lines, symbols, data / f"{name}.word-phones.{suffix}")
        references = _references(list(language.pronunciations().values()))
        for number, lines in enumerate(references, 1):
            write_text(data / f"test.{number}.phones", "".join(f"{line}\n" for line in lines))
        experiment: dict[str, Any] = {
            "title": f"Grapheme-to-phoneme conversion: {language.name}",
            "data": "data",
            "score": {
                "reference": [f"data/test.{n}.phones" for n in range(1, len(references) + 1)]
            },
        }
        write_text(folder / "data.yaml", yaml.safe_dump(experiment, sort_keys=False))
    # Always, for a folder that was prepared before may lack counts.
    write_json(data / "prepared.json", {"digest": language.digest, "counts": language.counts()})
    return _in_words(language)


def _references(pronunciations: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return one list per reference; the metrics count a repeated pronunciation once."""
    most = max(map(len, pronunciations))
    return [[all_of[min(n, len(all_of) - 1)] for all_of in pronunciations] for n in range(most)]


def _in_words(language: Language) -> str:
    """Describe a language in a line."""
    counts = language.counts()
    said = "{train} words for training, {dev} for development, {test} for the test; " \
        "{characters} characters, {phones} phones".format(**counts)  # fmt: skip
    said += f"; {language.phones_per_character():.2f} phones per character"
    if counts["train_repeated"]:
        said += f"; {counts['train_repeated']} training lines repeat a word, all are trained on"
    if counts["test_repeated"]:
        said += (
            f"; {counts['test_repeated']} test lines repeat a word, which counts once: "
            "any of its pronunciations is right"
        )
    if counts["test_in_train"]:
        said += f"; {counts['test_in_train']} words of the test set are also in the training set"
    for symbol in ("character", "phone"):
        if new := counts[f"test_new_{symbol}s"]:
            said += f"; {new} words of the test set have a {symbol} that the training set lacks"
    return f"{language.name}: {said}{_advice(language)}"


def _advice(language: Language) -> str:
    """Recommend NFD where it leaves at most half of the unknown characters, and many are."""
    composed, decomposed = map(language.unknown, FORMS)
    if language.form == "NFD" or composed <= UNKNOWN or decomposed > composed / 2:
        return ""
    return (
        f"\nwarning: {language.name}: the training set lacks {100 * composed:.1f} % of the "
        f"characters of the development words, and {100 * decomposed:.1f} % if composed characters "
        "are divided; set NORMALIZATION=NFD in front of the command"
    )
