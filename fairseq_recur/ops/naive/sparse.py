"""ProbSparse and LogSparse attention as loops over the positions of one sentence."""

import math

import torch
from torch import Tensor

from fairseq_recur.ops.naive.attention import dot_product_attention


def prob_sparse_head(
    queries: list[Tensor],
    keys: list[Tensor],
    values: list[Tensor],
    sampled: list[list[int]],
    masked: bool,
    matrix: Tensor | None = None,
    gate: Tensor | None = None,
) -> Tensor:
    """ProbSparse of one head, given the keys sampled for each query (Zhou et al. 2021): (T, D).

    As many queries are chosen as there are samples for each. With RSA, these read the mixture
    (1 - g) A V + g P V with the matrix P (T, T); the others do not (Huang et al. 2023).
    """
    length = len(queries)
    measures = []
    for query, chosen in zip(queries, sampled):
        scores = [float(query.dot(keys[j])) for j in chosen]
        measures.append(max(scores) - sum(scores) / length)
    best = sorted(range(length), key=lambda i: -measures[i])[: len(sampled[0])]
    outputs = []
    for i, query in enumerate(queries):
        seen = i + 1 if masked else length
        if i in best:
            attention = dot_product_attention(query, keys[:seen], values[:seen])
            if matrix is not None and gate is not None:
                recurrent = (matrix[i, :, None] * torch.stack(values)).sum(0)
                attention = (1 - gate) * attention + gate * recurrent
            outputs.append(attention)
        elif masked:
            outputs.append(torch.stack(values[:seen]).sum(0))
        else:
            outputs.append(torch.stack(values).mean(0))
    return torch.stack(outputs)


def log_sparse_head(
    queries: list[Tensor], keys: list[Tensor], values: list[Tensor], masked: bool
) -> Tensor:
    """LogSparse of one head (Li et al. 2019, section 4.2): (T, D).

    The last query stands at the last key.
    """
    outputs = []
    for t, query in enumerate(queries):
        position = len(keys) - len(queries) + t
        seen = [position]
        for step in (2**k for k in range(math.ceil(math.log2(len(keys))) + 1)):
            seen += [position - step, position + step]
        seen = [j for j in seen if 0 <= j < len(keys) and not (masked and j > position)]
        outputs.append(
            dot_product_attention(query, [keys[j] for j in seen], [values[j] for j in seen])
        )
    return torch.stack(outputs)
