"""The results over the languages: Markdown for a page, and a figure."""

from pathlib import Path
from statistics import mean
from typing import Any

from differences import common_seeds, difference

from fairseq_recur.experiments.table import spread
from fairseq_recur.plotting.figures import COLOURS, new_figure, plain_axes, save
from fairseq_recur.scoring.resampling import EXACT, SIGNS
from fairseq_recur.scoring.tables import markdown, p_value

METRICS = ("WER", "PER")
AVERAGES = ("system", "seeds", "WER", "PER", "lowest on", "parameters")
DIFFERENCES = (
    "system", "difference", "relative", "lower on", "p", "p corrected", "p words"
)  # fmt: skip

MARKERS = "o^sDv"
"""Of the systems with the first colours, of those with the same colours again, and so on."""

Results = dict[str, Any]


def table(results: Results) -> str:
    """Write what came out, the averages, and the scores of each language."""
    trained = {n: s for n, s in results["systems"].items() if any(s["scores"]["WER"].values())}
    averages = [AVERAGES, *(average(name, system) for name, system in trained.items())]
    lines = [f"# {results['title']}", "", verdict(results), "", *markdown(averages, names=1)]
    compared = {name: s for name, s in trained.items() if "WER" in s["compared"]}
    if compared:
        total = len(results["languages"])
        cells = [DIFFERENCES, *(difference_row(name, s, total) for name, s in compared.items())]
        lines += ["", f"## WER against {results['baseline']}", "", *markdown(cells, names=1)]
    for metric in METRICS:
        cells = [["language", *trained]]
        for name in results["languages"]:
            of_systems = (system["scores"][metric].get(name, {}) for system in trained.values())
            cells.append([name, *(spread([*scores.values()], 2) for scores in of_systems)])
        lines += ["", f"## {metric} by language", "", *markdown(cells, names=1)]
    return "\n".join([*lines, "", *notes(results)]) + "\n"


def average(name: str, system: dict[str, Any]) -> list[str]:
    """Return a system's averages; empty cells until all its languages are done."""
    sizes = sorted(system["parameters"].values())
    cells = dict.fromkeys(AVERAGES, "")
    cells["system"] = name
    cells["parameters"] = "–".join(f"{size:,}" for size in dict.fromkeys((sizes[0], sizes[-1])))
    if system["seeds"]:
        cells["seeds"] = ", ".join(system["seeds"])
        cells["lowest on"] = str(len(system["lowest"]["WER"]))
        for metric in METRICS:
            cells[metric] = spread([*system["macro"][metric]["seeds"].values()], 2)
    return [*cells.values()]


def difference_row(name: str, system: dict[str, Any], total: int) -> list[str]:
    """Return how a system's WER differs from the baseline's, over a total of languages."""
    found = system["compared"]["WER"]
    return [
        name,
        f"{found['difference']:+.2f}",
        percent(found["relative"]),
        f"{len(found['lower'])} of {total}",
        p_value(found["p"]),
        p_value(found["corrected"]),
        ", ".join(f"{seed}: {p_value(one['p'])}" for seed, one in found.get("pooled", {}).items()),
    ]


def percent(value: float | None) -> str:
    """Format a relative difference; None if the baseline makes no errors."""
    return "" if value is None else f"{value:+.1f} %"


def verdict(results: Results) -> str:
    """Say which system has the lowest WER, by how much, and on which languages."""
    baseline, total = results["baseline"], len(results["languages"])
    languages = f"{total} language" + "s" * (total > 1)
    whole = {name: s for name, s in results["systems"].items() if s["seeds"]}
    if len(whole) == 1:
        return f"Nothing to compare: only {', '.join(whole)} is finished on all languages."
    if not whole:
        return f"There is no average yet: no system is finished on all {languages}."
    if baseline not in whole:
        return f"Nothing to compare: {baseline}, the baseline, is not finished on all {languages}."
    seeds = common_seeds(whole)
    if not seeds:
        return f"There is no verdict yet: {', '.join(whole)} have no seed in common."
    named = languages
    if any(len(system["seeds"]) > len(seeds) for system in whole.values()):
        named = f"{languages} with seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}, which all have"
    # Rounded: equal rates may have other last bits.
    scores = {
        name: round(mean(system["macro"]["WER"]["seeds"][seed] for seed in seeds), 9)
        for name, system in whole.items()
    }
    *equal, best = (name for name, score in scores.items() if score == min(scores.values()))
    if equal:
        return (
            f"{', '.join(equal)} and {best} have the same lowest WER, {scores[best]:.2f} in the "
            f"average of {named}."
        )
    if best == baseline:
        return f"{baseline} has the lowest WER, {scores[best]:.2f} in the average of {named}."
    found = whole[best]["compared"]["WER"]
    if found["seeds"] != seeds:
        found = difference(*(whole[name]["scores"]["WER"] for name in (best, baseline)), seeds)
    corrected = f", corrected {p_value(found['corrected'])}" if "corrected" in found else ""
    higher = f", higher on {', '.join(found['higher'])}" if found["higher"] else ""
    return (
        f"{best} has the lowest WER, {scores[best]:.2f} in the average of {named}: "
        f"{found['difference']:+.2f} ({percent(found['relative'])}) from {baseline}. "
        f"It is lower on {len(found['lower'])} of {languages}{higher}. "
        f"Over the languages p = {p_value(found['p'])}{corrected}."
    )


def notes(results: Results) -> list[str]:
    """Return the lines below the tables, which explain their numbers."""
    baseline, total = results["baseline"], len(results["languages"])
    words = sum(counts["test"] for counts in results["languages"].values())
    return [
        "- WER: words with any wrong phone, in %; PER: edits per phone, in %; lower is better. "
        + ", ".join(f"{metric} `{s}`" for metric, s in results["signatures"].items()),
        f"- averages give each language the same weight ({total} here): mean ± standard deviation "
        "over the seeds that all languages have; lowest on: number of languages, over the seeds "
        "that all systems have",
        f"- difference, lower on, p: WER against {baseline}. p: {sign_flip_test(total)}; "
        "corrected by Holm's method for the number of systems",
        f"- p words, by seed: paired bootstrap over the {words:,} words of all languages, for the "
        "seeds trained here, two-sided and corrected likewise; it says nothing of other languages",
        f"- `{results['command']}`",
        f"- {results['machine']}; torch {results['versions'].get('torch')}; trained at commit "
        f"{', '.join(results['commits'])}",
        *(
            f"- joined by the results of `{one['command']}`: {one['machine']}; torch "
            f"{one['versions'].get('torch')}; commit {', '.join(one['commits'])}"
            for one in results.get("added", [])
        ),
    ]


def sign_flip_test(total: int) -> str:
    """Say what `sign_flip_p` does with a total of languages."""
    over = "two-sided, over the differences of the languages, at least"
    if total > EXACT:
        return f"sign-flip test with {SIGNS:,} random choices of signs, {over} {1 / SIGNS:.3g}"
    return f"exact sign-flip test, {over} {2.0 ** (1 - total):.3g} for {total}"


def draw(results: Results, file: Path) -> None:
    """Draw each system's difference in WER from the baseline: on each language, and the average."""
    compared = {n: s["compared"]["WER"] for n, s in results["systems"].items() if s["compared"]}
    names = list(results["languages"])
    figure = new_figure(4.0 + 0.7 * len(names), 4.0)
    axes = figure.subplots()
    axes.axhline(0, color="black", linewidth=1, label=results["baseline"])
    axes.axvline(len(names) - 0.5, color="#dddddd", linewidth=1)
    for number, (name, found) in enumerate(compared.items()):
        shift = (number + 1) / (len(compared) + 1) - 0.5
        heights = [*(found["languages"][n] for n in names), found["difference"]]
        again, colour = divmod(number, len(COLOURS))
        axes.plot(
            [place + 0.8 * shift for place in range(len(heights))], heights, ls="", ms=4,
            marker=MARKERS[again % len(MARKERS)], color=COLOURS[colour], label=name,
        )  # fmt: skip
    axes.set_xticks(range(len(names) + 1), [*names, "average"])
    axes.set_ylabel(f"WER, difference from {results['baseline']}")
    plain_axes(axes)
    figure.legend(loc="outside right upper", frameon=False)
    save(figure, file)
