"""What fairseq itself refuses, told as an error of the input.

Its programs check many options where they use them: ``assert CONDITION, "--sampling-topk requires
--sampling"``. Such an error names the cause, and a traceback would hide it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fairseq

from fairseq_recur.errors import INPUT_ERRORS, ConfigError

REFUSALS = (AssertionError, ValueError, Exception)
"""What fairseq raises for options that it refuses; subclasses are errors of other kinds."""

WORDS, LONGEST = 3, 500
"""Fewest words of a message that says something, and most characters of one that can be read."""


@contextmanager
def told() -> Iterator[None]:
    """Turn what fairseq refuses within the block into a ConfigError.

    Raises:
        ConfigError: with fairseq's message; another error stays as it is
    """
    try:
        yield
    except INPUT_ERRORS:
        raise
    except Exception as error:
        if not is_refusal(error):
            raise
        raise ConfigError(f"fairseq refuses this: {error}; change the command") from error


def is_refusal(error: Exception) -> bool:
    """Whether code of fairseq has raised an error with a message for its users."""
    text, last = str(error), error.__traceback__
    if type(error) not in REFUSALS or last is None:
        return False
    while last.tb_next is not None:
        last = last.tb_next
    home = Path(fairseq.__file__).parent
    packages = home, home.parent / "fairseq_cli", Path("fairseq")  # the last: of compiled code
    raised_in = Path(last.tb_frame.f_code.co_filename)
    by_fairseq = any(package in raised_in.parents for package in packages)
    return by_fairseq and len(text.split()) >= WORDS and len(text) <= LONGEST and "\n" not in text
