"""Long documents as JSON: arXiv's papers, and MediaSum's interviews."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairseq_recur.errors import ConfigError
from recipes.summary_archives import json_of, read_json, zip_lines
from recipes.summary_document import Document
from recipes.summary_json import objects

SENTENCE = re.compile(r"</?S>")
"""Marks around the sentences of an abstract."""


def arxiv(files: dict[str, Path], options: dict[str, Any]) -> Iterator[Document]:
    """arXiv: a paper's body and its abstract.

    Args:
        files: papers, a .zip with train.txt, val.txt and test.txt, a JSON object a line
        options: none

    Raises:
        ConfigError: the archive is damaged, or a line is not such an object
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
    """MediaSum: an interview, and the broadcaster's overview of it.

    Args:
        files: interviews, a JSON array; splits, JSON with their names
        options: speakers, whether each utterance begins with its speaker

    Raises:
        ConfigError: a file is damaged, an interview is missing, there twice or not as expected
    """
    listed = read_json(files["splits"])
    names = {"train": "train", "valid": "val", "test": "test"}
    if not isinstance(listed, dict) or not set(names.values()) <= set(listed):
        raise ConfigError(f"{files['splits']}: expected lists train, val and test")
    wanted = {name: split for split, key in names.items() for name in listed[key]}
    if len(wanted) != sum(len(listed[key]) for key in names.values()):
        raise ConfigError(f"{files['splits']}: an interview is in it twice; get the file again")
    total = len(wanted)
    for where, interview in objects(files["interviews"]):
        split = wanted.pop(interview.get("id"), None)
        if split is None:
            continue
        utterances, speakers = (_texts(interview, key, where) for key in ("utt", "speaker"))
        if len(utterances) != len(speakers):
            raise ConfigError(
                f"{where}: {len(utterances)} utterances and {len(speakers)} speakers; "
                "expected as many"
            )
        if options["speakers"]:
            utterances = [f"{s}: {u}" for s, u in zip(speakers, utterances)]
        summary = interview.get("summary") or ""
        yield Document(split, interview["id"], " ".join(utterances), summary)
    if wanted:
        raise ConfigError(
            f"{files['interviews']}: {len(wanted):,} of {total:,} listed interviews are not there,"
            f" the first is {next(iter(wanted))}; the file is incomplete or another one; "
            "get it again"
        )


def _texts(item: dict[str, Any], key: str, where: str) -> list[str]:
    """A list of texts; one that is absent is empty.

    Raises:
        ConfigError: it is something else
    """
    found = item.get(key) or []
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise ConfigError(f"{where}: expected a list of texts as {key}; get the file again")
    return found
