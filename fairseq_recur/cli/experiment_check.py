"""Looking at an experiment before anything is trained: its files, flags, models, folders."""

import io
import logging
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from fairseq import options, tasks
from fairseq.data import data_utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from fairseq_recur.cli import fairseq_commands, plugin_loading, preflight
from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.steps import Run, read_json
from fairseq_recur.scoring.generation import read_lines


def check(runs: Sequence[Run]) -> dict[str, int]:
    """Parse every command, build every model once.

    Args:
        runs: of one experiment

    Returns:
        each system's number of parameters

    Raises:
        ConfigError: with everything that is wrong, one line each
    """
    problems: list[str] = []
    parameters: dict[str, int] = {}
    logging.disable(logging.INFO)
    try:
        for run in {run.system.name: run for run in runs}.values():
            _gather(problems, run.system.name, lambda: parameters.update(_model_of(run)))
        if not problems:
            _gather(problems, "generate", lambda: _check_generate(runs[0]))
            _gather(problems, "score", lambda: _check_scoring(runs[0]))
    finally:
        logging.disable(logging.NOTSET)
    changed = [line for run in runs for line in run.check_unchanged()]
    if changed:
        changed.append("a training that has begun keeps its settings: use another --work")
    problems += changed
    if problems:
        head = "the experiment cannot be run; change its file, or give --set:\n- "
        raise ConfigError(head + "\n- ".join(problems))
    return parameters


def _gather(problems: list[str], where: str, look: Callable[[], Any]) -> None:
    """Add what *look* complains about, also where it is argparse that ends the program."""
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            look()
    except ConfigError as error:
        problems.append(f"{where}: {error}")
    except (ValueError, AssertionError, RuntimeError) as error:  # fairseq's own checks
        problems.append(f"{where}: {error or type(error).__name__}")
    except SystemExit:
        problems.append(f"{where}: {said.getvalue().strip().splitlines()[-1]}")


def _model_of(run: Run) -> dict[str, int]:
    """Parse a training's flags, and build its model; its name and number of parameters."""
    flags = run.train_flags()
    if not (flags.get("max-update") or flags.get("max-epoch")):
        raise ConfigError("expected --max-update or --max-epoch, or training would never end")
    argv, _ = plugin_loading.add_option(_without_start(run))
    with fairseq_commands.program("fairseq-recur train", argv):
        preflight.check("train", argv)
        parser = options.get_training_parser()
        parser.usage = "fairseq-recur train"
        cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser))
    model = tasks.setup_task(cfg.task).build_model(cfg.model)
    return {run.system.name: sum(p.numel() for p in model.parameters())}


def _without_start(run: Run) -> list[str]:
    """A training's arguments without the model that it starts from, which may be yet to come."""
    argv = run.train_argv()[1:]
    if "--finetune-from-model" in argv:
        place = argv.index("--finetune-from-model")
        del argv[place : place + 2]
    return argv


def _check_generate(run: Run) -> None:
    """Parse the flags of decoding."""
    argv, _ = plugin_loading.add_option(run.generate_argv()[1:])
    with fairseq_commands.program("fairseq-recur generate", argv):
        parser = options.get_generation_parser()
        parser.usage = "fairseq-recur generate"
        options.parse_args_and_arch(parser)


def _check_scoring(run: Run) -> None:
    """Make the metrics, and compare the files' numbers of lines with the test set's."""
    experiment = run.experiment
    experiment.scoring.build()
    subset = str(experiment.generate.get("gen-subset", "test"))
    pair = f"{subset}.{experiment.source}-{experiment.target}.{experiment.target}"
    data = data_utils.load_indexed_dataset(str(Path(experiment.data) / pair), None)
    if data is None:
        raise ConfigError(
            f"{experiment.data} has no set {subset} ({pair}.bin, .idx); "
            "make it with `fairseq-recur preprocess`"
        )
    source = experiment.scoring.source
    for file in [*experiment.scoring.references, *([] if source is None else [source])]:
        lines = len(read_lines(file))
        if lines != len(data):
            raise ConfigError(
                f"{file} has {lines} lines, but the set {subset} {len(data)}; "
                "give the text of that set"
            )


def read_about(path: Path) -> dict[str, Any]:
    """What a folder's experiment was started with.

    Raises:
        ConfigError: there is none
    """
    about = read_json(path)
    if about is None:
        raise ConfigError(
            f"no experiment in {path.parent}: it has no {path.name}; "
            "name the folder of one that was started"
        )
    return about
