"""Two encoders side by side as the columns of one (Chen et al. 2018)."""

import torch
from fairseq.models.transformer import TransformerConfig
from torch import Tensor, nn

from fairseq_recur.modules.part import Part


class MultiColumn(Part, nn.Module):
    """H = W [H_e; H_r] + b: both outputs, concatenated and brought to the model's width.

    H_e is the output of the Transformer encoder, H_r that of the recurrence encoder, both
    normalised by their last layer; every decoder layer attends to H alone. W begins as the
    identity over H_e, so that a trained decoder finds what it knows, and Xavier-uniform over
    H_r; where it is zero over H_r, H is H_e to the last bit.

    Args:
        cfg: the host's configuration
    """

    slot = "recurrence"

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__()
        width = cfg.encoder.embed_dim
        self.merge = nn.Linear(3 * width, width)
        columns = self.merge.weight.detach().split([width, 2 * width], dim=1)
        nn.init.eye_(columns[0])
        nn.init.xavier_uniform_(columns[1])
        nn.init.zeros_(self.merge.bias)

    def forward(self, states: Tensor, recurrent: Tensor) -> Tensor:
        """Merge the columns.

        Args:
            states: (S, B, C) output of the Transformer encoder, H_e
            recurrent: (S, B, 2C) output of the recurrence encoder, H_r

        Returns:
            (S, B, C)
        """
        return self.merge(torch.cat([states, recurrent], dim=-1))
