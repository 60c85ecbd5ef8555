"""The errors that a user's input can cause.

A message begins with what was found, and goes on with what was expected or what to do:
"--recurrence-steps 0: expected at least 1", "no data folder bin; give the --destdir of ...". It
begins small, ends without a full stop, and names what the documentation names. A test reads all
messages from the source and holds them to this.
"""


class ConfigError(ValueError):
    """Options that are wrong or do not go together; the message lists all of them."""


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be used: damaged, foreign, or refused as unsafe."""


class ProcessError(RuntimeError):
    """Another process of the same training has gone, so this one cannot go on."""
