"""``experiment score``: score the trained systems on other test sets.

The results are in DIR/other_sets/NAME, like those of the experiment's own test set.
"""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import inf
from pathlib import Path

from fairseq import options
from fairseq.data import Dictionary, data_utils

from fairseq_recur.cli import plugin_loading
from fairseq_recur.cli.experiment_check import check_metrics, test_data
from fairseq_recur.errors import ConfigError, Problems, refuse
from fairseq_recur.experiments.folder_lock import exclusive
from fairseq_recur.experiments.other_sets import Decoding, make_data
from fairseq_recur.experiments.progress import say
from fairseq_recur.experiments.reading import read_about, stored_experiment
from fairseq_recur.experiments.results import all_runs, collect, write_both
from fairseq_recur.experiments.runner import Runner, Stopped, places
from fairseq_recur.experiments.runs import SystemRun
from fairseq_recur.experiments.settings import Experiment, misread
from fairseq_recur.locks import name_holder
from fairseq_recur.scoring.generation import read_lines
from fairseq_recur.text import MANY_UNKNOWN, Codec, build_codec

MARKS = {
    "sentencepiece": "\u2581", "wordpiece": "_", "subword_nmt": "@@", "@@": "@@", "@@ ": "@@"
}  # fmt: skip
"""The marks of subwords, by the values of --remove-bpe."""
DIVIDED = {"sentencepiece": re.compile(r"(?<!\S)\u2581"), "subword_nmt": re.compile(r"\S@@(?!\S)")}
"""What only a divided line has, by the values of --bpe."""
JOINED = ("\u2581", "_")
"""The marks of a word's beginning: without them, all words of a line are joined."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("work_dir", metavar="DIR", help="folder of a finished experiment")
    parser.add_argument(
        "--test",
        nargs=2,
        action="append",
        required=True,
        metavar=("NAME", "PREFIX"),
        help="a test set, PREFIX.SOURCE and PREFIX.TARGET: text, or subwords like those of the "
        "experiment's data; only subwords if `generate` has no bpe; repeat the option for further "
        "sets",
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="concurrent runs, as in `run`")


def check(experiment: Experiment, trained: Sequence[SystemRun], args: argparse.Namespace) -> None:
    """Check everything that is needed.

    Raises:
        ConfigError: lists all problems
    """
    problems = []
    if not trained:
        problems.append(f"{args.work_dir} has no trained system; run the experiment first")
    problems += [
        f"{one.name} was trained, but {one.model} is missing; restore it, or remove the folder of "
        "this run and run the experiment again"
        for one in trained
        if not one.model.exists()
    ]
    if mark := misread(str(Path(args.work_dir).resolve())):
        problems.append(
            f"{args.work_dir}: fairseq misreads {mark!r} in its path; rename the folder"
        )
    names = [name for name, _ in args.test]
    for name, prefix in args.test:
        if not name or "/" in name or name.startswith(".") or names.count(name) > 1:
            problems.append(f"--test {name}: expected a name of its own that can name a folder")
        elif mark := misread(name):
            problems.append(f"--test {name}: fairseq misreads {mark!r}; choose another name")
        files = [f"{prefix}.{language}" for language in (experiment.source, experiment.target)]
        try:
            source, target = (read_lines(file) for file in files)
        except ConfigError as error:
            problems.append(f"--test {name}: {error}")
            continue
        if len(source) != len(target):
            problems.append(
                f"--test {name}: {files[0]} has {len(source)} lines and {files[1]} has "
                f"{len(target)}; expected equal numbers"
            )
            continue
        unscored = Problems("it cannot be scored")
        check_metrics(experiment.score, source, [target], unscored)
        try:
            unscored.raise_all()
        except ConfigError as error:
            problems.append(f"--test {name}, {files[1]}: {error}")
    refuse("correct the test sets; nothing was scored", problems)


@dataclass(frozen=True)
class Conversion:
    """How the lines of a test set are read.

    Attributes:
        encode: makes the pieces of a line of source text
        decode: makes the text that is scored, of a line
        mark: what marks the subwords into which the lines must already be divided; None for text
        longest: most pieces of a line, with the end of the sentence, that decoding does not refuse
    """

    encode: Callable[[str], str]
    decode: Callable[[str], str]
    mark: str | None
    longest: float = inf


def conversion(run: SystemRun) -> Conversion:
    """Return how a system's decoding reads text."""
    argv, _ = plugin_loading.add_option(run.generate_argv()[1:])
    parsed = options.parse_args_and_arch(options.get_generation_parser(), argv)
    codec = build_codec(parsed, parsed, "the test set")
    encode = cache(codec.pieces)  # two checks read each line, and so do the data
    # Summarization may truncate as its training did, which only the checkpoint tells.
    refuses = parsed.task == "translation" and not parsed.truncate_source
    longest = parsed.max_source_positions if refuses else inf
    if codec.bpe is not None:
        join = partial(joined, codec, DIVIDED.get(parsed.bpe))
        return Conversion(lambda line: encode(join(line)), join, None, longest)

    def decode(line: str) -> str:
        return str(data_utils.post_process(line, parsed.post_process))

    return Conversion(encode, decode, MARKS.get(parsed.post_process), longest)


def joined(codec: Codec, divided: re.Pattern[str] | None, line: str) -> str:
    """Return the text of a line: as it is, or without its division into subwords.

    Args:
        codec: of the experiment
        divided: what only a divided line has; None: no line is divided
        line: of a test set
    """
    return line if divided is None or not divided.search(line) else codec.text(line)


def check_subwords(
    experiment: Experiment, tests: Sequence[tuple[str, str]], text: Conversion
) -> None:
    """Check that sets are divided like the experiment's data.

    A set in which no word is divided is accepted if the dictionary has all of its words. One with
    many unknown pieces may be of another kind of text, or divided by other codes: a warning.

    Raises:
        ConfigError: lists the sets that are not
    """
    mark, problems = text.mark, []
    words = Dictionary.load(str(Path(experiment.data) / f"dict.{experiment.source}.txt"))
    for name, prefix in tests:
        source, target = (f"{prefix}.{side}" for side in (experiment.source, experiment.target))
        pieces = [piece for line in read_lines(source) for piece in text.encode(line).split()]
        unknown = sum(words.index(piece) == words.unk() for piece in pieces)
        whole = mark is not None and not any(mark in piece for piece in pieces)
        if 2 * unknown > len(pieces) or (unknown and whole):
            problems.append(
                f"--test {name}: the dictionary lacks {unknown} of the {len(pieces)} subwords of "
                f"{source}; divide both files as the experiment's data are"
            )
        elif mark in JOINED and not any(mark in line for line in read_lines(target)):
            problems.append(
                f"--test {name}: {target} is not divided, no subword has {mark}; divide both files "
                "as the experiment's data are"
            )
        elif unknown > MANY_UNKNOWN * len(pieces):
            say(
                f"warning: --test {name}: the dictionary lacks {unknown / len(pieces):.1%} of the "
                f"subwords of {source}; check that it is divided as the experiment's data are"
            )
    refuse("correct the test sets; nothing was scored", problems)


def check_lengths(
    trained: Sequence[SystemRun], files: Sequence[str], encode: Callable[[str], str], longest: float
) -> None:
    """Check that all systems can read all lines; decoding would find it out one system at a time.

    Args:
        trained: the systems
        files: of source text
        encode: makes the pieces of a line
        longest: see `Conversion`

    Raises:
        ConfigError: names the first line of each file that is too long
    """
    if longest == inf:
        return
    flags = [system.train_flags().get("max-source-positions") or longest for system in trained]
    most = min(longest, *map(int, flags)) - 1  # the end of the sentence takes a place, too
    problems = []
    for file in files:
        counts = (len(encode(line).split()) for line in read_lines(file))
        for number, count in enumerate(counts, 1):
            if count > most:
                problems.append(
                    f"line {number} of {file} has {count:,} subwords, and the systems read at most "
                    f"{most:,}; divide or shorten it, and its translation"
                )
                break
    refuse("correct the test sets; nothing was scored", problems)


def with_start(experiment: Experiment, encode: Callable[[str], str]) -> Callable[[str], str]:
    """Return *encode*, with <s> before each line if the experiment's own sources begin with it."""
    words = Dictionary.load(str(Path(experiment.data) / f"dict.{experiment.source}.txt"))
    own = test_data(experiment, experiment.source)
    if own is None or int(own[0][0]) != words.bos():
        return encode
    return lambda line: f"{words[words.bos()]} {encode(line)}"


def run(args: argparse.Namespace) -> int:
    """Decode and score each test set; print the tables. Returns 0, or 1 if a decoding failed."""
    work = Path(args.work_dir)
    about = read_about(work)
    experiment = stored_experiment(about, work)
    trained = [run_ for run_ in all_runs(experiment, work) if run_.trained()]
    check(experiment, trained, args)
    jobs, devices = places(args.jobs, trained[0])
    with exclusive(work) as lock:
        name_holder(lock)
        text = conversion(trained[0])
        check_subwords(experiment, args.test, text)
        encode = with_start(experiment, text.encode)
        sources = [f"{prefix}.{experiment.source}" for _, prefix in args.test]
        check_lengths(trained, sources, encode, text.longest)
        status = 0
        for name, prefix in args.test:
            folder = work.resolve() / "other_sets" / name
            here = make_data(experiment, prefix, folder, encode, text.decode)
            runs = [Decoding(here, r.system, r.seed, folder, r) for r in trained]
            try:
                failed = Runner(runs, jobs, devices)()
            except Stopped as stopped:
                return stopped.report()
            write_both(collect(here, runs, about, folder), folder)
            print((folder / "table.md").read_text(encoding="utf-8"))
            for one in failed:
                print(f"{name}: {one} failed; see its folder", file=sys.stderr)
            status = 1 if failed else status
    return status
