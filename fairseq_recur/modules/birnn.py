"""The bidirectional recurrent network (BiRNN)."""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fairseq_recur.modules.context import Padding
from fairseq_recur.modules.layers import between_graphs, rnn_problems
from fairseq_recur.modules.recurrence import GatedRecurrence, init_cell_
from fairseq_recur.ops.padding import restore_order


class BiRNN(GatedRecurrence):
    """h_j = [forward f; backward f], where f is a GRU or an LSTM (Hao et al. 2019, eqs. 9-11).

    The sequence is packed by its true length: the backward direction starts at the last
    real token, whichever side is padded.
    """

    about = "bidirectional RNN"

    keeps_length = True
    networks: ClassVar[dict[str, type[nn.GRU] | type[nn.LSTM]]] = {"gru": nn.GRU, "lstm": nn.LSTM}

    def __init__(self, input_dim: int, state_dim: int, cfg: Any) -> None:
        super().__init__(input_dim, state_dim, cfg)
        network = self.networks[self.cell](
            input_dim, state_dim, batch_first=True, bidirectional=True
        )
        self.add_module(self.cell, network)  # checkpoints have it under this name
        named = dict(network.named_parameters())
        init_cell_(
            self.cell,
            [p for name, p in named.items() if name.startswith("weight")],
            [p for name, p in named.items() if name.startswith("bias")],
        )

    @classmethod
    def problems(cls, cfg: Any, side: str) -> Iterator[str]:
        """Problems with the combination of this part's options, one message each."""
        yield from rnn_problems(cfg, "--recurrence birnn")

    def recurrent_weights(self) -> Iterable[Tensor]:
        """As in `GatedRecurrence`."""
        names = "weight_hh_l0", "weight_hh_l0_reverse"
        return [self.get_parameter(f"{self.cell}.{name}") for name in names]

    @between_graphs
    def states(self, x: Tensor, padding: Padding | None) -> Tensor:
        """(B, S, I) and its padding to (B, S, 2C), zero at padding."""
        network, h0 = self.get_submodule(self.cell), self.initial_states(x, padding)
        start = (h0, torch.zeros_like(h0)) if self.cell == "lstm" else h0
        if padding is None:
            return network(x, start)[0]
        aligned = x.gather(1, padding.order.unsqueeze(-1).expand_as(x))
        # On the CPU, where packing wants it, which refuses a sentence of nothing but padding.
        lengths = torch.tensor(padding.lengths).clamp(min=1)
        packed = pack_padded_sequence(aligned, lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(
            network(packed, start)[0], batch_first=True, total_length=x.size(1)
        )
        return restore_order(states, padding.order.unsqueeze(2), 1).masked_fill(
            padding.mask.unsqueeze(2), 0.0
        )
