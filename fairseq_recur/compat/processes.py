"""Several processes: DistributedDataParallel and torchrun on a CPU, ZeRO, a process that dies."""

import functools
import logging
import os
import re
from typing import Any

import torch

from fairseq_recur.compat.registry import Function, mend, source_of
from fairseq_recur.errors import ConfigError, ProcessError

logger = logging.getLogger(__name__)

DISTRIBUTED = "fairseq.distributed.utils"

ddp = mend(
    "DistributedDataParallel on CPU",
    reason="fairseq always passes device_ids, which torch refuses for a model on the CPU",
    until="a fairseq that passes device_ids only for CUDA",
    needed=lambda: (
        "device_ids=[args.device_id]"
        in source_of("fairseq.models.distributed_fairseq_model:DistributedFairseqModel")
    ),
)


@ddp.action
def replace_ddp() -> None:
    """Put a subclass of torch's class in its place, once."""
    from fairseq.models import distributed_fairseq_model

    base: Any = distributed_fairseq_model.DistributedDataParallel
    if hasattr(base, "_fairseq_recur_subclass"):
        return

    class CpuOrCudaDistributedDataParallel(base):
        _fairseq_recur_subclass = True

        def __init__(self, module: torch.nn.Module, **kwargs: Any) -> None:
            if all(p.device.type == "cpu" for p in module.parameters()):
                kwargs.update(device_ids=None, output_device=None)
            super().__init__(module, **kwargs)

    distributed_fairseq_model.DistributedDataParallel = CpuOrCudaDistributedDataParallel


def launched_processes() -> int:
    """Return how many processes a launcher such as torchrun started; 0 without a launcher."""
    needed = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
    return int(os.environ["WORLD_SIZE"]) if all(k in os.environ for k in needed) else 0


def _join_launched(cfg: Any) -> None:
    """Take the rank and the number of processes from the launcher."""
    rank, devices = int(os.environ["RANK"]), torch.cuda.device_count()
    cfg.distributed_init_method = "env://"
    cfg.distributed_world_size = launched_processes()
    cfg.distributed_rank = rank
    cfg.device_id = int(os.environ.get("LOCAL_RANK", rank)) % devices if devices else 0
    cfg.distributed_no_spawn = True


torchrun = mend(
    "torchrun",
    reason="without a GPU, processes that torchrun started train one model each, or end with a "
    "ZeroDivisionError; two processes without torchrun end with an obscure error; validation "
    "gathers its results in CUDA memory, and fails on a rank with fewer batches",
    until="a fairseq that reads WORLD_SIZE before its own default and supports gloo",
)


@torchrun.patch(f"{DISTRIBUTED}:infer_init_method")
def infer_init_method(infer: Function, cfg: Any, force_distributed: bool = False) -> Any:
    """Join the processes of a launcher, and refuse several processes without a launcher or GPU."""
    launched, wanted = launched_processes(), cfg.distributed_world_size
    given = cfg.distributed_init_method is not None
    if given or cfg.tpu or cfg.pipeline_model_parallel:
        return infer(cfg, force_distributed)
    if launched > 1:
        return _join_launched(cfg)
    if launched == 1 and wanted == 1:
        return None  # fairseq 0.12.2 would start NCCL for one process
    slurm = "SLURM_STEP_NODELIST" in os.environ or "SLURM_JOB_NODELIST" in os.environ
    if wanted > 1 and not torch.cuda.is_available() and not slurm:
        raise ConfigError(
            f"--distributed-world-size {wanted} without a GPU: fairseq starts one process "
            f"for each GPU only. Use torchrun --nproc_per_node {wanted} --no-python "
            "fairseq-train ..., and leave --distributed-world-size out"
        )
    return infer(cfg, force_distributed)


@torchrun.patch(f"{DISTRIBUTED}:call_main")
def call_main(call: Function, cfg: Any, main: Function, **kwargs: Any) -> Any:
    """Choose the backend, and give each process of env:// its rank."""
    distributed = getattr(cfg, "distributed_training", None)
    if distributed is not None:
        if cfg.common.cpu or not torch.cuda.is_available():
            distributed.distributed_backend = "gloo"  # NCCL has no CPU tensors
        # With env:// every rank is 0 unless it is given, and the processes wait forever.
        if distributed.distributed_init_method == "env://" and launched_processes() > 1:
            _join_launched(distributed)
    return call(cfg, main, **kwargs)


@torchrun.patch(f"{DISTRIBUTED}:all_gather_list")
def all_gather_list(gather: Function, data: Any, group: Any = None, max_size: int = 16384) -> Any:
    """Gather in CPU memory under gloo."""
    from fairseq.distributed import utils as distributed_utils

    group = group if group is not None else distributed_utils.get_global_group()
    if torch.distributed.get_backend(group) == "gloo":
        size = max_size * distributed_utils.get_world_size(group=group)
        kept = distributed_utils.all_gather_list  # on which fairseq keeps its CUDA buffer
        if not hasattr(kept, "_buffer") or kept._buffer.numel() < size:
            kept._buffer = torch.ByteTensor(size)
            kept._cpu_buffer = torch.ByteTensor(max_size)
    return gather(data, group, max_size)


@torchrun.patch("fairseq.tasks:setup_task")
def setup_task(setup: Function, *args: Any, **kwargs: Any) -> Any:
    """Let any task accept the empty batch that a rank with fewer batches gets in validation."""
    task = setup(*args, **kwargs)
    task.valid_step = functools.partial(_valid_step, task.valid_step)
    return task


def _valid_step(valid: Function, sample: Any, *args: Any, **kwargs: Any) -> Any:
    """Validate a batch; an empty one has no loss, no size and nothing to log."""
    return valid(sample, *args, **kwargs) if sample else (0.0, 0, {})


zero_sharding = mend(
    "zero sharding",
    reason="--zero-sharding os needs fairscale, a package that is no longer maintained",
    until="a fairseq whose shard_ uses torch's ZeroRedundancyOptimizer",
    needed=lambda: "fairscale" in source_of("fairseq.optim:shard_"),
)


@zero_sharding.patch("fairseq.optim:shard_")
def shard(_: Function, optimizer: Any, group: Any) -> None:
    """Divide the state of a fairseq optimizer between the processes, if there are several."""
    if group is None or torch.distributed.get_world_size(group) == 1:
        logger.info("--zero-sharding os: one process keeps the state of all parameters")
        return
    inner = optimizer.optimizer
    # Importing torch's optimizers for several processes takes a moment.
    from fairseq_recur.compat.sharded_optimizer import ShardedOptimizer

    sharded = ShardedOptimizer(
        inner.param_groups, type(inner), process_group=group, **optimizer.optimizer_config
    )
    optimizer.optimizer = sharded
    own, every = (
        sum(p.numel() for g in groups for p in g["params"])
        for groups in (sharded.optim.param_groups, sharded.param_groups)
    )
    logger.info(
        "--zero-sharding os: this process keeps the state of %s of %s parameters", own, every
    )


dying = mend(
    "a process that dies",
    reason="the other processes of the training end with a low-level error of gloo or NCCL, in the "
    "middle of whatever they computed",
    until="a fairseq that catches the errors of torch.distributed",
)


@dying.patch(f"{DISTRIBUTED}:call_main")
def call_explained_main(call: Function, cfg: Any, main: Function, **kwargs: Any) -> Any:
    """Explain the loss of another process."""
    return call(cfg, functools.partial(_explained, main), **kwargs)


def _explained(main: Function, *args: Any, **kwargs: Any) -> Any:
    """Call *main*; a function of this module, because spawned processes have to import it."""
    try:
        return main(*args, **kwargs)
    except RuntimeError as error:
        if not (isinstance(error, torch.distributed.DistError) or "gloo/transport" in str(error)):
            raise
        said = re.sub(r"^\[\S+\] ", "", str(error).strip()).split(". This is typically")[0]
        joined = torch.distributed.is_initialized()
        who = (
            f"rank {torch.distributed.get_rank()}" if joined else "this process, before it joined,"
        )
        raise ProcessError(
            "another process of this training has ended, or could not be reached for too long. "
            f"{who} was told: {said}\nLook for the first error of the other processes, or for "
            "what killed one (too little memory?); the same command continues from the last "
            "checkpoint"
        ) from None
