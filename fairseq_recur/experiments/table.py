"""The results of an experiment as a Markdown table."""

from statistics import mean, median, stdev
from typing import Any

Results = dict[str, Any]
TESTS = {"bootstrap": "p bootstrap", "randomization": "p randomization"}


def table(results: Results) -> str:
    """Write a row for each system, in the order of the file; unfinished systems have empty cells.

    Args:
        results: content of results.json

    Returns:
        Markdown: the title, the table, and notes that explain its numbers
    """
    systems = [s["name"] for s in results["experiment"]["systems"]]
    rows = [row(results, name) for name in systems]
    rows = [{**dict.fromkeys(rows[0], ""), **output(o)} for o in results["outputs"]] + rows
    columns = [c for c in rows[-1] if any(r[c] for r in rows)]
    lines = [f"# {results['title']}", "", "| " + " | ".join(columns) + " |"]
    lines.append("| " + " | ".join(["---", *["---:"] * (len(columns) - 1)]) + " |")
    lines += ["| " + " | ".join(r[c] for c in columns) + " |" for r in rows]
    return "\n".join([*lines, "", *notes(results)]) + "\n"


def row(results: Results, name: str) -> dict[str, str]:
    """Return one system's cells by column; a cell without a value is empty."""
    experiment = results["experiment"]
    baseline = experiment["baseline"]
    runs = [run for run in results["runs"] if run["system"] == name]
    metrics = list(results["runs"][0]["scores"]) if results["runs"] else []
    cells = {"system": name, "runs": str(len(runs)) if runs else ""}
    for number, metric in enumerate(metrics):
        digits = results["runs"][0]["decimals"][metric]
        cells[metric] = spread([run["scores"][metric] for run in runs], digits)
        if number == 0:
            cells["difference"] = difference(results, name, metric, digits)
            for test, column in TESTS.items():
                cells[column] = "" if name == baseline else p_values(results, name, metric, test)
    published = next(s for s in experiment["systems"] if s["name"] == name)["published"]
    cells["published"] = ", ".join(f"{value} {key}" for key, value in published.items())
    count = results["parameters"].get(name)
    cells["parameters"] = f"{count:,}" if count else ""
    cells["training"] = relative(results, name, "updates_per_second")
    cells["decoding"] = relative(results, name, "sentences_per_second")
    return cells


def output(scored: dict[str, Any]) -> dict[str, str]:
    """Return the cells of a text that no system of the experiment wrote."""
    decimals = scored["decimals"]
    found = {m: spread([value], decimals[m]) for m, value in scored["scores"].items()}
    return {"system": scored["system"], **found}


def spread(values: list[float], digits: int) -> str:
    """Format mean and standard deviation over the seeds; for one seed, only its value."""
    if not values:
        return ""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f}"


def difference(results: Results, name: str, metric: str, digits: int) -> str:
    """Format the mean difference from the baseline over common seeds; empty for the baseline."""
    if name == results["experiment"]["baseline"]:
        return ""
    found = [s["difference"] for c in results["comparisons"] for s in of_metric(c, name, metric)]
    return f"{mean(found):+.{digits}f}" if found else ""


def p_values(results: Results, name: str, metric: str, test: str) -> str:
    """Format a test's p-value for each seed."""
    found = [s["p"][test] for c in results["comparisons"] for s in of_metric(c, name, metric)]
    return ", ".join(f"{p:.3f}" for p in found)


def of_metric(comparison: dict[str, Any], name: str, metric: str) -> list[dict[str, Any]]:
    """Return a system's results in one seed's comparison: one, or none."""
    return [
        s
        for m in comparison["metrics"]
        if m["metric"] == metric
        for s in m["systems"]
        if s["system"] == name
    ]


def relative(results: Results, name: str, quantity: str) -> str:
    """Format speed relative to the baseline in the same round: median and range."""
    speed: dict[str, Any] | None = results["speed"]
    baseline = results["experiment"]["baseline"]
    if speed is None or not {name, baseline} <= {*speed["systems"]}:
        return ""
    pairs = zip(speed["systems"][name][quantity], speed["systems"][baseline][quantity])
    ratios = sorted(own / other for own, other in pairs)
    if name == baseline:
        unit = {"updates_per_second": "updates/s", "sentences_per_second": "sentences/s"}[quantity]
        return f"{median(speed['systems'][name][quantity]):.2f} {unit}"
    return f"{median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f})"


def notes(results: Results) -> list[str]:
    """Return the lines below the table, which explain its numbers."""
    runs, baseline = results["runs"], results["experiment"]["baseline"]
    if not runs:
        return ["Nothing is finished yet."]
    signatures = {f"{m} `{s}`" for run in runs for m, s in run["signatures"].items()}
    seeds = sorted({run["seed"] for run in runs})
    updates = sorted({run["updates"] for run in runs})
    said = [
        f"- {', '.join(sorted(signatures))}",
        f"- seeds {', '.join(map(str, seeds))}: mean ± standard deviation over them; updates: "
        f"{', '.join(map(str, updates))}",
        f"- difference and p (one for each seed): against {baseline}; sacreBLEU's paired bootstrap "
        "counts one tail, so twice its p is the two-sided one; randomization is two-sided",
        f"- {results['machine']}; torch {results['versions'].get('torch')}; trained at commit "
        f"{', '.join(sorted({run['commit'] for run in runs}))}",
    ]
    if results["speed"] is not None:
        said.append(
            f"- training and decoding: speed as a multiple of {baseline}'s, measured in turns, "
            f"median and range of {rounds(results)} rounds, {results['speed']['threads']} threads, "
            f"commit {results['speed']['commit']}"
        )
    starts = [s for s in results["experiment"]["systems"] if s["start_from"]]
    said += [
        f"- {s['name']} starts from the trained {s['start_from']}, whose updates come on top"
        for s in starts
    ]
    return said


def rounds(results: Results) -> int:
    """Return the number of rounds in which speed was measured."""
    return len(next(iter(results["speed"]["systems"].values()))["updates_per_second"])
