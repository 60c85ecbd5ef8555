"""The probing classifiers, and the ways to combine the representations of two encoders."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

COMBINATIONS = ("gate", "concat", "transformer", "recurrence")


class Gate(nn.Module):
    """g = sigma(W [e; r] + b), g * e + (1 - g) * r' (Hao et al. 2019, "Linguistic Analyses").

    The paper does not say how r, which is twice as wide as e, is reduced to the width of e. Here
    r' = V r with a learned V, and r' = r if the widths are equal. g has one value per channel.

    Args:
        width: C, the width of e
        recurrence_width: the width of r, 2C or C (``--recurrence-width``)
    """

    def __init__(self, width: int, recurrence_width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width + recurrence_width, width)
        self.width = width
        same = width == recurrence_width
        self.project = nn.Identity() if same else nn.Linear(recurrence_width, width, bias=False)

    def forward(self, e: Tensor, r: Tensor) -> Tensor:
        """Combine e (B, C) and r (B, 2C or C) into (B, C)."""
        g = torch.sigmoid(self.gate(torch.cat([e, r], dim=-1)))
        return g * e + (1 - g) * self.project(r)


class Concatenation(nn.Module):
    """[e; r], or one of the two.

    Args:
        widths: of the representations, (C,), (C, 2C) or (C, C)
        selected: which of them to concatenate, by index
    """

    def __init__(self, widths: Sequence[int], selected: Sequence[int]) -> None:
        super().__init__()
        self.selected = selected
        self.width = sum(widths[i] for i in selected)

    def forward(self, *representations: Tensor) -> Tensor:
        """Concatenate the selected (B, width) tensors along the channels."""
        return torch.cat([representations[i] for i in self.selected], dim=-1)


COMBINE: dict[str, Callable[..., Gate | Concatenation]] = {
    "gate": Gate,
    "concat": lambda *widths: Concatenation(widths, (0, 1)),
    "transformer": lambda *widths: Concatenation(widths, (0,)),
    "recurrence": lambda *widths: Concatenation(widths, (1,)),
}


class Classifier(nn.Module):
    """SentEval's multi-layer perceptron on combined representations, trained together.

    Args:
        combine: one of COMBINATIONS
        widths: of the representations, (C,), (C, 2C) or (C, C)
        classes: number of labels
        hidden: units of the hidden layer; 0 for logistic regression
        dropout: applied before the sigmoid of the hidden layer, as in SentEval
    """

    def __init__(
        self, combine: str, widths: Sequence[int], classes: int, hidden: int, dropout: float
    ) -> None:
        super().__init__()
        self.combine: Gate | Concatenation = COMBINE[combine](*widths)
        layers: list[nn.Module] = []
        if hidden:
            layers = [nn.Linear(self.combine.width, hidden), nn.Dropout(dropout), nn.Sigmoid()]
        self.head = nn.Sequential(*layers, nn.Linear(hidden or self.combine.width, classes))

    def forward(self, *representations: Tensor) -> Tensor:
        """Map e (B, C), or e and r (B, 2C or C), to logits (B, classes)."""
        return self.head(self.combine(*representations))


class BagOfWords(nn.Module):
    """Logistic regression on the word counts of a sentence.

    Args:
        words: size of the vocabulary, including padding, which is word 0
        classes: number of labels
    """

    def __init__(self, words: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.EmbeddingBag(words, classes, mode="sum", padding_idx=0)
        self.bias = nn.Parameter(torch.zeros(classes))
        nn.init.zeros_(self.weight.weight)

    def forward(self, words: Tensor) -> Tensor:
        """Map word numbers (B, S), int64, to logits (B, classes)."""
        return self.weight(words) + self.bias
