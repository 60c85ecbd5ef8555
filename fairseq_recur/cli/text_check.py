"""Checks of the text, dictionaries and alignments of `preprocess`, line by line."""

import argparse
import codecs
import os
import re
from collections.abc import Sequence
from contextlib import ExitStack

from fairseq.tasks import TASK_REGISTRY

from fairseq_recur.errors import ConfigError


def check_text(args: argparse.Namespace) -> None:
    """Raise ConfigError if `preprocess` lacks a file, or one of its files cannot be used."""
    if args.workers < 1:
        raise ConfigError(f"--workers {args.workers}: expected at least 1; leave it out for 1")
    languages = [args.source_lang] + ([] if args.only_source else [args.target_lang])
    for option in ("trainpref", "validpref", "testpref"):
        value = getattr(args, option) or ""
        # fairseq-preprocess takes several prefixes, but only one for training.
        for prefix in filter(None, [value] if option == "trainpref" else value.split(",")):
            names = [f"{prefix}.{lang}" if lang else prefix for lang in languages]
            for name in names:
                if not os.path.isfile(name):
                    hint = "" if all(languages) else " (name the languages with -s and -t)"
                    raise ConfigError(
                        f"--{option} {prefix}: no file {name}{hint}; expected "
                        f"{' and '.join(names)}, one sentence per line"
                    )
            check_parallel(names)
    for option in ("srcdict", "tgtdict", "alignfile"):
        name = getattr(args, option)
        if name and not os.path.isfile(name):
            raise ConfigError(
                f"--{option} {name}: no such file; give an existing file, or remove the option"
            )
    if args.joined_dictionary and args.srcdict and args.tgtdict:
        raise ConfigError(
            "--joined-dictionary is one dictionary for both sides, but --srcdict and --tgtdict "
            "were given; remove one of the three"
        )
    has_dictionaries = args.srcdict and (args.tgtdict or args.only_source)
    joined = args.joined_dictionary and (args.srcdict or args.tgtdict)
    if not (args.trainpref or has_dictionaries or joined):
        raise ConfigError(
            "no text to build dictionaries from: give --trainpref PREFIX (files PREFIX.SOURCE "
            "and PREFIX.TARGET), or dictionaries with --srcdict and --tgtdict"
        )
    check_dictionaries(args)
    check_alignments(args, languages)
    for lang, option in zip(languages, ("srcdict", "tgtdict")):
        name = os.path.join(args.destdir, f"dict.{lang}.txt" if lang else "dict.txt")
        if os.path.exists(name) and not getattr(args, option):
            raise ConfigError(
                f"{name} exists already; give another --destdir, remove that folder, or use "
                f"the dictionary with --{option} {name}"
            )


def check_dictionaries(args: argparse.Namespace) -> None:
    """Raise ConfigError if a dictionary for `preprocess` is empty: all words would be unknown."""
    for option in ("srcdict", "tgtdict"):
        name = getattr(args, option)
        if not name:
            continue
        words = TASK_REGISTRY[args.task].load_dictionary(name)
        if len(words) <= words.nspecial:
            raise ConfigError(
                f"--{option} {name}: found no words; give the dict.*.txt of a training, or remove "
                "the option to build a dictionary from --trainpref"
            )


def check_alignments(args: argparse.Namespace, languages: Sequence[str | None]) -> None:
    """Raise ConfigError if word alignments are missing, or do not fit their text line by line."""
    text_of: dict[str, str] = {}
    if args.align_suffix:
        prefixes = filter(None, (args.trainpref, args.validpref, args.testpref))
        wanted = {f"{prefix}.{args.align_suffix}": prefix for prefix in prefixes}
        text_of = {name: prefix for name, prefix in wanted.items() if os.path.isfile(name)}
        if not text_of:
            raise ConfigError(
                f"--align-suffix {args.align_suffix}: expected a file {' or '.join(wanted)}; "
                "correct the suffix, or remove the option"
            )
    if args.alignfile:
        if args.only_source or not args.trainpref:
            raise ConfigError(
                f"--alignfile {args.alignfile} aligns both sides of --trainpref; give --trainpref "
                "without --only-source, or remove the option"
            )
        text_of[args.alignfile] = args.trainpref
    for name, prefix in text_of.items():
        texts = [f"{prefix}.{lang}" if lang else prefix for lang in languages]
        check_parallel([*texts, name])
        check_pairs(name, texts)


def check_pairs(name: str, texts: Sequence[str]) -> None:
    """Raise ConfigError if an alignment has something else than numbers of words of its texts."""
    with ExitStack() as opened:
        files = [opened.enter_context(open(path, encoding="utf-8")) for path in (name, *texts)]
        for number, (line, *sentences) in enumerate(zip(*files), 1):
            lengths = [len(sentence.split()) for sentence in sentences]
            for pair in line.split():
                words = re.fullmatch("([0-9]{1,9})-([0-9]{1,9})", pair)
                if not words or any(int(i) >= n for i, n in zip(words.groups(), lengths)):
                    raise ConfigError(
                        f"{name}, line {number}: found {pair!r}, expected SOURCE-TARGET, numbers "
                        f"of words from 0 on; line {number} of {' and '.join(texts)} has "
                        f"{' and '.join(map(str, lengths))} words"
                    )


def check_parallel(names: Sequence[str]) -> None:
    """Check files whose lines belong together.

    Raises:
        ConfigError: their numbers of lines differ or are 0; or as `count_lines`
    """
    counts = [count_lines(name) for name in names]
    if len(set(counts)) > 1:
        found = " and ".join(f"{name} has {count:,}" for name, count in zip(names, counts))
        raise ConfigError(
            f"{found} lines; expected the same number, because line N of one file belongs to "
            "line N of the other"
        )
    if not any(counts):
        raise ConfigError(
            f"{' and '.join(names)}: found no lines; expected text, one sentence per line, "
            "because training cannot read empty data: check the step that wrote the file"
        )


def count_lines(name: str) -> int:
    """Count the lines of a text as fairseq does.

    Raises:
        ConfigError: the text is not UTF-8, or begins with a byte order mark, which fairseq makes a
            part of the first word; or has a carriage return within a line; fairseq ends the line
            there, which shifts all lines after it
    """
    number = 0
    with open(name, "rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1 and line.startswith(codecs.BOM_UTF8):
                raise ConfigError(
                    f"{name} begins with a byte order mark, which fairseq would make a part of the "
                    f"first word; remove its three bytes: tail -c +4 {name} > NEW"
                )
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ConfigError(
                    f"{name}, line {number}: byte {line[error.start]:#04x} at {error.start + 1} is "
                    "not UTF-8; convert the file (iconv -f ENCODING -t UTF-8), or correct the line"
                ) from None
            if b"\r" in line.removesuffix(b"\n").removesuffix(b"\r"):
                raise ConfigError(
                    f"{name}, line {number}: found a carriage return within the line, where "
                    "fairseq would start a new line and shift all lines after it; "
                    f"replace it: tr '\\r' ' ' < {name} > NEW"
                )
    return number
