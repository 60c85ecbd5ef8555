"""From the files of a data set, as its authors distribute them, to documents and summaries."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from fairseq_recur.errors import ConfigError
from recipes.archives import (
    json_lines,
    json_of,
    objects,
    read_json,
    tar_members,
    text_of,
    zip_lines,
    zip_members,
)
from recipes.summary_options import SIDES, SPLITS


@dataclass(frozen=True)
class Document:
    """A text and its summary, unchanged, including line breaks.

    Attributes:
        split: train, valid or test
        name: its name in the data set
        source: the text
        summary: its summary
    """

    split: str
    name: str
    source: str
    summary: str


HIGHLIGHT = "@highlight"
ENDS = (".", "!", "?", "'", "`", '"', "\u2019", "\u201d", ")")
"""Endings of a story's line that does not lack a full stop."""

SECTION = re.compile(r"\[SN\]([A-Z-]+)\[SN\]")


def cnn_dm(files: dict[str, Path], options: dict[str, Any]) -> Iterator[Document]:
    """Read the stories of CNN/DailyMail, which are not anonymised.

    A story belongs to the split whose list has its address. The name of its file is the SHA-1 of
    the address.

    Args:
        files: cnn and dailymail, archives of .story files; train, valid and test, lists of
            addresses
        options: none

    Raises:
        ConfigError: an archive is damaged; a listed story is missing or exists twice
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
    """Return the article and the highlights of a story, with missing full stops added."""
    article: list[str] = []
    highlights: list[str] = []
    for line in (line.strip() for line in text.split("\n")):
        if line.startswith(HIGHLIGHT):
            highlights.append("")  # the lines up to the next mark belong to it
        elif line:
            line = line if line.endswith(ENDS) else f"{line} ."
            if highlights:
                highlights[-1] = f"{highlights[-1]} {line}".strip()
            else:
                article.append(line)
    return " ".join(article), " ".join(filter(None, highlights))


def xsum(files: dict[str, Path], options: dict[str, Any]) -> Iterator[Document]:
    """Read XSum: the first sentence of a BBC article is the summary of the rest.

    Args:
        files: articles, an archive of .summary files; splits, JSON with their numbers
        options: boilerplate, lines of web pages to leave out

    Raises:
        ConfigError: an archive is damaged; an article is missing, exists twice or lacks a section
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
    """Return name -> split; a name must be in only one split."""
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
    """Yield name, split and text of the wanted members.

    Raises:
        ConfigError: a member exists twice, or is missing
    """
    where, found = " and ".join(map(str, archives)), set()
    for name, text in members:
        if name in wanted:
            if name in found:
                raise ConfigError(f"{where}: {name} exists twice; get the archive again")
            found.add(name)
            yield name, wanted[name], text
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ConfigError(
            f"{where}: {len(missing):,} of {len(wanted):,} listed documents are missing, the"
            f" first is {missing[0]}; the archive is incomplete or a different one; get it again"
        )


SENTENCE = re.compile(r"</?S>")
"""Tags around the sentences of an abstract."""


def arxiv(files: dict[str, Path], options: dict[str, Any]) -> Iterator[Document]:
    """Read arXiv: the body and the abstract of papers.

    Args:
        files: papers, a .zip with train.txt, val.txt and test.txt, a JSON object per line
        options: none

    Raises:
        ConfigError: the archive is damaged, or a line is not a paper
    """
    for split, name in (("train", "train.txt"), ("valid", "val.txt"), ("test", "test.txt")):
        for where, line in zip_lines(files["papers"], name):
            paper = json_of(line, where)
            if not isinstance(paper, dict):
                raise ConfigError(f"{where}: expected an object; get the file again")
            article = " ".join(_texts(paper, "article_text", where))
            abstract = SENTENCE.sub(" ", " ".join(_texts(paper, "abstract_text", where)))
            yield Document(split, str(paper.get("article_id", where)), article, abstract)


def mediasum(files: dict[str, Path], options: dict[str, Any]) -> Iterator[Document]:
    """Read MediaSum: interviews, and the broadcasters' overviews of them.

    Args:
        files: interviews, a JSON array; splits, JSON with their names
        options: speakers, whether each utterance begins with its speaker

    Raises:
        ConfigError: a file is damaged; an interview is missing, exists twice or is malformed
    """
    listed = read_json(files["splits"])
    names = {"train": "train", "valid": "val", "test": "test"}
    if not isinstance(listed, dict) or not set(names.values()) <= set(listed):
        raise ConfigError(f"{files['splits']}: expected lists train, val and test")
    wanted = {name: split for split, key in names.items() for name in listed[key]}
    if len(wanted) != sum(len(listed[key]) for key in names.values()):
        raise ConfigError(f"{files['splits']}: an interview exists twice; get the file again")
    total = len(wanted)
    for where, interview in objects(files["interviews"]):
        split = wanted.pop(interview.get("id"), None)
        if split is None:
            continue
        utterances, speakers = (_texts(interview, key, where) for key in ("utt", "speaker"))
        if len(utterances) != len(speakers):
            raise ConfigError(
                f"{where}: {len(utterances)} utterances and {len(speakers)} speakers; "
                "expected equal numbers"
            )
        if options["speakers"]:
            utterances = [f"{s}: {u}" for s, u in zip(speakers, utterances)]
        summary = interview.get("summary") or ""
        yield Document(split, interview["id"], " ".join(utterances), summary)
    if wanted:
        raise ConfigError(
            f"{files['interviews']}: {len(wanted):,} of {total:,} listed interviews are missing,"
            f" the first is {next(iter(wanted))}; the file is incomplete or a different one; "
            "get it again"
        )


def _texts(item: dict[str, Any], key: str, where: str) -> list[str]:
    """Return a list of texts, empty if the key is missing.

    Raises:
        ConfigError: the value is not a list of texts
    """
    found = item.get(key) or []
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise ConfigError(f"{where}: expected a list of texts as {key}; get the file again")
    return found


DIALOGUES = {"id", "dialogue", "summary"}
TURN = "<n>"
"""Written between the turns of a dialogue, which would otherwise be lost with its line breaks."""


def samsum(files: dict[str, Path], options: dict[str, Any]) -> Iterator[Document]:
    """Read SAMSum: messenger dialogues. TURN stands between their turns.

    Args:
        files: train, valid and test, a JSON array of objects each
        options: none

    Raises:
        ConfigError: a file is damaged, or an object is not a dialogue
    """
    for split in SPLITS:
        for where, item in objects(files[split]):
            if not set(item) >= DIALOGUES or not all(isinstance(item[k], str) for k in DIALOGUES):
                raise ConfigError(
                    f"{where}: expected texts as {', '.join(sorted(DIALOGUES))}; get the file again"
                )
            turns = filter(None, map(str.strip, item["dialogue"].split("\n")))
            yield Document(split, item["id"], f" {TURN} ".join(turns), item["summary"])


def ectsum(files: dict[str, Path], options: dict[str, Any]) -> Iterator[Document]:
    """Read ECTSum: earnings calls, and the points of news reports about them.

    Args:
        files: repository, a .zip with data/final/SPLIT/ects/NAME.txt and .../gt_summaries/NAME.txt
        options: none

    Raises:
        ConfigError: the archive is damaged, or a call has no summary
    """
    for split, name in (("train", "train"), ("valid", "val"), ("test", "test")):
        calls, points = (
            dict(zip_members(files["repository"], f"data/final/{name}/{kind}"))
            for kind in ("ects", "gt_summaries")
        )
        if calls.keys() != points.keys():
            raise ConfigError(
                f"{files['repository']}: of data/final/{name} {min(calls.keys() ^ points.keys())} "
                "is not in both ects and gt_summaries; get the archive again"
            )
        for call, text in calls.items():
            yield Document(split, call, text, points[call])


QUERIES = ("general_query_list", "specific_query_list")
QUERY_END = "</q>"
"""Written between a query and the meeting."""

SOUND = re.compile(r"\{[^{}]*\}")
"""Notes of the transcribers, such as {vocalsound}."""


def qmsum(files: dict[str, Path], options: dict[str, Any]) -> Iterator[Document]:
    """Read QMSum: a source is a query about a meeting, QUERY_END and the meeting.

    Args:
        files: train, valid and test, with one JSON object per line
        options: none

    Raises:
        ConfigError: a file is damaged, or a line is not a meeting
    """
    for split in SPLITS:
        for where, meeting in json_lines(files[split]):
            turns = _items(meeting, "meeting_transcripts", ("speaker", "content"), where)
            said = ((turn["speaker"], " ".join(SOUND.sub(" ", turn["content"]).split()))
                    for turn in turns)  # fmt: skip
            text = " ".join(f"{speaker}: {words}" for speaker, words in said if words)
            asked = [q for key in QUERIES for q in _items(meeting, key, ("query", "answer"), where)]
            for number, query in enumerate(asked, 1):
                source = f"{query['query']} {QUERY_END} {text}" if text else ""
                yield Document(split, f"{where}, query {number}", source, query["answer"])


def _items(
    item: dict[str, Any], key: str, names: tuple[str, ...], where: str
) -> list[dict[str, str]]:
    """Return a list of objects with texts.

    Raises:
        ConfigError: it is missing or another list
    """
    found = item.get(key)
    if not isinstance(found, list) or not all(
        isinstance(one, dict) and all(isinstance(one.get(name), str) for name in names)
        for one in found
    ):
        raise ConfigError(
            f"{where}: expected a list of objects with {' and '.join(names)} as {key}; "
            "get the file again"
        )
    return found


def own_texts(files: dict[str, Path], options: dict[str, Any]) -> Iterator[Document]:
    """Read the user's own texts.

    Args:
        files: SPLIT.source and SPLIT.target, a text per line
        options: none

    Raises:
        ConfigError: the two files of a split have different numbers of lines
    """
    for split in SPLITS:
        sides = [files[f"{split}.{side}"] for side in SIDES]
        with (
            open(sides[0], encoding="utf-8-sig", newline="\n") as sources,
            open(sides[1], encoding="utf-8-sig", newline="\n") as targets,
        ):
            try:
                for number, (source, target) in enumerate(zip_longest(sources, targets), 1):
                    if source is None or target is None:
                        raise ConfigError(
                            f"{sides[target is None]} ends after {number - 1:,} lines and "
                            f"{sides[source is None]} goes on; expected a summary per text"
                        )
                    yield Document(split, f"line {number}", source, target)
            except UnicodeDecodeError as error:
                raise ConfigError(
                    f"{sides[0]} or {sides[1]} is not UTF-8 ({error}); convert it"
                ) from error


Reader = Callable[[dict[str, Path], dict[str, Any]], Iterator[Document]]

READERS: dict[str, Reader] = {
    "cnn_dm": cnn_dm,
    "xsum": xsum,
    "arxiv": arxiv,
    "mediasum": mediasum,
    "samsum": samsum,
    "ectsum": ectsum,
    "qmsum": qmsum,
}
