"""What the parts share that stand in the place of fairseq's attention."""

from fairseq.modules import MultiheadAttention
from torch import Tensor


class Heads(MultiheadAttention):
    """fairseq's attention, with its heads as a dimension."""

    def split(self, x: Tensor) -> Tensor:
        """The heads side by side: (T, B, H D) to (B, H, T, D)."""
        return x.unflatten(2, (self.num_heads, self.head_dim)).permute(1, 2, 0, 3)

    def output(
        self, heads: Tensor, weights: Tensor | None, each: bool
    ) -> tuple[Tensor, Tensor | None]:
        """What fairseq's `forward` returns.

        Args:
            heads: their outputs (B, H, T, D)
            weights: (B, H, T, S), or None if they are not wanted
            each: of each head

        Returns:
            (T, B, C); and the weights (B, T, S), averaged over the heads, or (H, B, T, S)
        """
        out = self.out_proj(heads.permute(2, 0, 1, 3).flatten(2))
        if weights is None:
            return out, None
        return out, weights.transpose(0, 1) if each else weights.mean(dim=1)

    @property
    def dropout_probability(self) -> float:
        """Of an attention weight: 0 outside training, unless dropout is kept on there."""
        module = self.dropout_module
        return module.p if module.training or module.apply_during_inference else 0.0
