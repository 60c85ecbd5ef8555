"""The ablations of the paper's appendix E.1 with RSA-Informer on ETTh1.

``heads`` is Table 6, the kinds of heads. ``gates`` is figure 10, the gates during training from
three initial values.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

from cells import CELLS, HEADS, Cell, SeriesRun, Settings, names, series_run
from errors import of_run, read_expected, spreads

from fairseq_recur.errors import ConfigError
from fairseq_recur.experiments.progress import training_log
from fairseq_recur.experiments.records import as_json, provenance
from fairseq_recur.files import write_text
from fairseq_recur.plotting.figures import COLOURS, new_figure, plain_axes, save
from fairseq_recur.scoring import tables

ARCH = "rsa_informer"
INITIAL = (-1, 0, 1)
"""mu at the beginning, in figure 10."""
GATE = "train_gate_"

Report = dict[str, Any]


def kinds() -> Iterator[str]:
    """Yield the numbers of heads in the order of Table 6.

    Its rows have no dilated head, or four, of which 0, 1 or 2 are cosine and as many sine heads;
    its columns have 0, 1 or 2 cosine and as many sine heads without dilation.
    """
    for dilated in (None, 0, 1, 2):
        for s in (0, 1, 2):
            if dilated is None:
                yield f"{8 - 2 * s},{s},{s},0,0,0"
            else:
                yield f"{4 - 2 * s},{s},{s},{4 - 2 * dilated},{dilated},{dilated}"


def etth1(settings: Settings) -> list[Cell]:
    """Return the chosen cells of ETTh1: all of them if none are chosen.

    Raises:
        ConfigError: others are chosen, too
    """
    chosen = settings.chosen()
    cells = [cell for cell in chosen if cell.data == "ETTh1"]
    if len(cells) < len(chosen) and settings.cells != names():
        raise ConfigError(
            f"CELLS={' '.join(settings.cells)}: this ablation is about ETTh1; choose some of its "
            "cells, or leave CELLS out"
        )
    return cells


def heads_runs(settings: Settings, work: Path) -> Iterator[SeriesRun]:
    """Yield a training for each seed, horizon and selection of heads; dilations are 24."""
    for seed in settings.seeds:
        for cell in etth1(settings):
            for counts in kinds():
                more = "" if counts.endswith(",0,0,0") else " 24"
                yield series_run(settings, work, cell, ARCH, counts, counts + more, seed)


def gates_runs(settings: Settings, work: Path) -> Iterator[SeriesRun]:
    """Yield a training for each seed and initial gate, with a horizon of 24."""
    cell = next(cell for cell in CELLS if cell.name == "ETTh1/24")
    for seed in settings.seeds:
        for mu in INITIAL:
            heads = f"{HEADS[ARCH][cell.name]} --rsa-gate-init={mu}"
            yield series_run(settings, work, cell, ARCH, str(mu), heads, seed)


RUNS = {"heads": heads_runs, "gates": gates_runs}


def gates(run: SeriesRun) -> dict[str, list[tuple[int, float]]]:
    """Return the gate of each attention, such as ``cross_0``, over the updates."""
    log = training_log(run)
    start = 1 / (1 + math.exp(-int(run.system)))
    names = [name for name in log.metrics() if name.startswith(GATE)]
    return {name[len(GATE) :]: [(0, start), *log.curve(name)] for name in names}


def write(what: str, runs: Sequence[SeriesRun], settings: Settings, work: Path) -> str:
    """Write results.json, results.md and, of the gates, figure.png; return the table.

    Without a result, write and return nothing.

    Args:
        what: a key of `RUNS`
        runs: of this ablation
        settings: of all trainings
        work: folder of this ablation
    """
    results: dict[str, dict[str, dict[str, Report]]] = {}
    for run in (run for run in runs if run.finished()):
        found = of_run(run)
        if what == "gates":
            found["gates"] = gates(run)
        results.setdefault(run.row, {}).setdefault(run.system, {})[str(run.seed)] = found
    if not results:
        return ""
    made = provenance(settings.as_dict(what), ["bash", "examples/time_series/run.sh", what], runs)
    write_text(work / "results.json", as_json({**made, "runs": results}))
    rows = gates_rows(results["ETTh1/24"]) if what == "gates" else heads_rows(results)
    page = tables.markdown(rows, names=1)
    write_text(work / "results.md", "\n".join([*page, "", f"`{made['command']}`", ""]))
    if what == "gates":
        draw(results["ETTh1/24"], work / "figure.png")
    return "\n".join(tables.aligned(rows, names=1))


def heads_rows(results: Report) -> list[list[str]]:
    """Return a row for each selection of heads: the MSE beside the paper's, for each horizon.

    Where a selection has fewer seeds than others, their number follows.
    """
    table = [["heads", *(word for cell in results for word in (cell, "paper"))]]
    paper = {
        cell: dict(zip(kinds(), chain(*rows))) for cell, rows in read_expected("heads").items()
    }
    for counts in kinds():
        row = [counts]
        for cell, systems in results.items():
            ours, seeds = "", systems.get(counts, {})
            if seeds:
                ours, _ = spreads(seeds)
                if len(seeds) < max(map(len, systems.values())):
                    ours += f" ({len(seeds)})"
            row += [ours, f"{paper[cell][counts]:.3f}"]
        table.append(row)
    return table


def gates_rows(systems: Report) -> list[list[str]]:
    """Return a row for each initial gate: errors, and the last gate of each attention."""
    last = {
        mu: {
            name: mean(run["gates"][name][-1][1] for run in seeds.values())
            for name in next(iter(seeds.values()))["gates"]
        }
        for mu, seeds in systems.items()
    }
    names = list(next(iter(last.values())))
    table = [["initial mu", "MSE", "MAE", *names, "seeds"]]
    for mu, seeds in systems.items():
        gates_of_mu = [f"{x:.3f}" for x in last[mu].values()]
        table.append([mu, *spreads(seeds), *gates_of_mu, str(len(seeds))])
    return table


def draw(systems: Report, file: Path) -> None:
    """Draw the gates over the updates: a panel for each initial value, a line for each seed."""
    figure = new_figure(4.5 * len(systems), 3.6)
    panels = figure.subplots(1, len(systems), sharey=True, squeeze=False)[0]
    for panel, (mu, seeds) in zip(panels, systems.items()):
        for number, run in enumerate(seeds.values()):
            for colour, (name, points) in zip(COLOURS, run["gates"].items()):
                panel.plot(*zip(*points), color=colour, label="" if number else name)
        panel.set(title=f"mu starts at {mu}", xlabel="updates")
        plain_axes(panel)
        panel.legend(frameon=False)
    panels[0].set(ylabel="gate")
    save(figure, file)
