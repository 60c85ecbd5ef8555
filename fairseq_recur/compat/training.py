"""The trainer: its configuration, overflows, NaN, mixed and half precision, averages."""

from contextvars import ContextVar
from typing import Any

import torch

from fairseq_recur.compat.fairseq_options import (
    refuse_fp16_without_cuda,
    refuse_lost_training,
    refuse_sharding,
)
from fairseq_recur.compat.processes import launched_processes
from fairseq_recur.compat.registry import Function, mend, source_of
from fairseq_recur.errors import ConfigError, first_items


def _flat(cfg: Any) -> dict[str, Any]:
    """Return the options of a training as its command line would have them."""
    from omegaconf import DictConfig, OmegaConf

    found: dict[str, Any] = {}
    for name in set(cfg) - {"model", "task"}:
        section = None if OmegaConf.is_missing(cfg, name) else cfg[name]
        if isinstance(section, DictConfig):
            values = OmegaConf.to_container(section, resolve=True)
            assert isinstance(values, dict)
            found.update({str(key): value for key, value in values.items()})
            found[name] = found.pop("_name", None)
    return found


hydra_training = mend(
    "hydra training",
    reason="fairseq-hydra-train imports the user-dir after it has read its options and started its "
    "processes, so what can no longer be corrected is refused here; hydra 1.0 sets "
    "base_layers=None",
    until="a fairseq that imports the user-dir first and drops hydra 1.0",
)


@hydra_training.patch("fairseq.trainer:Trainer.__init__")
def init_trainer(construct: Function, self: Any, cfg: Any, *args: Any, **kwargs: Any) -> None:
    """Check the configuration before the trainer is built."""
    from omegaconf import DictConfig, open_dict

    if isinstance(cfg, DictConfig):
        refuse_fp16_without_cuda(cfg.common)
        options = _flat(cfg)
        refuse_sharding(options)
        refuse_lost_training(options)
        processes = launched_processes()
        if processes > 1 and cfg.distributed_training.distributed_world_size == 1:
            raise ConfigError(
                f"torchrun started {processes} processes, and each would train a separate model. "
                "Start with `fairseq-recur hydra-train`, which joins them"
            )
        if getattr(cfg.model, "base_layers", 0) is None:
            with open_dict(cfg.model):
                cfg.model.base_layers = 0
    construct(self, cfg, *args, **kwargs)


overflow = mend(
    "overflow on a CPU",
    reason="when gradients overflow, the trainer allocates a zero in CUDA memory before it takes "
    "the update back, and fails without a GPU",
    until="a trainer that puts the norm of an overflow on its own device",
    needed=lambda: "torch.tensor(0.0).cuda()" in source_of("fairseq.trainer:Trainer.train_step"),
)


@overflow.patch("fairseq.trainer:Trainer.train_step")
def train_step(step: Function, self: Any, samples: Any, raise_oom: bool = False) -> Any:
    """Finish what the trainer was doing when it found no CUDA device."""
    from fairseq.logging import metrics

    try:
        return step(self, samples, raise_oom)
    except (AssertionError, RuntimeError) as error:
        if self.cuda or not isinstance(error.__context__, OverflowError):
            raise
    self.zero_grad()
    metrics.log_stop_time("train_wall")
    return None


nan_detector = mend(
    "NaN detector",
    reason="its backward hooks fail on encoder outputs with StopIteration, which hides the real "
    "error; it prints all gradients, and the final error does not say where the NaN comes from",
    until="a fairseq whose NanDetector uses no register_backward_hook and raises what it found",
    needed=lambda: (
        "register_backward_hook" in source_of("fairseq.nan_detector:NanDetector.add_hooks")
    ),
)


@nan_detector.patch("fairseq.nan_detector:NanDetector.add_hooks")
def add_hooks(_: Function, self: Any, module: torch.nn.Module) -> None:
    """Add only the forward hooks."""
    if self.forward:
        self.fhooks.append(module.register_forward_hook(self.fhook_fn))


@nan_detector.patch("fairseq.nan_detector:NanDetector._detect")
def detect(original: Function, self: Any, *args: Any) -> Any:
    """Remember the first module with a NaN."""
    found = original(self, *args)
    self.first = getattr(self, "first", None) or found
    return found


@nan_detector.patch("fairseq.nan_detector:NanDetector.__exit__")
def raise_nan(_: Function, self: Any, kind: Any, *__: Any) -> None:
    """Raise an error that says where the NaN comes from."""
    self.close()
    message = _not_finite(getattr(self, "first", None), self.named_parameters)
    if kind is None and message is not None:
        raise FloatingPointError(message)


def _not_finite(first: str | None, parameters: list[tuple[str, torch.nn.Parameter]]) -> str | None:
    """Say where a pass produced NaN or Inf, and what to do; None if everything is finite."""
    wrong = [n for n, p in parameters if p.grad is not None and not p.grad.isfinite().all()]
    if first is None and not wrong:
        return None
    return (
        "the gradients are NaN or Inf. "
        + (f"First in the forward pass: {first}. " if first else "The forward pass is finite. ")
        + (f"Gradients that are not finite: {first_items(wrong, 3)}. " if wrong else "")
        + "The update was not made. Continue from the last checkpoint with a lower --lr, a "
        "--clip-norm, a longer --warmup-updates or without half precision; gnorm in the log shows "
        "how the gradients grew"
    )


amp = mend(
    "amp",
    reason="without a GPU the disabled GradScaler has no backoff factor, which hides a NaN loss; "
    "--amp-scale-window is read from the wrong option",
    until="a fairseq that checks scaler.is_enabled()",
    needed=lambda: (
        "is_enabled" not in source_of("fairseq.optim.amp_optimizer:AMPOptimizer.clip_grad_norm")
    ),
)


@amp.patch("fairseq.optim.amp_optimizer:AMPOptimizer.__init__")
def init_amp(construct: Function, self: Any, cfg: Any, *args: Any, **kwargs: Any) -> None:
    """Set the interval that --amp-scale-window gives."""
    construct(self, cfg, *args, **kwargs)
    if getattr(cfg.common, "amp_scale_window", None) is not None:
        self.scaler.set_growth_interval(cfg.common.amp_scale_window)


@amp.patch("fairseq.optim.amp_optimizer:AMPOptimizer.clip_grad_norm")
def clip_grad_norm(
    clip: Function, self: Any, max_norm: float, aggregate_norm_fn: Function | None = None
) -> Any:
    """Clip without the scaler where it is disabled, and raise for a NaN."""
    if self.scaler.is_enabled():
        return clip(self, max_norm, aggregate_norm_fn)
    norm = self.fp32_optimizer.clip_grad_norm(max_norm, aggregate_norm_fn)
    if not torch.isfinite(norm).all():
        raise FloatingPointError(
            "the gradients are NaN or Inf; continue from the last checkpoint with a lower --lr"
        )
    return norm


amp_on_cpu = mend(
    "amp on a CPU",
    reason="--amp asks for CUDA's autocast, which does nothing on a CPU; there it is bfloat16 "
    "with float32 weights",
    until="a fairseq whose tasks use torch.autocast on the model's device",
    needed=lambda: (
        "cuda.amp.autocast" in source_of("fairseq.tasks.fairseq_task:FairseqTask.train_step")
    ),
)


@amp_on_cpu.patch("fairseq.tasks.fairseq_task:FairseqTask.train_step")
def task_train_step(
    step: Function,
    self: Any,
    sample: Any,
    model: Any,
    criterion: Any,
    optimizer: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Compute the loss with autocast; the backward pass has its own dtypes."""
    from fairseq.optim.amp_optimizer import AMPOptimizer

    def with_autocast(model: Any, sample: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return criterion(model, sample)

    amp = isinstance(optimizer, AMPOptimizer) and next(model.parameters()).device.type == "cpu"
    chosen = with_autocast if amp else criterion
    return step(self, sample, model, chosen, optimizer, *args, **kwargs)


averaged_weights = mend(
    "versions in averaged weights",
    reason="--store-ema keeps no buffers; a model that is restored without the versions of its "
    "stacks counts as one of an old fairseq, and loses its final norms",
    until="a fairseq whose EMA keeps buffers",
)


@averaged_weights.patch("fairseq.models.ema:EMA.restore")
def restore_average(
    restore: Function, self: Any, weights: dict[str, torch.Tensor], *args: Any, **kwargs: Any
) -> None:
    """Give the averages the versions of the model."""
    own = self.model.state_dict()
    versions = {name: value for name, value in own.items() if name.endswith(".version")}
    restore(self, {**versions, **weights}, *args, **kwargs)


first_averages = mend(
    "averages that begin with a checkpoint",
    reason="--store-ema with a checkpoint that has no averages, such as that of "
    "--finetune-from-model, ends in KeyError: 'model'",
    until="a fairseq whose Trainer.load_checkpoint keeps the weights until the averages have them",
    needed=lambda: 'del state["model"]' in source_of("fairseq.trainer:Trainer.load_checkpoint"),
)

_averaging: ContextVar[bool] = ContextVar("averaging", default=False)
"""Whether a training with --store-ema loads a checkpoint."""


@first_averages.patch("fairseq.trainer:Trainer.load_checkpoint")
def load_for_averages(load: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Let `load_checkpoint_to_cpu` know that averages are needed."""
    before = _averaging.set(self.cfg.ema.store_ema)
    try:
        return load(self, *args, **kwargs)
    finally:
        _averaging.reset(before)


@first_averages.patch("fairseq.checkpoint_utils:load_checkpoint_to_cpu")
def load_with_averages(load: Function, *args: Any, **kwargs: Any) -> Any:
    """Take a checkpoint's weights as its averages if it has none."""
    state = load(*args, **kwargs)
    if _averaging.get() and "ema" not in state["extra_state"]:
        state["extra_state"]["ema"] = state["model"]
    return state


average_interval = mend(
    "interval of averaged weights",
    reason="with --ema-update-freq a training that is resumed counts the updates to the next "
    "average from zero",
    until="a fairseq whose EMA finds its turn by the number of updates",
)


@average_interval.patch("fairseq.models.ema:EMA.step")
def step_average(step: Function, self: Any, model: Any, updates: int | None = None) -> None:
    """Count from the number of updates, which the checkpoint has."""
    if updates is not None:
        self.update_freq_counter = (updates - 1) % max(self.config.ema_update_freq, 1)
    step(self, model, updates)
