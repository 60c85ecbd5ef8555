"""What `score` and `compare` share: options for texts and metrics, and reading the texts."""

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sacrebleu.metrics.base import Metric

from fairseq_recur.errors import ConfigError, Problems
from fairseq_recur.scoring import comet
from fairseq_recur.scoring.generation import read_hypotheses, read_lines
from fairseq_recur.scoring.mean_metric import MeanMetric
from fairseq_recur.scoring.metrics import METRICS, TOKENIZERS, build_metric
from fairseq_recur.scoring.rouge import VARIANTS
from fairseq_recur.scoring.sentences import SEPARATOR


@dataclass
class Texts:
    """The texts to score: each system's file and lines, the references, and COMET's source."""

    files: dict[str, str]
    systems: dict[str, list[str]]
    references: list[list[str]]
    source: list[str] | None


def add_text_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options for systems, references and source."""
    parser.add_argument(
        "--reference",
        action="append",
        required=True,
        metavar="FILE",
        help="plain text with reference translations or summaries; repeat for more references",
    )
    parser.add_argument(
        "--system",
        action="append",
        required=True,
        metavar="NAME=FILE",
        help="a system's name and output; repeat for more systems",
    )
    parser.add_argument("--source", metavar="FILE", help="COMET: the source text, plain text")


def add_metric_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the metrics."""
    parser.add_argument(
        "--metrics", nargs="+", choices=METRICS, default=["bleu", "chrf"], help="metrics to compute"
    )
    parser.add_argument(
        "--tokenize",
        choices=TOKENIZERS,
        default="13a",
        metavar="NAME",
        help=f"BLEU's tokenizer: {', '.join(TOKENIZERS)}",
    )
    parser.add_argument(
        "--lowercase",
        action="store_true",
        help="ignore case in BLEU and chrF (TER and ROUGE always do)",
    )
    parser.add_argument(
        "--separator",
        default=SEPARATOR,
        metavar="TEXT",
        help="ROUGE: the separator between the sentences of a summary, such as %(default)s or "
        "\\t; a text without it is split into sentences by rules for English",
    )
    parser.add_argument(
        "--comet-model",
        default=comet.DEFAULT_MODEL,
        metavar="MODEL",
        help="COMET: model name on the Hugging Face hub, or checkpoint file",
    )


ACTS_ON: dict[str, tuple[str, ...]] = {
    "tokenize": ("bleu",),
    "lowercase": ("bleu", "chrf", "chrf++"),
    "separator": VARIANTS,
    "source": ("comet",),
    "comet_model": ("comet",),
}
"""The metrics that read an option."""


def unread(options: Any, default: Callable[[str], Any]) -> Iterator[tuple[str, str]]:
    """Yield the options that were given and that none of the metrics reads.

    Args:
        options: has `metrics`, and the options as attributes
        default: of an option's name

    Yields:
        the option's name, and what it acts on
    """
    for name, metrics in ACTS_ON.items():
        changed = getattr(options, name, None) != default(name)
        if changed and not set(metrics) & set(options.metrics):
            yield name, f"acts on {', '.join(metrics)} and has no effect with"


def without_effect(args: argparse.Namespace) -> Iterator[str]:
    """Yield a message for each option that was given and that none of the metrics reads."""
    parser = argparse.ArgumentParser()
    add_metric_arguments(parser)
    for name, acts in unread(args, parser.get_default):
        option, given = name.replace("_", "-"), " ".join(args.metrics)
        yield f"--{option} {acts} --metrics {given}; leave it out"


def split_names(given: Sequence[str], problems: Problems, what: str = "system") -> dict[str, str]:
    """Split each NAME=FILE; a FILE without a name, which may contain "=", is named after itself."""
    files: dict[str, str] = {}
    for item in given:
        name, equals, file = item.partition("=")
        if not equals or os.path.exists(item):
            name = file = item
        if not name or not file:
            problems.add(f"{what} {item!r}: expected NAME=FILE")
        elif name in files:
            problems.add(f"{what} {name!r} occurs twice; give each a different name")
        else:
            files[name] = file
    return files


def input_files(args: argparse.Namespace, files: dict[str, str]) -> list[str | None]:
    """Return the names of all files that are read: the systems' and those of the options."""
    return [*args.reference, *files.values(), args.source, args.comet_model]


def read_texts(args: argparse.Namespace, files: dict[str, str], problems: Problems) -> Texts:
    """Read all files; record a problem for each that is unreadable or has a wrong length."""
    texts = Texts(files, {}, [], None)
    for problem in without_effect(args):
        problems.add(problem)
    count: int | None = None
    for file in args.reference:
        with problems.gathered():
            lines = read_lines(file)
            count = len(lines) if count is None else count
            texts.references.append(lines)
            if len(lines) != count:
                raise ConfigError(
                    f"{file} has {len(lines)} lines, but the first reference has {count}; "
                    "give references of one test set, one line per sentence"
                )
    for name, file in files.items():
        with problems.gathered():
            texts.systems[name] = read_hypotheses(file, count)
    if "comet" in args.metrics:
        _check_comet(args, texts, count, problems)
    return texts


def _check_comet(
    args: argparse.Namespace, texts: Texts, count: int | None, problems: Problems
) -> None:
    """Read COMET's source, and record what COMET lacks."""
    with problems.gathered():
        comet.comet_package()
    if args.source is not None:
        with problems.gathered():
            texts.source = read_lines(args.source)
    if count is not None and (args.source is None or texts.source is not None):
        comet.check_inputs(texts.source, count, texts.references, problems)


def build_metrics(
    args: argparse.Namespace, texts: Texts, problems: Problems
) -> list[Metric | MeanMetric]:
    """Build each metric once.

    Raises:
        ConfigError: problems recorded so far, before COMET's model may be downloaded; or problems
            with the metrics
    """
    problems.raise_all()
    gpus = 0
    if "comet" in args.metrics:
        from fairseq_recur.experiments.machine import gpus_for  # torch takes seconds

        gpus = gpus_for(args.metrics)
    metrics: list[Metric | MeanMetric] = []
    for name in dict.fromkeys(args.metrics):
        with problems.gathered():
            metrics.append(
                build_metric(
                    name,
                    args.tokenize,
                    args.lowercase,
                    args.separator,
                    source=texts.source,
                    comet_model=args.comet_model,
                    gpus=gpus,
                )
            )
    problems.raise_all()
    return metrics
