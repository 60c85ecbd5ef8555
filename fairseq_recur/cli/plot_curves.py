"""Draw learning curves from training logs.

A log is what training printed, or what it wrote with --log-file, in any --log-format but none. The
values that --monitor-interval logs for each layer (gate, rem, spike, membrane and others) are
metrics too: one name draws the curves of all layers.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import fairseq_recur
from fairseq_recur.errors import ConfigError, Problems
from fairseq_recur.experiments.training_log import PER_LAYER, read_log
from fairseq_recur.plotting.curves import X_LABELS, choose_panels, draw
from fairseq_recur.plotting.figures import add_output_arguments, check_output, save


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `plot curves`."""
    parser.add_argument("files", nargs="+", metavar="LOG", help="training log, one per run")
    add_output_arguments(parser, labels=True)
    parser.add_argument(
        "--metric",
        nargs="+",
        default=["loss"],
        metavar="NAME",
        help="train_loss, valid_loss, valid_bleu, ... as in the log; a name without train_ or "
        "valid_ means both; metrics of one kind share a panel",
    )
    parser.add_argument("--x", choices=list(X_LABELS), default="updates", help="horizontal axis")


def run(args: argparse.Namespace) -> int:
    """Read all logs, then draw."""
    problems = Problems("these curves cannot be drawn")
    with problems.gathered():
        output = check_output(args.output)
    with problems.gathered():
        labels = run_labels(args.label, args.files)
    logs = []
    for path in args.files:
        with problems.gathered():
            logs.append(read_log(path))
    problems.raise_all()
    panels = choose_panels(logs, args.metric)
    of_layers = any(PER_LAYER.fullmatch(name) for names in panels.values() for name in names)
    of_parts = parts_quantities() if of_layers else {}
    save(draw(list(zip(labels, logs)), panels, args.x, of_parts), output)
    return 0


def parts_quantities() -> dict[str, str]:
    """What the model's parts log in each layer; loading them takes seconds."""
    fairseq_recur.register()  # which this command has not done yet
    from fairseq_recur.modules.parts import quantities

    return quantities()


def run_labels(labels: list[str] | None, paths: Sequence[str]) -> list[str]:
    """Return a label per run: those given, else the files' names, or their paths if names repeat.

    Raises:
        ConfigError: the number of labels differs from that of the files
    """
    if labels is None:
        stems = [Path(path).stem for path in paths]
        return stems if len(set(stems)) == len(stems) else list(paths)
    if len(labels) != len(paths):
        raise ConfigError(f"{len(labels)} --label for {len(paths)} files; give one per file")
    return labels
