"""The results of an experiment as a Markdown table."""

from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from fairseq_recur.experiments.machine import UNRECORDED
from fairseq_recur.scoring.tables import markdown, p_value

Results = dict[str, Any]
TESTS = {
    ("p", "bootstrap"): "p bootstrap",
    ("p", "randomization"): "p randomization",
    ("corrected", "randomization"): "p corrected",
}
"""The columns of p-values: where they are in the results."""
POOLED = "p pooled"
"""The column of the test of all seeds together."""


def table(results: Results) -> str:
    """Write a row for each system, in the order of the file; unfinished systems have empty cells.

    Returns:
        Markdown: the title, the table, and notes that explain its numbers
    """
    systems = [s["name"] for s in results["experiment"]["systems"]]
    rows = [row(results, name) for name in systems]
    rows = [{**dict.fromkeys(rows[0], ""), **output(o)} for o in results["outputs"]] + rows
    columns = [c for c in rows[-1] if any(r[c] for r in rows)]
    cells = [columns, *([r[c] for c in columns] for r in rows)]
    lines = [f"# {results['title']}", "", *markdown(cells, names=1)]
    for control in controls(results):
        lines += ["", f"Compared with {control}:", "", *compared(results, control)]
    return "\n".join([*lines, "", *notes(results)]) + "\n"


def controls(results: Results) -> list[str]:
    """Return the rows other than the baseline with which some are compared."""
    named = dict.fromkeys(c["baseline"] for c in results["comparisons"])
    return [name for name in named if name != results["experiment"]["baseline"]]


def compared(results: Results, control: str) -> list[str]:
    """Write the rows that are compared with one of them: difference and p-values."""
    metric = next(iter(results["runs"][0]["scores"]))
    digits = results["runs"][0]["decimals"][metric]
    rows = [["system", f"{metric}, difference", *TESTS.values(), POOLED]]
    for name in (system["name"] for system in results["experiment"]["systems"]):
        change = difference(results, name, metric, digits, control)
        if not change:  # the control itself, or a row without a result
            continue
        tested = [p_values(results, name, metric, column, control) for column in TESTS]
        rows.append([name, change, *tested, pooled_p(results, name, metric, control)])
    if not any(cells[-1] for cells in rows[1:]):
        rows = [cells[:-1] for cells in rows]
    return markdown(rows, names=1)


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
            cells["difference"] = difference(results, name, metric, digits, baseline)
            for kind, column in TESTS.items():  # the baseline has no test against itself
                other = name != baseline
                cells[column] = p_values(results, name, metric, kind, baseline) if other else ""
            cells[POOLED] = pooled_p(results, name, metric, baseline)
    published = next(s for s in experiment["systems"] if s["name"] == name)["published"]
    cells["published"] = ", ".join(f"{value} {key}" for key, value in published.items())
    count = results["parameters"].get(name)
    cells["parameters"] = f"{count:,}" if count else ""
    cells["training"] = relative(results, name, "updates_per_second")
    cells["decoding"] = relative(results, name, "sentences_per_second")
    cells["training, MiB"] = memory(results, name, "training_mib")
    cells["decoding, MiB"] = memory(results, name, "decoding_mib")
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


def difference(results: Results, name: str, metric: str, digits: int, control: str) -> str:
    """Format the mean difference from another row over common seeds."""
    found = [s["difference"] for s in of_metric(results, name, metric, control)]
    return f"{mean(found):+.{digits}f}" if found and name != control else ""


def p_values(results: Results, name: str, metric: str, kind: tuple[str, str], control: str) -> str:
    """Format a test's p-value for each seed; *kind* is a key of `TESTS`."""
    where, test = kind
    return ", ".join(p_value(s[where][test]) for s in of_metric(results, name, metric, control))


def pooled_p(results: Results, name: str, metric: str, control: str) -> str:
    """Format the corrected p-value of the test of all seeds together."""
    return ", ".join(
        p_value(s["corrected"])
        for c in results.get("pooled", [])
        if (c["baseline"], c["metric"]) == (control, metric)
        for s in c["systems"]
        if s["system"] == name
    )


def of_metric(results: Results, name: str, metric: str, control: str) -> list[dict[str, Any]]:
    """Return a system's result of each seed in the comparison with *control*."""
    return [
        s
        for c in results["comparisons"]
        if c["baseline"] == control
        for m in c["metrics"]
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


def memory(results: Results, name: str, quantity: str) -> str:
    """Format the median of the rounds; measurements of earlier versions have no memory."""
    of_systems = (results["speed"] or {"systems": {}})["systems"]
    values = of_systems.get(name, {}).get(quantity)
    return f"{median(values):,.0f}" if values and all(values) else ""


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
        f"- seeds {', '.join(map(str, seeds))}: mean ± standard deviation over the runs of a row, "
        f"a difference over the seeds that both have; updates: {', '.join(map(str, updates))}",
        f"- difference and p (one for each seed): against {baseline}; sacreBLEU's paired bootstrap "
        "counts one tail, so twice its p is the two-sided one; randomization is two-sided, and "
        "its p is corrected by Holm's method for the number of rows",
        f"- {results['machine']}; torch {results['versions'].get('torch', '?')}; trained at commit "
        f"{', '.join(sorted({run['commit'] for run in runs}))}",
    ]
    said += averages(results)
    if results.get("pooled"):
        said.append(
            f"- {POOLED}: randomization that exchanges a text's outputs of all seeds together, "
            "two-sided and corrected"
        )
    compared = [m for c in results["comparisons"] for m in c["metrics"]]
    lower = dict.fromkeys(m["metric"] for m in compared if not m["higher_is_better"])
    if lower:
        said.append(f"- {', '.join(lower)}: lower is better")
    if results["speed"] is not None:
        said.append(
            f"- training and decoding: speed as a multiple of {baseline}'s, measured in turns, "
            f"median and range of {rounds(results)} rounds, {results['speed']['threads']} threads, "
            f"{results['speed'].get('machine', UNRECORDED)}, commit {results['speed']['commit']}; "
            "MiB: the largest resident memory of the "
            "process, with its libraries and data, but not a GPU's"
        )
    start, finished = results["experiment"].get("start"), {run["system"] for run in runs}
    systems = [s for s in results["experiment"]["systems"] if s["name"] in finished]
    own = [system for system in systems if system["start_from"] or system.get("start")]
    if start is not None and len(own) < len(systems):
        which = "the other systems" if own else "the systems"
        said.append(f"- {which} start from {ending(start)}")
    for system in own:
        if system["start_from"]:
            said.append(
                f"- {system['name']} starts from the trained {system['start_from']}, whose updates "
                "come on top"
            )
        else:
            said.append(f"- {system['name']} starts from {ending(system['start'])}")
    return said


def averages(results: Results) -> list[str]:
    """Return the line that tells what the averaged models are; none for records without it."""
    known = [run["averaged"] for run in results["runs"] if run.get("averaged")]
    if not known:
        return []
    counts = sorted({len(averaged["checkpoints"]) for averaged in known})
    newest = sorted({averaged["updates"] for averaged in known})
    wanted = results["experiment"]["checkpoint"]
    few = f"{', '.join(map(str, counts))} instead of " if counts != [wanted] else ""
    return [
        f"- averages of {few}{wanted} checkpoints, the newest of update "
        f"{', '.join(map(str, newest))}"
    ]


def ending(checkpoint: str) -> Path:
    """Return the end of a path that says whose checkpoint it is, such as a/seed1/model.pt."""
    return Path(*Path(checkpoint).parts[-3:])


def rounds(results: Results) -> int:
    """Return the number of rounds in which speed was measured."""
    return len(next(iter(results["speed"]["systems"].values()))["updates_per_second"])
