"""The classifiers that are trained on representations, and how two representations become one."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

COMBINATIONS = ("gate", "concat", "transformer", "recurrence")


def used_combination(wanted: str, has_recurrence: bool) -> str:
    """Say how a model's representations are combined: one encoder leaves nothing to combine.

    Args:
        wanted: of COMBINATIONS; not "recurrence" where there is none
        has_recurrence: whether the model has a recurrence encoder
    """
    return wanted if has_recurrence else "transformer"


class Gate(nn.Module):
    """g = sigma(W [e; r] + b), g * e + (1 - g) * r' (Hao et al. 2019, "Linguistic Analyses").

    The paper does not say how r, twice as wide as e, comes to e's width. Here r' = V r with a
    learned V, and r' = r where the widths are the same. g has a value for each channel.

    Args:
        width: of e, C
        recurrence_width: of r, 2C in this plug-in
    """

    def __init__(self, width: int, recurrence_width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width + recurrence_width, width)
        self.width = width
        same = width == recurrence_width
        self.project = nn.Identity() if same else nn.Linear(recurrence_width, width, bias=False)

    def forward(self, e: Tensor, r: Tensor) -> Tensor:
        """(B, C) and (B, 2C) to (B, C)."""
        g = torch.sigmoid(self.gate(torch.cat([e, r], dim=-1)))
        return g * e + (1 - g) * self.project(r)


class Concatenation(nn.Module):
    """[e; r]."""

    def __init__(self, width: int, recurrence_width: int) -> None:
        super().__init__()
        self.width = width + recurrence_width

    def forward(self, e: Tensor, r: Tensor) -> Tensor:
        """(B, C) and (B, 2C) to (B, 3C)."""
        return torch.cat([e, r], dim=-1)


class EncoderOnly(nn.Module):
    """e."""

    def __init__(self, width: int, recurrence_width: int = 0) -> None:
        super().__init__()
        self.width = width

    def forward(self, e: Tensor, *r: Tensor) -> Tensor:
        """(B, C), and r or nothing, to (B, C)."""
        return e


class RecurrenceOnly(nn.Module):
    """r."""

    def __init__(self, width: int, recurrence_width: int) -> None:
        super().__init__()
        self.width = recurrence_width

    def forward(self, e: Tensor, r: Tensor) -> Tensor:
        """(B, C) and (B, 2C) to (B, 2C)."""
        return r


COMBINE: dict[str, Callable[..., nn.Module]] = {
    "gate": Gate,
    "concat": Concatenation,
    "transformer": EncoderOnly,
    "recurrence": RecurrenceOnly,
}


class Classifier(nn.Module):
    """SentEval's multi-layer perceptron over combined representations, all trained together.

    Args:
        combine: of COMBINATIONS
        widths: of the representations, (C,) or (C, 2C)
        classes: number of labels
        hidden: units of the hidden layer; 0 for none, which is logistic regression
        dropout: before the hidden layer's sigmoid, where SentEval has it
    """

    def __init__(
        self, combine: str, widths: Sequence[int], classes: int, hidden: int, dropout: float
    ) -> None:
        super().__init__()
        self.combine = COMBINE[combine](*widths)
        if hidden:
            self.head = nn.Sequential(
                nn.Linear(self.combine.width, hidden),
                nn.Dropout(dropout),
                nn.Sigmoid(),
                nn.Linear(hidden, classes),
            )
        else:
            self.head = nn.Sequential(nn.Linear(self.combine.width, classes))

    def forward(self, *representations: Tensor) -> Tensor:
        """(B, C), or (B, C) and (B, 2C), to logits (B, classes)."""
        return self.head(self.combine(*representations))


class BagOfWords(nn.Module):
    """Logistic regression on the number of times that each word is in a sentence.

    Args:
        words: size of the vocabulary with padding, which is number 0
        classes: number of labels
    """

    def __init__(self, words: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.EmbeddingBag(words, classes, mode="sum", padding_idx=0)
        self.bias = nn.Parameter(torch.zeros(classes))
        nn.init.zeros_(self.weight.weight)

    def forward(self, words: Tensor) -> Tensor:
        """(B, S) int64 to logits (B, classes)."""
        return self.weight(words) + self.bias
