"""Whether an attention mask hides the later keys and nothing else, without reading it each time."""

import math

import torch
from torch import Tensor


class FutureMask:
    """Recognises the mask of a decoder, for which torch's attention has a rule of its own.

    fairseq's decoders hand each layer a square cut out of one buffer, from its first row and column. What
    was read once is known again by its place in memory, which cannot get other contents
    meanwhile: it is kept, and torch counts the changes made in place.
    """

    def __init__(self) -> None:
        self.known: Tensor | None = None
        self.version = 0

    def recognises(self, mask: Tensor | None) -> bool:
        """Whether *mask* (T, S) is 0 up to the diagonal and minus infinity above it."""
        if mask is None or mask.dim() != 2 or mask.size(0) != mask.size(1):
            return False
        if mask.dtype == torch.bool or mask.is_meta or mask.is_inference():
            return False  # the last count no changes, and on meta there is nothing to read
        if self.is_known(mask):
            return True
        if not torch.equal(mask, torch.full_like(mask, -math.inf).triu(1)):
            return False
        self.known, self.version = mask.detach(), mask._version
        return True

    def is_known(self, mask: Tensor) -> bool:
        """Whether *mask* is the first rows and columns of the one that was read last."""
        known = self.known
        return (
            known is not None
            and mask.data_ptr() == known.data_ptr()
            and mask._version == self.version
            and mask.size(0) <= known.size(0)
            and (mask.stride(), mask.dtype, mask.device)
            == (known.stride(), known.dtype, known.device)
        )
