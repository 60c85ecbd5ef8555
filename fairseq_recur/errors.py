"""The errors that a user's input can cause.

A message says what was found, then what was expected or what to do: "--recurrence-steps 0:
expected at least 1", "no data folder bin; give the --destdir of ...". It begins in lower case, ends
without a full stop, and uses only names from the documentation. A test reads all messages from the
source and checks these rules.
"""


class ConfigError(ValueError):
    """Options that are invalid or incompatible; the message lists all of them."""


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be used: damaged, foreign, or refused as unsafe."""


class ProcessError(RuntimeError):
    """Another process of the same training has ended, so this one cannot continue."""
