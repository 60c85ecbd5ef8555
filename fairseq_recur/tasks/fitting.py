"""The models and criterions that are made for a task of this plug-in."""

from typing import Any

from fairseq.criterions import FairseqCriterion
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY, BaseFairseqModel

from fairseq_recur.errors import ConfigError


def model_class(cfg: Any) -> tuple[str, type[BaseFairseqModel] | None]:
    """The name of the model that a task is to build, and its class; None if it is not registered.

    Args:
        cfg: the model's options, from fairseq's programs or a checkpoint
    """
    name = str(getattr(cfg, "_name", None) or getattr(cfg, "arch", None))
    return name, ARCH_MODEL_REGISTRY.get(name, MODEL_REGISTRY.get(name))


def fitting(criterion: FairseqCriterion, task: str, name: str) -> FairseqCriterion:
    """Return the criterion, if it is made for the batches of a task.

    Args:
        criterion: its class has the name of its task as ``for_task``
        task: name of the task
        name: of the task's criterion

    Raises:
        ConfigError: it is made for others
    """
    if getattr(criterion, "for_task", None) != task:
        raise ConfigError(
            f"{type(criterion).__name__} cannot measure the batches of --task {task}; give "
            f"--criterion {name}, or a subclass of it"
        )
    return criterion
