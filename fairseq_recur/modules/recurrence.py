"""What a recurrent network must offer to be a layer of the recurrence encoder."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fairseq_recur.modules.observed import Observed
from fairseq_recur.ops.padding import masked_mean
from fairseq_recur.ops.precision import at_least_float32


@dataclass(frozen=True)
class RecurrenceOptions:
    """The options of the recurrent networks.

    Attributes:
        steps: R, of networks whose number of steps need not be the length of their input; -1
            for that length
        attention: "additive" or "multihead", of networks that read by attention
        heads: H of the multi-head attention
        attention_dropout: probability of dropping an attention weight
    """

    steps: int
    attention: str
    heads: int
    attention_dropout: float


SATURATED = 0.95
"""Absolute value of a state beyond which little of a gradient passes its tanh."""


class Recurrence(Observed, nn.Module):
    """REC(H) of Hao et al. 2019, eq. 7: (B, L, I) to (B, L', 2C), a state each way.

    Args:
        input_dim: I, C in the first layer and 2C above
        state_dim: C, the width of one direction
        options: of all recurrent networks; each reads what concerns it
    """

    keeps_length: bool
    """Whether L' = L, so that the padding of the input is the padding of the output."""

    def __init__(self, input_dim: int, state_dim: int, options: RecurrenceOptions) -> None:
        super().__init__()
        self.input_dim, self.state_dim = input_dim, state_dim

    def initial_states(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """h_0, the mean of the real tokens: (2, B, C).

        Both directions start from the whole mean in the first layer, where I = C; above,
        where the input is the two directions side by side, each starts from its own half.
        """
        mean = masked_mean(x, padding_mask)
        if self.input_dim == self.state_dim:
            return torch.stack([mean, mean])
        return torch.stack(mean.chunk(2, dim=-1))

    def forward(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """(B, L, I) and (B, L) bool or None to (B, L', 2C)."""
        raise NotImplementedError(type(self).__name__)


class GatedRecurrence(Recurrence):
    """A `Recurrence` of gated recurrent units: states between h_0 and values of a tanh."""

    means = ("saturation",)

    def recurrent_weights(self) -> Iterable[Tensor]:
        """The matrices that the states are multiplied with: (..., 3C, C) each."""
        raise NotImplementedError(type(self).__name__)

    def monitored(self) -> dict[str, Tensor]:
        """The `recurrent_norm` of both directions."""
        return {"recurrent_norm": recurrent_norm(self.recurrent_weights())}

    def show(self, states: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Observe the share of saturated *states* (B, L', 2C), which are returned."""
        if self.watched:
            padding = None
            if self.keeps_length and padding_mask is not None:
                padding = padding_mask.unsqueeze(2)
            self.observe("saturation", states.detach().abs() > SATURATED, padding)
        return states


def recurrent_norm(weights: Iterable[Tensor]) -> Tensor:
    """Root mean square of the singular values of the square blocks of *weights*, a scalar.

    One for orthogonal blocks, and about one for Xavier's initial values, whatever the width.

    Args:
        weights: (..., n C, C) each, of n blocks C x C one above the other
    """
    rows = [at_least_float32(w).flatten(0, -2) for w in weights]
    return torch.cat(rows).square().sum(dim=1).mean().sqrt()


def init_gru_(weights: tuple[Tensor, ...], biases: tuple[Tensor, ...]) -> None:
    """Xavier-uniform for each gate's matrix, zero for biases, in place.

    Args:
        weights: each (..., 3C, I), the gates one above the other
        biases: any shapes
    """
    for weight in weights:
        for matrix in weight.detach().view(-1, *weight.shape[-2:]):
            for gate in matrix.chunk(3):
                nn.init.xavier_uniform_(gate)
    for bias in biases:
        nn.init.zeros_(bias)
