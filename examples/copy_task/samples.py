"""The samples of the copy task, written as fairseq's preprocessed text.

There are two forms. In `tile`, ten random digits and a separator are repeated up to the sample's
length (Huang et al. 2023, section 4.4). In `duplicate`, a sequence of random length is repeated
once after a separator, and more separators fill the sample (Nguyen et al. 2021, which they cite).
All samples are different.
"""

import random
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy
import torch
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import make_builder

COPIED = 10
"""Symbols that are copied, of ten different ones."""

PERIOD = COPIED + 1
SYMBOLS = [*"0123456789", "|"]
HELD_OUT = 640
"""Samples of the validation, unless the training set has fewer."""

SEED = 1


def copied_lengths(length: int) -> range:
    """Return how many symbols `duplicate` copies in a sample of T tokens: T/4 to (T - 1)/2."""
    return range(length // 4, (length - 1) // 2)


def possible(form: str, length: int) -> int:
    """Return the number of different samples."""
    lengths = [COPIED] if form == "tile" else copied_lengths(length)
    return sum(10**digits for digits in lengths)


def held_out(count: int) -> int:
    """Return the number of samples of the validation beside *count* of the training."""
    return min(HELD_OUT, count)


def draw(form: str, count: int, length: int) -> numpy.ndarray:
    """Draw different samples; the first ones do not depend on their number.

    Args:
        form: "tile" or "duplicate"
        count: N
        length: T, tokens of a sample

    Returns:
        (N, T) places in `SYMBOLS`
    """
    if form == "tile":
        numbers = random.Random(SEED).sample(range(10**COPIED), count)
        rows = numpy.array([[*map(int, f"{n:0{COPIED}}"), COPIED] for n in numbers])
        return numpy.tile(rows, ceil(length / PERIOD))[:, :length]
    drawn: dict[tuple[int, ...], None] = {}  # a set that keeps the order
    generator = random.Random(SEED)
    while len(drawn) < count:
        digits = generator.choice(copied_lengths(length))
        drawn[tuple(generator.randrange(10) for _ in range(digits))] = None
    rows = numpy.full((count, length), SYMBOLS.index("|"))
    for row, digits in zip(rows, drawn):
        row[: len(digits)] = digits
        row[len(digits) + 1 : 2 * len(digits) + 1] = digits
    return rows


def write(folder: Path, form: str, length: int, count: int) -> None:
    """Write a training and a validation set, unless they are there.

    Args:
        folder: for what ``fairseq-preprocess --only-source`` would write, without line ends
        form: "tile" or "duplicate"
        length: tokens of a sample
        count: samples of the training set
    """
    if folder.is_dir():
        return
    words = Dictionary()
    tokens = numpy.array([words.add_symbol(symbol) for symbol in SYMBOLS])
    valid = held_out(count)
    rows = tokens[draw(form, valid + count, length)]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as temporary:
        unfinished = Path(temporary) / folder.name
        unfinished.mkdir()
        for name, part in (("valid", rows[:valid]), ("train", rows[valid:])):
            builder = make_builder(str(unfinished / f"{name}.bin"), "mmap", len(words))
            for row in part:
                builder.add_item(torch.from_numpy(row))
            builder.finalize(str(unfinished / f"{name}.idx"))
        words.save(str(unfinished / "dict.txt"))
        try:
            unfinished.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process has written the same
                raise
