"""What all models of the plug-in share: loading checkpoints, observing their parts in training."""

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any, ClassVar, NoReturn

from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import BaseFairseqModel
from fairseq.modules import FairseqDropout
from omegaconf import DictConfig
from torch import Tensor, nn

from fairseq_recur.errors import CheckpointError, ConfigError
from fairseq_recur.integration import from_checkpoint
from fairseq_recur.models.check import check_config
from fairseq_recur.models.checkpoints import misfits, upgrade_weights
from fairseq_recur.models.config import Slot
from fairseq_recur.models.monitoring import Monitor
from fairseq_recur.models.pruning import Pruning
from fairseq_recur.modules.part import copy_requests


class RecurrentModel(BaseFairseqModel):
    """Mixin of the models, before the fairseq model that they extend; a preset is a subclass."""

    slots: ClassVar[Callable[[], list[Slot]]]
    """The slots of a kind of model."""

    assemble: ClassVar[Callable[..., type[FairseqDataclass]]]
    """What makes the configuration of a kind of model, with the defaults of a preset."""

    config_class: type[FairseqDataclass]
    """The configuration with the preset's defaults."""

    monitor: Monitor | None = None

    pruning: Pruning | None = None
    """The layers that are left of the model that the options name, or None if all of them are."""

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the model's flags, without defaults: those are in the preset's dataclass.

        fairseq makes of an option that is true a flag that turns it off: a BART recipe's
        ``--share-all-embeddings`` would turn off what the preset has. So the flags are
        those of the dataclass without a preset, in which nothing is on.
        """
        gen_parser_from_dataclass(parser, cls.assemble()(), delete_default=True)

    @classmethod
    def check_options(cls, options: Namespace, further: Iterable[str] = ()) -> None:
        """Refuse flat options that cannot be used or would have no effect.

        Args:
            options: of the model
            further: problems of this kind of model, one message each

        Raises:
            ConfigError: listing them all
        """
        defaults = [cls.assemble()(), cls.config_class()]
        check_config(options, cls.slots(), defaults, from_checkpoint(), further)

    def __deepcopy__(self, memo: dict[int, Any]) -> "RecurrentModel":
        """A copy whose parameters have the same weight decay and learning rate."""
        copied = memo[id(self)] = self.__new__(type(self))
        copied.__dict__.update(deepcopy(self.__dict__, memo))
        copy_requests(self, copied)
        return copied

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

    def make_generation_fast_(self, **kwargs: Any) -> None:
        """As in fairseq, but a module answers to the names of the classes that it extends.

        Raises:
            ConfigError: a name in ``--retain-dropout-modules`` matches no module
        """
        wanted = kwargs.get("retain_dropout_modules")
        if wanted is not None and kwargs.get("retain_dropout"):
            kwargs["retain_dropout_modules"] = retained_modules(self, wanted)
        super().make_generation_fast_(**kwargs)

    def __prepare_scriptable__(self) -> NoReturn:
        """Called by ``torch.jit.script`` for the module before it compiles it.

        Raises:
            ConfigError: always
        """
        raise ConfigError(
            f"torch.jit.script cannot compile {type(self).__name__}: its layers exchange Python "
            "objects, which TorchScript does not know; use the model without it, or torch.compile"
        )

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Adapt a checkpoint of another fairseq, of the stock Transformer or of BART."""
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
        if self.pruning is not None:
            # First, as the upgrade knows the layers by their numbers in this model; fairseq's own
            # pruning then has nothing left to do.
            state_dict = self.pruning.prune(state_dict)
            self.pruning.write(model_cfg)
        try:
            return super().load_state_dict(state_dict, strict, model_cfg, args)
        except RuntimeError as error:
            problems = misfits(self, state_dict)
            if not problems:
                raise
            raise CheckpointError(problems) from error


def retained_modules(model: nn.Module, wanted: str | Iterable[str]) -> list[str]:
    """The modules that keep their dropout in decoding, by the names that fairseq gave them.

    fairseq compares with the name of a module's own class only, which for a stock Transformer is
    ``TransformerEncoder``, ``TransformerEncoderLayerBase`` or ``MultiheadAttention``.

    Args:
        model: with all of its modules
        wanted: names of classes, with or without fairseq's suffix ``Base``; a list, or the text
            of one

    Raises:
        ConfigError: a name matches no module with dropout
    """
    names = re.findall(r"\w+", wanted) if isinstance(wanted, str) else list(wanted)
    answers: dict[str, set[str]] = {}
    for module in model.modules():
        own = {c.module_name for c in module.children() if isinstance(c, FairseqDropout)}
        for ancestor in type(module).__mro__ if own else ():
            if issubclass(ancestor, nn.Module) and ancestor is not nn.Module:
                for name in {ancestor.__name__, ancestor.__name__.removesuffix("Base")}:
                    answers.setdefault(name, set()).update(own)
    for name in names:
        if name not in answers:
            raise ConfigError(
                f"--retain-dropout-modules {name}: no module with dropout has this name; choose "
                f"from {', '.join(sorted(answers))}"
            )
    return sorted({own for name in names for own in answers[name]})
