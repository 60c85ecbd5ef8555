"""What a recurrent network must offer to be a layer of the recurrence encoder."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from fairseq.dataclass import ChoiceEnum
from torch import Tensor, nn

from fairseq_recur.modules.context import Padding
from fairseq_recur.modules.options import NoOptions, option
from fairseq_recur.modules.part import MonitoredModule
from fairseq_recur.ops.padding import masked_mean
from fairseq_recur.ops.precision import at_least_float32

RECURRENT_NORM = {"recurrent_norm": "recurrent weights, RMS singular value"}

SATURATED = 0.95
"""Absolute value of a state beyond which little of a gradient passes its tanh."""

GATES = {"gru": 3, "lstm": 4}
"""For each recurrent cell the number of its matrices, the candidate's included."""


class Recurrence(MonitoredModule, nn.Module):
    """REC(H) of Hao et al. 2019, eq. 7: (B, L, I) to (B, L', 2C), a state per direction.

    Args:
        input_dim: I, the model's width in the first layer and 2C above
        state_dim: C, the width of one direction
        cfg: the host's configuration, with the options of the part
    """

    Options: ClassVar[type] = NoOptions
    """The options of this part: a dataclass, see `fairseq_recur.modules.options`."""

    keeps_length: bool
    """Whether L' = L, so that the padding of the input is the padding of the output."""

    def __init__(self, input_dim: int, state_dim: int, cfg: Any) -> None:
        super().__init__()
        self.input_dim, self.state_dim = input_dim, state_dim

    @classmethod
    def problems(cls, cfg: Any, side: str) -> Iterator[str]:
        """Problems with the combination of this part's options, one message each."""
        yield from ()

    @classmethod
    def output_per_token(cls, cfg: Any) -> bool:
        """`keeps_length` with these options."""
        return cls.keeps_length

    def initial_states(self, x: Tensor, padding: Padding | None) -> Tensor:
        """h_0, the mean of the real tokens: (2, B, C).

        Both directions start from the whole mean in the first layer, where I = C. Above, where
        the input is the two directions concatenated, each starts from its own half.
        """
        mean = masked_mean(x, None if padding is None else padding.mask)
        if self.input_dim == self.state_dim:
            return torch.stack([mean, mean])
        return torch.stack(mean.chunk(2, dim=-1))

    def forward(self, x: Tensor, padding: Padding | None) -> Tensor:
        """(B, L, I) and its padding to (B, L', 2C)."""
        raise NotImplementedError(type(self).__name__)


class GatedRecurrence(Recurrence):
    """A `Recurrence` of gated cells: its states are a GRU's, or an LSTM's without its memory.

    The cell is f of Hao et al. 2019, eqs. 10-12.
    """

    @dataclass
    class Options:
        """The cell."""

        recurrence_cell: ChoiceEnum(list(GATES)) = option(  # type: ignore[valid-type]
            "gru", "recurrent cell f of birnn and biarn"
        )

    quantities = {**RECURRENT_NORM, "saturation": "share of saturated recurrent states"}
    means: tuple[str, ...] = ("saturation",)

    def __init__(self, input_dim: int, state_dim: int, cfg: Any) -> None:
        super().__init__(input_dim, state_dim, cfg)
        self.cell = cfg.recurrence_cell

    def recurrent_weights(self) -> Iterable[Tensor]:
        """The matrices that multiply the states: (..., G C, C) each, for G gates."""
        raise NotImplementedError(type(self).__name__)

    def states(self, x: Tensor, padding: Padding | None) -> Tensor:
        """`forward` without observation."""
        raise NotImplementedError(type(self).__name__)

    def forward(self, x: Tensor, padding: Padding | None) -> Tensor:
        """(B, L, I) and its padding to (B, L', 2C); observes the share of saturated states."""
        states = self.states(x, padding)
        if self.watched:
            hidden = padding.mask.unsqueeze(2) if self.keeps_length and padding else None
            self.observe("saturation", states.detach().abs() > SATURATED, hidden)
        return states

    def monitored(self) -> dict[str, Tensor]:
        """The `recurrent_norm` of both directions."""
        return {"recurrent_norm": recurrent_norm(self.recurrent_weights())}


def recurrent_norm(weights: Iterable[Tensor]) -> Tensor:
    """Root mean square of the singular values of the square blocks of *weights*, a scalar.

    It is one for orthogonal blocks, and about one for Xavier's initial values, at any width.

    Args:
        weights: (..., n C, C) each: n blocks C x C, stacked
    """
    rows = [at_least_float32(w).flatten(0, -2) for w in weights]
    return torch.cat(rows).square().sum(dim=1).mean().sqrt()


def init_cell_(cell: str, weights: Iterable[Tensor], biases: Iterable[Tensor]) -> None:
    """Xavier-uniform for the matrix of each gate, zero for biases, in place.

    Args:
        cell: a key of `GATES`
        weights: each (..., G C, I), the gates stacked
        biases: any shapes
    """
    for weight in weights:
        for matrix in weight.detach().view(-1, *weight.shape[-2:]):
            for gate in matrix.chunk(GATES[cell]):
                nn.init.xavier_uniform_(gate)
    for bias in biases:
        nn.init.zeros_(bias)
