"""Checks of `preprocess`'s binary data that read only a few bytes: damaged files, and misfits.

fairseq ends with a traceback, sometimes only in the first update. Of its formats, this checks the
default, mmap: an index with the lengths of all sentences and their places, and a file of tokens.
fairseq's own reader of an index does not notice a wrong size; after other damage its destructor
prints a traceback of its own.
"""

import os
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy
from fairseq.data.indexed_dataset import dataset_exists, infer_dataset_impl

from fairseq_recur.errors import ConfigError

MAGIC = b"MMIDIDX\x00\x00"

HEADER = struct.Struct("<9sQBQ")
"""What begins an index: `MAGIC`, the version, the type of the tokens and the number of sentences.
All lengths (int32) and then all places (int64, in bytes) follow."""

TYPES = {
    1: numpy.uint8, 2: numpy.int8, 3: numpy.int16, 4: numpy.int32, 5: numpy.int64,
    8: numpy.uint16, 9: numpy.uint32, 10: numpy.uint64,
}  # fmt: skip
"""fairseq's numbers of the types that tokens can have."""

LEGACY = ("lazy", "cached")
"""Values of --dataset-impl for an older format."""

SAMPLE = 1 << 20
"""Tokens that are compared with the dictionary; those of another one soon exceed it."""

AGAIN = "give the folder that `fairseq-recur preprocess` wrote, or preprocess the text again"


def check_set(name: str, known: int, kind: str | None) -> None:
    """Check a set of one language, if it exists and is memory-mapped.

    Args:
        name: path of its files without .idx and .bin
        known: number of symbols in its dictionary
        kind: --dataset-impl

    Raises:
        ConfigError: a file is damaged, it has no sentences, or a token is not in the dictionary
    """
    if is_mapped(name, kind):
        check_side(name, known)


def is_mapped(name: str, kind: str | None) -> bool:
    """Whether a set exists in fairseq's default format, and is read in it."""
    read = kind == "mmap" or (kind is None and infer_dataset_impl(name) in (None, "mmap"))
    return read and dataset_exists(name, "mmap")


def check_pair(split: str, symbols: Mapping[str, int], kind: str | None) -> None:
    """Check both sides of a split, as far as they exist.

    Args:
        split: path of its files without the language, such as DATA/train.en-de
        symbols: number of symbols in the dictionary of each language
        kind: --dataset-impl

    Raises:
        ConfigError: a file is damaged, the sides have different numbers of sentences, or a token
            is not in the dictionary
    """
    counts = {}
    for language, known in symbols.items():
        name = f"{split}.{language}"
        if kind in LEGACY and infer_dataset_impl(name) == "mmap":
            raise ConfigError(
                f"--dataset-impl {kind}: {name}.bin is memory-mapped; leave the option out"
            )
        if is_mapped(name, kind):
            counts[name] = check_side(name, known)
    if len(set(counts.values())) > 1:
        found = " and ".join(f"{name} has {count:,}" for name, count in counts.items())
        raise ConfigError(f"{found} sentences, expected the same number; {AGAIN}")


def check_side(name: str, known: int) -> int:
    """Return the number of sentences of one side.

    Args:
        name: path of its files without .idx and .bin
        known: number of symbols in its dictionary

    Raises:
        ConfigError: a file is damaged, or a token is not in the dictionary
    """
    index, data = Path(f"{name}.idx"), Path(f"{name}.bin")
    kind, sentences, expected = read_index(index)
    size = data.stat().st_size
    if size != expected:
        raise ConfigError(
            f"{data}: damaged: {size:,} bytes, but its index expects {expected:,}; {AGAIN}"
        )
    largest = int(numpy.fromfile(data, kind, SAMPLE).max(initial=0))
    if largest >= known:
        raise ConfigError(
            f"{data}: found the token number {largest:,}, but its dictionary has only {known:,} "
            f"symbols; restore the dict.*.txt of these data: {AGAIN}"
        )
    return sentences


def read_index(index: Path) -> tuple[type, int, int]:
    """Return the type of the tokens, the number of sentences and the bytes of all tokens.

    Raises:
        ConfigError: the index is damaged or has no sentences
    """
    size = index.stat().st_size
    with index.open("rb") as file:
        header = file.read(HEADER.size).ljust(HEADER.size, b"\x00")
        magic, _, code, sentences = HEADER.unpack(header)
        whole = sentences and size == HEADER.size + 12 * sentences
        if magic != MAGIC or code not in TYPES or not whole:
            raise ConfigError(
                f"{index}: damaged: {size:,} bytes that are not an index of sentences; {AGAIN}"
            )
        file.seek(HEADER.size + 4 * (sentences - 1))
        (length,) = struct.unpack("<i", file.read(4))
        file.seek(-8, os.SEEK_END)
        (place,) = struct.unpack("<q", file.read(8))
    return TYPES[code], sentences, place + length * numpy.dtype(TYPES[code]).itemsize
