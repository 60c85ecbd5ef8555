"""Gates and kernels in the training log, and with it in TensorBoard."""

import logging
import re
from typing import Dict, Set

import torch
from fairseq.logging import metrics
from torch import nn

from fairseq_recur.modules.mixture import Mixture

logger = logging.getLogger(__name__)

EVERY = 10
"""Updates from one look to the next; each fetches a few numbers from the device."""

LARGEST_ROW = 100.0
"""Sum of a row of a matrix above which the user is told; 1 / (1 - |lambda|) at lambda = 0.99."""


def monitored(model: nn.Module) -> Dict[str, float]:
    """The scalars of a model's parts, as {"gate_encoder_0": 0.27, "rem_encoder_0": 6.1, ...}."""
    values = {}
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, Mixture):
                place = re.sub(r".*?(encoder|decoder)\.layers\.(\d+)\..*", r"\1_\2", name)
                for key, value in module.monitored().items():
                    values[f"{key}_{place}"] = value
        if not values:
            return {}
        return dict(zip(values, torch.stack(list(values.values())).tolist()))


class Monitor:
    """Adds a model's scalars to fairseq's meters, and warns once of each matrix that explodes."""

    def __init__(self) -> None:
        self.values: Dict[str, float] = {}
        self.warned: Set[str] = set()

    def update(self, model: nn.Module, num_updates: int) -> None:
        """Called at each update: a line of the log has the values even if it covers one update."""
        if num_updates % EVERY == 0 or not self.values:
            self.values = monitored(model)
            self.warn()
        for name, value in self.values.items():
            metrics.log_scalar(name, value, weight=1, priority=900, round=3)

    def warn(self) -> None:
        """Tell the user of matrices that have left the sane range."""
        for name, value in self.values.items():
            if name.startswith("rem_") and value > LARGEST_ROW and name not in self.warned:
                self.warned.add(name)
                logger.warning(
                    f"{name}: the absolute values of a row of a recurrence encoding matrix add "
                    f"up to {value:.0f} (a decay close to 1), so that its product can outgrow "
                    "the attention beside it; --rsa-normalize bounds the rows, a smaller "
                    "--rsa-max-power or --lr helps as well"
                )
