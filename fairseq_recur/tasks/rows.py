"""What this plug-in's tasks have in common: rows in memory, a model and a criterion of theirs."""

from typing import Any

import numpy
from fairseq.criterions import FairseqCriterion
from fairseq.data import FairseqDataset
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY, BaseFairseqModel

from fairseq_recur.errors import ConfigError

Sizes = numpy.ndarray[Any, numpy.dtype[numpy.int64]]


class RowDataset(FairseqDataset):
    """Rows of tables; `collater` of a subclass selects those of a batch at once.

    Args:
        sizes: symbols or time steps of each row
        shuffled: `ordered_indices` draws a new order in each epoch, from a seed with the epoch
    """

    def __init__(self, sizes: Sizes, shuffled: bool) -> None:
        super().__init__()
        self.sizes, self.shuffled = sizes, shuffled

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> Any:
        """Return the index itself; a subclass may return more."""
        return int(index)

    def num_tokens(self, index: int) -> int:
        """Return the size of a row."""
        return int(self.sizes[index])

    size = num_tokens

    def num_tokens_vec(self, indices: Sizes) -> Sizes:
        """Return the sizes of rows."""
        return self.sizes[indices]

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """Whether epochs share batches."""
        return not self.shuffled


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
