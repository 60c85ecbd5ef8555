"""Prepare pairs of texts for a CodeT5, whose weights are converted to fairseq's format.

    PYTHONPATH=scripts python examples/defect_detection/prepare.py DATA MODEL WORK

Finished steps are not repeated. README.md explains DATA and MODEL.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from recipes.archives import json_lines, objects
from recipes.fetch import sha256
from recipes.steps import binarize, exclusive, step
from recipes.summary_options import SIDES, SPLITS, find_file
from recipes.summary_prepare import convert, encode_all
from recipes.summary_readers import Document, own_texts
from recipes.summary_texts import write_texts

from fairseq_recur.errors import CheckpointError, ConfigError
from fairseq_recur.scoring.generation import read_lines

Files = dict[str, Path]

ANSWERS = ("false", "true")
"""What the model writes for the targets 0 and 1."""


def labelled(split: str, where: str, item: dict[str, Any]) -> Document:
    """Return a function and its answer.

    Raises:
        ConfigError: the object is something else
    """
    function, target = item.get("func"), item.get("target")
    if not isinstance(function, str) or not isinstance(target, int) or target not in (0, 1):
        raise ConfigError(
            f"{where}: expected a text as func, and 0 or 1 as target; get the file again"
        )
    return Document(split, where, function, ANSWERS[target])


def by_lists(files: Files) -> Iterator[Document]:
    """Read what CodeXGLUE distributes: all functions, and the numbers of each split's.

    Args:
        files: function.json, an array of objects; train.txt, valid.txt and test.txt

    Raises:
        ConfigError: a file is damaged, or does not belong to the others
    """
    split_of: dict[int, str] = {}
    for split in SPLITS:
        file = files[f"{split}.txt"]
        for line in map(str.strip, read_lines(file)):
            if not line.isdecimal() or split_of.setdefault(int(line), split) != split:
                raise ConfigError(
                    f"{file}: found {line[:20]!r}; expected in each line the number of a function "
                    "that is in no other list; get the files again"
                )
    for number, (where, item) in enumerate(objects(files["function.json"])):
        if number in split_of:
            yield labelled(split_of.pop(number), where, item)
    if split_of:
        raise ConfigError(
            f"{files['function.json']} lacks {len(split_of):,} of the functions that the lists "
            f"name, the first is {min(split_of)}; get the files again"
        )


def by_lines(files: Files) -> Iterator[Document]:
    """Read what CodeXGLUE's preprocess.py writes: an object per line, a file per split."""
    for split in SPLITS:
        for where, item in json_lines(files[f"{split}.jsonl"]):
            yield labelled(split, where, item)


FORMS: dict[tuple[str, ...], Callable[[Files], Iterator[Document]]] = {
    ("function.json", *(f"{split}.txt" for split in SPLITS)): by_lists,
    tuple(f"{split}.jsonl" for split in SPLITS): by_lines,
    tuple(f"{split}.{side}" for split in SPLITS for side in SIDES): partial(own_texts, options={}),
}
"""The files of a data set, and what reads them."""


def prepare(data: Path, model: Path, work: Path, lengths: dict[str, int], workers: int) -> None:
    """Do all steps that are not done.

    Args:
        data: folder of the data set
        model: folder of the CodeT5
        work: output folder
        lengths: largest number of tokens of a source and of a target, with <s> and </s>
        workers: number of processes

    Raises:
        ConfigError: the data set or the model cannot be used
    """
    if min(lengths.values()) < 3:
        raise ConfigError(
            f"found lengths {lengths}; expected at least 3, for <s>, a token and </s>; raise the "
            "smaller one"
        )
    names = next((n for n in FORMS if all(find_file(data, name).is_file() for name in n)), None)
    if names is None:
        raise ConfigError(
            f"{data} has no data set; expected these files, or those of one of the other forms in "
            f"README.md: {', '.join(next(iter(FORMS)))}"
        )
    files = {name: find_file(data, name) for name in names}
    parts = sorted(path for path in model.glob("*") if path.is_file())
    with exclusive(work):
        texts = step(
            work, "text", [f"{name} {sha256(file)}" for name, file in files.items()],
            lambda folder: write_texts(FORMS[names](files), folder), [work / "runs"],
        )  # fmt: skip
        converted = step(
            work, "model", [f"{part.name} {sha256(part)}" for part in parts],
            lambda folder: convert(model, folder), [work / "runs"],
        )  # fmt: skip
        if not (converted.folder / "encoder.json").is_file():
            raise ConfigError(f"{model} has no byte-level BPE; expected a CodeT5, give its folder")
        limits = {side: length - 2 for side, length in lengths.items()}
        pieces = step(
            work, "pieces", [converted, texts, limits],
            lambda folder: encode_all(
                "gpt2", converted.folder, texts.folder, folder, limits, workers, ["<s>"]
            ),
        )  # fmt: skip
        dictionary = str(converted.folder / "dict.source.txt")
        prefixes = [word for s in SPLITS for word in (f"--{s}pref", str(pieces.folder / s))]
        words = ["--srcdict", dictionary, "--tgtdict", dictionary]
        step(
            work, "data-bin", [pieces, converted],
            lambda folder: binarize(folder, SIDES, prefixes, workers, words),
        )  # fmt: skip


def main(words: list[str] | None = None) -> int:
    """Prepare; return 0, or 2 for unusable files."""
    parser = argparse.ArgumentParser("prepare.py", description=__doc__)
    for name, what in (("data", "data set"), ("model", "CodeT5"), ("work", "output")):
        parser.add_argument(name, type=Path, help=f"folder of the {what}")
    for side, length in (("source", 512), ("target", 3)):
        parser.add_argument(
            f"--max-{side}", type=int, default=length, metavar="N",
            help=f"tokens of a {side}, with <s> and </s> (default: %(default)s)",
        )  # fmt: skip
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, metavar="N", help="processes"
    )
    args = parser.parse_args(words)
    lengths = {"source": args.max_source, "target": args.max_target}
    try:
        prepare(args.data, args.model, args.work, lengths, args.workers)
    except (ConfigError, CheckpointError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
