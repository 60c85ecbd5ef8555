"""The mark of a module that a stock Transformer does not have."""


class Part:
    """Mixin: a stock checkpoint lacks this module's weights, all of them, and may.

    Parts that only work together have the same ``slot``. When none of the weights of a
    slot's parts are in a checkpoint, the model keeps their fresh values and names the
    parts in the log; when some are, the checkpoint is of another architecture or damaged,
    and loading it is an error.
    """

    slot: str
