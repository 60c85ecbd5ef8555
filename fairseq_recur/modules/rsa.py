"""Self-attention with recurrence, and its comparison systems: attention mixed with a matrix."""

import torch
import torch.nn.functional as F
from fairseq.models.transformer import TransformerConfig
from torch import Tensor

from fairseq_recur.modules.fusion import IncrementalState
from fairseq_recur.modules.mixture import Mixture, normalised
from fairseq_recur.modules.self_attention import SelfAttention
from fairseq_recur.ops.attention import attention_map, dot_product_attention
from fairseq_recur.ops.mixture import mixed_map, mixed_outputs
from fairseq_recur.ops.precision import at_least_float32, no_autocast

# The longest sequences for which a form was the fastest, forward and backward; measured by
# benchmarks/rsa_forms.py, whose results are beside it.
LONGEST_MIXED = 64
LONGEST_DENSE = 512


class MixedSelfAttention(SelfAttention):
    """O = (1 - g) softmax(Q K^T / sqrt(D) + mask) V + g P V (Huang et al. 2023, eq. 4).

    Args:
        cfg: the host's configuration
        side: "encoder" or "decoder"
        mixture: P and g
    """

    def __init__(self, cfg: TransformerConfig, side: str, mixture: Mixture) -> None:
        super().__init__(cfg, side)
        self.mixture = mixture
        self.form = cfg.rsa_form
        self.drop_mixed = cfg.rsa_dropout == "mixed"

    def form_for(self, length: int) -> str:
        """The form in which to compute: as forced, else the fastest for *length* that can."""
        if self.form != "auto":
            return self.form
        if self.drop_mixed:
            return "mixed"
        if length <= LONGEST_MIXED and "mixed" in self.mixture.forms:
            return "mixed"
        if length <= LONGEST_DENSE or "chunked" not in self.mixture.forms or self.mixture.normalize:
            return "dense"
        return "chunked"

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        padding: Tensor | None,
        incremental_state: IncrementalState,
        need_weights: bool,
        causal: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """As in `SelfAttention.attend`; the weights are the mixed map's."""
        if incremental_state is not None:
            return self.attend_last(query, key, value, mask, padding, incremental_state)
        gate = self.mixture.gates()
        dropout = self.dropout_probability
        form = self.form_for(query.size(2))
        if form == "mixed" or need_weights and "mixed" in self.mixture.forms:
            with no_autocast(value):
                matrix = self.mixture.matrix(query.size(2), key.size(2))
                if self.mixture.normalize:
                    matrix = normalised(matrix, padding)
                matrix = F.pad(matrix, (0, 0, 0, 0, 0, self.num_heads - self.mixture.mixing))
                weights = attention_map(at_least_float32(query), at_least_float32(key), mask)
            return mixed_map(weights, value, matrix, gate, dropout, self.drop_mixed)
        with no_autocast(value):
            mixing = at_least_float32(value[:, : self.mixture.mixing])
            recurrent = self.mixture.product(mixing, padding, form)
        mask = None if causal else mask
        local = dot_product_attention(query, key, value, mask, dropout, causal)
        return mixed_outputs(local, recurrent, gate), None

    def attend_last(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        padding: Tensor | None,
        incremental_state: IncrementalState,
    ) -> tuple[Tensor, Tensor]:
        """The newest position alone: a row of P is a slice of a table made once a sentence."""
        weights = attention_map(query, key, mask)
        row, keep = self.last_row(key.size(2), padding, incremental_state)
        mixing = self.mixture.mixing
        if mixing == self.num_heads:
            weights = torch.addcmul(row, weights, keep)
        else:
            mixed = torch.addcmul(row, weights[:, :mixing], keep)
            weights = torch.cat([mixed, weights[:, mixing:]], dim=1)
        return torch.matmul(weights.to(value.dtype), value), weights

    def last_row(
        self, keys: int, padding: Tensor | None, incremental_state: IncrementalState
    ) -> tuple[Tensor, Tensor]:
        """G P's row for the newest position over *keys* keys, (H', 1, S), and 1 - g.

        The table behind it lives in the incremental state: so it is as old as the sentence,
        the parameters cannot change under it, and beams, which share it, do not move it.
        """
        saved = self.get_incremental_state(incremental_state, "mixture")
        if saved is None or saved["table"].size(-1) < keys:
            gate = torch.sigmoid(at_least_float32(self.mixture.mu))
            table = self.mixture.table(keys)
            table = table if self.mixture.normalize else gate * table
            saved = {"table": table, "gate": gate, "keep": 1 - gate}
            self.set_incremental_state(incremental_state, "mixture", saved)
        row = self.mixture.last_row(saved["table"], keys)
        if self.mixture.normalize:
            row = saved["gate"] * normalised(row, padding)
        return row, saved["keep"]
