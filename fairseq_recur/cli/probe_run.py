"""Probe the encoders of checkpoints with the tasks of Conneau et al. 2018: train classifiers on the
frozen encoders, as Hao et al. 2019 do for their table 5, and print the accuracies. The task files
have SentEval's format.
"""

import argparse
import logging
from pathlib import Path
from typing import Any

import torch

from fairseq_recur.cli.scoring_options import split_names
from fairseq_recur.errors import ConfigError, Problems, refuse
from fairseq_recur.experiments.machine import commit, trained_with
from fairseq_recur.files import check_outputs, output_problems, write_json, write_text
from fairseq_recur.loading.folder import find_checkpoints
from fairseq_recur.modules.options import flag
from fairseq_recur.pretrained.batches import LARGEST
from fairseq_recur.probing.classifier import COMBINATIONS
from fairseq_recur.probing.protocol import Protocol
from fairseq_recur.probing.report import (
    REFERENCES,
    ProbeSettings,
    Row,
    probe_model,
    reference_rows,
    table,
)
from fairseq_recur.probing.representations import SentenceEncoder, load_encoder
from fairseq_recur.probing.tasks import TASKS, TaskData, choose_tasks, read_task
from fairseq_recur.scoring.tables import markdown
from fairseq_recur.text import MANY_UNKNOWN, Codec, build_codec

logger = logging.getLogger(__name__)

BPE_FILES = {"sentencepiece": "sentencepiece_model", "subword_nmt": "bpe_codes"}
"""The subword encoders of fairseq, and the option that names the file of each."""

RANGES = {
    "hidden": (0, 2**16), "seed": (0, 2**63 - 1), "runs": (1, 1000), "max_tokens": (1, LARGEST),
    "batch_size": (1, LARGEST), "epochs_per_check": (1, LARGEST), "patience": (0, LARGEST),
    "max_epochs": (1, LARGEST), "learning_rate": (1e-12, LARGEST),
}  # fmt: skip
"""The least and the greatest value of each number; a greater one is a slip."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `probe run`."""
    parser.add_argument(
        "folder", metavar="TASKS", help="folder with task files in SentEval's format"
    )
    _add_model_arguments(parser)
    _add_run_arguments(parser)
    parser.add_argument("--json", metavar="OUT", help="also write the accuracies of all runs")
    parser.add_argument("--markdown", metavar="OUT", help="also write the table")
    _add_classifier_arguments(parser)


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the models, and how text becomes their input."""
    parser.add_argument(
        "--path",
        nargs="+",
        required=True,
        metavar="NAME=CHECKPOINT",
        help="models of this plug-in, or fairseq's transformer",
    )
    parser.add_argument(
        "--data",
        metavar="DATA",
        help="folder with the models' dictionaries (default: that of the checkpoint, or of the "
        "training's data)",
    )
    parser.add_argument("--bpe", choices=BPE_FILES, help="subword segmentation, as for interactive")
    parser.add_argument(
        "--sentencepiece-model", metavar="FILE", help="model for --bpe sentencepiece"
    )
    parser.add_argument("--bpe-codes", metavar="FILE", help="codes for --bpe subword_nmt")


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is probed, how often and where."""
    parser.add_argument(
        "--tasks",
        nargs="+",
        choices=TASKS,
        default=[],
        help="tasks to use (default: all in the folder)",
    )
    parser.add_argument(
        "--combine",
        choices=COMBINATIONS,
        default="gate",
        help="how to combine the Transformer encoder's and the recurrence encoder's "
        "representations; a model without recurrence encoder is probed by the former only",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the first run")
    parser.add_argument(
        "--runs",
        type=int,
        default=3,
        metavar="N",
        help="number of classifiers, each with its own seed",
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=4000,
        metavar="N",
        help="subwords per batch of the encoder",
    )
    parser.add_argument("--cpu", action="store_true", help="do not use a GPU")


def _add_classifier_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the classifier."""
    group = parser.add_argument_group("classifier (the defaults are SentEval's protocol)")
    standard = Protocol()
    group.add_argument(
        "--hidden",
        type=int,
        default=200,
        metavar="N",
        help="units of the hidden layer, 0 for no hidden layer; WordContent never has one",
    )
    for name, text in (("l2", "weight decays"), ("dropout", "dropout rates")):
        group.add_argument(
            f"--{name}",
            nargs="+",
            type=float,
            default=list(getattr(standard, name)),
            metavar="X",
            help=f"{text} to select from on the valid split",
        )
    group.add_argument("--learning-rate", type=float, default=standard.learning_rate, metavar="X")
    for name, text in (
        ("batch_size", "sentences per update"),
        ("epochs_per_check", "epochs between two evaluations of the valid split"),
        ("patience", "evaluations without improvement that are tolerated"),
        ("max_epochs", "largest number of epochs"),
    ):
        default = getattr(standard, name)
        group.add_argument(flag(name), type=int, default=default, metavar="N", help=text)


def run(args: argparse.Namespace) -> int:
    """Check the input, then probe task by task."""
    settings = _settings(args)
    paths = _checkpoints(args.path)
    check_outputs(args.json, args.markdown, inputs=paths.values())
    folder = Path(args.folder)
    codec = subwords(args)
    tasks = [read_task(folder, task) for task in choose_tasks(folder, args.tasks)]
    device = torch.device("cuda" if torch.cuda.is_available() and not args.cpu else "cpu")
    encoders = {}
    for name, path in paths.items():
        encoders[name] = load_encoder(path, args.data, codec, device, args.max_tokens)
        _check_encoder(name, encoders[name], args.combine)
        _check_sentences(name, encoders[name], tasks)
    # A second run replaces the results of the first only when it has all of its own.
    before = [file for file in (args.json, args.markdown) if file and Path(file).is_file()]
    if before:
        logger.info(f"{' and '.join(before)} will be replaced when all tasks are probed")
    rows: list[Row] = []
    for task in tasks:
        rows += reference_rows(task, settings, device)
        for name, encoder in encoders.items():
            rows.append(probe_model(name, encoder, task, settings))
            logger.info(f"{task.task.name}, {name}: {rows[-1].mean:.2f}% correct")
        # After every task, because a run over all of SentEval takes long.
        _write(args, rows, tasks, paths, before if task is not tasks[-1] else [])
    print(table(rows, args.runs))
    return 0


def _settings(args: argparse.Namespace) -> ProbeSettings:
    """Check the options' values."""
    problems = [
        f"{flag(name)} {getattr(args, name)}: expected {low} to {high}"
        for name, (low, high) in RANGES.items()
        if not low <= getattr(args, name) <= high  # nan is in no range
    ]
    problems += [f"--l2 {x}: expected 0 to {LARGEST}" for x in args.l2 if not 0 <= x <= LARGEST]
    problems += [f"--dropout {x}: expected 0 to 1, less than 1" for x in args.dropout
                 if not 0 <= x < 1]  # fmt: skip
    if args.hidden == 0 and any(args.dropout):
        problems.append("--dropout has no effect with --hidden 0; leave out one of them")
    inputs = [Path(args.folder, TASKS[name].file) for name in args.tasks or TASKS]
    inputs += [Path(file) for file in (args.sentencepiece_model, args.bpe_codes) if file]
    problems += output_problems(args.json, args.markdown, inputs=inputs)
    refuse("these options of probe run cannot be used", problems)
    values = {name: getattr(args, name) for name in Protocol._fields}
    protocol = Protocol(**{**values, "l2": tuple(args.l2), "dropout": tuple(args.dropout)})
    seeds = tuple(range(args.seed, args.seed + args.runs))
    return ProbeSettings(args.combine, args.hidden, protocol, seeds)


def _checkpoints(given: list[str]) -> dict[str, str]:
    """Split NAME=CHECKPOINT, and find each file; ConfigError for all that cannot be used."""
    problems = Problems("probe run")
    files: dict[str, str] = {}
    for name, path in split_names(given, problems, "--path").items():
        if name in REFERENCES:
            problems.add(f"--path {name}=...: the table has a row of this name; choose another")
        with problems.gathered():
            files[name] = str(find_checkpoints(path, None)[1][0])
    problems.raise_all()
    return files


def subwords(args: argparse.Namespace) -> Codec:
    """Build the subwords; without --bpe, words stay whole.

    Raises:
        ConfigError: the file is missing or unreadable, or belongs to the other encoder
    """
    for name, option in BPE_FILES.items():
        path, given = getattr(args, option), flag(option)
        if path is not None and name != args.bpe:
            raise ConfigError(
                f"{given} belongs to --bpe {name}, but --bpe is {args.bpe or '(none)'}; "
                f"remove {given}"
            )
        if path is None and name == args.bpe:
            raise ConfigError(f"--bpe {args.bpe} needs {given} FILE")
        if path is not None and not Path(path).is_file():
            raise ConfigError(f"{given} {path}: no such file; expected the file that {name} wrote")
    return build_codec(None, args, "probe run")


def _check_encoder(name: str, encoder: SentenceEncoder, combine: str) -> None:
    """Reject --combine recurrence for a model without a recurrence encoder."""
    if combine == "recurrence" and not encoder.has_recurrence:
        raise ConfigError(
            f"--combine recurrence: {name} has no recurrence encoder; remove it, or use "
            "--combine gate, which probes it by its Transformer encoder"
        )


def _check_sentences(name: str, encoder: SentenceEncoder, tasks: list[TaskData]) -> None:
    """Reject sentences that are too long for a model; warn about unknown subwords."""
    for task in tasks:
        try:
            unknown = encoder.check(task.sentences())
        except ConfigError as error:
            raise ConfigError(f"{task.task.name}, {name}: {error}") from None
        if unknown > MANY_UNKNOWN:
            logger.warning(
                f"{task.task.name}: {unknown:.1%} of the subwords are unknown to {name}; "
                "check that --bpe and its file are those of the training"
            )


def _write(
    args: argparse.Namespace,
    rows: list[Row],
    tasks: list[TaskData],
    paths: dict[str, str],
    kept: list[str],
) -> None:
    """Write the results so far to the requested files, but those to keep as they are."""
    if args.markdown and args.markdown not in kept:
        write_text(args.markdown, table(rows, args.runs, markdown) + "\n")
    if args.json and args.json not in kept:
        report: dict[str, Any] = {
            "commit": commit(),
            **trained_with([]),  # this machine and its versions
            "settings": {k: v for k, v in vars(args).items() if k not in ("command", "subcommand")},
            "checkpoints": paths,
            "tasks": {
                t.task.name: {
                    "file": t.task.file,
                    "labels": len(t.labels),
                    **{name: len(split.labels) for name, split in t.splits.items()},
                }
                for t in tasks
            },
            "rows": [row.as_dict() for row in rows],
        }
        write_json(args.json, report)
