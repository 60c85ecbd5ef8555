"""Equal options and data on all processes of a training, or none of them starts.

Trusted: the other processes of the same training.
"""

import hashlib
import itertools
import random
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy
import torch
from fairseq import utils
from fairseq.data import data_utils
from omegaconf import DictConfig, OmegaConf

from fairseq_recur.compat.registry import Function, extend
from fairseq_recur.errors import ConfigError, first_items
from fairseq_recur.training_guard.dictionaries import hashes

SECTIONS = ("task", "model", "criterion", "optimizer", "lr_scheduler", "optimization", "dataset",
            "checkpoint", "ema", "bmuf")  # fmt: skip
COMMON = ("seed", "fp16", "bf16", "memory_efficient_fp16", "memory_efficient_bf16", "amp")
OWN = (
    "data save_dir restore_file finetune_from_model continue_once num_workers num_workers_valid "
    "data_buffer_size series_file"
).split()
"""Options of `SECTIONS` that may differ between machines, such as paths."""

MOST_BYTES = 1 << 17
"""Size of one process's options when they are compared; of equal ones only a hash is sent."""

COMPARED = 16
"""Sentences of each data set that are compared."""


@extend("fairseq.trainer:Trainer.__init__", "equal options")
def init_trainer(construct: Function, self: Any, cfg: Any, *args: Any, **kwargs: Any) -> None:
    """Compare the processes' options."""
    construct(self, cfg, *args, **kwargs)
    if isinstance(cfg, DictConfig) and self.data_parallel_world_size > 1:
        compare(dict(options(cfg)), self.data_parallel_process_group)


def options(cfg: DictConfig) -> Iterator[tuple[str, str]]:
    """Yield the names and values of the options that must be equal on all processes."""
    sections = {name: cfg[name] for name in SECTIONS if cfg.get(name) is not None}
    others = [cfg[name] for name in cfg if name not in SECTIONS]
    # The Namespace of an old model holds all options, also those of one process.
    apart = {*OWN, *(name for group in others if isinstance(group, DictConfig) for name in group)}
    for section in sections.values():
        if isinstance(section, DictConfig):
            section = OmegaConf.to_container(section, resolve=True, enum_to_str=True)
        values = vars(section) if isinstance(section, Namespace) else section
        if isinstance(values, Mapping):
            yield from ((k, repr(v)) for k, v in values.items() if k not in apart)
    yield from ((name, repr(cfg.common.get(name))) for name in COMMON)


def compare(mine: dict[str, str], group: Any) -> None:
    """Compare this process's options or data with those of the others.

    Raises:
        ConfigError: they differ; on all processes, so that none waits for another
    """
    from fairseq.distributed import utils as distributed_utils

    text = repr(sorted(mine.items()))
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()
    if len(set(distributed_utils.all_gather_list(digest, group=group))) == 1:
        return
    short = {name: value[:80] for name, value in mine.items()}
    everyone = distributed_utils.all_gather_list(short, group=group, max_size=MOST_BYTES)
    found = []
    for name in sorted({name for options in everyone for name in options}):
        values = [options.get(name, "missing") for options in everyone]
        other = next((rank for rank, v in enumerate(values) if v != values[0]), None)
        if other is not None:
            found.append(f"{name} is {values[0]} on rank 0 and {values[other]} on rank {other}")
    raise ConfigError(
        f"the processes of this training differ: {first_items(found)}. Start all of them with "
        "the same flags and data"
    )


@extend("fairseq.trainer:Trainer.get_train_iterator", "equal data")
def get_train_iterator(get: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Compare the training data of the processes."""
    return compared(self, get(self, *args, **kwargs), self.cfg.dataset.train_subset)


@extend("fairseq.trainer:Trainer.get_valid_iterator", "equal data")
def get_valid_iterator(get: Function, self: Any, subset: str, *args: Any, **kwargs: Any) -> Any:
    """Compare the validation data of the processes, each set once."""
    iterator = get(self, subset, *args, **kwargs)
    seen = vars(self).setdefault("_compared_subsets", set())
    if subset in seen:
        return iterator
    seen.add(subset)
    return compared(self, iterator, subset)


def compared(trainer: Any, iterator: Any, subset: str) -> Any:
    """Return an iterator after its data have been compared with those of the other processes."""
    if trainer.data_parallel_world_size > 1 and hasattr(iterator, "frozen_batches"):
        found = data(trainer.task, iterator.dataset, iterator.frozen_batches)
        named = {f"{what} of {subset}": value for what, value in found.items()}
        compare(named, trainer.data_parallel_process_group)
    return iterator


def data(task: Any, dataset: Any, batches: Any) -> dict[str, str]:
    """Return the dictionaries' hashes, and the size and hashes of a data set."""
    if len(batches) and numpy.ndim(batches[0][0]):  # a GroupedEpochBatchIterator's
        batches = list(itertools.chain.from_iterable(batches))
    digest, count = hashlib.sha256(), 0
    for batch in batches:
        digest.update(numpy.asarray(batch).tobytes())
        count += len(batch)
    found = {"number of examples": str(count), "hash of the batches": digest.hexdigest()}
    if getattr(dataset, "supports_fetch_outside_dataloader", True):
        found["hash of some sentences"] = hash_sentences(dataset, batches)
    return {**found, **{f"{side} dictionary": words for side, words in hashes(task).items()}}


def hash_sentences(dataset: Any, batches: Any) -> str:
    """Return a hash of the first sentences of `COMPARED` batches, from the first to the last."""
    digest = hashlib.sha256()
    with same_random_numbers():
        for number in numpy.linspace(0, len(batches) - 1, COMPARED if len(batches) else 0):
            sentence = dataset[batches[int(number)][0]]
            if isinstance(sentence, int):  # the number of a row, which the collater reads
                sentence = dataset.collater([sentence])
            utils.apply_to_sample(
                lambda tensor: digest.update(tensor.double().numpy().tobytes()), sentence
            )
    return digest.hexdigest()


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """Let data sets that draw, such as noise, draw the same in each process, and change no state.

    fairseq does not seed Python's numbers, and its processes may have drawn different amounts.
    """
    before = random.getstate()
    random.seed(1)
    try:
        with data_utils.numpy_seed(1), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(1)
            yield
    finally:
        random.setstate(before)
