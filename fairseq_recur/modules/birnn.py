"""The bidirectional recurrent network over the source's tokens."""

from collections.abc import Iterable

from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fairseq_recur.modules.recurrence import GatedRecurrence, RecurrenceOptions, init_gru_
from fairseq_recur.ops.padding import real_tokens_first, restore_order


class BiRNN(GatedRecurrence):
    """h_j = [forward GRU; backward GRU] (Hao et al. 2019, eqs. 9-11).

    The sequence is packed by its true length: the backward direction starts at the last
    real token, whichever side is padded.
    """

    keeps_length = True

    def __init__(self, input_dim: int, state_dim: int, options: RecurrenceOptions) -> None:
        super().__init__(input_dim, state_dim, options)
        self.gru = nn.GRU(input_dim, state_dim, batch_first=True, bidirectional=True)
        named = dict(self.gru.named_parameters())
        init_gru_(
            tuple(p for name, p in named.items() if name.startswith("weight")),
            tuple(p for name, p in named.items() if name.startswith("bias")),
        )

    def recurrent_weights(self) -> Iterable[Tensor]:
        """As in `GatedRecurrence`."""
        return self.gru.weight_hh_l0, self.gru.weight_hh_l0_reverse

    def forward(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """(B, S, I) and (B, S) bool or None to (B, S, 2C), zero at padding."""
        return self.show(self.states(x, padding_mask), padding_mask)

    def states(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """`forward`, unobserved."""
        h0 = self.initial_states(x, padding_mask)
        if padding_mask is None:
            return self.gru(x, h0)[0]
        order, lengths = real_tokens_first(padding_mask)
        aligned = x.gather(1, order.unsqueeze(-1).expand_as(x))
        packed = pack_padded_sequence(
            aligned, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        states, _ = pad_packed_sequence(
            self.gru(packed, h0)[0], batch_first=True, total_length=x.size(1)
        )
        return restore_order(states, order)
