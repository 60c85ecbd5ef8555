"""Transformer-XL's recurrence over segments (Dai et al. 2019) as loops."""

from collections.abc import Callable

from torch import Tensor

MemoryLayer = Callable[[list[Tensor], list[Tensor]], list[Tensor]]
"""What a layer makes of its input in a segment, and of its input at the positions before."""


def segments_with_memory(
    tokens: list[Tensor], size: int, length: int, layers: list[MemoryLayer]
) -> list[Tensor]:
    """The states of a text that is read in segments (Dai et al. 2019, section 3.2): T of (C,).

    h^n of a segment reads [SG(m^{n-1}), h^{n-1}]: its own states and, without a gradient, those of
    the *length* positions before it.

    Args:
        tokens: T of (C,), the input of the lowest layer
        size: positions of a segment
        length: positions that the memory holds
        layers: from the bottom
    """
    memories: list[list[Tensor]] = [[] for _ in layers]
    outputs: list[Tensor] = []
    for first in range(0, len(tokens), size):
        x = tokens[first : first + size]
        for n, layer in enumerate(layers):
            earlier = memories[n]
            known = [state.detach() for state in [*earlier, *x]]
            memories[n] = known[max(0, len(known) - length) :]
            x = layer(x, earlier)
        outputs += x
    return outputs
