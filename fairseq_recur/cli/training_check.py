"""Checks of trainings before any of them starts: their flags, their data and their models."""

import io
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from typing import Any

from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from fairseq_recur.cli import fairseq_commands, plugin_loading, preflight
from fairseq_recur.errors import ConfigError, InstallationError, refuse
from fairseq_recur.experiments.grid import CellRun
from fairseq_recur.experiments.progress import say
from fairseq_recur.experiments.runner import Stopped


def check_cells(runs: Sequence[CellRun]) -> None:
    """Check the first unfinished training of each row and system: flags, data, model, batches.

    What is wrong with it would otherwise be found only after the trainings before it.

    Raises:
        ConfigError: lists everything that is wrong, one line each
    """
    found: dict[str, str] = {}
    data = _Data()
    left: dict[tuple[str, str], CellRun] = {}
    for run in runs:
        if not run.finished():
            left.setdefault((run.row, run.system), run)
    if left:
        say(f"checking flags, data and models; trainings: {len(left)}")
    with quiet(logging.WARNING):
        for run in left.values():
            problems: list[str] = []
            cfg = parse("", run.argv("train")[1:], problems)
            if cfg is not None and not problems:
                gather(problems, "", partial(data.build, cfg))
            for text in problems:  # of equal ones the first
                found.setdefault(text, f"{run.row} {run.system}{text}")
    refuse("no training was started; change the variables, or what they name", found.values())


class _Data:
    """The task of the last training that was checked: the next one may have the same data."""

    def __init__(self) -> None:
        self.cfg: Any = None
        self.task: Any = None

    def build(self, cfg: Any) -> None:
        """Read the sets of a training, build its model and form its batches."""
        if cfg.task != self.cfg:
            self.cfg = self.task = None  # it may be large
            task = tasks.setup_task(cfg.task)
            for subset in (cfg.dataset.train_subset, *cfg.dataset.valid_subset.split(",")):
                task.load_dataset(subset)
            self.cfg, self.task = cfg.task, task
        self.task.build_model(cfg.model)
        self.task.get_batch_iterator(  # the task may refuse batches that do not fit the model
            self.task.dataset(cfg.dataset.train_subset),
            max_tokens=cfg.dataset.max_tokens,
            max_sentences=cfg.dataset.batch_size,
            required_batch_size_multiple=cfg.dataset.required_batch_size_multiple,
            disable_iterator_cache=True,  # the next training may have other batches
        )


def parse(where: str, argv: Sequence[str], problems: list[str]) -> Any:
    """Return the configuration that fairseq makes of a training's flags; None if it cannot.

    Args:
        where: what the problems are of
        argv: of ``fairseq-recur train``
        problems: what is wrong is added
    """
    with_plugin: list[str] = []
    parsed: list[Any] = []
    gather(problems, where, lambda: with_plugin.extend(plugin_loading.add_option(argv)[0]))
    if not with_plugin:
        return None
    with fairseq_commands.program("fairseq-recur train", with_plugin):
        told = len(problems)
        gather(problems, where, partial(preflight.check, "train", with_plugin))
        # Of what that found, fairseq's parser would say less.
        said = problems if len(problems) == told else []
        gather(said, where, lambda: parsed.append(_parse_flags()))
    return parsed[0] if parsed else None


def _parse_flags() -> Any:
    """Return the configuration that fairseq makes of the flags in sys.argv."""
    parser = options.get_training_parser()
    parser.usage = "fairseq-recur train"
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser))


def gather(problems: list[str], where: str, inspect: Callable[[], Any]) -> None:
    """Add what *inspect* raises; argparse reports by ending the program."""
    said = io.StringIO()
    try:
        with redirect_stderr(said), redirect_stdout(io.StringIO()):
            inspect()
    except Stopped:  # by a signal
        raise
    except (ConfigError, InstallationError) as error:
        problems.append(f"{where}: {error}")
    except (ValueError, AssertionError, RuntimeError) as error:  # fairseq's own checks
        problems.append(f"{where}: {error or type(error).__name__}")
    except SystemExit:
        lines = said.getvalue().strip().splitlines()
        problems.append(f"{where}: {lines[-1] if lines else 'a flag ends the command; remove it'}")
    except Exception as error:  # of any kind, where fairseq or torch does not check a value
        problems.append(f"{where}: {type(error).__name__}: {error}")


@contextmanager
def quiet(level: int) -> Iterator[None]:
    """Log nothing up to *level* for a while."""
    before = logging.root.manager.disable
    logging.disable(level)
    try:
        yield
    finally:
        logging.disable(before)
