"""Process lines in several processes, with the results in the order of the lines."""

import multiprocessing
import os
import signal
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

CHUNK = 2000  # lines that a process gets at once
AHEAD = 4  # chunks per process that are read ahead

_work: Work


def chunks(items: Iterable[T], size: int = CHUNK) -> Iterator[list[T]]:
    """Yield lists of `size` items; the last one may be shorter."""
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk


def in_order(
    make: Callable[..., Work], arguments: tuple, items: Iterable[Any], workers: int, what: str
) -> Iterator[Any]:
    """Map a function over items; the results do not depend on the number of processes.

    Args:
        make: called once in each process, returns the function; both must be importable
        arguments: arguments of `make`
        items: items to process; only a few are read ahead
        workers: number of processes; 1 means this process
        what: name of the progress bar

    Raises:
        ConfigError: a process was killed; errors of the function are passed on
    """
    tqdm.monitor_interval = 0  # its thread would be forked
    with tqdm(desc=what, unit="k lines", unit_scale=CHUNK / 1000, mininterval=5) as bar:
        results = _here(make, arguments, items) if workers == 1 else _in_processes(
            make, arguments, items, workers
        )  # fmt: skip
        try:
            for result in results:
                bar.update()
                yield result
        except BrokenProcessPool as error:
            raise ConfigError(
                f"{what}: one of the {workers} processes was killed, probably because memory ran"
                " out; run the same command with fewer WORKERS to continue with this step"
            ) from error


def _here(make: Callable[..., Work], arguments: tuple, items: Iterable[Any]) -> Iterator[Any]:
    work = make(*arguments)
    return map(work, items)


def _in_processes(
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C, which the parent reports
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _work = make(*arguments)


def _end_with(parent: int) -> None:
    """End with the parent: if it is killed, this process would wait forever."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _do(item: Any) -> Any:
    return _work(item)
