"""The label-smoothed loss of one sentence, token by token."""

import torch
from torch import Tensor


def label_smoothed_loss(logits: list[Tensor], tokens: list[int], epsilon: float) -> Tensor:
    """Cross-entropy with a smoothed target (Szegedy et al. 2016, section 7), summed over tokens.

    As in fairseq, the target has 1 - epsilon, and each of the V - 1 other words an equal share of
    epsilon.
    """
    total = logits[0].new_zeros(())
    for scores, token in zip(logits, tokens):
        shifted = scores - scores.detach().max()
        log_normalizer = torch.log(torch.exp(shifted).sum())
        for word, score in enumerate(shifted):
            share = 1 - epsilon if word == token else epsilon / (len(shifted) - 1)
            total = total - share * (score - log_normalizer)
    return total
