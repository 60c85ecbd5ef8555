"""The figure of the results: the systems, sample efficiency, and gates by layer."""

from pathlib import Path
from statistics import mean
from typing import Any

from report import WHOLE, Results, gates, measure, values
from settings import SYSTEMS

from fairseq_recur.plotting.figures import COLOURS, new_figure, plain_axes, ranges, save

COLOUR_OF = dict(zip(SYSTEMS, COLOURS))


def draw(results: Results, file: Path) -> None:
    """Draw three panels: every system, the measure over the share, and the gates over the layers.

    The last two are the middle and the right panel of the paper's figure 4; there shares of the
    text are compared over the seeds that all of them have. A panel without data is left out.
    """
    panels = [draw_systems]
    if common_seeds(results):
        panels.append(draw_shares)
    if any(gates(seeds) for found in results["runs"].values() for seeds in found.values()):
        panels.append(draw_gates)
    figure = new_figure(14.0 * len(panels) / 3, 4.2)
    for axis, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
        panel(axis, results)
        plain_axes(axis)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False, fontsize="small")
    save(figure, file)


def draw_systems(axis: Any, results: Results) -> None:
    """Each seed of each system with the largest share of the text, and their means."""
    share, name = max(results["runs"], key=int), measure(results)
    found = results["runs"][share]
    there = [system for system in SYSTEMS if system in found]
    for place, system in enumerate(there):
        of_seeds = values(found[system], name)
        axis.plot([place] * len(of_seeds), of_seeds, "o", ms=4, color=COLOUR_OF[system])
        axis.plot([place], [mean(of_seeds)], "_", ms=24, color=COLOUR_OF[system])
    axis.set_xticks(range(len(there)), there, rotation=30)
    title = "the whole training text" if share == WHOLE else f"{share} % of the training text"
    axis.set(title=title, ylabel=f"{name} on the test set")


def shares_of(results: Results, system: str) -> list[int]:
    """Return the shares of the training text that a system has results of, in %."""
    return sorted(int(share) for share, found in results["runs"].items() if system in found)


def compared(results: Results) -> list[str]:
    """Return the systems with several shares."""
    return [system for system in SYSTEMS if len(shares_of(results, system)) > 1]


def common_seeds(results: Results) -> list[str]:
    """Return the seeds that every system with several shares has with each of its shares."""
    systems, runs = compared(results), results["runs"].values()
    seeds = [{*found[system]} for found in runs for system in systems if system in found]
    return sorted(set.intersection(*seeds), key=int) if seeds else []


def draw_shares(axis: Any, results: Results) -> None:
    """Mean and range over the common seeds, for the systems with several shares."""
    runs, name, seeds = results["runs"], measure(results), common_seeds(results)
    for system in compared(results):
        shares = shares_of(results, system)
        found = [runs[str(share)][system] for share in shares]
        of_seeds = [[each[seed][name] for seed in seeds] for each in found]
        means = [mean(each) for each in of_seeds]
        axis.errorbar(
            shares, means, yerr=ranges(means, of_seeds), marker="o", ms=4, capsize=3, label=system,
            color=COLOUR_OF[system],
        )  # fmt: skip
    title = f"less training text, {'seeds' if seeds[1:] else 'seed'} {', '.join(seeds)}"
    axis.set(title=title, xlabel="% of the training text", ylabel=name)


def draw_gates(axis: Any, results: Results) -> None:
    """A line for each mixture with the whole text; paler, broken ones for the other shares.

    It is the mean over the seeds, of a system with several shares over the common ones.
    """
    common, systems = common_seeds(results), compared(results)
    for share, of_systems in results["runs"].items():
        for system, of_seeds in of_systems.items():
            if common and system in systems:
                of_seeds = {seed: of_seeds[seed] for seed in common}
            by_layer = gates(of_seeds)
            if not by_layer:
                continue
            whole = share == WHOLE
            axis.plot(
                [*map(int, by_layer)], [*by_layer.values()], marker="o" if whole else "",
                ms=4, color=COLOUR_OF[system], alpha=1.0 if whole else 0.2 + int(share) / 200,
                linestyle="-" if whole else "--",
                label=system if whole else f"{system}, {share} %",
            )  # fmt: skip
    axis.set(title="gates", xlabel="layer", ylabel="gate")
    axis.xaxis.get_major_locator().set_params(integer=True)
