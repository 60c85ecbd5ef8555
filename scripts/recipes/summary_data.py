"""What a folder of the summarization recipes says about its data set: data.yaml."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fairseq_recur.errors import ConfigError
from recipes.fetch import Archive

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Source:
    """A file of a data set, and how to get it where no address serves it.

    Attributes:
        archive: its name, addresses, size and checksum
        how: what a person has to do, in one sentence; empty where an address is enough
    """

    archive: Archive
    how: str = ""


@dataclass(frozen=True)
class DataSet:
    """A data set.

    Attributes:
        name: of its folder
        format: which reader of `recipes.summary_texts` knows its files
        sources: its files, by the role that the reader gives them
        documents: how many there are in each split, before incomplete ones are dropped
        text_bytes: of all splits as plain text
        options: of the reader
        training: what differs from the other sets in fairseq's recipe
        generation: the usual settings of the search, as flags of fairseq-generate
    """

    name: str
    format: str
    sources: dict[str, Source]
    documents: dict[str, int]
    text_bytes: int
    options: dict[str, Any]
    training: dict[str, Any]
    generation: dict[str, Any]


def archive(fields: dict[str, Any]) -> Archive:
    """An archive as YAML has it.

    Args:
        fields: name, and urls, size, sha256 where they are known
    """
    return Archive(
        fields["name"], tuple(fields.get("urls", ())), fields.get("size"), fields.get("sha256")
    )


def read_data_set(file: Path) -> DataSet:
    """Read a data.yaml.

    Raises:
        ConfigError: it is not there
    """
    if not file.is_file():
        raise ConfigError(f"there is no {file}; expected a recipe's data.yaml")
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    sources = {
        role: Source(archive(fields), fields.get("how", ""))
        for role, fields in content["files"].items()
    }
    return DataSet(
        file.parent.name,
        content["format"],
        sources,
        content["documents"],
        content["text_bytes"],
        content.get("options", {}),
        content["training"],
        content["generation"],
    )


def known_bytes(sources: tuple[Source, ...]) -> int:
    """The size of those files whose size is known."""
    return sum(source.archive.size or 0 for source in sources)
