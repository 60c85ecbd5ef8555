"""The temporal latent bottleneck (Didolkar et al. 2022) as loops over the chunks of one text."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_recur.ops.naive.attention import sinusoid
from fairseq_recur.ops.naive.block_recurrent import BlockAttention, Network, rms_norm


def latent_code(count: int, like: Tensor) -> list[Tensor]:
    """The sinusoids of the numbers below *count*, of the width of *like* (C,): count of (C,).

    A text begins with these as its state, and the positions of each chunk have them.
    """
    return [like.new_tensor(sinusoid(number, like.numel())) for number in range(count)]


class LatentBlock(NamedTuple):
    """An attention to another sequence and a network, each after a norm and with a residual.

    Attributes:
        attention: norms its queries itself
        norm: (C,) weight of the network's norm
        network: position-wise
    """

    attention: BlockAttention
    norm: Tensor
    network: Network

    def __call__(self, x: list[Tensor], source: list[Tensor]) -> list[Tensor]:
        """What *x* becomes when each of its vectors has read *source*."""
        outputs = []
        for vector, read in zip(x, self.attention(x, source)):
            vector = vector + read
            outputs.append(vector + self.network(rms_norm(vector, self.norm)))
        return outputs


def latent_chunks(
    tokens: list[Tensor],
    state: list[Tensor],
    size: int,
    layers: list[Callable[[list[Tensor]], list[Tensor]]],
    every: int,
    readers: list[LatentBlock],
    writer: LatentBlock,
    normed: bool,
) -> tuple[list[Tensor], list[Tensor]]:
    """A segment in chunks (Didolkar et al. 2022, section 2.1).

    The perceptual module is the layers of a chunk, which see nothing but the chunk; after every
    few of them a block reads the state. After the last layer the state reads the chunk. So a
    chunk sees earlier ones through the state alone.

    Args:
        tokens: T of (C,), the real ones: padding changes nothing, also not the state
        state: N of (C,) after the segment before, or the `latent_code` of a new text
        size: positions of a chunk; the last one may be shorter
        layers: of the host, from the bottom
        every: layers before each reader
        readers: blocks in which the chunk reads the state
        writer: the block in which the state reads the chunk
        normed: whether each vector of the state is then divided by its root mean square

    Returns:
        T of (C,), and the state after the last chunk
    """
    outputs: list[Tensor] = []
    for first in range(0, len(tokens), size):
        chunk = tokens[first : first + size]
        chunk = [x + code for x, code in zip(chunk, latent_code(len(chunk), chunk[0]))]
        unread = list(readers)
        for number, layer in enumerate(layers, start=1):
            chunk = layer(chunk)
            if number % every == 0:
                chunk = unread.pop(0)(chunk, state)
        state = writer(state, chunk)
        if normed:
            state = [rms_norm(vector, torch.ones_like(vector)) for vector in state]
        outputs += chunk
    return outputs, state
