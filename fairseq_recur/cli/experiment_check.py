"""Checks of an experiment before any training: its files, flags, models and folders."""

import logging
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fairseq import options, tasks
from fairseq.data import data_utils
from fairseq.utils import resolve_max_positions
from torch import Tensor

from fairseq_recur.cli import fairseq_commands, plugin_loading
from fairseq_recur.cli.scoring_options import unread
from fairseq_recur.cli.training_check import gather, parse, quiet
from fairseq_recur.errors import ConfigError, Problems, first_items, refuse
from fairseq_recur.experiments.runs import SystemRun
from fairseq_recur.experiments.settings import Experiment, Flags, Scoring, misread, normal
from fairseq_recur.experiments.steps import read_steps, relative, same_command
from fairseq_recur.files import inside
from fairseq_recur.loading.states import read_state
from fairseq_recur.scoring import comet
from fairseq_recur.scoring.comparison import BOTH
from fairseq_recur.scoring.generation import read_lines
from fairseq_recur.scoring.mean_metric import MeanMetric
from fairseq_recur.scoring.significance import check_draws
from fairseq_recur.search import OPTIONS, search_options
from fairseq_recur.text import build_codec

Weights = dict[str, Tensor]

LARGEST_SEED = 2**31 - 1
"""fairseq adds the epoch to the seed, and NumPy takes seeds below 2**32."""


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
    of_rows: dict[str, list[str]] = {}  # the rows that have a problem: often all of them
    with quiet(logging.INFO):
        starts = _starts(runs)
        for run in {run.system.name: run for run in runs}.values():
            if run.start in starts and run.start not in weights:
                weights.clear()  # one at a time: they may be large
                gather(problems, starts[run.start], partial(_read_start, run.start, weights))
                if run.start not in weights:
                    del starts[run.start]  # reported once
            for problem in _check_training(run, parameters, weights):
                of_rows.setdefault(problem, []).append(run.system.name)
        problems += [f"{first_items(rows)}{problem}" for problem, rows in of_rows.items()]
        gather(problems, "seeds", lambda: _check_seeds({run.seed for run in runs}))
        gather(problems, "generate", lambda: _check_generate(runs[0]))
        gather(problems, "score", lambda: _check_scoring(runs[0].experiment))
        if not problems:  # a metric may download a large model
            gather(problems, "score", lambda: runs[0].experiment.score.built)
    for run in {run.work: run for run in runs}.values():
        gather(problems, "--work-dir", partial(_check_folder, run.experiment, run.work))
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
    if mark := misread(str(work)):
        raise ConfigError(
            f"{work}: fairseq reads {mark!r} in the name of a checkpoint as something else; "
            "choose another folder"
        )
    states = {file.parent: read_steps(file) for file in work.glob("*/seed*/state.json")}
    data = {
        folder: relative(state["train"]["key"], f"{folder.parent.name}/{folder.name}")[1]
        for folder, state in states.items()
        if "key" in state.get("train", {})
    }
    here = inside(experiment.data, str(work))
    if data and not any(
        folder.parent.name in experiment.systems and same_command([name], [here], str(work))
        for folder, name in data.items()
    ):
        rows = ", ".join(sorted({folder.parent.name for folder in data}))
        raise ConfigError(
            f"{work} has another experiment, {rows} on {', '.join(sorted({*data.values()}))}, "
            "whose table would be lost; choose another folder"
        )


def _check_training(
    run: SystemRun, parameters: dict[str, int], starts: dict[str, Weights]
) -> list[str]:
    """Check a training's flags and data; build its model if nothing is wrong with them.

    Returns:
        what is wrong, each to stand behind the name of the row
    """
    problems: list[str] = []
    inspect = partial(gather, problems, "")
    inspect(partial(_check_length, run.train_flags()))
    cfg = parse("", _without_start(run), problems)
    if cfg is not None:
        inspect(partial(_check_saved, run.experiment.checkpoint, cfg))
        if not problems:
            inspect(partial(_build, run, cfg, parameters, starts))
    return problems


def _check_length(flags: Flags) -> None:
    """Raise ConfigError if a training has no end."""
    if not (flags.get("max-update") or flags.get("max-epoch")):
        raise ConfigError(
            "neither --max-update nor --max-epoch is given; expected one of them, "
            "or training would never end"
        )


def _build(
    run: SystemRun, cfg: Any, parameters: dict[str, int], starts: dict[str, Weights]
) -> None:
    """Build a training's model; record its number of parameters.

    The weights that it starts from have to fit, if they could be read, and so has the test set.
    """
    task = tasks.setup_task(cfg.task)
    model = task.build_model(cfg.model)
    parameters[run.system.name] = sum(p.numel() for p in model.parameters())
    _check_test_lengths(run.experiment, task, model)
    start = starts.get(run.start or "")
    if start is not None:
        with quiet(logging.WARNING):  # each training's log names what is initialised fresh
            model.load_state_dict({**start}, model_cfg=cfg.model)


def _check_test_lengths(experiment: Experiment, task: Any, model: Any) -> None:
    """Raise ConfigError if the test set has sentences that the model or a batch cannot hold.

    Decoding would find them only after the training.
    """
    subset = _subset(experiment)
    try:
        task.load_dataset(subset)
    except FileNotFoundError:  # which scoring reports
        return
    dataset = task.dataset(subset)
    limits = resolve_max_positions(task.max_positions(), model.max_positions())
    _, ignored = dataset.filter_indices_by_size(dataset.ordered_indices(), limits)
    if len(ignored) > 0:
        raise ConfigError(
            f"{len(ignored)} sentences of the subset {subset} are longer than the model's limits "
            f"of source and target, {limits}: the first is sentence {min(ignored) + 1}; shorten "
            "them, or raise --max-source-positions and --max-target-positions"
        )
    room = normal(experiment.generate).get("max-tokens")
    longest = max(map(dataset.num_tokens, range(len(dataset))), default=0)
    if isinstance(room, int) and longest > room:
        raise ConfigError(
            f"generate: max-tokens {room}: the longest sentence of the subset {subset} has "
            f"{longest} tokens, more than a batch may have; expected at least as many"
        )


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


def _check_seeds(seeds: Collection[int]) -> None:
    """Raise ConfigError if a training cannot have a seed."""
    if max(seeds) > LARGEST_SEED:
        raise ConfigError(f"found {max(seeds)}, expected at most {LARGEST_SEED}")


def _check_generate(run: SystemRun) -> None:
    """Check the flags of decoding; load the files of its tokenizer and its subwords.

    Raises:
        ConfigError: lists all problems
    """
    problems = Problems("the test set could not be decoded")
    argv, _ = plugin_loading.add_option(run.generate_argv()[1:])
    with fairseq_commands.program("fairseq-recur generate", argv):
        parser = options.get_generation_parser()
        parser.usage = "fairseq-recur generate"
        parsed = options.parse_args_and_arch(parser)
        with problems.gathered():
            _check_search(vars(parsed))
        with problems.gathered():
            build_codec(parsed, parsed, "the test set")
    problems.raise_all()


def _check_search(flags: dict[str, Any]) -> None:
    """Check the search as `fairseq-recur translate` does, for the task's longest sentences.

    Raises:
        ConfigError: decoding would fail
    """
    given = {name: flags[name] for name in OPTIONS}
    sides = ("max_source_positions", "max_target_positions")
    search = search_options(given, flags["nbest"], *(flags.get(side, 1024) for side in sides))
    if search.sampling and flags["nbest"] != search.beam:
        raise ConfigError(
            f"nbest={flags['nbest']} of beam={search.beam}: fairseq-generate samples as many as it "
            "returns; give both the same number"
        )


def _check_scoring(experiment: Experiment) -> None:
    """Check what scoring reads, its settings, and its metrics, without a model of a metric.

    Raises:
        ConfigError: lists all problems
    """
    score, problems = experiment.score, Problems("the translations could not be scored")
    for problem in _without_effect(score):
        problems.add(problem)
    texts = _read_texts(experiment, problems)
    count = len(texts[score.reference[0]]) if texts and score.reference else 1
    check_draws(BOTH, score.samples, None, problems, count)
    references = [texts[file] for file in score.reference] if texts else []
    sources = texts[score.source] if texts and score.source is not None else None
    check_metrics(score, sources, references, problems)
    problems.raise_all()


def _without_effect(score: Scoring) -> Iterator[str]:
    """Yield the settings that none of the metrics reads, as `fairseq-recur score` does."""
    default = Scoring(reference=[])
    given = ", ".join(score.metrics)
    for name, acts in unread(score, lambda name: getattr(default, name, None)):
        usual = getattr(default, name)
        yield f"{name} {acts} the metrics {given}; leave it out, or set it to {usual}"


def _read_texts(experiment: Experiment, problems: Problems) -> dict[str, list[str]] | None:
    """Read the texts of the test set.

    Returns:
        file -> lines; None if one cannot be read, or they do not belong to the test set
    """
    score, before = experiment.score, len(problems.found)
    of, texts = f"the subset {_subset(experiment)}", {}
    count: int | None = None
    with problems.gathered():
        count = _test_size(experiment)
    for file in [*score.reference, *filter(None, [score.source]), *score.outputs.values()]:
        with problems.gathered():
            lines = texts[file] = read_lines(file)
            if count is None:  # there are no data
                of, count = file, len(lines)
            if len(lines) != count:
                raise ConfigError(
                    f"{file} has {len(lines)} lines, but {of} has {count}; expected texts of the "
                    "same sentences"
                )
    return texts if len(problems.found) == before else None


def _subset(experiment: Experiment) -> str:
    """Return the name of the test set in the data."""
    return str(normal(experiment.generate).get("gen-subset") or "test")


def _test_size(experiment: Experiment) -> int | None:
    """Return the number of sentences to decode; None without data, of which every system tells.

    Raises:
        ConfigError: the data lack the test set
    """
    data = test_data(experiment, experiment.target)
    if data is not None:
        return len(data)
    if not Path(experiment.data).is_dir():
        return None
    pair = f"{experiment.source}-{experiment.target}.{experiment.target}"
    raise ConfigError(
        f"{experiment.data} has no subset {_subset(experiment)} ({_subset(experiment)}.{pair}.bin, "
        ".idx); create it with `fairseq-recur preprocess`"
    )


def test_data(experiment: Experiment, side: str) -> Any:
    """Return the binary test set of one language, or None if there is none."""
    source, target = experiment.source, experiment.target
    for pair in (f"{source}-{target}", f"{target}-{source}"):
        file = Path(experiment.data) / f"{_subset(experiment)}.{pair}.{side}"
        data = data_utils.load_indexed_dataset(str(file), None)
        if data is not None:
            return data
    return None


def check_metrics(
    score: Scoring, sources: list[str] | None, references: list[list[str]], problems: Problems
) -> None:
    """Note metrics that are not installed, and texts that they could not score.

    Args:
        score: the settings
        sources: the source text, or None if no metric reads it or it is not known
        references: the lines of each reference; none if they are not known
        problems: where to note it
    """
    for name in score.metrics:
        with problems.gathered():
            if name != "comet":
                metric = score.build(name)
                if references and isinstance(metric, MeanMetric):
                    metric.check(len(references[0]), references, problems)
                continue
            if references and sources is not None:
                comet.check_inputs(sources, len(references[0]), references, problems)
            comet.comet_package()
