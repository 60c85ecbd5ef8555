"""No data lost at a resume within an epoch, with as many processes or with another number."""

from typing import Any

from fairseq_recur.compat.registry import Function, extend
from fairseq_recur.errors import ConfigError

ITERATOR = "fairseq.data.iterators:EpochBatchIterator"
SHARDS = "num_shards"
"""Name in a checkpoint of the number of processes that shared the data."""
BATCHES = "batches"
"""Name in a checkpoint of the number of batches of its epoch, those of all processes."""
ARRANGEMENT = "arrangement"
"""Attribute of a data set, and name in a checkpoint: how it cuts a text into batches, in words.

It tells where a position is, for data that all processes cut together.
"""


@extend(f"{ITERATOR}.state_dict", "number of processes")
def iterator_state(get: Function, self: Any) -> dict[str, Any]:
    """Store how many processes share the data, in how many batches, and how these are arranged."""
    state = {**get(self), SHARDS: self.num_shards}
    if state["iterations_in_epoch"]:
        state[BATCHES] = len(self.frozen_batches)
    arrangement = arrangement_of(self)
    return state if arrangement is None else {**state, ARRANGEMENT: arrangement}


def arrangement_of(iterator: Any) -> str | None:
    """How an iterator's data set cuts a text into batches, or None where it does not."""
    return getattr(getattr(iterator, "dataset", None), ARRANGEMENT, None)


@extend(f"{ITERATOR}.load_state_dict", "number of processes")
def load_iterator_state(load: Function, self: Any, state: dict[str, Any]) -> None:
    """Go on within an epoch where another number of processes has stopped.

    Raises:
        ConfigError: no position of this number of processes is that of the checkpoint, or the
            epoch has other batches
    """
    done = state.get("iterations_in_epoch", 0)
    if done and arrangement_of(self) is None:
        check_batches(state, len(self.frozen_batches))
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


def check_batches(state: dict[str, Any], now: int) -> None:
    """Refuse a position among other batches: some data would be read twice, or never.

    Older checkpoints do not have the number of batches.

    Raises:
        ConfigError: the epoch had another number of batches
    """
    before = state.get(BATCHES, now)
    if before != now:
        raise ConfigError(
            f"the checkpoint was saved within an epoch of {before} batches, which now has {now}: "
            "give the data and batch size that it was saved with, or begin the data again with "
            "--reset-dataloader"
        )


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


def plural(processes: int) -> str:
    """Return a number of processes in words."""
    return f"{processes} process{'' if processes == 1 else 'es'}"
