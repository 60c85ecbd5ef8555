"""Prepare enwik8, text8 or WikiText-103 from its published archive.

    PYTHONPATH=scripts python examples/language_models/prepare.py SET --work-dir WORK

Finished steps are not repeated. README.md explains the data.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy
import torch
from fairseq.data import Dictionary, indexed_dataset
from recipes.archives import extract
from recipes.fetch import Archive, fetch, sha256
from recipes.steps import binarize, exclusive, step

from fairseq_recur.errors import ConfigError

MAHONEY = ("https://mattmahoney.net/dc/", "http://mattmahoney.net/dc/")
ARCHIVES = {
    "enwik8": Archive(
        "enwik8.zip",
        tuple(f"{place}enwik8.zip" for place in MAHONEY),
        36445475,
        "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
    ),
    "text8": Archive(
        "text8.zip",
        tuple(f"{place}text8.zip" for place in MAHONEY),
        31344016,
        "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
    ),
    # The MD5 is torchtext's.
    "wikitext103": Archive(
        "wikitext-103-v1.zip",
        (
            "https://wikitext.smerity.com/wikitext-103-v1.zip",
            "https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-103-v1.zip",
        ),
        md5="9ddaacaf6af0710eda8c456decff7832",
    ),
}
SETS = ("train", "valid", "test")
HELD_OUT = 5_000_000
"""Bytes of the validation and of the test set, the last ones of the file."""
CHUNK = 1 << 20
"""Tokens that are written at once. Where they are cut means nothing: a set is read as one text."""


def write_bytes(raw: Path, held_out: int, folder: Path, keep_line_ends: bool = False) -> None:
    """Write a file's bytes as fairseq's binary data: one token a byte, line ends left out.

    The code of Dai et al. leaves them out, too. A token is called by the byte's number. Bytes that
    the training set lacks are unknown.

    Args:
        raw: the file
        held_out: bytes of the validation and of the test set
        folder: gets dict.txt and the three sets
        keep_line_ends: write them, as fairseq's own end of a line

    Raises:
        ConfigError: the file is too short
    """
    content = numpy.fromfile(raw, dtype=numpy.uint8)
    if len(content) <= 2 * held_out:
        raise ConfigError(
            f"{raw.name} has {len(content):,} bytes; expected more than {2 * held_out:,}, get the "
            "archive again"
        )
    ends = [0, len(content) - 2 * held_out, len(content) - held_out, len(content)]
    counts = numpy.bincount(content[: ends[1]], minlength=256)
    words = Dictionary()
    for byte in numpy.argsort(-counts, kind="stable"):
        if counts[byte] and byte != ord("\n"):
            words.add_symbol(str(byte), n=int(counts[byte]))
    words.save(str(folder / "dict.txt"))
    table = torch.tensor([words.index(str(byte)) for byte in range(256)])
    table[ord("\n")] = words.eos()
    for part, begin, end in zip(SETS, ends, ends[1:]):
        builder = indexed_dataset.make_builder(str(folder / f"{part}.bin"), "mmap", len(words))
        read = content[begin:end]
        if not keep_line_ends:
            read = read[read != ord("\n")]
        for first in range(0, len(read), CHUNK):
            builder.add_item(table[torch.from_numpy(read[first : first + CHUNK]).long()])
        builder.finalize(str(folder / f"{part}.idx"))


def write_share(whole: Path, share: int, folder: Path) -> None:
    """Write the beginning of a training set, with the other sets and the dictionary as they are.

    Args:
        whole: folder of binary data
        share: in %, rounded down to a token
        folder: gets the same files
    """
    words = Dictionary.load(str(whole / "dict.txt"))
    data = indexed_dataset.make_dataset(str(whole / "train"), "mmap")
    left = int(data.sizes.sum()) * share // 100
    builder = indexed_dataset.make_builder(str(folder / "train.bin"), "mmap", len(words))
    for item in data:
        if not left:
            break
        builder.add_item(item[:left])
        left -= len(item[:left])
    builder.finalize(str(folder / "train.idx"))
    for file in (whole / "dict.txt", *whole.glob("valid.*"), *whole.glob("test.*")):
        shutil.copy(file, folder)


def prepare(
    name: str, work: Path, mirror: str | None = None, workers: int = 1, held_out: int = HELD_OUT,
    share: int = 100, keep_line_ends: bool = False,
) -> None:  # fmt: skip
    """Do all steps that are not done: WORK/data-bin, and data-bin-SHARE for a part of it.

    Data with line ends are in data-bin-lines instead.

    Args:
        name: a key of `ARCHIVES`
        work: output folder
        mirror: a folder, or an address, with the archive
        workers: number of processes
        held_out: bytes of the validation and of the test set of enwik8 and text8
        share: of the training set, in %
        keep_line_ends: of enwik8

    Raises:
        ConfigError: the archive is not to be had, or is another file
    """
    with exclusive(work):
        archive = fetch(ARCHIVES[name], work / "downloads", mirror, "LM_MIRROR")
        members = {f"wikitext-103/wiki.{part}.tokens": part for part in SETS}
        if name != "wikitext103":
            members = {name: name}

        def unpack(folder: Path) -> None:
            extract(archive, {member: folder / file for member, file in members.items()})

        text = step(work, "text", [name, sha256(archive)], unpack)
        prefixes = [word for s in SETS for word in (f"--{s}pref", str(text.folder / s))]

        def make(folder: Path) -> None:
            if name == "wikitext103":
                binarize(folder, (), prefixes, workers, ["--padding-factor", "1"])
            else:
                write_bytes(text.folder / name, held_out, folder, keep_line_ends)

        place = "data-bin-lines" if keep_line_ends else "data-bin"
        of_lines = [keep_line_ends] if name == "enwik8" else []
        whole = step(work, place, [text, held_out, *of_lines], make)
        if share < 100:
            made = partial(write_share, whole.folder, share)
            step(work, f"{place}-{share}", [whole, share], made)


def main(words: Sequence[str] | None = None) -> int:
    """Prepare; return 0, or 2 for an unusable archive."""
    parser = argparse.ArgumentParser("prepare.py", description=__doc__)
    parser.add_argument("name", metavar="SET", choices=list(ARCHIVES), help=", ".join(ARCHIVES))
    parser.add_argument("--work-dir", type=Path, required=True, help="folder of all output")
    parser.add_argument("--mirror", help="folder, or address, with the archive")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, metavar="N", help="processes"
    )
    parser.add_argument(
        "--share", type=int, default=100, metavar="PERCENT",
        help="of the training set (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--keep-line-ends", action="store_true", help="of enwik8, which the paper leaves out"
    )
    args = parser.parse_args(words)
    if not 1 <= args.share <= 100:
        parser.error(f"--share {args.share}: expected 1 to 100")
    if args.keep_line_ends and args.name != "enwik8":
        parser.error(f"--keep-line-ends has no effect on {args.name}, only on enwik8; leave it out")
    try:
        prepare(
            args.name, args.work_dir, args.mirror, args.workers, share=args.share,
            keep_line_ends=args.keep_line_ends,
        )  # fmt: skip
    except (ConfigError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
