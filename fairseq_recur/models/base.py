"""What all models of the plug-in share: loading checkpoints, observing their parts in training."""

from argparse import Namespace
from typing import Any

from fairseq.models import BaseFairseqModel
from omegaconf import DictConfig
from torch import Tensor

from fairseq_recur.errors import CheckpointError
from fairseq_recur.models.checkpoints import misfits, upgrade_weights
from fairseq_recur.models.monitoring import Monitor


class RecurrentModel(BaseFairseqModel):
    """Mixin of the models, before the fairseq model that they extend."""

    monitor: Monitor | None = None

    def observe_parts(self, interval: int) -> None:
        """Log the recurrent parts while training, at one update in *interval*; 0: never."""
        self.monitor = Monitor(interval) if interval else None

    def set_num_updates(self, num_updates: int) -> None:
        """Called before each batch of an update: log the recurrent parts."""
        super().set_num_updates(num_updates)
        if self.training and self.monitor is not None:
            self.monitor.before(self, num_updates)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As in fairseq; while an update is observed, the parts record what they compute."""
        if self.training and self.monitor is not None and self.monitor.looking:
            with self.monitor.look(self):
                return super().forward(*args, **kwargs)
        return super().forward(*args, **kwargs)

    def prepare_for_inference_(self, cfg: DictConfig) -> None:
        """Prepare for decoding; unlike fairseq's models, obey ``--bf16`` as well as ``--fp16``."""
        if cfg.common.bf16:
            self.bfloat16()
        super().prepare_for_inference_(cfg)

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Make a checkpoint of another fairseq, of the stock Transformer, or of BART, fit."""
        super().upgrade_state_dict_named(state_dict, name)
        upgrade_weights(self, state_dict)

    def load_state_dict(
        self,
        state_dict: dict[str, Tensor],
        strict: bool = True,
        model_cfg: DictConfig | None = None,
        args: Namespace | None = None,
    ) -> Any:
        """Load weights; see `upgrade_weights` for those of other models.

        Raises:
            CheckpointError: if they do not fit, saying what differs and what to do
        """
        try:
            return super().load_state_dict(state_dict, strict, model_cfg, args)
        except RuntimeError as error:
            problems = misfits(self, state_dict)
            if not problems:
                raise
            raise CheckpointError(problems) from error
