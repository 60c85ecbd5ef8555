"""The mark of a module that a stock Transformer does not have."""


class Part:
    """Mixin: a stock checkpoint lacks this module's weights, all of them, and may.

    When none of the weights under such a module are in a checkpoint, the model keeps
    their fresh values and names the module in the log; when some are, the checkpoint is
    damaged, and loading it is an error.
    """
