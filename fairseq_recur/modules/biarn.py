"""The bidirectional attentive recurrent network (BiARN)."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from fairseq_recur.modules.context import Padding
from fairseq_recur.modules.multihead import probability, uneven_heads
from fairseq_recur.modules.options import option
from fairseq_recur.modules.recurrence import GATES, GatedRecurrence, init_cell_
from fairseq_recur.ops.attention import dot_product_attention
from fairseq_recur.ops.padding import restore_order, visible_keys
from fairseq_recur.ops.recurrence_encoder import (
    additive_attention,
    attentive_recurrence,
    coverage_attention,
)

Attend = Callable[[Tensor], Tensor]


class SharedAdditiveAttention(nn.Module):
    """Additive attention over the raw source (ATT of Hao et al. 2019, eq. 13).

    The values are not projected, which gives the paper's number of parameters. With coverage its
    score also reads the sum of the earlier steps' weights.
    """

    def __init__(self, input_dim: int, state_dim: int, cfg: Any) -> None:
        super().__init__()
        self.context_dim = input_dim
        self.dropout_module = FairseqDropout(cfg.attention_dropout, module_name=type(self).__name__)
        self.query = nn.Linear(state_dim, state_dim, bias=False)
        self.key = nn.Linear(input_dim, state_dim, bias=False)
        self.score = nn.Linear(state_dim, 1, bias=False)
        self.coverage = nn.Linear(1, state_dim, bias=False) if cfg.recurrence_coverage else None
        for linear in (self.query, self.key, self.score, self.coverage):
            if linear is not None:
                nn.init.xavier_uniform_(linear.weight)

    def over(self, x: Tensor, padding_mask: Tensor | None) -> Attend:
        """The attention over *x* (B, S, I) as a function of (B, 2, C) states, step by step."""
        return self.reading(x, x, padding_mask, probability(self.dropout_module))

    def reading(
        self, x: Tensor, values: Tensor, padding_mask: Tensor | None, dropout: float
    ) -> Attend:
        """`over`, with other values (B, S, V) than *x*."""
        keys, score = self.key(x), self.score.weight.squeeze(0)
        source = keys, score, values
        if self.coverage is None:
            return lambda states: additive_attention(
                self.query(states), *source, padding_mask, dropout
            )
        w_seen = self.coverage.weight.squeeze(1)
        seen = torch.zeros(x.size(0), 2, x.size(1), device=x.device)

        def attend(states: Tensor) -> Tensor:
            nonlocal seen
            query = self.query(states)
            context, seen = coverage_attention(query, *source, seen, w_seen, padding_mask, dropout)
            return context

        return attend

    def weights(self, states: Tensor, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """The weights of (B, 2, R, C) states over *x*, without dropout: (B, 1, 2, R, S)."""
        # The context of unit vectors is the weights.
        attend = self.reading(x, unit_vectors(x), padding_mask, 0.0)
        return torch.stack([attend(step) for step in states.unbind(2)], dim=2).unsqueeze(1)


class SharedMultiheadAttention(nn.Module):
    """Multi-head attention over the source, in place of the additive one (Vaswani et al. 2017).

    The states of both directions are its queries.
    """

    def __init__(self, input_dim: int, state_dim: int, cfg: Any) -> None:
        super().__init__()
        self.context_dim = state_dim
        self.heads = cfg.encoder.attention_heads
        self.dropout_module = FairseqDropout(cfg.attention_dropout, module_name=type(self).__name__)
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
        dropout, visible = probability(self.dropout_module), visible_keys(padding_mask)

        def attend(states: Tensor) -> Tensor:
            query = self.split_heads(self.query(states))
            context = dot_product_attention(query, keys, values, visible, dropout)
            return self.out(context.transpose(1, 2).flatten(2))

        return attend

    def weights(self, states: Tensor, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """The weights of (B, 2, R, C) states over *x*, without dropout: (B, H, 2, R, S)."""
        query = self.split_heads(self.query(states.flatten(1, 2)))
        keys = self.split_heads(self.key(x))
        values = unit_vectors(x).unsqueeze(1).expand(-1, self.heads, -1, -1)
        weights = dot_product_attention(query, keys, values, visible_keys(padding_mask))
        return weights.unflatten(2, (2, -1))


SharedAttention = SharedAdditiveAttention | SharedMultiheadAttention
ATTENTION: dict[str, type[SharedAttention]] = {
    "additive": SharedAdditiveAttention,
    "multihead": SharedMultiheadAttention,
}


class BiARN(GatedRecurrence):
    """R steps of two cells, each of which reads the whole source by attention at every step.

    Hao et al. 2019, eqs. 12-13 with 9: ``c_t = ATT(h_{t-1}, H)``, ``h_t = f(h_{t-1}, c_t)``.
    The two directions share the attention and have a GRU or LSTM each. Without positions in its
    input the network does not see the source's order, only its words. R is a number, or the
    number of tokens of each sentence (J in figure 5; ``--recurrence-steps -1``).
    """

    about = "attentive recurrent network"

    @dataclass
    class Options(GatedRecurrence.Options):
        """Adds the options of the steps."""

        recurrence_steps: int = option(
            8,
            "recurrence steps R of biarn; -1: one per source token, as birnn has",
            (-1, 10_000),
        )
        recurrence_attention: ChoiceEnum(list(ATTENTION)) = option(  # type: ignore[valid-type]
            "additive", "attention by which biarn reads the source at every step"
        )
        recurrence_coverage: bool = option(
            False,
            "let the attention of biarn's steps know how much the earlier steps have read of each "
            "token (See et al. 2017)",
            needs={"recurrence_attention": ["additive"]},
        )

    keeps_length = False
    quantities = {
        **GatedRecurrence.quantities,
        "step_distance": "distance of the first and last step's attention",
    }
    means = (*GatedRecurrence.means, "step_distance")

    def __init__(self, input_dim: int, state_dim: int, cfg: Any) -> None:
        super().__init__(input_dim, state_dim, cfg)
        self.steps = cfg.recurrence_steps
        self.keeps_length = self.output_per_token(cfg)
        attention = ATTENTION[cfg.recurrence_attention]
        self.attention: SharedAttention = attention(input_dim, state_dim, cfg)
        context_dim = self.attention.context_dim
        rows = GATES[self.cell] * state_dim
        self.w_x = nn.Parameter(torch.empty(2, rows, context_dim))
        self.w_h = nn.Parameter(torch.empty(2, rows, state_dim))
        # As in THUMT, only the candidate of the GRU has a bias.
        self.bias = nn.Parameter(torch.empty(2, state_dim if self.cell == "gru" else rows))
        init_cell_(self.cell, (self.w_x, self.w_h), (self.bias,))

    @classmethod
    def problems(cls, cfg: Any, side: str) -> Iterator[str]:
        """Problems with the combination of this part's options, one message each."""
        if cfg.recurrence_steps == 0:
            yield (
                "--recurrence-steps 0: expected at least 1, or -1 for one step per source token; "
                "give one of these"
            )
        if cfg.recurrence_coverage and cfg.recurrence_steps == 1:
            yield (
                "--recurrence-coverage has no effect with --recurrence-steps 1: before the first "
                "step nothing has been read; leave one out"
            )
        if cfg.recurrence_attention == "multihead":
            yield from uneven_heads(cfg, "encoder")
            width, heads = cfg.encoder_embed_dim, cfg.encoder_attention_heads
            if cfg.recurrence_width == "half" and width % heads == 0 and width // 2 % heads:
                yield (
                    "--recurrence-attention multihead with --recurrence-width half needs a "
                    f"multiple of {2 * heads}, twice the heads, found --encoder-embed-dim {width}; "
                    "choose full or projected"
                )

    @classmethod
    def output_per_token(cls, cfg: Any) -> bool:
        """As in `Recurrence`."""
        return bool(cfg.recurrence_steps < 0)

    def recurrent_weights(self) -> Iterable[Tensor]:
        """As in `GatedRecurrence`."""
        return (self.w_h,)

    def states(self, x: Tensor, padding: Padding | None) -> Tensor:
        """(B, S, I) and its padding to (B, R, 2C).

        With one step per token, state t stands at the position of the sentence's token t.
        """
        h0 = self.initial_states(x, padding)
        mask = None if padding is None else padding.mask
        chains = self.attention.over(x, mask), h0, self.w_x, self.w_h, self.bias
        steps = x.size(1) if self.keeps_length else self.steps
        if not self.keeps_length or padding is None:
            return attentive_recurrence(*chains, steps, cell=self.cell)
        states = attentive_recurrence(*chains, steps, padding.counts, self.cell)
        return restore_order(states, padding.order.unsqueeze(2), 1)

    def weights(self, x: Tensor, padding: Padding | None, out: Tensor) -> Tensor:
        """The attention of every step, for inspection.

        Args:
            x, padding: as in `forward`
            out: (B, R, 2C), the result of `forward`; its states are the queries

        Returns:
            (B, 2, H, R, S), both directions in the order of their steps; H is 1 for additive
            attention. With one step per token, those past a sentence's last step mean nothing.
        """
        h0, states = self.initial_states(x, padding), self.by_step(out, padding)
        before = torch.cat([h0.unsqueeze(2), states[:, :, :-1]], dim=2)
        mask = None if padding is None else padding.mask
        return self.attention.weights(before.transpose(0, 1), x, mask).transpose(1, 2)

    def by_step(self, out: Tensor, padding: Padding | None) -> Tensor:
        """The states (B, R, 2C) of both directions in the order of their steps: (2, B, R, C)."""
        forward, backward = out.chunk(2, dim=-1)
        if padding is None or not self.keeps_length:
            return torch.stack([forward, backward.flip(1)])
        # The states stand where their tokens do.
        steps = torch.arange(out.size(1), device=out.device)
        mirrored = (padding.counts.unsqueeze(1) - 1 - steps).clamp(min=0)
        places = padding.order, padding.order.gather(1, mirrored)
        directions = zip((forward, backward), places)
        return torch.stack([x.gather(1, at.unsqueeze(-1).expand_as(x)) for x, at in directions])

    def forward(self, x: Tensor, padding: Padding | None) -> Tensor:
        """As in `GatedRecurrence`; observes how far apart the first and the last step read."""
        states = super().forward(x, padding)
        if self.watched and not self.keeps_length:
            with torch.no_grad():
                steps = self.weights(x, padding, states).mean(2)  # over the heads: (B, 2, R, S)
                apart = (steps[:, :, 0] - steps[:, :, -1]).abs().sum(-1) / 2
            self.observe("step_distance", apart)
        return states


def unit_vectors(x: Tensor) -> Tensor:
    """One unit vector per position of *x* (B, S, I): (B, S, S)."""
    return torch.eye(x.size(1), dtype=x.dtype, device=x.device).expand(x.size(0), -1, -1)
