"""The results table, like table 5 of Hao et al. 2019: a row per system, a column per task."""

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import mean, stdev
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import TensorDataset

from fairseq_recur.probing.classifier import BagOfWords, Classifier
from fairseq_recur.probing.protocol import Outcome, Protocol, probe
from fairseq_recur.probing.representations import SentenceEncoder
from fairseq_recur.probing.tasks import TASKS, TaskData
from fairseq_recur.scoring.tables import aligned

NO_HIDDEN_LAYER = ("WordContent",)
"""Tasks with so many labels that SentEval uses logistic regression."""
VOCABULARY = 10000
"""Size of the bag of words: the most frequent words of the training split."""
REFERENCES = MAJORITY, BAG_OF_WORDS = "majority label", "bag of words"
"""The rows of every table beside those of the models."""


class ProbeSettings(NamedTuple):
    """How to probe a model: see `classifier.Classifier` and `protocol.Protocol`."""

    combine: str
    hidden: int
    protocol: Protocol
    seeds: tuple[int, ...]


class Row(NamedTuple):
    """The accuracy of a system on a task, in percent of the test split.

    Attributes:
        system: name of a model or of a reference
        combine: how its representations were combined; "" for a reference
        task: SentEval's name
        accuracies: one per seed
        outcomes: one per seed; empty for the majority label
    """

    system: str
    combine: str
    task: str
    accuracies: list[float]
    outcomes: list[Outcome]

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return mean(self.accuracies)

    @property
    def spread(self) -> float | None:
        """Sample standard deviation over the seeds; None for a single seed."""
        return stdev(self.accuracies) if len(self.accuracies) > 1 else None

    def as_dict(self) -> dict[str, Any]:
        """Return the row as it is written to the results file."""
        return {
            "system": self.system,
            "combine": self.combine,
            "task": self.task,
            "mean": self.mean,
            "spread": self.spread,
            "runs": [outcome._asdict() for outcome in self.outcomes],
        }


def probe_model(
    name: str, encoder: SentenceEncoder, data: TaskData, settings: ProbeSettings
) -> Row:
    """Encode the sentences of a task once, then train one classifier per seed."""
    combine = settings.combine if encoder.has_recurrence else "transformer"
    inputs = encoder.represent(data.sentences(), f"{data.task.name}, {name}")
    widths = [x.size(1) for x in inputs]
    hidden = 0 if data.task.name in NO_HIDDEN_LAYER else settings.hidden

    def build(dropout: float) -> nn.Module:
        return Classifier(combine, widths, len(data.labels), hidden, dropout)

    return _train(Row(name, combine, data.task.name, [], []), build, inputs, data, settings, hidden)


def reference_rows(data: TaskData, settings: ProbeSettings, device: torch.device) -> list[Row]:
    """Score two references: the most frequent training label, and a bag of words."""
    label = Counter(data.splits["train"].labels).most_common(1)[0][0]
    test = data.splits["test"].labels
    majority = Row(MAJORITY, "", data.task.name, [100 * test.count(label) / len(test)], [])
    words, size = word_numbers(data)

    def build(dropout: float) -> nn.Module:
        return BagOfWords(size, len(data.labels))

    bag = Row(BAG_OF_WORDS, "", data.task.name, [], [])
    return [majority, _train(bag, build, (words.to(device),), data, settings, hidden=0)]


def _train(
    row: Row,
    build: Callable[[float], nn.Module],
    inputs: tuple[Tensor, ...],
    data: TaskData,
    settings: ProbeSettings,
    hidden: int,
) -> Row:
    """Train the classifiers of a row, one per seed, and fill in the row."""
    # Logistic regression has no dropout, so a choice of rates would change nothing.
    protocol = settings.protocol if hidden else settings.protocol._replace(dropout=(0.0,))
    splits, device = split_inputs(inputs, data), inputs[0].device
    outcomes = [
        probe(lambda dropout: build(dropout).to(device), splits, protocol, seed)
        for seed in settings.seeds
    ]
    return row._replace(accuracies=[100 * o.test for o in outcomes], outcomes=outcomes)


def split_inputs(inputs: tuple[Tensor, ...], data: TaskData) -> dict[str, TensorDataset]:
    """Divide the inputs (N, ...) of all sentences of a task into its splits, and add the labels."""
    labels = [label for split in data.splits.values() for label in split.labels]
    columns = (*inputs, torch.tensor(labels, device=inputs[0].device))
    sizes = [len(split.labels) for split in data.splits.values()]
    parts = zip(*(torch.split(column, sizes) for column in columns))
    return {name: TensorDataset(*part) for name, part in zip(data.splits, parts)}


def word_numbers(data: TaskData) -> tuple[Tensor, int]:
    """Number the words of all sentences: (N, S) int64, 0 for padding, and the vocabulary's size.

    Words outside the vocabulary share number 1.
    """
    counts = Counter(w for s in data.splits["train"].sentences for w in s.split())
    known = sorted(counts, key=lambda word: (-counts[word], word))[:VOCABULARY]
    numbers = {word: index for index, word in enumerate(known, 2)}
    rows = [torch.tensor([numbers.get(w, 1) for w in s.split()]) for s in data.sentences()]
    return pad_sequence(rows, batch_first=True), len(known) + 2


def table(rows: Sequence[Row], runs: int, form: Callable[..., list[str]] = aligned) -> str:
    """Format accuracies, with *form* one of `aligned` and `markdown`; describe the numbers."""
    spread = f", mean ± standard deviation over {runs} seeds of the classifier" if runs > 1 else ""
    caption = f"accuracy on the test split in %{spread}"
    return "\n".join([*form(table_cells(rows), names=2), "", caption])


def _accuracy(row: Row | None) -> str:
    """Format a row's accuracy; a task that a system lacks has an empty cell."""
    if row is None:
        return ""
    return f"{row.mean:.2f}" if row.spread is None else f"{row.mean:.2f} ± {row.spread:.2f}"


def table_cells(rows: Sequence[Row]) -> list[list[str]]:
    """Return the cells: a header, then one row per system."""
    tasks = [name for name in TASKS if any(row.task == name for row in rows)]
    found = {(row.system, row.task): row for row in rows}
    cells = [["system", "encoders", *(TASKS[name].short for name in tasks)]]
    for system in dict.fromkeys(row.system for row in rows):
        of_system = [found.get((system, name)) for name in tasks]
        combine = next(row.combine for row in of_system if row is not None)
        cells.append([system, combine, *map(_accuracy, of_system)])
    return cells
