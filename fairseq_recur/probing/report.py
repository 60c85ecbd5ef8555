"""One row of results: a system on a task, over several seeds."""

from collections import Counter
from statistics import mean, stdev
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_recur.probing.classifier import BagOfWords, Classifier, used_combination
from fairseq_recur.probing.protocol import Outcome, Protocol, Split, probe
from fairseq_recur.probing.representations import SentenceEncoder
from fairseq_recur.probing.tasks import TaskData

NO_HIDDEN_LAYER = ("WordContent",)
"""Tasks of so many labels that SentEval takes logistic regression."""
VOCABULARY = 10000
"""Words of the bag of words: the most frequent of the training split."""
MAJORITY, BAG_OF_WORDS = "majority label", "bag of words"


class Settings(NamedTuple):
    """How models are probed: see `classifier.Classifier` and `protocol.Protocol`."""

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
        accuracies: one for each seed
        outcomes: how each came about; none for the majority label
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
        """Standard deviation over the seeds, with one less in the divisor; None of one."""
        return stdev(self.accuracies) if len(self.accuracies) > 1 else None

    def as_dict(self) -> dict[str, Any]:
        """Return what a results file says."""
        return {
            "system": self.system,
            "combine": self.combine,
            "task": self.task,
            "mean": self.mean,
            "spread": self.spread,
            "runs": [outcome._asdict() for outcome in self.outcomes],
        }


def probe_model(name: str, encoder: SentenceEncoder, data: TaskData, settings: Settings) -> Row:
    """Represent a task's sentences once, and train classifiers on that with every seed."""
    combine = used_combination(settings.combine, encoder.has_recurrence)
    inputs = encoder.represent(data.sentences(), f"{data.task.name}, {name}")
    widths = [x.size(1) for x in inputs]
    hidden = 0 if data.task.name in NO_HIDDEN_LAYER else settings.hidden

    def build(dropout: float) -> Classifier:
        model = Classifier(combine, widths, len(data.labels), hidden, dropout)
        return model.to(encoder.device)

    protocol = settings.protocol if hidden else without_dropout(settings.protocol)
    splits = split_inputs(inputs, data)
    outcomes = [probe(build, splits, protocol, seed) for seed in settings.seeds]
    return Row(name, combine, data.task.name, [100 * o.test for o in outcomes], outcomes)


def reference_rows(data: TaskData, settings: Settings, device: torch.device) -> list[Row]:
    """Score the training split's most frequent label, and a bag of words."""
    label = Counter(data.splits["train"].labels).most_common(1)[0][0]
    test = data.splits["test"].labels
    rows = [Row(MAJORITY, "", data.task.name, [100 * test.count(label) / len(test)], [])]
    words, size = word_numbers(data)

    def build(dropout: float) -> BagOfWords:
        return BagOfWords(size, len(data.labels)).to(device)

    splits = split_inputs((words.to(device),), data)
    protocol = without_dropout(settings.protocol)
    outcomes = [probe(build, splits, protocol, seed) for seed in settings.seeds]
    accuracies = [100 * outcome.test for outcome in outcomes]
    return rows + [Row(BAG_OF_WORDS, "", data.task.name, accuracies, outcomes)]


def without_dropout(protocol: Protocol) -> Protocol:
    """Leave out a choice that would change nothing: logistic regression has no dropout."""
    return protocol._replace(dropout=(0.0,))


def split_inputs(inputs: tuple[Tensor, ...], data: TaskData) -> dict[str, Split]:
    """Cut what was computed for all sentences of a task into its splits."""
    splits, start = {}, 0
    for name, examples in data.splits.items():
        end = start + len(examples.labels)
        labels = torch.tensor(examples.labels, device=inputs[0].device)
        splits[name] = Split(tuple(x[start:end] for x in inputs), labels)
        start = end
    return splits


def word_numbers(data: TaskData) -> tuple[Tensor, int]:
    """Number the words of all sentences: (N, S) int64, 0 for padding, and the vocabulary's size.

    Words that are not among the most frequent of the training split share number 1.
    """
    counts = Counter(w for s in data.splits["train"].sentences for w in s.split())
    known = sorted(counts, key=lambda word: (-counts[word], word))[:VOCABULARY]
    numbers = {word: index for index, word in enumerate(known, 2)}
    rows = [[numbers.get(word, 1) for word in s.split()] for s in data.sentences()]
    longest = max(map(len, rows))
    return torch.tensor([row + [0] * (longest - len(row)) for row in rows]), len(known) + 2
