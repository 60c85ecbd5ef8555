"""The encoder and the decoder of the parts as a forecaster of time series."""

from argparse import Namespace
from dataclasses import replace
from typing import Any

import torch
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerConfig
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig
from torch import Tensor, nn

from fairseq_recur.compat import model_options
from fairseq_recur.errors import CheckpointError, ConfigError
from fairseq_recur.models import config
from fairseq_recur.models.base import RecurrentModel
from fairseq_recur.models.memories import leave_to_each_process
from fairseq_recur.modules.context import Context, Source, additive_mask, causal_mask
from fairseq_recur.modules.layers import LayerRunner, sharded
from fairseq_recur.modules.parts import NONE
from fairseq_recur.modules.series_embedding import SeriesEmbedding
from fairseq_recur.modules.stream_memory import SeriesMemory
from fairseq_recur.modules.transformer_layer import DecoderLayer, EncoderLayer

FIXED: dict[str, Any] = {
    "host": "transformer",
    "cross_attention": "dot",
    "cross_attention_fused": False,
    "recurrence": NONE,
    "one_pass": True,
}
"""The choices in the slots that a forecaster does not have, and how its decoder works."""


def draw_weights(module: nn.Module) -> nn.Module:
    """Draw the weights and biases of all linear maps as Informer's code does, and return *module*.

    That is torch's default, U(-b, b) with b = 1 / sqrt(inputs). fairseq draws wider: at Informer's
    sizes its variances are 1.2 to 4.8 times these.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear):
            part.reset_parameters()
    return module


class SeriesStack(nn.Module):
    """An embedding, layers of one side, and a norm.

    Args:
        cfg: the host's configuration
        side: "encoder" or "decoder"
        variables: V
        features: F, of the times
    """

    def __init__(self, cfg: TransformerConfig, side: str, variables: int, features: int) -> None:
        super().__init__()
        remembers = side == "encoder" and cfg.encoder_memory == "xl"
        self.memory = SeriesMemory(cfg.encoder.layers) if remembers else None
        self.embedding = SeriesEmbedding(cfg, variables, features)
        layer = EncoderLayer if side == "encoder" else DecoderLayer
        count = getattr(cfg, side).layers
        self.layers = nn.ModuleList([sharded(draw_weights(layer(cfg)), cfg) for _ in range(count)])
        self.norm = nn.LayerNorm(cfg.encoder.embed_dim)
        self.run = LayerRunner(cfg)

    def forward(
        self, values: Tensor, features: Tensor, context: Context, starts: Tensor | None = None
    ) -> Tensor:
        """(B, L, V) values and (B, L, F) features to (L, B, C).

        *starts* (B,) are the windows' numbers, by which a memory knows what came before.
        """
        x, inputs, earlier = self.embedding(values, features), [], None
        if self.memory is not None and starts is not None:
            earlier, _ = self.memory.read(starts, x.size(0))
        for index, layer in enumerate(self.layers):
            inputs.append(x)
            if earlier is not None:
                context = replace(context, memory=earlier[index].to(x.dtype))
            x = self.run(layer, x, context)
            x = x[0] if isinstance(x, tuple) else x
        if self.memory is not None and starts is not None:
            self.memory.keep(starts, inputs, None, inputs[0].size(0))
        return self.norm(x)


class SeriesForecaster(BaseFairseqModel):
    """Informer around the parts (Zhou et al. 2021), without its distilling.

    The encoder reads a window of the series. The decoder reads the window's last rows, the label
    part, then zeros for the rows to come, all with the features of their times, and forecasts all
    rows in one pass.

    Args:
        encoder: reads (B, L, V) values
        decoder: reads label part and zeros
        variables: V
        label: rows of the label part
    """

    def __init__(
        self, encoder: SeriesStack, decoder: SeriesStack, variables: int, label: int
    ) -> None:
        super().__init__()
        self.encoder, self.decoder, self.label = encoder, decoder, label
        self.projection = nn.Linear(encoder.norm.normalized_shape[0], variables)

    def forward(
        self, past: Tensor, past_times: Tensor, future_times: Tensor, starts: Tensor | None = None
    ) -> Tensor:
        """Forecast.

        Args:
            past: (B, L, V) the values of the window
            past_times: (B, L, F) features of its times
            future_times: (B, T, F) features of the times to forecast
            starts: (B,) int64 numbers of the windows, which a memory reads; without them it is
                neither read nor changed

        Returns:
            (B, T, V)
        """
        states = self.encoder(past, past_times, Context(), starts)
        start, horizon = past.size(1) - self.label, future_times.size(1)
        values = torch.cat([past[:, start:], past.new_zeros(len(past), horizon, past.size(2))], 1)
        features = torch.cat([past_times[:, start:], future_times], dim=1)
        future = causal_mask(values.size(1), values.size(1), states)
        context = Context(
            mask=additive_mask(future, None, states.dtype),
            causal=True,
            future=future,
            encoder_out=states,
            source=Source.of(states, None),
            target_start=start,
        )
        x = self.decoder(values, features, context)
        return self.projection(x[self.label :].transpose(0, 1))


class ForecasterModel(RecurrentModel, SeriesForecaster):
    """The forecaster with slots."""

    slots = staticmethod(config.forecaster_slots)
    assemble = staticmethod(config.forecaster_config)

    @classmethod
    def build_model(cls, cfg: DictConfig, task: FairseqTask) -> "ForecasterModel":
        """Build the model for the task ``time_series_forecasting``.

        Raises:
            ConfigError: listing every option that cannot be used, or it is another task
        """
        series = getattr(task, "series", None)
        if series is None:
            raise ConfigError(
                f"{cls.__name__} forecasts time series, and not text; give --task "
                "time_series_forecasting, or another --arch"
            )
        options = Namespace(**{**vars(model_options(cfg, task)), **FIXED})
        cls.check_options(options)
        for name in ("embed_dim", "ffn_embed_dim"):
            setattr(options, f"decoder_{name}", getattr(options, f"encoder_{name}"))
        host = TransformerConfig.from_namespace(options)
        variables, features = len(series.names), task.features.size(1)
        encoder = SeriesStack(host, "encoder", variables, features)
        decoder = SeriesStack(host, "decoder", variables, features)
        model = cls(encoder, decoder, variables, task.cfg.label_length)
        leave_to_each_process(model)
        model.observe_parts(options.monitor_interval)
        return model

    def load_state_dict(self, state_dict: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        """Load weights.

        Raises:
            CheckpointError: they are those of another number of variables, or do not fit
        """
        biases = state_dict.get("projection.bias"), self.projection.bias
        found, own = (0 if bias is None else bias.numel() for bias in biases)
        if found not in (0, own):
            raise CheckpointError(
                f"the checkpoint forecasts {found} variables, but the series has {own}: give a "
                "--series-file with those of its training, or choose them with --series-columns"
            )
        return super().load_state_dict(state_dict, *args, **kwargs)
