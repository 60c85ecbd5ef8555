"""The bidirectional attentive recurrent network (BiARN)."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from fairseq_recur.modules.recurrence import GatedRecurrence, RecurrenceOptions, init_gru_
from fairseq_recur.ops.attention import dot_product_attention
from fairseq_recur.ops.padding import real_tokens_first, restore_order, visible_keys
from fairseq_recur.ops.recurrence_encoder import additive_attention, attentive_recurrence

Attend = Callable[[Tensor], Tensor]


class BiARN(GatedRecurrence):
    """R steps of two GRUs, each reading the whole source by attention at every step.

    Hao et al. 2019, eqs. 12-13 with 9: ``c_t = ATT(h_{t-1}, H)``, ``h_t = f(h_{t-1}, c_t)``.
    The two directions share the attention and have a GRU each. Without positions in its
    input the network does not see the source's order, only its words. R is a number, or for each
    sentence the number of its tokens (J in figure 5; ``steps`` -1).
    """

    keeps_length = False

    def __init__(self, input_dim: int, state_dim: int, options: RecurrenceOptions) -> None:
        super().__init__(input_dim, state_dim, options)
        self.steps = options.steps
        self.keeps_length = options.steps < 0
        self.attention = ATTENTION[options.attention](input_dim, state_dim, options)
        context_dim = self.attention.context_dim
        self.w_x = nn.Parameter(torch.empty(2, 3 * state_dim, context_dim))
        self.w_h = nn.Parameter(torch.empty(2, 3 * state_dim, state_dim))
        self.bias = nn.Parameter(torch.empty(2, state_dim))
        init_gru_((self.w_x, self.w_h), (self.bias,))

    def recurrent_weights(self) -> Iterable[Tensor]:
        """As in `GatedRecurrence`."""
        return (self.w_h,)

    def forward(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """(B, S, I) and (B, S) bool or None to (B, R, 2C).

        With a step a token, state t stands where the sentence's token t does.
        """
        return self.show(self.states(x, padding_mask), padding_mask)

    def states(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """`forward`, unobserved."""
        h0 = self.initial_states(x, padding_mask)
        chains = self.attention.over(x, padding_mask), h0, self.w_x, self.w_h, self.bias
        if not self.keeps_length:
            return attentive_recurrence(*chains, self.steps)
        if padding_mask is None:
            return attentive_recurrence(*chains, x.size(1))
        order, lengths = real_tokens_first(padding_mask)
        return restore_order(attentive_recurrence(*chains, x.size(1), lengths), order)

    def weights(self, x: Tensor, padding_mask: Tensor | None, out: Tensor) -> Tensor:
        """The attention of every step, for those who want to see it.

        Args:
            x, padding_mask: as in `forward`
            out: (B, R, 2C), what `forward` made of them; its states are the queries

        Returns:
            (B, 2, H, R, S), both directions in the order of their steps; H is 1 for additive
            attention
        """
        h0 = self.initial_states(x, padding_mask)
        forward, backward = out.chunk(2, dim=-1)
        states = torch.stack([forward, backward.flip(1)])  # (2, B, R, C)
        before = torch.cat([h0.unsqueeze(2), states[:, :, :-1]], dim=2)
        weights = self.attention.weights(before.transpose(0, 1).flatten(1, 2), x, padding_mask)
        return weights.unflatten(2, (2, -1)).transpose(1, 2)


class SharedAdditiveAttention(nn.Module):
    """Additive attention over the raw source; the values are not projected."""

    def __init__(self, input_dim: int, state_dim: int, options: RecurrenceOptions) -> None:
        super().__init__()
        self.context_dim = input_dim
        self.dropout = options.attention_dropout
        self.query = nn.Linear(state_dim, state_dim, bias=False)
        self.key = nn.Linear(input_dim, state_dim, bias=False)
        self.score = nn.Linear(state_dim, 1, bias=False)
        for linear in (self.query, self.key, self.score):
            nn.init.xavier_uniform_(linear.weight)

    def over(self, x: Tensor, padding_mask: Tensor | None) -> Attend:
        """The attention over *x* (B, S, I) as a function of (B, 2, C) states."""
        keys, score = self.key(x), self.score.weight.squeeze(0)
        dropout = self.dropout if self.training else 0.0

        def attend(states: Tensor) -> Tensor:
            return additive_attention(self.query(states), keys, score, x, padding_mask, dropout)

        return attend

    def weights(self, states: Tensor, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Of (B, N, C) states over *x*, without dropout: (B, 1, N, S)."""
        keys, score = self.key(x), self.score.weight.squeeze(0)
        # What attention reads from unit vectors is its weights.
        return additive_attention(
            self.query(states), keys, score, unit_vectors(x), padding_mask
        ).unsqueeze(1)


class SharedMultiheadAttention(nn.Module):
    """Multi-head attention over the source, both directions being its queries."""

    def __init__(self, input_dim: int, state_dim: int, options: RecurrenceOptions) -> None:
        super().__init__()
        self.context_dim = state_dim
        self.heads = options.heads
        self.dropout = options.attention_dropout
        self.query = nn.Linear(state_dim, state_dim)
        self.key = nn.Linear(input_dim, state_dim)
        self.value = nn.Linear(input_dim, state_dim)
        self.out = nn.Linear(state_dim, state_dim)
        for linear in (self.query, self.key, self.value, self.out):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def split_heads(self, x: Tensor) -> Tensor:
        """(B, L, C) to (B, H, L, D)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def over(self, x: Tensor, padding_mask: Tensor | None) -> Attend:
        """The attention over *x* (B, S, I) as a function of (B, 2, C) states."""
        keys, values = self.split_heads(self.key(x)), self.split_heads(self.value(x))
        dropout = self.dropout if self.training else 0.0

        def attend(states: Tensor) -> Tensor:
            query = self.split_heads(self.query(states))
            context = dot_product_attention(
                query, keys, values, visible_keys(padding_mask), dropout
            )
            return self.out(context.transpose(1, 2).flatten(2))

        return attend

    def weights(self, states: Tensor, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Of (B, N, C) states over *x*, without dropout: (B, H, N, S)."""
        query, keys = self.split_heads(self.query(states)), self.split_heads(self.key(x))
        values = unit_vectors(x).unsqueeze(1).expand(-1, self.heads, -1, -1)
        return dot_product_attention(query, keys, values, visible_keys(padding_mask))


def unit_vectors(x: Tensor) -> Tensor:
    """For each of the S positions of *x* (B, S, I) another one: (B, S, S)."""
    return torch.eye(x.size(1), dtype=x.dtype, device=x.device).expand(x.size(0), -1, -1)


ATTENTION = {"additive": SharedAdditiveAttention, "multihead": SharedMultiheadAttention}
