"""Linear RNN, nonlinear RNN and RSA on data between linear and nonlinear (appendix B.2 of RSA).

    python experiment.py --output FOLDER [--alpha-step 0.1] [--seeds 3] [--activations ...]

A cell is a combination of activation, alpha and seed. Finished cells are stored in
FOLDER/results.json. Run the command again to resume, or with more seeds or a finer step to add
cells.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from figure import draw, summarize, summary
from fitting import Fit, Training, fit
from models import RNN, RSA, identity
from synthetic import ACTIVATIONS, Sequence, generate, segments
from torch import Tensor

from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments import machine
from fairseq_recur.experiments.steps import LOCK, read_record
from fairseq_recur.files import write_text
from fairseq_recur.locks import hold

HERE = Path(__file__).resolve().parent
# What determines the numbers of a cell, and must therefore be the same for all cells of a file.
SETTINGS = (
    *("segments", "segment_length", "input_scale", "one_model", "starts"),
    *("lr", "tolerance", "patience", "max_epochs", "rems", "mu"),
)


def build_parser() -> argparse.ArgumentParser:
    """Build the command line; its defaults are the experiment of the README."""
    formatter = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], formatter_class=formatter)
    training = Training()
    parser.add_argument("--output", type=Path, required=True, help="folder for the results")
    parser.add_argument(
        "--alpha-step", type=float, default=0.1, help="alpha takes the values 0, STEP, ..., 1"
    )
    parser.add_argument("--seeds", type=int, default=3, help="repetitions, with seeds 1, 2, ...")
    parser.add_argument(
        "--activations", nargs="+", choices=list(ACTIVATIONS), default=list(ACTIVATIONS)
    )
    parser.add_argument("--segments", type=int, default=100, help="segments per sequence")
    parser.add_argument(
        "--segment-length", type=int, default=100, help="positions; the last one is predicted"
    )
    parser.add_argument(
        "--input-scale", type=float, default=1.0, help="standard deviation of W_z in the data"
    )
    parser.add_argument(
        "--one-model", action="store_true", help="fit one model to all segments, not one to each"
    )
    parser.add_argument(
        "--starts", type=int, default=2, help="initialisations; the one with the least loss counts"
    )
    parser.add_argument("--lr", type=float, default=training.lr, help="learning rate of Adam")
    parser.add_argument(
        "--tolerance", type=float, default=training.tolerance, help="smallest fall that counts"
    )
    parser.add_argument(
        "--patience", type=int, default=training.patience, help="epochs without such a fall"
    )
    parser.add_argument(
        "--max-epochs", type=int, default=training.max_epochs, help="upper limit on the epochs"
    )
    parser.add_argument(
        "--rems", choices=("regular", "cyclical"), default="regular", help="kind of RSA heads"
    )
    parser.add_argument(
        "--mu", type=float, default=0.0, help="RSA's gate is initialised to sigmoid(MU)"
    )
    return parser


def check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Exit with an error if a number is out of range."""
    steps = round(1 / args.alpha_step) if 0 < args.alpha_step <= 1 else 0
    if not steps or abs(steps * args.alpha_step - 1) > 1e-9:
        parser.error(f"--alpha-step {args.alpha_step}; expected 1 / N for an integer N")
    least = dict.fromkeys(("seeds", "segments", "starts", "patience", "max_epochs"), 1)
    # A segment needs positions to train on and one to predict.
    for name, low in {**least, "segment_length": 2}.items():
        if getattr(args, name) < low:
            flag = "--" + name.replace("_", "-")
            parser.error(f"{flag} {getattr(args, name)}; expected at least {low}")


def load(file: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Read the results so far; exit if they are damaged or were computed with other settings."""
    try:
        results = read_record(file)
    except ConfigError as error:
        sys.exit(f"error: {error}")
    if results is None:
        return {"settings": settings, "runs": [], "cells": []}
    if results["settings"] != settings:
        sys.exit(
            f"error: {file} was computed with {results['settings']}, but this run uses {settings}. "
            "Choose another --output, or remove the file"
        )
    return results


def save(file: Path, results: dict[str, Any]) -> None:
    """Write the cells in their order."""
    order = list(ACTIVATIONS)
    results["cells"].sort(key=lambda c: (order.index(c["activation"]), c["alpha"], c["seed"]))
    write_text(file, json.dumps(results, indent=1) + "\n")


def describe_run() -> dict[str, Any]:
    """Return command, commit, versions and machine of this run."""
    # Without the output folder, which is a path of this machine.
    words = iter(sys.argv[1:])
    options = [w for w in words if not (w == "--output" and next(words))]
    return {
        "command": " ".join([f"bash examples/{HERE.name}/run.sh", *options]),
        "commit": machine.commit(),
        "versions": machine.versions(),
        "machine": f"{machine.machine()}, {torch.get_num_threads()} threads",
        "seconds": 0.0,
    }


def cells_to_do(
    args: argparse.Namespace, results: dict[str, Any]
) -> dict[tuple[str, int], list[float]]:
    """Return the alphas without results, by activation and seed."""
    there = {(c["activation"], c["seed"], c["alpha"]) for c in results["cells"]}
    steps = round(1 / args.alpha_step)
    todo = {}
    for seed in range(1, args.seeds + 1):
        for activation in args.activations:
            alphas = [round(i / steps, 10) for i in range(steps + 1)]
            missing = [a for a in alphas if (activation, seed, a) not in there]
            if missing:
                todo[activation, seed] = missing
    return todo


def measure(fitted: Fit, data: Sequence, training: Training) -> dict[str, float]:
    """Compute the MSPE over the segments, against the targets with and without their errors."""
    targets, clean = data.targets[:, -1].float(), data.clean[:, -1].float()
    predictions = fitted.predictions.view_as(targets)
    return {
        "mspe": (predictions - targets).square().mean().item(),
        "mspe_without_error": (predictions - clean).square().mean().item(),
        "training_loss": fitted.losses.mean().item(),
        "epochs": fitted.epochs.float().mean().item(),
        "stopped_by_limit": (fitted.epochs == training.max_epochs).float().mean().item(),
    }


def show(label: str) -> Callable[[int, int], None] | None:
    """Return a progress display, if on a terminal: the epoch, and the models still training."""

    def progress(epoch: int, active: int) -> None:
        if epoch % 10 == 0:
            print(f"\r{label}: epoch {epoch}, {active} models training  ", end="", file=sys.stderr)

    return progress if sys.stderr.isatty() else None


def fit_cells(
    model: Any,
    data: list[Sequence],
    starts: int,
    seed: int,
    training: Training,
    label: str,
    one_model: bool = False,
) -> list[Fit]:
    """Fit one model to each segment of several cells at once, from the same first parameters.

    With *one_model*, one to all segments of a cell.
    """
    shared = len(data[0].inputs) if one_model else 1
    count = len(data[0].inputs) * starts // shared
    first = model.draw(count, torch.Generator().manual_seed(seed))
    parameters = {n: torch.cat([values] * len(data)) for n, values in first.items()}

    def joined(name: str) -> Tensor:
        repeated = [getattr(part, name).repeat(starts, 1, 1) for part in data]
        return torch.cat(repeated).float().unflatten(0, (-1, shared))

    fitted = fit(
        model.predict, parameters, joined("inputs"), joined("targets"), training, show(label)
    )
    cells = zip(*(values.split(count) for values in fitted))
    return [Fit(*parts).best_of(starts) for parts in cells]


def make_cells(
    args: argparse.Namespace, activation: str, seed: int, alphas: list[float]
) -> Iterator[dict[str, Any]]:
    """Yield the cells of one activation and seed."""
    training = Training(args.lr, args.tolerance, args.patience, args.max_epochs)
    length = args.segments * args.segment_length
    data = [
        segments(generate(activation, alpha, seed, length, args.input_scale), args.segment_length)
        for alpha in alphas
    ]

    def fits(model: Any, chosen: list[Sequence], name: str) -> list[Fit]:
        label = f"{activation}, seed {seed}, {name}"
        return fit_cells(model, chosen, args.starts, seed, training, label, args.one_model)

    # The RNNs of all alphas fit into one batch; RSA's larger attention maps do not.
    linear = fits(RNN(identity), data, "linear")
    nonlinear = fits(RNN(ACTIVATIONS[activation]), data, "nonlinear")
    for i, alpha in enumerate(alphas):
        (rsa,) = fits(RSA(args.rems, args.mu), [data[i]], f"alpha {alpha}, RSA")
        fitted = {"linear": linear[i], "nonlinear": nonlinear[i], "rsa": rsa}
        measured = {name: measure(f, data[i], training) for name, f in fitted.items()}
        yield {"activation": activation, "alpha": alpha, "seed": seed, **measured}


def run(args: argparse.Namespace, results: dict[str, Any], file: Path) -> None:
    """Compute the missing cells, and save the results after each of them."""
    todo = cells_to_do(args, results)
    left = sum(map(len, todo.values()))
    print(f"{left} cells to compute, {len(results['cells'])} in {file}", flush=True)
    if left:
        results["runs"].append(describe_run())
    start = time.monotonic()
    for (activation, seed), alphas in todo.items():
        for cell in make_cells(args, activation, seed, alphas):
            results["cells"].append(cell)
            results["runs"][-1]["seconds"] = round(time.monotonic() - start, 1)
            save(file, results)
            left -= 1
            scores = ", ".join(
                f"{name} {cell[name]['mspe']:.3f}" for name in ("linear", "nonlinear", "rsa")
            )
            label = f"{activation}, seed {seed}, alpha {cell['alpha']}"
            print(f"{label}: MSPE {scores}; {left} cells left", flush=True)


def main() -> None:
    """Run the experiment, print the table, draw the figure."""
    parser = build_parser()
    args = parser.parse_args()
    check(parser, args)
    try:
        lock = hold(args.output / LOCK)
    except OSError as problem:  # such as a file of that name, or a folder of someone else
        sys.exit(f"error: {problem}; choose another --output")
    if lock is None:
        sys.exit(f"error: {args.output} is in use by another run; wait, or choose another --output")
    file = args.output / "results.json"
    with lock:
        results = load(file, {name: getattr(args, name) for name in SETTINGS})
        run(args, results, file)
        results["summary"] = summary(results)
        save(file, results)
    print(summarize(results))
    print(file)
    draw(results, args.output / "mspe_ratios.png")


if __name__ == "__main__":
    main()
