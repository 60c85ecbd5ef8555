"""The input of a forecaster's layers: values, times and positions."""

import torch
from fairseq.models.transformer import TransformerConfig
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from fairseq_recur.ops.precision import at_least_float32
from fairseq_recur.ops.transformer_xl import sinusoids


class SeriesEmbedding(nn.Module):
    """A convolution of width 3 over the values, plus a projection of the features of the times.

    Informer's embedding (Zhou et al. 2021, appendix B): the convolution is circular. Positions are
    added as sinusoids, unless ``--no-token-positional-embeddings`` leaves them out, as Huang et
    al. 2023 do where recurrence encoding matrices say where a row is.

    Args:
        cfg: the host's configuration
        variables: V
        features: F
    """

    def __init__(self, cfg: TransformerConfig, variables: int, features: int) -> None:
        super().__init__()
        self.width = cfg.encoder.embed_dim
        self.convolution = nn.Conv1d(variables, self.width, 3, padding=1, padding_mode="circular")
        nn.init.kaiming_normal_(self.convolution.weight, mode="fan_in", nonlinearity="leaky_relu")
        self.times = nn.Linear(features, self.width)
        self.positions = not cfg.no_token_positional_embeddings
        self.dropout_module = FairseqDropout(cfg.dropout, module_name=type(self).__name__)

    def forward(self, values: Tensor, features: Tensor) -> Tensor:
        """(B, L, V) values and (B, L, F) features of the times to (L, B, C)."""
        x = self.convolution(values.transpose(1, 2)).transpose(1, 2) + self.times(features)
        if self.positions:
            lags = torch.arange(x.size(1), device=x.device).to(at_least_float32(x).dtype)
            x = x + sinusoids(lags, self.width).to(x.dtype)
        return self.dropout_module(x).transpose(0, 1)
