"""What all models of the plug-in do alike: load checkpoints, show their parts while training."""

import logging
from argparse import Namespace
from collections import defaultdict
from typing import Any

from fairseq.models import BaseFairseqModel
from omegaconf import DictConfig
from torch import Tensor

from fairseq_recur import compat
from fairseq_recur.errors import CheckpointError
from fairseq_recur.models.bart import leave_out_what_is_barts_alone
from fairseq_recur.models.monitoring import Monitor
from fairseq_recur.modules.part import Part

logger = logging.getLogger(__name__)


class RecurrentModel(BaseFairseqModel):
    """Mixin of the models, before the fairseq model that they extend."""

    monitor: Monitor | None = None

    def show_parts(self, interval: int) -> None:
        """Show the recurrent parts in the training log, at one update in *interval*; 0: never."""
        self.monitor = Monitor(interval) if interval else None

    def set_num_updates(self, num_updates: int) -> None:
        """Called before each batch of an update: show the recurrent parts in the training log."""
        super().set_num_updates(num_updates)
        if self.training and self.monitor is not None:
            self.monitor.before(self, num_updates)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """fairseq's; while an update is looked at, its parts observe what they compute."""
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
        """Make a checkpoint of another fairseq, of the stock Transformer, or of BART, fit.

        Parts in a slot of which the checkpoint has no weight at all keep their fresh
        weights, and are named in the log; so a stock Transformer's checkpoint starts any
        preset.
        """
        super().upgrade_state_dict_named(state_dict, name)
        if hasattr(self, "encoder"):
            leave_out_what_is_barts_alone(state_dict, self)
        for i in range(self.encoder.num_layers if hasattr(self, "encoder") else 0):
            compat.drop_stale_encoder_keys(state_dict, f"encoder.layers.{i}.")
        for parts in self.part_weights().values():
            if any(weights.keys() & state_dict.keys() for weights in parts.values()):
                continue
            for part, weights in parts.items():
                state_dict.update(weights)
                size = sum(w.numel() for w in weights.values())
                logger.warning(
                    f"initialised fresh, as the checkpoint does not have it: {part} "
                    f"({len(weights)} tensors, {size:,} values)"
                )

    def part_weights(self) -> dict[str, dict[str, dict[str, Tensor]]]:
        """The weights that a stock Transformer lacks: {slot: {part's name: {key: weight}}}."""
        weights: dict[str, dict[str, dict[str, Tensor]]] = defaultdict(dict)
        for name, module in self.named_modules():
            if isinstance(module, Part):
                weights[module.slot][name] = module.state_dict(prefix=name + ".")
        return weights

    def load_state_dict(
        self,
        state_dict: dict[str, Tensor],
        strict: bool = True,
        model_cfg: DictConfig | None = None,
        args: Namespace | None = None,
    ) -> Any:
        """Load weights; see `upgrade_state_dict_named` for those of other models.

        Raises:
            CheckpointError: if they do not fit, saying what differs and what to do
        """
        try:
            return super().load_state_dict(state_dict, strict, model_cfg, args)
        except RuntimeError as error:
            problems = self.misfits(state_dict)
            if not problems:
                raise
            raise CheckpointError(problems) from error

    def misfits(self, state_dict: dict[str, Tensor]) -> str:
        """How a checkpoint's weights differ from the model's, a line each; empty if they do not."""
        own = self.state_dict()
        shapes = [
            f"{key} is {tuple(state_dict[key].shape)} in the checkpoint and "
            f"{tuple(own[key].shape)} in the model"
            for key in own
            if key in state_dict and state_dict[key].shape != own[key].shape
        ]
        groups = defaultdict(list)
        for key in sorted(own.keys() - state_dict.keys()):
            groups["the checkpoint lacks"].append(key)
        for key in sorted(state_dict.keys() - own.keys()):
            groups["the model has no"].append(key)
        if not shapes and not groups:
            return ""
        if not groups and all("embed_tokens" in s or "output_projection" in s for s in shapes):
            remedy = (
                "its vocabulary is of another size: use the dict.*.txt that it was trained "
                "with (fairseq-preprocess --srcdict and --tgtdict)"
            )
        else:
            remedy = (
                "it is of another architecture: give the --arch and the sizes that it was "
                "trained with; only a stock transformer's checkpoint of the same sizes starts "
                "a model with further parts (--finetune-from-model)"
            )
        lines = shapes + [f"{what} {', '.join(keys)}" for what, keys in groups.items()]
        shown = [line if len(line) < 300 else line[:300] + " ..." for line in lines[:8]]
        more = [f"and {len(lines) - 8} more"] if len(lines) > 8 else []
        headline = f"the checkpoint does not fit the model; {remedy}"
        return "\n- ".join([headline, *shown, *more])
