"""Checks of an experiment before any training: its files, flags, models and folders."""

import io
import logging
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path
from typing import Any

from fairseq import options, tasks
from fairseq.data import data_utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from torch import Tensor

from fairseq_recur.cli import fairseq_commands, plugin_loading, preflight
from fairseq_recur.errors import ConfigError, InstallationError, Problems, refuse
from fairseq_recur.experiments.runs import SystemRun
from fairseq_recur.experiments.settings import MISREAD, Experiment, normal
from fairseq_recur.experiments.steps import same_command
from fairseq_recur.files import read_json
from fairseq_recur.loading.states import read_state
from fairseq_recur.scoring.comparison import BOTH
from fairseq_recur.scoring.generation import read_lines
from fairseq_recur.scoring.mean_metric import MeanMetric
from fairseq_recur.scoring.significance import check_draws
from fairseq_recur.text import build_codec

Weights = dict[str, Tensor]


def check(runs: Sequence[SystemRun]) -> dict[str, int]:
    """Parse every command, and build every model once.

    Returns:
        system -> number of parameters

    Raises:
        ConfigError: lists everything that is wrong, one line each
    """
    problems: list[str] = []
    parameters: dict[str, int] = {}
    weights: dict[str, Weights] = {}
    logging.disable(logging.INFO)
    try:
        starts = _starts(runs)
        for run in {run.system.name: run for run in runs}.values():
            if run.start in starts and run.start not in weights:
                weights.clear()  # one at a time: they may be large
                _gather(problems, starts[run.start], partial(_read_start, run.start, weights))
                if run.start not in weights:
                    del starts[run.start]  # reported once
            _gather(problems, run.system.name, partial(_build, run, parameters, weights))
        if not problems:
            _gather(problems, "generate", lambda: _check_generate(runs[0]))
            _gather(problems, "score", lambda: _check_scoring(runs[0]))
    finally:
        logging.disable(logging.NOTSET)
    for run in {run.work: run for run in runs}.values():
        _gather(problems, "--work-dir", partial(_check_folder, run.experiment, run.work))
    changed = list(dict.fromkeys(line for run in runs for line in run.check_unchanged()))
    if changed:
        changed.append(
            "a training that has begun keeps its settings and its data: use another --work-dir"
        )
    problems += changed
    refuse("the experiment cannot be run; change its file, or use --set", problems)
    return parameters


def _starts(runs: Sequence[SystemRun]) -> dict[str, str]:
    """Return checkpoint -> its setting, of the checkpoints that are not trained here."""
    found: dict[str, str] = {}
    for run in runs:
        if run.start is not None and run.starts_from is None:
            own = run.system.start is not None
            found.setdefault(run.start, f"systems.{run.system.name}.start" if own else "start")
    return found


def _read_start(file: str, weights: dict[str, Weights]) -> None:
    """Read the weights of a checkpoint that trainings start from."""
    weights[file] = read_state(file)["model"]


def _check_folder(experiment: Experiment, work: Path) -> None:
    """Refuse a folder whose name fairseq misreads, or which has another experiment.

    A folder has another experiment if every training in it has other data or belongs to no row of
    this table.
    """
    for mark in MISREAD:
        if mark in str(work):
            raise ConfigError(
                f"{work}: fairseq reads {mark!r} in the name of a checkpoint as something else; "
                "choose another folder"
            )
    states = {file.parent: read_json(file) for file in work.glob("*/seed*/state.json")}
    data = {
        folder: state["train"]["key"][1]
        for folder, state in states.items()
        if "key" in state.get("train", {})
    }
    if data and not any(
        folder.parent.name in experiment.systems and same_command([name], [experiment.data])
        for folder, name in data.items()
    ):
        rows = ", ".join(sorted({folder.parent.name for folder in data}))
        raise ConfigError(
            f"{work} has another experiment, {rows} on {', '.join(sorted({*data.values()}))}, "
            "whose table would be lost; choose another folder"
        )


def _gather(problems: list[str], where: str, inspect: Callable[[], Any]) -> None:
    """Add what *inspect* raises; argparse reports by ending the program."""
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            inspect()
    except (ConfigError, InstallationError) as error:
        problems.append(f"{where}: {error}")
    except (ValueError, AssertionError, RuntimeError) as error:  # fairseq's own checks
        problems.append(f"{where}: {error or type(error).__name__}")
    except SystemExit:
        lines = said.getvalue().strip().splitlines()
        problems.append(f"{where}: {lines[-1] if lines else 'a flag ends the command; remove it'}")


def _build(run: SystemRun, parameters: dict[str, int], starts: dict[str, Weights]) -> None:
    """Parse a training's flags and build its model; record its number of parameters.

    The weights that it starts from have to fit, if they could be read.
    """
    flags = run.train_flags()
    if not (flags.get("max-update") or flags.get("max-epoch")):
        raise ConfigError(
            "neither --max-update nor --max-epoch is given; expected one of them, "
            "or training would never end"
        )
    argv, _ = plugin_loading.add_option(_without_start(run))
    with fairseq_commands.program("fairseq-recur train", argv):
        preflight.check("train", argv)
        parser = options.get_training_parser()
        parser.usage = "fairseq-recur train"
        cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser))
    _check_saved(run.experiment.checkpoint, cfg)
    model = tasks.setup_task(cfg.task).build_model(cfg.model)
    parameters[run.system.name] = sum(p.numel() for p in model.parameters())
    start = starts.get(run.start or "")
    if start is not None:
        logging.disable(logging.WARNING)  # each training's log names what is initialised fresh
        try:
            model.load_state_dict({**start}, model_cfg=cfg.model)
        finally:
            logging.disable(logging.INFO)


def _check_saved(checkpoint: int | str, cfg: Any) -> None:
    """Raise ConfigError if a training never saves the checkpoint that is decoded."""
    save, averaged = cfg.checkpoint, isinstance(checkpoint, int)
    unsaved = {
        "--no-save": save.no_save,
        "--no-epoch-checkpoints": averaged and save.no_epoch_checkpoints
        and save.save_interval_updates <= 0,
        "--disable-validation": checkpoint == "best" and cfg.dataset.disable_validation,
        "--no-last-checkpoints": checkpoint == "last" and save.no_last_checkpoints,
    }  # fmt: skip
    given = " and ".join(flag for flag, hinders in unsaved.items() if hinders)
    if given:
        raise ConfigError(
            f"checkpoint: {checkpoint} is never saved with {given}; choose another checkpoint, or "
            "remove the flag"
        )


def _without_start(run: SystemRun) -> list[str]:
    """Return a training's arguments without its initial model, which may not exist yet."""
    argv = run.train_argv()[1:]
    if "--finetune-from-model" in argv:
        place = argv.index("--finetune-from-model")
        del argv[place : place + 2]
    return argv


def _check_generate(run: SystemRun) -> None:
    """Parse the flags of decoding; load the files of its tokenizer and its subwords."""
    argv, _ = plugin_loading.add_option(run.generate_argv()[1:])
    with fairseq_commands.program("fairseq-recur generate", argv):
        parser = options.get_generation_parser()
        parser.usage = "fairseq-recur generate"
        parsed = options.parse_args_and_arch(parser)
        build_codec(parsed, parsed, "the test set")


def _check_scoring(run: SystemRun) -> None:
    """Build the metrics; compare the files' line counts with the size of the test set.

    Then let the metrics and the tests check what they can before there is a translation.
    """
    experiment = run.experiment
    metrics = experiment.score.built
    subset = str(normal(experiment.generate).get("gen-subset", "test"))
    source, target = experiment.source, experiment.target
    for pair in (f"{target}-{source}", f"{source}-{target}"):
        name = f"{subset}.{pair}.{target}"
        data = data_utils.load_indexed_dataset(str(Path(experiment.data) / name), None)
        if data is not None:
            break
    else:
        raise ConfigError(
            f"{experiment.data} has no subset {subset} ({name}.bin, .idx); "
            "create it with `fairseq-recur preprocess`"
        )
    score = experiment.score
    for file in [*score.reference, *filter(None, [score.source]), *score.outputs.values()]:
        lines = len(read_lines(file))
        if lines != len(data):
            raise ConfigError(
                f"{file} has {lines} lines, but the subset {subset} has {len(data)}; "
                "use the text of that subset"
            )
    unscorable = Problems("the translations could not be scored")
    check_draws(BOTH, score.samples, None, unscorable)
    references = [read_lines(file) for file in score.reference]
    for metric in metrics:
        if isinstance(metric, MeanMetric):
            metric.check(len(data), references, unscorable)
    unscorable.raise_all()


def read_about(path: Path) -> dict[str, Any]:
    """Return how a folder's experiment was started.

    Raises:
        ConfigError: the folder has no experiment
    """
    about = read_json(path)
    if about is None:
        raise ConfigError(
            f"no experiment in {path.parent}: it has no {path.name}; "
            "expected the --work-dir of an experiment"
        )
    return about
