"""Matrices over positions that a self-attention mixes with its map, and their gate."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_recur.modules.context import Context, Padding
from fairseq_recur.modules.options import option
from fairseq_recur.modules.part import FreshWeights, MonitoredModule
from fairseq_recur.modules.text_memory import TextMemory, reach
from fairseq_recur.ops.attention import read_values
from fairseq_recur.ops.mixture import mixed_outputs
from fairseq_recur.ops.precision import at_least_float32, no_autocast
from fairseq_recur.ops.toeplitz import shared_product, toeplitz_matrix

if TYPE_CHECKING:
    from fairseq_recur.modules.self_attention import SelfAttention

FORMS = ("mixed", "dense", "chunked")
"""Forms of (1 - g) A V + g P V: one mixed map; two products; the second product in chunks."""

# The longest sequences for which a form was the fastest, forward and backward; measured by
# benchmarks/rsa_forms.py, whose results are beside it.
LONGEST_MIXED = 64
LONGEST_STORED = 512  # of the mixed form, where the attention stores its map anyway
LONGEST_DENSE = 512


class Mixture(MonitoredModule, FreshWeights, nn.Module):
    """P and the gate g = sigma(mu), one scalar per layer (Huang et al. 2023, eq. 4).

    The output is (1 - g) O + g P V, where O is the output of any attention map. Heads with a
    matrix come first; those after them are ordinary.

    Args:
        cfg: the host's configuration, with the options of this part
        side: "encoder", or "decoder", where P is 0 for later keys
        mixing: number of heads with a matrix, by default all
    """

    @dataclass
    class Options:
        """Options of all mixtures, named after the first of them."""

        rsa_gate_init: str = option(
            "-1",
            "initial mu of the gate sigmoid(mu), the share of the matrix: a number, or random for "
            "a different value from [-3, 3] in each layer",
        )
        rsa_normalize: bool = option(
            False,
            "divide each row of the matrix whose absolute values sum to more than one by that sum",
        )
        rsa_form: ChoiceEnum(["auto", *FORMS]) = option(  # type: ignore[valid-type]
            "auto",
            "how to compute the sum of the attention's output and the matrix's product: as one "
            "mixed map, as two dense products, or with the second in chunks; auto: the fastest "
            "one by sequence length, as measured",
        )

    quantities = {
        "gate": "gate, share of the matrix in RSA",
        "rem": "largest row sum of the recurrence encoding matrices",
    }

    forms: ClassVar[tuple[str, ...]] = FORMS
    """The forms in which the product with this matrix can be computed."""

    def __init__(self, cfg: TransformerConfig, side: str, mixing: int | None = None) -> None:
        super().__init__()
        self.slot, self.causal = self.place(side)
        self.heads = getattr(cfg, side).attention_heads
        self.mixing = self.heads if mixing is None else mixing
        self.normalize, self.form = cfg.rsa_normalize, cfg.rsa_form
        self.drop_mixed = False
        self.reach = reach(cfg, side)
        given = cfg.rsa_gate_init  # random: another value in each layer (section 3)
        mu = torch.empty(()).uniform_(-3, 3) if given == "random" else torch.tensor(float(given))
        self.mu = nn.Parameter(mu)

    @staticmethod
    def place(side: str) -> tuple[str, bool]:
        """The attention that it mixes with, as messages name it; whether P is 0 for later keys."""
        return f"mixture of the {side} self-attention", side == "decoder"

    @classmethod
    def problems(cls, cfg: Any, side: str) -> Iterator[str]:
        """Problems with the combination of this part's options, one message each."""
        if cfg.rsa_gate_init != "random":
            try:
                # -inf closes the gate; with inf the matrix is alone.
                wrong = math.isnan(float(cfg.rsa_gate_init))
            except ValueError:
                wrong = True
            if wrong:
                yield f"--rsa-gate-init {cfg.rsa_gate_init}: expected a number or random"
        if cfg.rsa_form != "auto" and cfg.rsa_form not in cls.forms:
            yield (
                f"--rsa-form {cfg.rsa_form}: {cls.__name__} only has the form "
                f"{' or '.join(cls.forms)}; choose auto or {cls.forms[0]}"
            )
        if cfg.rsa_form == "chunked" and cfg.rsa_normalize:
            yield "--rsa-form chunked has no rows that --rsa-normalize could divide; use dense"

    @classmethod
    def zero_with(cls, memory: type[TextMemory], cfg: Any) -> Iterator[str]:
        """Why the matrix is zero whenever a decoder has read a full memory, one message each."""
        yield from ()

    @property
    def gate(self) -> Tensor:
        """g = sigma(mu) of the layer, a scalar in float32 or more."""
        return torch.sigmoid(at_least_float32(self.mu))

    def gates(self) -> Tensor:
        """g for each head, 0 for ordinary ones: (H, 1, 1), in float32 or more."""
        return self.for_all_heads(self.gate.expand(self.mixing).view(-1, 1, 1))

    def for_all_heads(self, x: Tensor) -> Tensor:
        """(..., H', T, S) of the mixing heads, and 0 for the ordinary ones: (..., H, T, S)."""
        ordinary = self.heads - self.mixing
        return F.pad(x, (0, 0, 0, 0, 0, ordinary)) if ordinary else x

    def matrix(self, queries: int, keys: int) -> Tensor:
        """P (H', T, S) of the mixing heads; the last query stands at the last key."""
        raise NotImplementedError(type(self).__name__)

    def first_rows(self, size: int) -> Tensor:
        """P of the first *size* positions that have rows, for a figure: (H', T, S)."""
        return self.matrix(size, size)

    def product(self, values: Tensor, queries: int, padding: Padding | None, form: str) -> Tensor:
        """P V at the last positions.

        Args:
            values: (B, H', S, D) in float32 or more, zero at padding
            queries: T, the number of these positions
            padding: of the S positions, or None
            form: "dense" or "chunked"

        Returns:
            (B, H', T, D)
        """
        mask = None if padding is None else padding.mask
        return self.dense_product(self.matrix(queries, values.size(2)), values, mask)

    def dense_product(self, matrix: Tensor, values: Tensor, padding_mask: Tensor | None) -> Tensor:
        """`product` with the matrix (H', T, S) itself; the padding mask is (B, S) bool or None."""
        if self.normalize:
            return torch.matmul(normalised(matrix, padding_mask), values)
        return shared_product(matrix, values)

    def applied(self, rows: Tensor, padding: Tensor | None) -> Tensor:
        """Rows of P as a mixed map adds them, for all heads.

        Args:
            rows: (H', T, S) or (B, H', T, S)
            padding: (B, S) bool or None

        Returns:
            (H, T, S) or (B, H, T, S): normalised if requested, and 0 for ordinary heads
        """
        if self.normalize:
            rows = normalised(rows, padding)
        return self.for_all_heads(rows)

    def table(self, keys: int) -> Tensor:
        """What `last_row` reads in incremental decoding, for at least *keys* keys."""
        raise NotImplementedError(type(self).__name__)

    def last_row(self, table: Tensor, keys: int) -> Tensor:
        """P's row for the newest of *keys* positions: (H', 1, keys), a view of the table."""
        raise NotImplementedError(type(self).__name__)

    def row_sum(self) -> Tensor:
        """The largest sum of a row's absolute values over the heads: a norm of the matrices.

        It is the norm of P as a map from the largest absolute value of V to that of P V, for a
        sequence so long that all of a row's entries count.
        """
        raise NotImplementedError(type(self).__name__)

    def monitored(self) -> dict[str, Tensor]:
        """The gate g, and the `row_sum` of the matrices as they are applied."""
        row = self.row_sum()
        return {
            "gate": self.gate,
            "rem": row.clamp(max=1.0) if self.normalize else row,
        }

    def form_for(
        self, length: int, has_map: bool, few_rows: bool = False, stored: bool = False
    ) -> str:
        """The form to compute in: the requested one, else the fastest for this length.

        Args:
            length: T
            has_map: whether the attention's output is its map times V; else no mixed map exists
            few_rows: whether few of the T rows are mixed, for which a mixed map is always fastest
            stored: whether the attention stores its map anyway
        """
        mixed = has_map and "mixed" in self.forms
        longest = LONGEST_STORED if stored else LONGEST_MIXED
        if self.form != "auto":
            return self.form
        if mixed and (self.drop_mixed or few_rows or length <= longest):
            return "mixed"
        if length <= LONGEST_DENSE or "chunked" not in self.forms or self.normalize:
            return "dense"
        return "chunked"

    def mix(
        self,
        attention: "SelfAttention",
        query: Tensor,
        key: Tensor,
        value: Tensor,
        context: Context,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """(1 - g) O + g P V; arguments and results as for `SelfAttention.attend`.

        The weights are those of the mixed map, or None where there is none.
        """
        if context.incremental_state is not None:
            return self.mix_newest(attention, query, key, value, context)
        queries, keys = query.size(2), key.size(2)
        few, stored = attention.few_rows, attention.stores_map(query, context)
        # With a memory there are more keys: what counts is the size of the matrix.
        form = self.form_for(isqrt(queries * keys), attention.has_map, few, stored)
        # Without padding every matrix has a mixed map.
        possible = attention.has_map and ("mixed" in self.forms or context.padding is None)
        if form == "mixed" or need_weights and possible:
            return attention.attend_mixed(query, key, value, context, need_weights, self)
        local, rows = attention.attend_to_mix(query, key, value, context)
        with no_autocast(value):
            mixing = at_least_float32(value[:, : self.mixing])
            recurrent = self.product(mixing, queries, context.padding, form)
        gates = self.gates() if rows is None else self.gates() * rows
        return mixed_outputs(local, recurrent, gates), None

    def mix_newest(
        self,
        attention: "SelfAttention",
        query: Tensor,
        key: Tensor,
        value: Tensor,
        context: Context,
    ) -> tuple[Tensor, Tensor | None]:
        """`mix` for the newest position: a row of P is a slice of a table built once per batch."""
        row, keep = self.newest_row(attention, key.size(2), context)
        mixing = self.mixing
        if attention.has_map:
            dropout = attention.dropout_probability  # of --retain-dropout
            weights = attention.exact_weights(query, key, context)
            weights = weights if self.drop_mixed else F.dropout(weights, dropout)
            if mixing == self.heads:
                weights = torch.addcmul(row, weights, keep)
            else:
                mixed = torch.addcmul(row, weights[:, :mixing], keep)
                weights = torch.cat([mixed, weights[:, mixing:]], dim=1)
            return read_values(weights, value, dropout if self.drop_mixed else 0.0), weights
        local, _ = attention.attend(query, key, value, context, need_weights=False)
        with no_autocast(value):
            recurrent = torch.matmul(row, at_least_float32(value[:, :mixing]))
            mixed = torch.addcmul(recurrent, at_least_float32(local[:, :mixing]), keep)
        return torch.cat([mixed.to(local.dtype), local[:, mixing:]], dim=1), None

    def newest_row(
        self, attention: "SelfAttention", keys: int, context: Context
    ) -> tuple[Tensor, Tensor]:
        """g P's row for the newest position over *keys* keys, and 1 - g.

        The row is (H', 1, S), or (B, H', 1, S) if padding counts in its norm.

        The table behind it lives in the incremental state. So it is as old as the batch, the
        parameters cannot change under it, and re-ordered beams, which share it, do not move it.
        """
        state = context.incremental_state
        saved = attention.get_incremental_state(state, "mixture")
        if saved is None or saved["table"].size(-1) < keys:
            gate, table = self.gate, self.table(keys)
            table = table if self.normalize else gate * table
            saved = {"table": table, "gate": gate, "keep": 1 - gate}
            attention.set_incremental_state(state, "mixture", saved)
        row = self.last_row(saved["table"], keys)
        if self.normalize:
            row = saved["gate"] * normalised(row, context.padding_mask)
        return row, saved["keep"]


class LagMixture(Mixture):
    """A matrix whose entries depend on the lag only."""

    @dataclass
    class Options(Mixture.Options):
        """Adds the place of the dropout, which needs a mixed map."""

        rsa_dropout: ChoiceEnum(["softmax", "mixed"]) = option(  # type: ignore[valid-type]
            "softmax",
            "what --attention-dropout drops: entries of the softmax, or of its mixture with the "
            "matrix",
        )

    def __init__(self, cfg: TransformerConfig, side: str, mixing: int | None = None) -> None:
        super().__init__(cfg, side, mixing)
        self.drop_mixed = cfg.rsa_dropout == "mixed"

    @classmethod
    def problems(cls, cfg: Any, side: str) -> Iterator[str]:
        """Problems with the combination of this part's options, one message each."""
        yield from super().problems(cfg, side)
        if cfg.rsa_dropout == "mixed" and cfg.rsa_form not in ("auto", "mixed"):
            yield (
                f"--rsa-dropout mixed drops entries of a mixed map, which --rsa-form "
                f"{cfg.rsa_form} does not have; choose --rsa-form mixed or auto"
            )

    def kernels(self, length: int) -> tuple[Tensor, Tensor | None]:
        """The entries for earlier keys and, unless causal, for later ones: (H', L) over lags.

        Both begin with lag 0, whose entry is 0, and may be shorter than *length*: longer
        lags have the entry 0.
        """
        raise NotImplementedError(type(self).__name__)

    def lags(self, length: int) -> int:
        """How many of the lags 0 ... *length* - 1 a position sees."""
        return length if self.reach is None else min(length, self.reach)

    def matrix(self, queries: int, keys: int) -> Tensor:
        """P (H', T, S) of the mixing heads; the last query stands at the last key."""
        past, future = self.kernels(self.lags(keys))
        return toeplitz_matrix(past, future, queries, keys, offset=keys - queries)

    def table(self, keys: int) -> Tensor:
        """The kernel of the earlier keys in reverse, with room for steps to come: (H', L)."""
        length = with_room(keys)
        past, _ = self.kernels(self.lags(length))
        return F.pad(past, (0, length - past.size(1))).flip(1)

    def last_row(self, table: Tensor, keys: int) -> Tensor:
        """Lags keys - 1 ... 0, which end the table."""
        return table[:, None, -keys:]


def with_room(keys: int) -> int:
    """At least *keys*, with room for steps to come: 64, or the next power of two."""
    return max(64, 1 << (keys - 1).bit_length())


def normalised(matrix: Tensor, padding: Tensor | None) -> Tensor:
    """Rows whose absolute values sum to more than one, divided by that sum.

    Args:
        matrix: (H', T, S) or (B, H', T, S)
        padding: (B, S) bool, keys that do not count, or None

    Returns:
        as *matrix*, or with padding (B, H', T, S)
    """
    size = matrix.abs()
    if padding is None:
        return matrix / size.sum(-1, keepdim=True).clamp(min=1.0)
    real = (~padding).to(size.dtype)
    rows = "hts" if matrix.dim() == 3 else "bhts"
    with no_autocast(matrix):
        sums = torch.einsum(f"{rows},bs->bht", size, real)
    return matrix / sums.unsqueeze(-1).clamp(min=1.0)
