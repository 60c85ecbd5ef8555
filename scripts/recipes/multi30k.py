"""Fetch Multi30k, English and German: `python -m recipes.multi30k FOLDER`.

The text is that of task 1, lower-cased, normalised and tokenised by its authors. The variable
MULTI30K_MIRROR names a folder, or an address, with the six files; it replaces the public source.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from fairseq_recur.errors import ConfigError
from recipes.fetch import Archive, fetch

SOURCE = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/tok/"
MIRROR = "MULTI30K_MIRROR"
SETS = {"train": "train", "val": "valid", "test_2016_flickr": "test"}
"""Name of a set there, and here."""

FILES = {
    "train.en": (1837696, "08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119"),
    "train.de": (2150008, "cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505"),
    "valid.en": (64608, "46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec"),
    "valid.de": (77273, "97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00"),
    "test.en": (63307, "5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2"),
    "test.de": (71917, "c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4"),
}
"""Sizes and SHA-256 of the files."""


def main(words: Sequence[str] | None = None) -> int:
    """Write train, valid and test as .en and .de; return 0, or 2 after an error message."""
    parser = argparse.ArgumentParser("recipes.multi30k", description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder to write to")
    folder = parser.parse_args(words).folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for there, here in SETS.items():
            for language in ("en", "de"):
                name = f"{there}.lc.norm.tok.{language}"
                size, checksum = FILES[f"{here}.{language}"]
                archive = Archive(name, (SOURCE + name,), size, checksum)
                mirror = os.environ.get(MIRROR)
                file = fetch(archive, folder / "downloads", mirror, MIRROR)
                shutil.copyfile(file, folder / f"{here}.{language}")
    except (ConfigError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{folder} has train, valid and test, each as .en and .de")
    return 0


if __name__ == "__main__":
    sys.exit(main())
