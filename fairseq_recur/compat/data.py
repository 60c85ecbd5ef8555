"""Batches: none is lost, repeated runs see the same ones, and threads end."""

import atexit
import contextlib
import inspect
import queue
import sys
import threading
import time
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import numpy

from fairseq_recur.compat.registry import Function, mend, source_of
from fairseq_recur.errors import ConfigError

last_batch = mend(
    "last batch",
    reason="fairseq newer than 0.12.2 drops a last batch whose size is not a multiple of "
    "--required-batch-size-multiple (8): up to 7 sentences are not translated, scored or "
    "trained on; and if no sentence fits the model, it ends with an IndexError",
    until="a fairseq whose batch_by_size returns every index, as its docstring says",
)


@last_batch.patch("fairseq.data.data_utils:batch_by_size")
def batch_by_size(batch: Function, indices: Any, *args: Any, **kwargs: Any) -> Any:
    """Add the batch that was dropped."""
    if not isinstance(indices, numpy.ndarray):
        indices = numpy.fromiter(indices, dtype=numpy.int64)
    if not len(indices):
        raise ConfigError(
            "no sentence is left to form batches: each is too long, or the data are empty; give a "
            "greater --max-source-positions, --max-target-positions or --max-tokens"
        )
    batches = batch(indices, *args, **kwargs)
    fixed = kwargs.get("fixed_shapes", args[5] if len(args) > 5 else None)
    # Batches follow the order of the indices, so the missing ones are at the end.
    rest = indices[sum(map(len, batches)) :] if fixed is None else []
    return [*batches, rest] if len(rest) else batches


ITERATOR = "fairseq.tasks.fairseq_task:FairseqTask.get_batch_iterator"


def epoch_in_seed() -> bool:
    """Whether the installed fairseq seeds numpy with the epoch for `ordered_indices`."""
    return "seed + epoch" in source_of(ITERATOR)


resumed_batches = mend(
    "resumed batches",
    reason="the batches of all epochs are formed in the epoch in which a process starts, and drawn "
    "with that epoch's number: a training resumed in a later epoch sees different batches",
    until="a fairseq whose get_batch_iterator seeds ordered_indices without the epoch, as 0.12.2",
    needed=epoch_in_seed,
)


@contextlib.contextmanager
def seeded_for(epoch: int) -> Iterator[None]:
    """Seed numpy for an order that is another one in each epoch, within `ordered_indices`.

    fairseq 0.12.2 seeds it without the epoch; newer releases need nothing here.
    """
    if epoch_in_seed():
        yield
        return
    state = numpy.random.get_state()
    numpy.random.seed([numpy.random.randint(2**31), epoch])
    try:
        yield
    finally:
        numpy.random.set_state(state)


@resumed_batches.patch(ITERATOR)
def get_batch_iterator(build: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Draw the batches as the first epoch would."""
    given = inspect.signature(build).bind(self, *args, **kwargs)
    given.apply_defaults()
    options = given.arguments
    once_for_all_epochs = (
        not options.get("disable_iterator_cache")
        and not options.get("update_epoch_batch_itr")
        and not getattr(self.cfg, "rebuild_batches", False)
        and self.can_reuse_epoch_itr(options["dataset"])
    )
    if not once_for_all_epochs:
        return build(*given.args, **given.kwargs)
    # fairseq adds the epoch; the iterator's own seed orders the batches of each epoch.
    seed, options["seed"] = options["seed"], options["seed"] + 1 - options["epoch"]
    iterator = build(*given.args, **given.kwargs)
    iterator.seed = seed
    return iterator


FOR_EPOCH = "fairseq.data.iterators:EpochBatchIterator._get_iterator_for_epoch"

curriculum = mend(
    "shuffling after the curriculum",
    reason="the loader of the first epoch serves all of them, and does not hear that the epochs of "
    "--curriculum are over: batches are shuffled only after a resume",
    until="a fairseq whose sampler is told in each epoch whether to shuffle",
    needed=lambda: "reuse_dataloader" in source_of(FOR_EPOCH),
)


@curriculum.patch(FOR_EPOCH)
def get_iterator_for_epoch(
    build: Function, self: Any, epoch: int, shuffle: bool, *args: Any, **kwargs: Any
) -> Any:
    """Tell the sampler that is used again."""
    sampler = getattr(self, "epoch_batch_sampler", None)
    if sampler is not None:
        sampler.shuffle = shuffle
    return build(self, epoch, shuffle, *args, **kwargs)


threads = mend(
    "threads at the end",
    reason="a thread that prepares batches for a training that has ended is inside torch when "
    "Python exits: the process aborts (terminate called without an active exception), and "
    "torchrun with it",
    until="Python 3.14, which suspends such threads, or a fairseq that ends its BackgroundConsumer",
    needed=lambda: sys.version_info < (3, 14),
)

_consumers: "weakref.WeakSet[Any]" = weakref.WeakSet()
_ending = threading.Event()


@threads.patch("fairseq.data.iterators:BackgroundConsumer.run")
def run_consumer(run: Function, self: Any) -> None:
    """Prepare batches until the program ends."""
    self._source = _until_the_end(self._source)
    _consumers.add(self)
    run(self)


def _until_the_end(source: Iterable[Any]) -> Iterator[Any]:
    """Yield what *source* yields; nothing begins before the first item is asked for.

    Then an error, such as that of a worker that has died, comes where fairseq passes it on.
    Elsewhere in the thread it would be lost, and the training would wait for a batch for ever.
    """
    for item in source:
        if _ending.is_set():
            return
        yield item


@threads.action
def end_consumers_at_exit() -> None:
    """Register `end_consumers`, once."""
    atexit.unregister(end_consumers)
    atexit.register(end_consumers)


def end_consumers() -> None:
    """Let each thread finish its batch and wait for it, at most ten seconds in all."""
    _ending.set()
    deadline = time.monotonic() + 10
    for consumer in list(_consumers):
        while consumer.is_alive() and time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                while True:  # it may be waiting for room in the queue
                    consumer._queue.get_nowait()
            consumer.join(0.05)


numpy_names = mend(
    "numpy names",
    reason="language modeling with --sample-break-mode eos, and batches by number of tokens in "
    "memory, use numpy.compat.long, which numpy 2 removed",
    until="a fairseq that says numpy.int64",
    needed=lambda: not hasattr(numpy, "compat"),
)


@numpy_names.action
def add_numpy_compat() -> None:
    """Provide the name."""
    vars(numpy).setdefault("compat", types.SimpleNamespace(long=int))


buckets = mend(
    "buckets of lengths",
    reason="--num-batch-buckets calls numpy.percentile with an argument that numpy 2.4 removed",
    until="a fairseq that calls it with method=",
    needed=lambda: (
        "interpolation" not in inspect.signature(numpy.percentile).parameters
        and "interpolation=" in source_of("fairseq.data.data_utils:get_buckets")
    ),
)


@buckets.patch("fairseq.data.data_utils:get_buckets")
@buckets.patch("fairseq.data.bucket_pad_length_dataset:get_buckets")
@buckets.patch("fairseq.data.audio.raw_audio_dataset:get_buckets")
def get_buckets(_: Function, sizes: Any, num_buckets: int) -> Any:
    """Return the lengths that divide *sizes* into this many buckets, without duplicates."""
    shares = numpy.linspace(0, 100, num_buckets + 1)
    return numpy.unique(numpy.percentile(sizes, shares, method="lower")[1:])
