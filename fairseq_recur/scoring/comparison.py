"""The result of a comparison of systems, as a table or as JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fairseq_recur.scoring.tables import aligned
from fairseq_recur.scoring.tables import markdown as markdown_lines

BOOTSTRAP, RANDOMIZATION, BOTH = "bootstrap", "randomization", "both"
LEVEL = 0.05
TAILS = {BOOTSTRAP: 1, RANDOMIZATION: 2}
"""Number of tails in a test's p-value; see `fairseq_recur.scoring.resampling.bootstrap_p`."""


def corrected(
    p: Mapping[str, float], test: str, different: Mapping[str, int] | None = None
) -> dict[str, float]:
    """Make the p-values of several systems two-sided, and correct them for their number.

    Holm 1979, *A Simple Sequentially Rejective Multiple Test Procedure*: the smallest of n is
    multiplied by n, the next by n - 1, and so on; none is below those before it, or above 1.

    For two systems that differ in k texts, no two-sided p-value below 2^(1-k) is possible: there
    are 2^k exchanges, and two of them give the difference itself. sacrebleu's formula ignores this,
    and few draws may miss it. So a p-value below counts as this one.

    Args:
        p: of each system, as the test has it
        test: a key of TAILS
        different: of each system, `SystemResult.different`; None for tests that count ties, whose
            p-values respect this bound
    """
    two_sided = {
        system: max(value * 2 / TAILS[test], 2.0 ** (1 - different[system]) if different else 0.0)
        for system, value in p.items()
    }
    found, least = {}, 0.0
    for rank, (system, value) in enumerate(sorted(two_sided.items(), key=lambda item: item[1])):
        least = max(least, min(1.0, value * (len(p) - rank)))
        found[system] = least
    return found


@dataclass(frozen=True)
class SystemResult:
    """One system by one metric.

    Attributes:
        system: its name.
        score: of the whole test set, as `fairseq-recur score` prints it.
        difference: score minus the baseline's; 0 for the baseline.
        mean, interval: of the bootstrap samples' scores, the mean and half the width of the
            range that contains 95 % of them; None without a bootstrap.
        p: p-value of each test by its name; empty for the baseline.
        different: number of texts that can decide: those not identical to the baseline's and, for
            metrics that are means over texts, with another score.
        corrected: the p-values, two-sided and corrected for the number of systems.
    """

    system: str
    score: float
    difference: float
    mean: float | None
    interval: float | None
    p: dict[str, float]
    different: int
    corrected: dict[str, float] = field(default_factory=dict)

    def is_significant(self, test: str, level: float = LEVEL) -> bool:
        """Whether the difference from the baseline is significant by a test's corrected p."""
        return self.corrected.get(test, 1.0) < level


@dataclass(frozen=True)
class MetricResult:
    """All systems by one metric.

    Attributes:
        metric: the library's name: "BLEU", "chrF2", "TER", "rougeL", ...
        signatures: of each test, with the number of samples and the seed.
        higher_is_better: False for TER and error rates.
        decimals: number of decimals that tables show.
        systems: the baseline first, then the remaining systems in the given order.
    """

    metric: str
    signatures: dict[str, str]
    higher_is_better: bool
    decimals: int
    systems: tuple[SystemResult, ...]


@dataclass(frozen=True)
class Comparison:
    """The result of `compare_systems`; ``dataclasses.asdict`` makes it ready for JSON.

    Attributes:
        baseline: name of the system that all systems are compared with.
        texts: number of texts in the test set.
        samples: number of draws of each test.
        seed: of the draws, or None for unseeded ones.
        metrics: one result per metric.
    """

    baseline: str
    texts: int
    samples: dict[str, int]
    seed: int | None
    metrics: tuple[MetricResult, ...]

    def of(self, metric: str, system: str) -> SystemResult:
        """Return one system's result by one metric, whose name is `MetricResult.metric`."""
        for result in self.metrics:
            for found in result.systems:
                if (result.metric, found.system) == (metric, system):
                    return found
        raise KeyError(f"no result of {system!r} by {metric!r}")


def as_json(comparison: Comparison, level: float = LEVEL) -> dict[str, Any]:
    """Return a Comparison for a JSON file, with the significance of each result at ``level``."""
    report = asdict(comparison)
    for metric, written in zip(comparison.metrics, report["metrics"]):
        for system, of_one in zip(metric.systems, written["systems"]):
            of_one["significant"] = {t: system.is_significant(t, level) for t in system.p}
    return {"level": level, **report}


def comparison_table(comparison: Comparison, markdown: bool = False) -> str:
    """Format a Comparison as a table, one row per metric and system, followed by notes.

    Args:
        comparison: what to show.
        markdown: write a Markdown table and list instead of columns aligned by spaces.
    """
    rows = [["metric", "system", "score", "difference"]]
    if BOOTSTRAP in comparison.samples:
        rows[0] += ["mean", "95 %"]
    for test in comparison.samples:
        rows[0] += [f"p ({test})", "corrected"]
    for metric in comparison.metrics:
        rows += [_row(metric, system, comparison.samples) for system in metric.systems]
    notes = _notes(comparison, "`" if markdown else "")
    if not markdown:
        return "\n".join([*aligned(rows, names=2), "", *notes])
    cells = [[cell.strip() for cell in row] for row in rows]
    return "\n".join([*markdown_lines(cells, names=2), "", *(f"- {note}" for note in notes)])


def _row(metric: MetricResult, system: SystemResult, samples: dict[str, int]) -> list[str]:
    """Return the cells of one system by one metric; the baseline has no difference and no p."""
    digits = metric.decimals
    row = [metric.metric, system.system, f"{system.score:.{digits}f}"]
    row.append(f"{system.difference:+.{digits}f}" if system.p else "")
    if BOOTSTRAP in samples:
        row += [f"{system.mean:.{digits}f}", f"± {system.interval:.{digits}f}"]
    for test, count in samples.items():
        # Enough decimals to show the smallest value, 1/(samples + 1).
        decimals = max(4, len(str(count)))
        mark = " *" if system.is_significant(test) else "  "
        row.append(f"{system.p[test]:.{decimals}f}" if system.p else "")
        row.append(f"{system.corrected[test]:.{decimals}f}{mark}" if system.p else "")
    return row


def _notes(comparison: Comparison, quote: str) -> list[str]:
    """Explain the table's columns and marks, and list the signatures, with quoted literals."""
    notes = [f"difference: from the baseline, {comparison.baseline}, over {comparison.texts} texts"]
    if BOOTSTRAP in comparison.samples:
        notes.append("mean, 95 %: of the scores of the bootstrap samples")
    notes.append("corrected: p, two-sided, by Holm's method for the number of systems")
    notes.append(
        f"{quote}*{quote}: corrected p < {LEVEL}, between these outputs; retraining may change more"
    )
    notes += [f"{m.metric}: lower is better" for m in comparison.metrics if not m.higher_is_better]
    for metric in comparison.metrics:
        notes += [f"{metric.metric}: {quote}{s}{quote}" for s in metric.signatures.values()]
    return notes
