"""What keeps other libraries' messages out of the log."""

import logging

import pytest

from fairseq_recur.logs import quiet


def test_levels_return_when_the_last_thread_leaves() -> None:
    """Two threads that overlap, the first to come being the first to go."""
    logger = logging.getLogger("a library")
    logger.setLevel(logging.DEBUG)
    first, second = quiet("a library"), quiet("a library")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert logger.level == logging.WARNING
    second.__exit__(None, None, None)
    assert logger.level == logging.DEBUG


def test_levels_return_after_an_error() -> None:
    logger = logging.getLogger("a library")
    logger.setLevel(logging.DEBUG)
    with pytest.raises(ValueError, match="wrong"), quiet("a library"):
        raise ValueError("wrong")
    assert logger.level == logging.DEBUG
