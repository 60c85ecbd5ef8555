"""SentEval's protocol: train on the training split, choose on the valid split, test once."""

from collections.abc import Callable
from copy import deepcopy
from itertools import product
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHUNK = 4096  # sentences that are classified at once when nothing is learned


class Protocol(NamedTuple):
    """How a classifier is trained; the defaults are SentEval's.

    Attributes:
        l2: weight decays to choose from on the valid split
        dropout: likewise
        learning_rate: of Adam
        batch_size: sentences of an update
        epochs_per_check: passes over the training split between two looks at the valid split
        patience: looks that may bring nothing better, all in all; training stops at the next
        max_epochs: passes at which training stops
    """

    l2: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2)
    dropout: tuple[float, ...] = (0.0,)
    learning_rate: float = 1e-3
    batch_size: int = 64
    epochs_per_check: int = 4
    patience: int = 5
    max_epochs: int = 200


class Split(NamedTuple):
    """What a classifier reads, each (N, ...), and the labels (N,) int64."""

    inputs: tuple[Tensor, ...]
    labels: Tensor

    def rows(self, index: Tensor) -> tuple[Tensor, ...]:
        """Return some rows of the inputs."""
        return tuple(x.index_select(0, index) for x in self.inputs)


class Outcome(NamedTuple):
    """Accuracies, between 0 and 1, of the classifier that was best on the valid split."""

    seed: int
    valid: float
    test: float
    l2: float
    dropout: float
    epochs: int


def probe(
    build: Callable[[float], nn.Module], splits: dict[str, Split], protocol: Protocol, seed: int
) -> Outcome:
    """Train a classifier for each l2 and dropout; test the one that is best on the valid split.

    Args:
        build: from the dropout to a fresh classifier, on the device of the splits
        splits: train, valid, test
        protocol: how to train
        seed: of weights, order and dropout; the caller's random numbers stay as they are

    Returns:
        the outcome; of equally good ones the first
    """
    best, chosen = None, None
    for dropout, l2 in product(protocol.dropout, protocol.l2):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = build(dropout)
            valid, epochs = fit(model, splits["train"], splits["valid"], protocol, l2)
        if best is None or valid > best.valid:
            best, chosen = Outcome(seed, valid, 0.0, l2, dropout, epochs), model
    return best._replace(test=accuracy(chosen, splits["test"]))


def fit(
    model: nn.Module, train: Split, valid: Split, protocol: Protocol, l2: float
) -> tuple[float, int]:
    """Train a classifier in place, to the weights that are best on the valid split.

    Returns:
        the best accuracy on the valid split, and the passes over the training split in all
    """
    optimizer = torch.optim.Adam(
        model.parameters(), lr=protocol.learning_rate, weight_decay=l2, fused=True
    )
    best, weights, misses, epochs = -1.0, {}, 0, 0
    while misses <= protocol.patience and epochs < protocol.max_epochs:
        for _ in range(min(protocol.epochs_per_check, protocol.max_epochs - epochs)):
            train_once(model, train, optimizer, protocol.batch_size)
            epochs += 1
        reached = accuracy(model, valid)
        if reached > best:
            best, weights = reached, deepcopy(model.state_dict())
        else:
            misses += 1
    model.load_state_dict(weights)
    return best, epochs


def train_once(
    model: nn.Module, train: Split, optimizer: torch.optim.Optimizer, batch_size: int
) -> None:
    """Make one pass over the training split in a random order."""
    model.train()
    order = torch.randperm(len(train.labels), device=train.labels.device)
    for index in order.split(batch_size):
        loss = F.cross_entropy(model(*train.rows(index)), train.labels.index_select(0, index))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, split: Split) -> float:
    """Return the share of sentences that a classifier labels right, between 0 and 1."""
    model.eval()
    right = 0
    for index in torch.arange(len(split.labels), device=split.labels.device).split(CHUNK):
        predicted = model(*split.rows(index)).argmax(dim=-1)
        right += int(predicted.eq(split.labels.index_select(0, index)).sum())
    return right / len(split.labels)
