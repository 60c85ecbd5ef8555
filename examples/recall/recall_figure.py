"""The figure of the recall experiment: learning, sizes, and the neurons during training."""

from pathlib import Path
from statistics import mean
from typing import Any

from fairseq_recur.plotting.figures import COLOURS, new_figure, plain_axes, save

BASE = {"pairs": 32, "segments": 4, "width": 64}
"""The base size, unless the command has another."""
SRFORMERS = ("paper", "unit", "unit_sum")
SWEPT = ("full", "segmented", "xl", "global", *SRFORMERS)
"""The systems that are compared at all sizes."""
COLOUR_OF = dict(zip(SWEPT, (COLOURS[-1], *COLOURS)))


def base_of(values: dict[str, Any]) -> dict[str, int]:
    """Return the base size among some values; where an earlier record has none, it is `BASE`."""
    return {name: int(values.get(name, size)) for name, size in BASE.items()}


def draw(results: dict[str, Any], file: Path) -> None:
    """Draw accuracy outside the segment over updates and sizes, spike rates and membranes."""
    cells, base_size = averaged(results["cells"]), base_of(results["settings"])
    at_base = [c for c in cells if all(c[name] == size for name, size in base_size.items())]
    figure = new_figure(13.0, 7.0)
    axes = figure.subplots(2, 3)
    for cell in at_base:
        if cell["system"] in COLOUR_OF:
            line(axes[0][0], cell["curve"], "outside", cell["system"])
        if cell["system"] in SRFORMERS:
            line(axes[0][1], cell["curve"], "spike", cell["system"])
            line(axes[0][2], cell["curve"], "membrane_sd", cell["system"])
    titles = ("accuracy outside the segment", "share that fires", "deviation of membrane / thr")
    for axis, title in zip(axes[0], titles):
        axis.set(title=title, xlabel="updates")
    axes[0][2].set_yscale("log")
    for axis, (name, base) in zip(axes[1], base_size.items()):
        swept = [c for c in cells if all(c[n] == s for n, s in base_size.items() if n != name)]
        for system in dict.fromkeys(c["system"] for c in swept if c[name] != base):
            points = sorted((c[name], c["outside"]) for c in swept if c["system"] == system)
            axis.plot(*zip(*points), "o-", ms=4, color=COLOUR_OF[system], label=system)
        sizes = sorted({cell[name] for cell in swept})
        axis.set(title="accuracy outside the segment", xlabel=name, xscale="log")
        axis.set_xticks(sizes, list(map(str, sizes)))
        axis.minorticks_off()
    for axis in axes.flat:
        plain_axes(axis)
    for axis in axes[0]:  # below, curves would cross it; the systems have the same colours there
        if axis.has_data():
            axis.legend(frameon=False, ncols=2 if len(axis.lines) > 4 else 1)
    save(figure, file)


def averaged(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one cell for each system and size, with the averages over its seeds."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for cell in cells:
        groups.setdefault((cell["system"], *(cell[name] for name in BASE)), []).append(cell)
    found = []
    for seeds in groups.values():
        curves = [{point["update"]: point for point in cell["curve"]} for cell in seeds]
        updates = [at for at in curves[0] if all(at in curve for curve in curves)]
        points = [over_seeds([curve[at] for curve in curves]) for at in updates]
        ends = over_seeds([{name: c[name] for name in ("inside", "outside")} for c in seeds])
        found.append({**seeds[0], **ends, "curve": points})
    return found


def over_seeds(points: list[dict[str, float]]) -> dict[str, float]:
    """Average each quantity."""
    return {name: mean(point[name] for point in points) for name in points[0]}


def line(axis: Any, curve: list[dict[str, float]], name: str, label: str) -> None:
    """Draw one quantity over the updates."""
    updates, values = zip(*((point["update"], point[name]) for point in curve))
    axis.plot(updates, values, marker=".", color=COLOUR_OF[label], label=label)
