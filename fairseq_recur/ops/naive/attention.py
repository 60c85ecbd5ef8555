"""Attention maps as loops over the positions of one sentence."""

import math

import torch
from torch import Tensor


def softmax_sum(energies: list[Tensor], values: list[Tensor]) -> Tensor:
    """sum_j softmax(e)_j v_j, with the softmax written out."""
    stacked = torch.stack(energies)
    exponentials = torch.exp(stacked - stacked.detach().max())
    weights = exponentials / exponentials.sum()
    return (weights.unsqueeze(1) * torch.stack(values)).sum(0)


def dot_product_attention(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Scaled dot-product attention of one query of one head over a sentence."""
    scaled = query / query.numel() ** 0.5
    return softmax_sum([scaled.dot(key) for key in keys], values)


def relative_head(
    queries: list[Tensor],
    keys: list[Tensor],
    values: list[Tensor],
    key_table: Tensor,
    value_table: Tensor,
    masked: bool,
) -> Tensor:
    """Attention with relative positions of one head (Shaw et al. 2018, eqs. 3 and 4): (T, D).

    Row clip + r of a table (2 clip + 1, D) belongs to a key r positions after the query. The last
    query stands at the last key.
    """
    clip = key_table.size(0) // 2
    outputs = []
    for t, query in enumerate(queries):
        position = len(keys) - len(queries) + t
        visible = range(position + 1 if masked else len(keys))
        rows = [clip + max(-clip, min(clip, j - position)) for j in visible]
        scaled = query / query.numel() ** 0.5
        energies = [scaled.dot(keys[j] + key_table[row]) for j, row in zip(visible, rows)]
        read = [values[j] + value_table[row] for j, row in zip(visible, rows)]
        outputs.append(softmax_sum(energies, read))
    return torch.stack(outputs)


def sinusoid(lag: int, width: int) -> list[float]:
    """R of Dai et al. 2019 at one lag: the sines of all wavelengths, then their cosines."""
    angles = [lag / 10000 ** (k / width) for k in range(0, width, 2)]
    return [math.sin(a) for a in angles] + [math.cos(a) for a in angles[: width // 2]]


def xl_head(
    queries: list[Tensor],
    keys: list[Tensor],
    values: list[Tensor],
    projection: Tensor,
    content_bias: Tensor,
    position_bias: Tensor,
    masked: bool,
    clamp: int = 0,
    reach: int = 0,
) -> Tensor:
    """Transformer-XL's attention of one head (Dai et al. 2019, section 3.3): (T, D).

    (q + u) k^T + (q + v) (W_r R)^T with W_r = *projection* (D, C), u = *content_bias* and
    v = *position_bias*, (D,) each. The last query stands at the last key. With *clamp* longer lags
    count as this one; with *reach* a query sees as many keys as it says, its own included.
    """
    lags = range(len(keys) - 1, -len(keys), -1)
    position_keys = {
        lag: projection.mv(
            projection.new_tensor(
                sinusoid(max(-clamp, min(clamp, lag)) if clamp else lag, projection.size(1))
            )
        )
        for lag in lags
    }
    outputs = []
    for t, query in enumerate(queries):
        position = len(keys) - len(queries) + t
        first = max(0, position - reach + 1) if reach else 0
        visible = range(first, position + 1 if masked else len(keys))
        with_content, with_position, energies = query + content_bias, query + position_bias, []
        for j in visible:
            r = position_keys[position - j]
            energy = with_content.dot(keys[j]) + with_position.dot(r)
            energies.append(energy / query.numel() ** 0.5)
        outputs.append(softmax_sum(energies, [values[j] for j in visible]))
    return torch.stack(outputs)


def directional_head(
    queries: list[Tensor], keys: list[Tensor], values: list[Tensor], backward: bool
) -> Tensor:
    """A head that sees its own and later positions, or earlier ones (Shen et al. 2018): (T, D)."""
    outputs = []
    for t, query in enumerate(queries):
        visible = slice(t, None) if backward else slice(t + 1)
        outputs.append(dot_product_attention(query, keys[visible], values[visible]))
    return torch.stack(outputs)


def relative_bucket(lag: int, buckets: int, max_distance: int, bidirectional: bool) -> int:
    """T5's bucket of a key *lag* positions after the query (Raffel et al. 2020, section 2.1).

    Bucket e + k holds the distances n with e (max / e)^(k / L) <= n, for k < L = buckets - e.
    """
    first = 0
    if bidirectional:
        buckets //= 2
        first = buckets if lag > 0 else 0
    elif lag > 0:
        lag = 0
    distance, exact = abs(lag), buckets // 2
    if distance < exact:
        return first + distance
    k, steps = 0, buckets - exact
    while k + 1 < steps and distance**steps * exact ** (k + 1) >= exact**steps * max_distance ** (
        k + 1
    ):
        k += 1
    return first + exact + k
