"""One training in a folder, equal options and data on its processes, and no data lost at a resume.

These are additions to fairseq, for every model. Trusted: the other processes of the same training.
"""

import hashlib
import itertools
import logging
import random
import weakref
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy
import torch
from fairseq import utils
from fairseq.data import data_utils
from omegaconf import DictConfig, OmegaConf

from fairseq_recur.compat.registry import Function, extend
from fairseq_recur.errors import ConfigError
from fairseq_recur.files import hold, name_holder

logger = logging.getLogger(__name__)

LOCK = ".training.lock"
"""File in --save-dir that is locked during a training."""

ITERATOR = "fairseq.data.iterators:EpochBatchIterator"
SHARDS = "num_shards"
"""Name in a checkpoint of the number of processes that shared the data."""
ARRANGEMENT = "arrangement"
"""Attribute of a data set, and name in a checkpoint: how it cuts a text into batches, in words.

It tells where a position is, for data that all processes cut together.
"""

SECTIONS = ("task", "model", "criterion", "optimizer", "lr_scheduler", "optimization", "dataset",
            "checkpoint", "ema", "bmuf")  # fmt: skip
COMMON = ("seed", "fp16", "bf16", "memory_efficient_fp16", "memory_efficient_bf16", "amp")
OWN = (
    "data save_dir restore_file finetune_from_model continue_once num_workers num_workers_valid "
    "data_buffer_size"
).split()
"""Options of `SECTIONS` that may differ between machines, such as paths."""

MOST_BYTES = 1 << 17
"""Size of one process's options when they are compared; of equal ones only a hash is sent."""

COMPARED = 16
"""Sentences of each data set that are compared."""

_locks: dict[Path, IO[str]] = {}
_trainings: Counter[Path] = Counter()
"""Trainings of this process in each folder, one after the other."""
_releases: "list[weakref.finalize[[Path], Any]]" = []


@extend("fairseq.trainer:Trainer.__init__", "one training in a folder, equal options")
def init_trainer(construct: Function, self: Any, cfg: Any, *args: Any, **kwargs: Any) -> None:
    """Compare the processes' options, and lock the folder that the first process writes to."""
    construct(self, cfg, *args, **kwargs)
    if not isinstance(cfg, DictConfig):
        return
    if self.data_parallel_world_size > 1:
        compare(dict(options(cfg)), self.data_parallel_process_group)
    folder = Path(cfg.checkpoint.save_dir)
    if self.is_data_parallel_master and not cfg.checkpoint.no_save and folder.is_dir():
        folder = folder.resolve()
        lock(folder)
        _releases.append(weakref.finalize(self, unlock, folder))


@extend("fairseq.distributed.utils:call_main", "one training in a folder")
def call_main(call: Function, *args: Any, **kwargs: Any) -> Any:
    """Release folders when the training ends; a notebook may keep its trainer in a traceback."""
    before = len(_releases)
    try:
        return call(*args, **kwargs)
    finally:
        while len(_releases) > before:
            _releases.pop()()  # a finalizer runs once


def lock(folder: Path) -> None:
    """Lock a folder for this process.

    Raises:
        ConfigError: another training writes to it
    """
    if folder not in _locks:
        try:
            held = hold(folder / LOCK, inherited=False)
        except OSError as error:
            logger.warning(
                "%s cannot be locked (%s): see to it that no other training uses it", folder, error
            )
            return
        if held is None:
            other = (folder / LOCK).read_text(encoding="utf-8", errors="replace").strip()
            raise ConfigError(
                f"--save-dir {folder}: another training writes to it (process {other}), and both "
                "would overwrite each other's checkpoints; wait for it, end it, or give another "
                "--save-dir"
            )
        with suppress(OSError):  # the disk is full
            name_holder(held)
        _locks[folder] = held
    _trainings[folder] += 1


def unlock(folder: Path) -> None:
    """Release a folder after the last of this process's trainings in it."""
    _trainings[folder] -= 1
    if not _trainings[folder]:
        _locks.pop(folder).close()


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
        f"the processes of this training differ: {'; '.join(found[:5])}. Start all of them with "
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
    for name in ("source_dictionary", "target_dictionary"):
        symbols = getattr(getattr(task, name, None), "symbols", None)
        if symbols is not None:
            words = "\n".join(symbols).encode(errors="replace")
            found[f"hash of the {name}"] = hashlib.sha256(words).hexdigest()
    return found


def hash_sentences(dataset: Any, batches: Any) -> str:
    """Return a hash of the first sentences of `COMPARED` batches, from the first to the last."""
    digest = hashlib.sha256()
    with same_random_numbers():
        for number in numpy.linspace(0, len(batches) - 1, COMPARED if len(batches) else 0):
            utils.apply_to_sample(
                lambda tensor: digest.update(tensor.double().numpy().tobytes()),
                dataset[batches[int(number)][0]],
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


def plural(processes: int) -> str:
    """Return a number of processes in words."""
    return f"{processes} process{'' if processes == 1 else 'es'}"


@extend(f"{ITERATOR}.state_dict", "number of processes")
def iterator_state(get: Function, self: Any) -> dict[str, Any]:
    """Store how many processes share the data, and how these are arranged."""
    state = {**get(self), SHARDS: self.num_shards}
    arrangement = arrangement_of(self)
    return state if arrangement is None else {**state, ARRANGEMENT: arrangement}


def arrangement_of(iterator: Any) -> str | None:
    """How an iterator's data set cuts a text into batches, or None where it does not."""
    return getattr(getattr(iterator, "dataset", None), ARRANGEMENT, None)


@extend(f"{ITERATOR}.load_state_dict", "number of processes")
def load_iterator_state(load: Function, self: Any, state: dict[str, Any]) -> None:
    """Go on within an epoch where another number of processes has stopped.

    Raises:
        ConfigError: no position of this number of processes is that of the checkpoint
    """
    done = state.get("iterations_in_epoch", 0)
    if done and arrangement_of(self) is None:
        done = position_of(state, self)
        state = {**state, "iterations_in_epoch": done}
    elif done:
        check_arrangement(state, self)
    try:
        load(self, state)
    except RuntimeError as error:
        if "dataloader mismatch" not in str(error):
            raise
        raise ConfigError(
            f"the checkpoint was saved after {done} batches of epoch {state['epoch']}, but this "
            f"epoch has {len(self)}: give the data and batch size that it was saved with, "
            "or begin the data again with --reset-dataloader"
        ) from None


def position_of(state: dict[str, Any], iterator: Any) -> int:
    """The batches of each process that are done in a checkpoint's epoch.

    Raises:
        ConfigError: the number is not whole for this number of processes
    """
    before, done = state.get(SHARDS), state["iterations_in_epoch"]
    if not isinstance(before, int) or before == iterator.num_shards:
        return int(done)
    grouped = getattr(iterator, "grouped_shuffling", False)
    seen = done * before
    done, rest = divmod(seen, iterator.num_shards)
    if rest or grouped:
        cause = "with --grouped-shuffling" if grouped else f"after {seen} batches"
        raise ConfigError(
            f"the checkpoint was saved within an epoch of {plural(before)}, which "
            f"{iterator.num_shards} cannot continue {cause}: give {plural(before)}"
            f"{'' if grouped or before == 1 else ' or 1'}, or begin the data again with "
            "--reset-dataloader"
        )
    return int(done)


def check_arrangement(state: dict[str, Any], iterator: Any) -> None:
    """Refuse a position in a text that was cut otherwise: some of it would be read twice, or never.

    Older checkpoints do not say how it was cut, but the number of processes.

    Raises:
        ConfigError: it was cut otherwise, or by another number of processes
    """
    before, now = state.get(ARRANGEMENT), arrangement_of(iterator)
    shards = state.get(SHARDS, iterator.num_shards)
    if before == now or (before is None and shards == iterator.num_shards):
        return
    raise ConfigError(
        f"the checkpoint was saved within an epoch of {before or plural(shards)}, and now the text "
        f"is cut into {now}: choose processes and --batch-size with the same product, and the same "
        "--tokens-per-sample, or begin the data again with --reset-dataloader"
    )
