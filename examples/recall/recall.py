"""Associative recall through one cross-attention (see README.md).

    python recall.py --output FOLDER [--systems full unit ...] [--updates 800]

A cell is a system at one size with one seed. Finished cells are kept in FOLDER/results.json; the
same command computes those that are missing, and draws the figure.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from recall_figure import BASE, SWEPT, base_of, draw
from torch import Tensor, nn

from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments import machine
from fairseq_recur.experiments.steps import LOCK, read_record
from fairseq_recur.files import write_text
from fairseq_recur.locks import hold
from fairseq_recur.modules.parts import CROSS_ATTENTION
from fairseq_recur.modules.standalone import SRformerCrossAttention, host

UNIT = {"srformer_scale": "unit"}
ABLATIONS: dict[str, dict[str, Any]] = {
    "": {},
    "_I": {"srformer_no_segmented_term": True},
    "_II": {"srformer_norm": "none"},
    "_III": {"srformer_no_neuron": True},
    "_IV": {"srformer_current_segment": True},
}
"""SRformer and the ablations of the paper's Table 3."""

SYSTEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("dot", {}),
    "segmented": ("segmented", {}),
    "xl": ("xl", {}),
    "global": ("global", {}),
    **{f"paper{name}": ("srformer", options) for name, options in ABLATIONS.items()},
    **{f"unit{name}": ("srformer", {**UNIT, **options}) for name, options in ABLATIONS.items()},
    "unit_sum": ("srformer", {**UNIT, "srformer_norm": "sum"}),
}
"""For each system its part of the slot --cross-attention, and this part's options."""

SWEEP = {"pairs": (16, 64), "segments": (2, 8, 16), "width": (32, 128)}
HEAD_WIDTH, VALUES, LR, WARMUP, BATCH, POINTS = 16, 16, 3e-3, 100, 32, 8


class Attention(SRformerCrossAttention):
    """Any part that reads segments, with plain arguments."""

    def __init__(self, part: str, width: int, **options: Any) -> None:
        nn.Module.__init__(self)
        kind = CROSS_ATTENTION[part]
        self.attention = kind(host([kind], options, width, width // HEAD_WIDTH, 0.0))


class Recall(nn.Module):
    """One cross-attention: from the embedding of a key to the value that was paired with it.

    Each position of the source is the sum of a key's and a value's embedding. No encoder moves
    anything between positions.

    Args:
        system: one of `SYSTEMS`
        keys: number of different keys
        pairs: of a source, and queries of a target
        segments: M
        width: C
    """

    def __init__(self, system: str, keys: int, pairs: int, segments: int, width: int) -> None:
        super().__init__()
        part, options = SYSTEMS[system]
        self.source_key, self.source_value, self.query = (
            nn.Embedding(count, width) for count in (keys, VALUES, keys)
        )
        self.full = part == "dot"
        self.attention: Any = (
            nn.MultiheadAttention(width, width // HEAD_WIDTH, batch_first=True)
            if self.full
            else Attention(
                part, width, segment_size=pairs // segments, target_length=pairs, **options
            )
        )
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, VALUES)

    def forward(self, keys: Tensor, values: Tensor, queries: Tensor) -> Tensor:
        """Logits (B, T, values) for keys and values (B, S) and queries (B, T)."""
        source = self.source_key(keys) + self.source_value(values)
        x = self.query(queries)
        read = (
            self.attention(x, source, source, need_weights=False)[0]
            if self.full
            else self.attention(x, source)
        )
        return self.out(self.norm(x + read))


def draw_batch(
    size: int, keys: int, pairs: int, random: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Keys and values of the sources, queries, and the places of their answers: (B, S) each."""
    chosen = torch.rand(size, keys, generator=random).argsort(1)[:, :pairs]
    values = torch.randint(VALUES, (size, pairs), generator=random)
    places = torch.rand(size, pairs, generator=random).argsort(1)
    return chosen, values, chosen.gather(1, places), places


@torch.no_grad()
def accuracy(model: Recall, keys: int, pairs: int, segments: int) -> tuple[float, float]:
    """Share of right values: where the query's segment holds its pair, and where it does not."""
    k, v, q, places = draw_batch(256, keys, pairs, torch.Generator().manual_seed(0))
    right = model(k, v, q).argmax(-1) == v.gather(1, places)
    size = pairs // segments
    inside = places // size == torch.arange(pairs) // size
    return float(right[inside].float().mean()), float(right[~inside].float().mean())


def observed(model: Recall, batch: tuple[Tensor, ...]) -> dict[str, float]:
    """What fairseq's log shows of the neurons, and the gradients' sizes."""
    neuron = getattr(getattr(model.attention, "attention", None), "neuron", None)
    if neuron is None:
        return {}
    neuron.watch(torch.device("cpu"))
    with torch.no_grad():
        model(*batch[:3])
    (count, spikes, _), (_, total, squares) = neuron.unwatch().tolist()
    mean = total / count
    _, leak, threshold = (x.detach() for x in neuron.values())
    return {
        "spike": spikes / count,
        "membrane": mean,
        "membrane_sd": max(0.0, squares / count - mean**2) ** 0.5,
        "leak": float(leak),
        "threshold": float(threshold),
        **{
            f"gradient_{name.split('.')[0]}": float(p.grad.norm())
            for name, p in neuron.named_parameters()
            if p.grad is not None
        },
    }


def train(
    system: str, pairs: int, segments: int, width: int, updates: int, seed: int
) -> dict[str, Any]:
    """Train one model; return its cell: accuracies, and a point of the curve every few updates."""
    torch.manual_seed(seed)
    random, keys, start = torch.Generator().manual_seed(seed), 2 * pairs, time.process_time()
    model = Recall(system, keys, pairs, segments, width)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR, betas=(0.9, 0.98))
    curve = []
    for update in range(updates + 1):
        batch = draw_batch(BATCH, keys, pairs, random)
        k, v, q, places = batch
        loss = F.cross_entropy(model(k, v, q).flatten(0, 1), v.gather(1, places).flatten())
        optimizer.zero_grad()
        loss.backward()
        if update % max(1, updates // POINTS) == 0 or update == updates:
            inside, outside = accuracy(model, keys, pairs, segments)
            curve.append(
                {"update": update, "inside": inside, "outside": outside, **observed(model, batch)}
            )
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = LR * min((update + 1) / WARMUP, 1 - update / (updates + 1))
        optimizer.step()
    last = {name: curve[-1][name] for name in ("inside", "outside")}
    seconds = round(time.process_time() - start, 1)
    size = {"pairs": pairs, "segments": segments, "width": width}
    return {"system": system, **size, "seed": seed, **last, "cpu_seconds": seconds, "curve": curve}


def cells(
    systems: list[str], base: dict[str, int], sweep: bool
) -> Iterator[tuple[str, dict[str, int]]]:
    """All systems at the base size, then some of them with one size changed, where that fits."""
    for system in systems:
        yield system, base
    for name, sizes in SWEEP.items() if sweep else ():
        for changed in ({**base, name: size} for size in sizes if size != base[name]):
            for system in (s for s in SWEPT if s in systems and divides(changed)):
                yield system, changed


def divides(size: dict[str, int]) -> bool:
    """Whether there are segments of equally many pairs."""
    return size["pairs"] % size["segments"] == 0


def main(arguments: list[str] | None = None) -> None:
    """Compute what is missing; write the results and the figure after each cell."""
    parser = argparse.ArgumentParser(
        description=str(__doc__).split("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--output", type=Path, required=True, help="folder for the results")
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--updates", type=int, default=800, help="of each training, at least 1")
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[1], help="of parameters and batches, in turn"
    )
    parser.add_argument("--no-sweep", action="store_true", help="only the base size")
    parser.add_argument("--pairs", type=int, default=BASE["pairs"], help="of the base size")
    parser.add_argument("--segments", type=int, default=BASE["segments"], help="of the base size")
    parser.add_argument("--width", type=int, default=BASE["width"], help="of the base size")
    args = parser.parse_args(arguments)
    if args.updates < 1:
        parser.error(f"--updates {args.updates}; expected at least 1")
    check_base(parser, args)
    try:
        lock = hold(args.output / LOCK)
    except OSError as problem:  # such as a file of that name, or a folder of someone else
        sys.exit(f"error: {problem}; choose another --output")
    if lock is None:
        sys.exit(f"error: {args.output} is in use by another run; wait, or choose another --output")
    with lock:
        try:
            run(args)
        except ConfigError as error:
            sys.exit(f"error: {error}")


def check_base(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """End with a message if no model has the base size."""
    if args.width < HEAD_WIDTH or args.width % HEAD_WIDTH:
        parser.error(f"--width {args.width}; expected a multiple of {HEAD_WIDTH}")
    if args.segments < 2 or args.pairs < args.segments or not divides(vars(args)):
        parser.error(
            f"--pairs {args.pairs} --segments {args.segments}; expected at least two segments of "
            "equally many pairs"
        )


def run(args: argparse.Namespace) -> None:
    """Compute what is missing, while no other run writes the same file."""
    file, base = args.output / "results.json", base_of(vars(args))
    settings = {"updates": args.updates, **base}
    results = read_record(file)
    if results is None:
        results = {"settings": settings, "runs": [], "cells": []}
    before = {"updates": results["settings"].get("updates"), **base_of(results["settings"])}
    for name, value in settings.items():
        if before[name] != value:
            raise ConfigError(
                f"{file} has {before[name]} {name}, this run {value}; choose another --output, or "
                "remove the file"
            )
    words = " ".join(["--no-sweep"] * args.no_sweep + [f"--updates {args.updates}"])
    words += "".join(f" --{name} {size}" for name, size in base.items() if size != BASE[name])
    seeds = list(dict.fromkeys(args.seeds))
    words += f" --seeds {' '.join(map(str, seeds))}" * (seeds != [1])
    words += f" --systems {' '.join(args.systems)}" * (args.systems != list(SYSTEMS))
    results["runs"].append(
        {
            "command": f"bash examples/recall/run.sh {words}",
            "commit": machine.commit(),
            "versions": machine.versions(),
            "machine": f"{machine.machine()}, {torch.get_num_threads()} threads",
        }
    )
    names = ("system", *BASE, "seed")
    done = {tuple(cell[name] for name in names) for cell in results["cells"]}
    wanted = list(cells(args.systems, base, not args.no_sweep))
    for seed, (system, size) in product(seeds, wanted):
        if (system, *size.values(), seed) in done:
            continue
        cell = train(system, **size, updates=args.updates, seed=seed)
        results["cells"].append(cell)
        write_text(file, json.dumps(results, indent=1) + "\n")
        print(
            f"{system}, {size}, seed {seed}: inside {cell['inside']:.3f}, outside "
            f"{cell['outside']:.3f}, {cell['cpu_seconds']} s",
            flush=True,
        )
    print(file)
    draw(results, args.output / "recall.png")


if __name__ == "__main__":
    main()
