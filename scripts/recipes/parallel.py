"""Work on lines in several processes, with the results in the lines' order."""

import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any, TypeVar

from tqdm import tqdm

from fairseq_recur.errors import ConfigError

T = TypeVar("T")
Work = Callable[[Any], Any]

CHUNK = 2000  # lines that are handed to a process at once
AHEAD = 4  # chunks for each process that are read before the first is done

_work: Work


def chunks(items: Iterable[T], size: int = CHUNK) -> Iterator[list[T]]:
    """Lists of so many items; the last has what is left."""
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk


def in_order(
    make: Callable[..., Work], arguments: tuple, items: Iterable[Any], workers: int, what: str
) -> Iterator[Any]:
    """Do the same with each item; the results are the same with any number of processes.

    Args:
        make: called once in each process, gives what does the work; both must be importable
        arguments: of `make`
        items: what the work is done on; few are read before they are needed
        workers: the number of processes; 1 is this one
        what: the name of the progress bar

    Raises:
        ConfigError: a process was killed; and what the work raises
    """
    tqdm.monitor_interval = 0  # its thread would be forked
    with tqdm(desc=what, unit="k lines", unit_scale=CHUNK / 1000, mininterval=5) as bar:
        results = _here(make, arguments, items) if workers == 1 else _beside(
            make, arguments, items, workers
        )  # fmt: skip
        try:
            for result in results:
                bar.update()
                yield result
        except BrokenProcessPool as error:
            raise ConfigError(
                f"{what}: one of the {workers} processes was killed, as happens where memory runs"
                " out; run the same command with fewer WORKERS, it goes on with this step"
            ) from error


def _here(make: Callable[..., Work], arguments: tuple, items: Iterable[Any]) -> Iterator[Any]:
    work = make(*arguments)
    return map(work, items)


def _beside(
    make: Callable[..., Work], arguments: tuple, items: Iterable[Any], workers: int
) -> Iterator[Any]:
    waiting: deque[Future] = deque()
    # Forked, because a new interpreter would import torch: gigabytes for many processes.
    with ProcessPoolExecutor(
        workers, multiprocessing.get_context("fork"), _begin, (os.getpid(), make, arguments)
    ) as pool:
        for item in items:
            waiting.append(pool.submit(_do, item))
            if len(waiting) > AHEAD * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _begin(parent: int, make: Callable[..., Work], arguments: tuple) -> None:
    global _work
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _work = make(*arguments)


def _end_with(parent: int) -> None:
    """End when the parent does: killed, it cannot say so, and we would wait for ever."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _do(item: Any) -> Any:
    return _work(item)
