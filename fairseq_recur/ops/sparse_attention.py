"""Attention over few pairs of positions: Informer's ProbSparse, and LogSparse.

ProbSparse (Zhou et al. 2021, section 3.1, and their code) attends from the u queries whose scores
are farthest from uniform, as measured on sampled keys; other queries get the mean of the values,
in a decoder their cumulative sum. LogSparse (Li et al. 2019, section 4.2) attends to the own
position and to those at distances 1, 2, 4, ....
"""

import math
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_recur.ops.mixture import mixed_map
from fairseq_recur.ops.padding import restore_order
from fairseq_recur.ops.precision import at_least_float32, no_autocast

LONGEST = 2**16
"""Beyond this length the number of sampled keys and of chosen queries no longer grows."""


def most(length: int, factor: int) -> int:
    """u = factor ceil(ln n) for a sentence of n positions: at least 1 (0 of none), at most n."""
    return min(length, factor * max(1, math.ceil(math.log(min(max(length, 1), LONGEST)))))


@cache
def all_most(length: int, factor: int) -> list[int]:
    """`most` of 0 ... *length* positions: the same in all layers and batches of a length."""
    return [most(n, factor) for n in range(length + 1)]


def uniform_draws(length: int, width: int, seed: int | None) -> Tensor:
    """Numbers in [0, 1) by a generator of their own: (length, width) float32 on the CPU.

    Without a *seed*, torch's generator draws it: one number for any size, so that what is drawn
    later does not depend on how long a batch is.
    """
    seed = int(torch.randint(2**62, ())) if seed is None else seed
    return torch.rand(length, width, generator=torch.Generator().manual_seed(seed))


# A compiled graph cannot have a generator of its own, but can have an operation that has. The tag
# says that two calls do not give the same numbers.
LIBRARY = torch.library.Library("fairseq_recur", "DEF")
LIBRARY.define(
    "uniform_draws(SymInt length, SymInt width, int? seed) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)
LIBRARY.impl("uniform_draws", uniform_draws, "CompositeExplicitAutograd")
torch.library.register_fake(
    "fairseq_recur::uniform_draws", lambda length, width, seed: torch.empty(length, width)
)


def sampled_keys(
    seed: int | None, counts: Tensor, length: int, order: Tensor | None, factor: int
) -> tuple[Tensor, Tensor]:
    """The keys on which the queries are measured, u for each position, drawn with replacement.

    The draws of a position depend on the seed, on its place among the real tokens and on their
    number only. So a sentence has the same ones in a batch, padded on either side, and alone.

    Args:
        seed: of the draws; None: drawn itself, by torch's generator
        counts: (B,) int64, real tokens of each sentence
        length: L
        order: (B, L) int64, the real positions, then the padding; None if nothing is padded
        factor: of u

    Returns:
        positions (B, L, U) int64, whose first u_b belong to sentence b, and u (B,) int64
    """
    widest, u = factor * math.ceil(math.log(LONGEST)), most(length, factor)
    draws = torch.ops.fairseq_recur.uniform_draws(length, widest, seed)[:, :u]
    sizes = torch.tensor(all_most(length, factor))
    # Without waiting for a GPU to finish what it was given before.
    draws, sizes = (x.to(counts.device, non_blocking=True) for x in (draws, sizes))
    chosen = sizes[counts]
    real = (draws * counts[:, None, None]).long()
    if order is None:
        return real, chosen
    keys = order.gather(1, real.flatten(1)).view_as(real)
    return restore_order(keys, order.unsqueeze(2), 1), chosen


def sparsity(query: Tensor, key: Tensor, sampled: Tensor, chosen: Tensor, counts: Tensor) -> Tensor:
    """M(q) = max_s q k_s - sum_s q k_s / n over the sampled keys (Zhou et al. 2021, eq. 4).

    The sum is divided by the length n, as in their code, and not by the number of samples. The
    factor 1 / sqrt(D) of eq. 4 is left out: it does not change which queries are chosen.

    Args:
        query, key: (B, H, L, D)
        sampled: (B, L, U) positions
        chosen: (B,) how many of them count
        counts: (B,) n

    Returns:
        (B, H, L) in float32 or more
    """
    with torch.no_grad(), no_autocast(query):
        scores = torch.matmul(at_least_float32(query), at_least_float32(key).transpose(-1, -2))
        scores = scores.gather(3, sampled.unsqueeze(1).expand(-1, query.size(1), -1, -1))
        extra = torch.arange(sampled.size(2), device=query.device) >= chosen.unsqueeze(1)
        extra = extra[:, None, None, :]
        largest = scores.masked_fill(extra, -math.inf).amax(dim=3)
        return largest - scores.masked_fill(extra, 0.0).sum(dim=3) / counts[:, None, None]


def attending_rows(
    query: Tensor,
    key: Tensor,
    sampled: Tensor,
    chosen: Tensor,
    counts: Tensor,
    padding: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The queries that attend: in each sentence and head the u with the largest M(q).

    Args:
        query, key: (B, H, L, D), not scaled
        sampled, chosen: from `sampled_keys`
        counts: (B,) int64, real tokens of each sentence
        padding: (B, L) bool, True at padding, or None

    Returns:
        rows (B, H, U) int64, and (B, 1, U) bool, whether a row counts: a shorter sentence chooses
        fewer than there is room for
    """
    measure = sparsity(query, key, sampled, chosen, counts)
    if padding is not None:
        measure = measure.masked_fill(padding.unsqueeze(1), -math.inf)
    rows = measure.topk(min(sampled.size(2), query.size(2)), dim=2).indices
    room = torch.arange(rows.size(2), device=query.device) < chosen.unsqueeze(1)
    return rows, room.unsqueeze(1)


def prob_sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: Tensor,
    room: Tensor,
    counts: Tensor,
    padding: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    scale: float | None = None,
    need_weights: bool = False,
    matrix: Tensor | None = None,
    gate: Tensor | None = None,
    drop_mixed: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """softmax(Q K^T / sqrt(D) + mask) V of the chosen queries, else mean(V) or cumsum(V).

    With a *matrix*, the chosen queries read ((1 - g) softmax(...) + g P) V (Huang et al. 2023).

    Args:
        query, key: (B, H, L, D), not scaled
        value: (B, H, L, D), zero at padding
        rows, room: from `attending_rows`
        counts: (B,) int64, real tokens of each sentence
        padding: (B, L) bool, True at padding, or None
        mask: additive, finite, broadcastable to (B, H, L, L), which hides padding and, if
            *causal*, later keys; or None. Queries are chosen without it
        causal: whether the other rows are cumulative sums instead of means
        dropout: probability of dropping a weight of a chosen query (0 outside training)
        scale: factor of the scores in place of 1 / sqrt(D), or None
        need_weights: whether to return the map
        matrix: P's rows of the chosen queries, (B, H, U, L), or None
        gate: g, (H, 1, 1), 0 for heads without a matrix; needed with *matrix*
        drop_mixed: drop weights of the mixed map instead of the softmax

    Returns:
        (B, H, L, D) in the dtype of *value*, and the map (B, H, L, L) without dropout of its own,
        or None
    """
    batch, heads, length, width = query.shape
    with no_autocast(value):
        exact = at_least_float32(value)
        few = at_least_float32(query).gather(2, rows.unsqueeze(3).expand(-1, -1, -1, width))
        few = few * (width**-0.5 if scale is None else scale)
        scores = torch.matmul(few, at_least_float32(key).transpose(-1, -2))
        each_row = rows.unsqueeze(3).expand_as(scores)
        if mask is not None:
            scores = scores + mask.expand(batch, heads, length, length).gather(2, each_row)
        weights = torch.softmax(scores, dim=-1)
        if matrix is None:
            read = torch.matmul(F.dropout(weights, dropout), exact)
        else:
            assert gate is not None
            read, weights = mixed_map(weights, exact, matrix, gate, dropout, drop_mixed)
        room, place = room.unsqueeze(3), rows.unsqueeze(3).expand_as(read)
        rest = uniform_read(exact, counts, causal)
        out = rest.scatter(2, place, torch.where(room, read, rest.gather(2, place)))
        if not need_weights:
            return out.to(value.dtype), None
        uniform = uniform_map(weights, counts, padding, causal)
        whole = torch.where(room, weights, uniform.gather(2, each_row))
        return out.to(value.dtype), uniform.scatter(2, each_row, whole)


def uniform_read(value: Tensor, counts: Tensor, causal: bool) -> Tensor:
    """What the queries that do not attend read: mean(V), in a decoder cumsum(V).

    Args:
        value: (B, H, L, D), zero at padding
        counts: (B,) real tokens of each sentence
        causal: whether it is the cumulative sum

    Returns:
        (B, H, L, D)
    """
    if causal:
        return value.cumsum(dim=2)
    mean = value.sum(dim=2, keepdim=True) / counts[:, None, None, None].clamp(min=1)
    return mean.expand_as(value)


def uniform_map(weights: Tensor, counts: Tensor, padding: Tensor | None, causal: bool) -> Tensor:
    """The map of the queries that do not attend: 1 / n of each key, or 1 of each earlier one.

    Args:
        weights: (B, H, U, L), of the result's dtype and device
        counts: (B,) n
        padding, causal: as in `prob_sparse_attention`

    Returns:
        (B, H, L, L)
    """
    batch, heads, _, length = weights.shape
    if causal:
        uniform = torch.ones_like(weights[:, :, :1]).expand(-1, -1, length, -1).tril()
    else:
        share = (1 / counts.clamp(min=1))[:, None, None, None]
        uniform = share.expand(batch, heads, length, length).to(weights.dtype)
    if padding is not None:
        uniform = uniform.masked_fill(padding[:, None, None, :], 0.0)
    return uniform


def matrix_rows(matrix: Tensor, rows: Tensor) -> Tensor:
    """The rows of P that each sentence has chosen: (H, L, S) and (B, H, U) to (B, H, U, S).

    An embedding: its gradient adds up the rows that were chosen more than once.
    """
    heads, length, keys = matrix.shape
    first = torch.arange(heads, device=rows.device).view(-1, 1) * length
    return F.embedding(rows + first, matrix.reshape(-1, keys))


def log_sparse_mask(queries: int, keys: int, mask: Tensor | None, like: Tensor) -> Tensor:
    """The mask of all keys but the own position and those 1, 2, 4, ... away (Li et al. 2019).

    It is added to the scores: *mask*, and the lowest number at all other distances. In a decoder
    *mask* hides the later keys; without it a query sees both sides.

    Args:
        queries: T; the last query stands at the last key
        keys: S
        mask: additive, finite, broadcastable to (B, H, T, S), or None
        like: a tensor of the dtype and device of the result

    Returns:
        finite, broadcastable to (B, H, T, S)
    """
    positions = torch.arange(keys, device=like.device)
    distance = (positions[keys - queries :].unsqueeze(1) - positions).abs()
    hidden = distance & (distance - 1) != 0  # neither 0 nor a power of two
    lowest = torch.finfo(like.dtype).min
    whole = like.new_zeros(1, 1)
    if mask is not None:
        wider = torch.promote_types(mask.dtype, like.dtype)
        whole = mask.to(wider).clamp(min=lowest).to(like.dtype)
    return whole.masked_fill(hidden, lowest)
