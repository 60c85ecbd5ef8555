"""Self-attention with the relative positions of Transformer-XL (Dai et al. 2019)."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_recur.modules.context import Context
from fairseq_recur.modules.mixture import Mixture, with_room
from fairseq_recur.modules.options import option
from fairseq_recur.modules.part import FreshWeights
from fairseq_recur.modules.self_attention import SelfAttention
from fairseq_recur.ops.precision import at_least_float32
from fairseq_recur.ops.transformer_xl import sinusoids, xl_map


class SinusoidalLags(FreshWeights, nn.Module):
    """W_r, u and v of Dai et al. 2019, section 3.3.

    Args:
        slot: the slot of the attention that it belongs to
        width: C, the channels of the sinusoids
        heads: H
        head_width: D
        clamp: lags beyond it count as this one; 0 for no limit
    """

    def __init__(self, slot: str, width: int, heads: int, head_width: int, clamp: int = 0) -> None:
        super().__init__()
        self.slot, self.width, self.heads, self.clamp = slot, width, heads, clamp
        self.key_proj = nn.Linear(width, heads * head_width, bias=False)
        self.content_bias = nn.Parameter(torch.empty(heads, head_width))
        self.position_bias = nn.Parameter(torch.empty(heads, head_width))
        nn.init.xavier_uniform_(self.key_proj.weight)
        for bias in (self.content_bias, self.position_bias):
            nn.init.normal_(bias, std=0.02)

    def keys(self, queries: int, keys: int, context: Context) -> Tensor:
        """W_r R for the lags S - 1, S - 2, ..., 1 - T: (H, S + T - 1, D).

        Lags below 0 belong to later keys. A decoder hides them, but with a full context.
        """
        weight = self.key_proj.weight
        key = ("sinusoids", queries, keys, self.width, self.clamp, weight.dtype, weight.device)
        table = context.once(key, partial(self.table, queries, keys))
        return self.key_proj(table).unflatten(1, (self.heads, -1)).transpose(0, 1)

    def table(self, queries: int, keys: int) -> Tensor:
        """R, the sinusoids of these lags: (S + T - 1, C)."""
        weight = self.key_proj.weight
        lags = torch.arange(keys - 1, -queries, -1, device=weight.device)
        if self.clamp:
            lags = lags.clamp(-self.clamp, self.clamp)
        return sinusoids(lags.to(at_least_float32(weight).dtype), self.width).to(weight.dtype)


class XLSelfAttention(SelfAttention):
    """softmax(((Q + u) K^T + (Q + v) (W_r R)^T) / sqrt(D) + mask) V (Dai et al. 2019, 3.3)."""

    about = "Dai et al. 2019"

    @dataclass
    class Options:
        """Options of the relative positions."""

        xl_clamp_length: int = option(
            0, "largest lag with a sinusoid of its own; longer ones share it; 0: no limit"
        )

    reads_memory = True

    def __init__(self, cfg: TransformerConfig, side: str, mixture: Mixture | None) -> None:
        super().__init__(cfg, side, mixture)
        width = getattr(cfg, side).embed_dim
        self.positions = SinusoidalLags(
            f"{side} self-attention", width, self.num_heads, self.head_dim, cfg.xl_clamp_length
        )

    def weights(self, query: Tensor, key: Tensor, mask: Tensor | None, context: Context) -> Tensor:
        """As in `SelfAttention.weights`."""
        terms = self.positions
        if context.incremental_state is None:
            # A causal mask hides later keys, so their lags are not needed.
            one_way = self.causal and context.future is not None
            keys = terms.keys(1 if one_way else query.size(2), key.size(2), context)
        else:
            keys = self.newest_keys(key.size(2), context)
        return xl_map(query, key, keys, terms.content_bias, terms.position_bias, mask, self.scale)

    def newest_keys(self, keys: int, context: Context) -> Tensor:
        """W_r R for the newest position over *keys* keys: (H, S, D).

        It ends a table with room for steps to come, which lives in the incremental state. So the
        table is as old as the batch, and the parameters cannot change under it.
        """
        state = context.incremental_state
        saved = self.get_incremental_state(state, "lags")
        if saved is None or saved["keys"].size(1) < keys:
            saved = {"keys": self.positions.keys(1, with_room(keys), context)}
            self.set_incremental_state(state, "lags", saved)
        return saved["keys"][:, -keys:]


def share_position_biases(modules: Iterable[nn.Module]) -> None:
    """Have all layers use the u and v of the first one, as the code of Dai et al. 2019 does."""
    terms = [module for module in modules if isinstance(module, SinusoidalLags)]
    for other in terms[1:]:
        other.content_bias, other.position_bias = terms[0].content_bias, terms[0].position_bias
