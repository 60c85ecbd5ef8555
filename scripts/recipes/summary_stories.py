"""News articles as they are distributed: CNN/DailyMail's stories, and XSum's."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fairseq_recur.errors import ConfigError
from recipes.summary_archives import read_json, tar_members, text_of
from recipes.summary_document import Document

HIGHLIGHT = "@highlight"
ENDS = (".", "!", "?", "'", "`", '"', "\u2019", "\u201d", ")")
"""What a line of a story ends with if its full stop is not missing."""

SECTION = re.compile(r"\[SN\]([A-Z-]+)\[SN\]")


def cnn_dm(files: dict[str, Path], options: dict[str, Any]) -> Iterator[Document]:
    """CNN/DailyMail from the stories, not anonymised.

    A story belongs to the split whose list has its address; its file is named by the address's
    SHA-1.

    Args:
        files: cnn and dailymail, archives of .story files; train, valid and test, lists of
            addresses
        options: none

    Raises:
        ConfigError: an archive is damaged, a listed story is in none of them, or is there twice
    """
    splits = ((s, files[s], _lines(files[s])) for s in ("train", "valid", "test"))
    wanted = _wanted(
        (split, list_, [hashlib.sha1(url.encode()).hexdigest() for url in urls])
        for split, list_, urls in splits
    )
    stories = (m for part in ("cnn", "dailymail") for m in tar_members(files[part], ".story"))
    for name, split, text in _chosen(stories, wanted, [files["cnn"], files["dailymail"]]):
        article, highlights = split_story(text)
        yield Document(split, name, article, highlights)


def split_story(text: str) -> tuple[str, str]:
    """The article of a story and its highlights, each with full stops where they were missing."""
    article: list[str] = []
    highlights: list[str] = []
    for line in (line.strip() for line in text.split("\n")):
        if line.startswith(HIGHLIGHT):
            highlights.append("")  # what follows is of this one, up to the next mark
        elif line:
            line = line if line.endswith(ENDS) else f"{line} ."
            if highlights:
                highlights[-1] = f"{highlights[-1]} {line}".strip()
            else:
                article.append(line)
    return " ".join(article), " ".join(filter(None, highlights))


def xsum(files: dict[str, Path], options: dict[str, Any]) -> Iterator[Document]:
    """XSum: the first sentence of a BBC article is the summary of the rest.

    Args:
        files: articles, an archive of .summary files; splits, JSON with their numbers
        options: boilerplate, lines of web pages that are left out

    Raises:
        ConfigError: an archive is damaged, an article is missing, there twice or without a section
    """
    listed = read_json(files["splits"])
    names = {"train": "train", "valid": "validation", "test": "test"}
    if not isinstance(listed, dict) or not set(names.values()) <= set(listed):
        raise ConfigError(f"{files['splits']}: expected lists train, validation and test")
    wanted = _wanted((s, files["splits"], map(str, listed[name])) for s, name in names.items())
    boilerplate = frozenset(options["boilerplate"])
    articles = tar_members(files["articles"], ".summary")
    for name, split, text in _chosen(articles, wanted, [files["articles"]]):
        parts = SECTION.split(text)
        sections = dict(zip(parts[1::2], parts[2::2]))
        if not {"FIRST-SENTENCE", "RESTBODY"} <= set(sections):
            raise ConfigError(
                f"{files['articles']}, {name}.summary: expected the sections FIRST-SENTENCE and"
                f" RESTBODY, found {', '.join(sections) or 'none'}"
            )
        lines = (line for line in sections["RESTBODY"].split("\n"))
        body = " ".join(line for line in lines if line.strip() not in boilerplate)
        yield Document(split, name, body, sections["FIRST-SENTENCE"])


def _lines(file: Path) -> list[str]:
    text = text_of(file.read_bytes(), str(file))
    return [line.strip() for line in text.split("\n") if line.strip()]


def _wanted(lists: Iterable[tuple[str, Path, Iterable[str]]]) -> dict[str, str]:
    """Name to split."""
    wanted: dict[str, str] = {}
    for split, file, names in lists:
        for name in names:
            if wanted.setdefault(name, split) != split:
                raise ConfigError(
                    f"{file}: {name} is in {wanted[name]} and in {split}; get the lists again"
                )
    return wanted


def _chosen(
    members: Iterable[tuple[str, str]], wanted: dict[str, str], archives: list[Path]
) -> Iterator[tuple[str, str, str]]:
    """Name, split and text of the wanted members.

    Raises:
        ConfigError: one is there twice, or not at all
    """
    where, found = " and ".join(map(str, archives)), set()
    for name, text in members:
        if name in wanted:
            if name in found:
                raise ConfigError(f"{where}: {name} is there twice; get the archive again")
            found.add(name)
            yield name, wanted[name], text
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ConfigError(
            f"{where}: {len(missing):,} of {len(wanted):,} listed documents are not there, the"
            f" first is {missing[0]}; the archive is incomplete or another one; get it again"
        )
