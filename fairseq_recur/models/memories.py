"""The memories of a model in training: saving, resuming and repeated batches."""

from contextlib import ExitStack
from typing import Any

import torch
from fairseq.distributed import utils as distributed_utils
from omegaconf import OmegaConf
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fairseq_recur.compat.registry import Function, extend
from fairseq_recur.modules.stream_memory import StreamMemory, is_memory


def memories_of(model: nn.Module) -> list[StreamMemory]:
    """The memories of a model."""
    return [module for module in model.modules() if isinstance(module, StreamMemory)]


def leave_to_each_process(model: nn.Module) -> None:
    """Keep ``--broadcast-buffers`` from replacing a process's memory by that of the first."""
    names = [name for name, _ in model.named_buffers() if is_memory(name)]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)


@extend("fairseq.checkpoint_utils:save_checkpoint", "memories")
def save_checkpoint(
    save: Function, cfg: Any, trainer: Any, epoch_itr: Any, val_loss: float | None
) -> Any:
    """Save memories, with the rows of all processes, in the checkpoints to resume from.

    fairseq writes one file and copies it. So within an epoch it is called twice: for the best
    checkpoint, and for the last one and that of --save-interval-updates. The next epoch begins
    with empty memories, so at the end of one nothing is saved of them.
    """
    memories = memories_of(trainer.model)
    if cfg.no_save or not memories or epoch_itr.end_of_epoch():
        return save(cfg, trainer, epoch_itr, val_loss)
    best, distributed = None, torch.distributed
    if val_loss is not None:
        kept = {"no_last_checkpoints": True, "save_interval_updates": 0, "keep_interval_updates": 0}
        best = save(OmegaConf.merge(cfg, kept), trainer, epoch_itr, val_loss)
    several = distributed.is_available() and distributed.is_initialized()
    group = distributed_utils.get_data_parallel_group() if several else None
    with ExitStack() as held:
        for memory in memories:
            held.enter_context(memory.saved(group))
        return save(cfg, trainer, epoch_itr, None) or best


@extend("fairseq.trainer:Trainer.train_step", "memories of a repeated batch")
def train_step(step: Function, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    """Let the batches that --amp repeats after an overflow read what they read the first time.

    fairseq repeats them by a call of this function within itself. What validation has read is
    dropped: the next one begins with an empty memory. So is what a process has read that has no
    batch left: fairseq gives it the first one again, with a loss of zero.
    """
    for memory in memories_of(trainer.model):
        memory.evaluation = {}
    found = repeated_step(step, trainer, *args, **kwargs)
    samples = args[0] if args else kwargs["samples"]
    if not all(samples):  # an empty one: the process has no batch left in this epoch
        for memory in memories_of(trainer.model):
            memory.clear()
    return found


def repeated_step(step: Function, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    """Make an update, with --amp from the memories of the first time."""
    if not trainer.cfg.common.amp:
        return step(trainer, *args, **kwargs)
    first = getattr(trainer, "_memories_before", None)
    for memory, rows in first or []:
        memory.restore(rows)
    before = first or [(m, dict(m.named_buffers())) for m in memories_of(trainer.model)]
    trainer._memories_before = before
    try:
        return step(trainer, *args, **kwargs)
    finally:
        trainer._memories_before = first


@extend("fairseq.trainer:Trainer.valid_step", "memories of a repeated batch of validation")
def valid_step(step: Function, trainer: Any, sample: Any, raise_oom: bool = False) -> Any:
    """Let a batch that is repeated, for lack of space, read what it read the first time.

    fairseq repeats it by a call of this function within itself, with *raise_oom*.
    """
    first = getattr(trainer, "_evaluations_before", None)
    for memory, held in first or []:
        memory.evaluation = held
    before = first or [(m, m.evaluation) for m in memories_of(trainer.model)]
    trainer._evaluations_before = before
    try:
        return step(trainer, sample, raise_oom)
    finally:
        trainer._evaluations_before = first
