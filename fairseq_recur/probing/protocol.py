"""SentEval's protocol: train on one split, select on the validation split, test once."""

from collections.abc import Callable
from copy import deepcopy
from itertools import product
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

CHUNK = 4096  # sentences per batch when nothing is learned


class Protocol(NamedTuple):
    """How a classifier is trained; the defaults are SentEval's.

    Attributes:
        l2: candidate weight decays; the validation split selects one
        dropout: candidate dropout rates, selected in the same way
        learning_rate: of Adam
        batch_size: sentences per update
        epochs_per_check: epochs between two validations
        patience: validations without improvement, counted over the whole training; training
            stops at the next one
        max_epochs: upper limit on the epochs
    """

    l2: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2)
    dropout: tuple[float, ...] = (0.0,)
    learning_rate: float = 1e-3
    batch_size: int = 64
    epochs_per_check: int = 4
    patience: int = 5
    max_epochs: int = 200


class Outcome(NamedTuple):
    """Accuracies, between 0 and 1, of the classifier that was best on the validation split."""

    seed: int
    valid: float
    test: float
    l2: float
    dropout: float
    epochs: int


def probe(
    build: Callable[[float], nn.Module],
    splits: dict[str, TensorDataset],
    protocol: Protocol,
    seed: int,
) -> Outcome:
    """Train one classifier per dropout and l2; test the one that is best on the validation split.

    Args:
        build: maps a dropout rate to a new classifier, on the device of the splits
        splits: "train", "valid" and "test"; each holds the inputs (N, ...) and the labels (N,)
        protocol: how to train
        seed: for weights, order and dropout; the caller's random state is not changed

    Returns:
        the outcome; among equally good classifiers, the first
    """
    candidates = []
    for dropout, l2 in product(protocol.dropout, protocol.l2):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = build(dropout)
            valid, epochs = fit(model, splits["train"], splits["valid"], protocol, l2)
        candidates.append((Outcome(seed, valid, 0.0, l2, dropout, epochs), model))
    best, model = max(candidates, key=lambda candidate: candidate[0].valid)
    return best._replace(test=accuracy(model, splits["test"]))


def fit(
    model: nn.Module, train: TensorDataset, valid: TensorDataset, protocol: Protocol, l2: float
) -> tuple[float, int]:
    """Train a classifier in place and restore the weights that were best on the validation split.

    Returns:
        the best accuracy on the validation split, and the number of epochs
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
    model: nn.Module, train: TensorDataset, optimizer: torch.optim.Optimizer, batch_size: int
) -> None:
    """Train for one epoch, in random order."""
    model.train()
    order = torch.randperm(len(train), device=train.tensors[0].device)
    for index in torch.split(order, batch_size):
        *inputs, labels = train[index]
        loss = F.cross_entropy(model(*inputs), labels)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, split: TensorDataset) -> float:
    """Return the share of correctly classified sentences, between 0 and 1."""
    model.eval()
    correct = 0
    order = torch.arange(len(split), device=split.tensors[0].device)
    for index in torch.split(order, CHUNK):
        *inputs, labels = split[index]
        correct += int(model(*inputs).argmax(dim=-1).eq(labels).sum())
    return correct / len(split)
