"""SRformer (Long et al. 2023) as loops: Algorithm 1 for one head."""

import torch
from torch import Tensor

from fairseq_recur.ops.naive.attention import softmax_sum


def outer_products(keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """K^T V (D, D), key by key."""
    total = keys[0].new_zeros(keys[0].numel(), values[0].numel())
    for key, value in zip(keys, values):
        total = total + torch.outer(key, value)
    return total


def raf(
    x: Tensor, memory: Tensor, leak: Tensor, threshold: Tensor, surrogate: bool
) -> tuple[Tensor, Tensor]:
    """A recurrent accumulate-and-fire neuron on one matrix (Long et al. 2023, appendix A.2)."""
    memory = leak * memory + x
    y = memory / threshold - 1.0
    spikes = torch.zeros_like(y)
    for row in range(y.size(0)):
        for column in range(y.size(1)):
            potential = y[row, column]
            if potential > 0:
                spikes[row, column] = 1.0
            if surrogate and abs(float(potential)) < 1:
                slope = 0.3 * (1 - abs(float(potential)))
                spikes[row, column] = spikes[row, column] + slope * (potential - potential.detach())
    return torch.clamp(y, min=0), memory - threshold * spikes


def key_norm(keys: list[Tensor], kind: str) -> Tensor:
    """norm(K) of Long et al. 2023, eq. 13: per channel over the positions, or over everything.

    "sum" is L1 per channel; the others are L2.
    """
    if kind == "none":
        return torch.ones_like(keys[0])
    if kind == "sum":
        total = torch.zeros_like(keys[0])
        for key in keys:
            total = total + torch.abs(key)
        return torch.clamp(total, min=1e-6)
    squares = torch.zeros_like(keys[0])
    for key in keys:
        squares = squares + key * key
    if kind == "frobenius":
        squares = squares.sum().expand_as(squares)
    return torch.sqrt(torch.clamp(squares, min=1e-12))


def squared_relu(x: Tensor) -> Tensor:
    """phi of `ops.unit_scale`, channel by channel."""
    return torch.stack([c * c if c > 0 else c * 0 for c in x])


def srformer_head(
    queries: list[Tensor],
    keys: list[Tensor],
    values: list[Tensor],
    size: int,
    target_length: int,
    weight: Tensor,
    leak: Tensor,
    threshold: Tensor,
    norm: str = "key",
    clamp: float = 0.0,
    current: bool = False,
    neuron: bool = True,
    surrogate: bool = False,
    unit: bool = False,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Algorithm 1 of Long et al. 2023 for one head: O_S and O_R, (T, D) each.

    The queries are scaled. With *unit*, which is `ops.unit_scale`, O_R scales them itself: it is
    right in a call of its own, with queries that are not. *current* is ablation IV of Table 3, and
    *neuron* off is ablation III. *bias* (D,) is that of the neuron's linear layer.
    """

    def limited(product: Tensor) -> Tensor:
        return product.clamp(-clamp, clamp) if clamp else product

    segments = -(-len(keys) // size)
    memory = torch.zeros_like(weight)
    phi = [squared_relu(key) for key in keys] if unit else keys
    divisor = key_norm(phi, norm)
    if unit:
        phi, divisor = [key / divisor for key in phi], torch.ones_like(divisor)
    whole, fired = limited(outer_products(phi, values)), memory
    previous, local, recurrent = -1, [], []
    for t, query in enumerate(queries):
        i = min(t * segments // target_length, segments - 1)
        own = slice(i * size, (i + 1) * size)
        own_keys, own_values = keys[own], values[own]
        local.append(softmax_sum([query.dot(key) for key in own_keys], own_values))
        if i != previous:
            part = limited(outer_products(phi[own], own_values))
            fired = part if current else whole - part
            if neuron:
                x = fired @ weight.T
                x = x if bias is None else x + bias
                x = (1 - leak) * x if unit else x
                fired, memory = raf(x, memory, leak, threshold, surrogate)
                fired = threshold * fired if unit else fired
            previous = i
        asked = squared_relu(query) / len(query) ** 0.5 if unit else query
        recurrent.append((asked @ fired) / divisor)
    return torch.stack(local), torch.stack(recurrent)
