"""The errors that a user's input can cause: each says what was found and what to do."""


class ConfigError(ValueError):
    """Options that are wrong or do not go together; the message lists all of them."""


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be used: damaged, foreign, or refused as unsafe."""


class ProcessError(RuntimeError):
    """Another process of the same training has gone, so this one cannot go on."""
