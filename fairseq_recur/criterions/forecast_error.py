"""``--criterion forecast_error``: the squared error of forecasts; MSE and MAE in the log."""

from typing import Any

import torch
from fairseq.criterions import register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor

from fairseq_recur.criterions.counts import totals
from fairseq_recur.criterions.of_task import CriterionOfTask


def forecast_errors(forecast: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of squared and of absolute errors of (B, T, V) values, in float32 or more."""
    precise = torch.promote_types(forecast.dtype, torch.float32)
    error = forecast.to(precise) - target
    return error.square().sum(), error.abs().sum()


@register_criterion("forecast_error", dataclass=FairseqDataclass)
class ForecastErrorCriterion(CriterionOfTask):
    """The squared error of each value of a forecast, on the scale of the standardised series.

    A sample's ``target`` is (B, T, V), and so is the model's output.
    """

    flag, for_task = "forecast_error", "time_series_forecasting"

    def forward(
        self, model: torch.nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Return the summed loss, its number of values, and the sums."""
        target = sample["target"]
        squared, absolute = forecast_errors(model(**sample["net_input"]), target)
        sums = {
            "loss": squared.detach(),
            "absolute": absolute.detach(),
            "nsentences": sample["nsentences"],
            "ntokens": sample["ntokens"],
            "sample_size": target.numel(),
        }
        return squared, target.numel(), sums

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        """Log the loss, which is ``mse``, and ``mae``."""
        sums = totals(logging_outputs)
        values = sums["sample_size"]
        metrics.log_scalar("loss", sums["loss"] / values, values, round=5)
        metrics.log_scalar("mse", sums["loss"] / values, values, round=5)
        metrics.log_scalar("mae", sums["absolute"] / values, values, round=5)
