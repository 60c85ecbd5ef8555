"""The thread that makes batches ahead ends before Python does."""

import queue
import subprocess
import sys
from collections.abc import Iterator

import pytest
from fairseq.data.iterators import BackgroundConsumer

ENDLESS = """
import itertools, sys
import torch
from fairseq.data import iterators
if sys.argv[1] == "adapted":
    import fairseq_recur

class Batches:
    def __len__(self):
        return 10**9

    def __iter__(self):
        while True:  # what collating does: many short operations of torch
            rows = torch.zeros(20, 300)
            for row in rows:
                row[:200].copy_(torch.ones(200))
            if sys.argv[2] == "busy":
                rows = [rows.clone() for _ in range(2000)][0]
            yield rows

batches = iterators.BufferedIterator(int(sys.argv[3]), Batches())
print(len([next(batches) for _ in range(2)]))
"""


def ends(*arguments: object) -> subprocess.CompletedProcess:
    call = [sys.executable, "-c", ENDLESS, *map(str, arguments)]
    return subprocess.run(call, capture_output=True, text=True, timeout=100)


@pytest.mark.slow
@pytest.mark.parametrize("kind,room", [("busy", 10), ("waiting", 1)])
def test_program_ends_well_while_batches_are_made(kind: str, room: int) -> None:
    """The thread is preparing a batch, or waits for room in a full queue."""
    done = ends("adapted", kind, room)
    assert (done.returncode, done.stdout, done.stderr[-300:].count("terminate")) == (0, "2\n", 0)


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="needless there")
def test_without_the_adaptation_it_is_aborted() -> None:
    """If this fails, the adaptation is no longer needed."""
    done = ends("as it is", "busy", 10)
    assert done.returncode == -6 and "terminate called" in done.stderr


@pytest.mark.parametrize("at_once", [True, False])
def test_an_error_reaches_the_training(at_once: bool) -> None:
    """Also one before the first batch, when the workers start; it would wait for it for ever."""

    class Broken:
        def __iter__(self) -> Iterator[int]:
            if at_once:
                raise OSError("no memory")
            return (1 // number for number in (1, 0))

    found: queue.Queue[object] = queue.Queue()
    BackgroundConsumer(found, Broken(), None, None).run()
    results = [found.get_nowait() for _ in range(found.qsize())]
    expected = [OSError] if at_once else [int, ZeroDivisionError]
    assert [type(result) for result in results] == expected
