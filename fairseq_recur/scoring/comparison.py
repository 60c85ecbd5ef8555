"""What a comparison of systems found, and how it is shown."""

from dataclasses import asdict, dataclass
from typing import Any

from fairseq_recur.scoring.aligned import aligned

BOOTSTRAP, RANDOMIZATION, BOTH = "bootstrap", "randomization", "both"
LEVEL = 0.05


@dataclass(frozen=True)
class SystemResult:
    """One system by one metric.

    Attributes:
        system: its name.
        score: of the whole test set, as `fairseq-recur score` prints it.
        difference: score minus the baseline's; 0 for the baseline.
        mean, interval: of the scores of the bootstrap samples the mean, and half the width of
            the range that holds 95 % of them; None where there was no bootstrap.
        p: the p-value of each test that was done, by the test's name; empty for the baseline.
        different: how many texts are not, letter for letter, those of the baseline.
    """

    system: str
    score: float
    difference: float
    mean: float | None
    interval: float | None
    p: dict[str, float]
    different: int

    def is_significant(self, test: str, level: float = LEVEL) -> bool:
        """Say whether the difference from the baseline is significant by `test`.

        Two systems that differ in k texts can be told apart by 2^(1-k) at best: no more
        exchanges than 2^k are possible, and two of them give the difference itself. The
        formula of sacrebleu does not know that; it gives its smallest p-value for a system
        that is compared with itself. So a p-value counts here only if `level` can be reached.
        """
        reachable = 2.0 ** (1 - self.different) < level
        return reachable and self.p.get(test, 1.0) < level


@dataclass(frozen=True)
class MetricResult:
    """All systems by one metric.

    Attributes:
        metric: its name, as its library prints it: "BLEU", "chrF2", "TER", "rougeL", ...
        signatures: for each test done the signature, with the number of samples and the seed.
        higher_is_better: False for TER.
        decimals: how many of the score are worth showing.
        systems: the baseline first, then the others as they were given.
    """

    metric: str
    signatures: dict[str, str]
    higher_is_better: bool
    decimals: int
    systems: tuple[SystemResult, ...]


@dataclass(frozen=True)
class Comparison:
    """What `compare_systems` found; ``dataclasses.asdict`` makes it ready for JSON.

    Attributes:
        baseline: the name of the system that the others are compared with.
        texts: how many texts the test set has.
        samples: for each test done, how many times it drew.
        seed: of the draws, or None if they were not seeded.
        metrics: one result for each metric.
    """

    baseline: str
    texts: int
    samples: dict[str, int]
    seed: int | None
    metrics: tuple[MetricResult, ...]

    def of(self, metric: str, system: str) -> SystemResult:
        """Return one system's result by one metric (its name as in `MetricResult.metric`)."""
        for result in self.metrics:
            for found in result.systems:
                if (result.metric, found.system) == (metric, system):
                    return found
        raise KeyError(f"no result of {system!r} by {metric!r}")


def as_json(comparison: Comparison, level: float = LEVEL) -> dict[str, Any]:
    """Return everything in a Comparison for a JSON file, and what is significant at `level`."""
    report = asdict(comparison)
    for metric, written in zip(comparison.metrics, report["metrics"]):
        for system, of_one in zip(metric.systems, written["systems"]):
            of_one["significant"] = {t: system.is_significant(t, level) for t in system.p}
    return {"level": level, **report}


def comparison_table(comparison: Comparison, markdown: bool = False) -> str:
    """Format a Comparison for people: a row for each metric and system, and notes below.

    Args:
        markdown: a Markdown table and list, where otherwise columns are aligned by spaces.
    """
    rows = [["metric", "system", "score", "difference"]]
    if BOOTSTRAP in comparison.samples:
        rows[0] += ["mean", "95 %"]
    rows[0] += [f"p ({test})" for test in comparison.samples]
    for metric in comparison.metrics:
        rows += [_row(metric, system, comparison.samples) for system in metric.systems]
    notes = _notes(comparison, "`" if markdown else "")
    if not markdown:
        return "\n".join([*aligned(rows, names=2), "", *notes])
    rule = ["---", "---", *["---:"] * (len(rows[0]) - 2)]
    cells = [[cell.strip().replace("|", "\\|") for cell in row] for row in rows]
    cells.insert(1, rule)
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([*lines, "", *(f"- {note}" for note in notes)])


def _row(metric: MetricResult, system: SystemResult, samples: dict[str, int]) -> list[str]:
    """The cells of one system by one metric; the baseline's difference and p stay empty."""
    digits = metric.decimals
    row = [metric.metric, system.system, f"{system.score:.{digits}f}"]
    row.append(f"{system.difference:+.{digits}f}" if system.p else "")
    if BOOTSTRAP in samples:
        row += [f"{system.mean:.{digits}f}", f"± {system.interval:.{digits}f}"]
    for test, count in samples.items():
        # As many decimals as it takes to show the smallest value, 1/(samples + 1).
        shown = f"{system.p[test]:.{max(4, len(str(count)))}f}" if system.p else ""
        row.append(shown + (" *" if system.is_significant(test) else "  " if shown else ""))
    return row


def _notes(comparison: Comparison, quote: str) -> list[str]:
    """What the table's columns and marks mean, and the signatures; `quote` is around literals."""
    notes = [f"difference: from the baseline {comparison.baseline}, over {comparison.texts} texts"]
    if BOOTSTRAP in comparison.samples:
        notes.append("mean, 95 %: of the scores of the bootstrap samples")
    notes.append(
        f"{quote}*{quote}: p < {LEVEL}, between these outputs; training anew may change more"
    )
    notes += [f"{m.metric}: lower is better" for m in comparison.metrics if not m.higher_is_better]
    for metric in comparison.metrics:
        notes += [f"{metric.metric}: {quote}{s}{quote}" for s in metric.signatures.values()]
    return notes
