"""The only file that knows which fairseq, torch and hydra are installed.

`apply` runs every entry of `ADAPTATIONS` once: each mends one thing that the installed
fairseq does wrong on today's machines, and says why and what will make it needless.
What is replaced carries a mark, so that a second run (or a second copy of this module)
finds it and leaves it alone. `environment_report` and `known_problems` describe the
machine for ``fairseq-recur check``.
"""

import atexit
import collections
import contextlib
import contextvars
import copy
import difflib
import functools
import importlib.metadata
import importlib.util
import inspect
import itertools
import logging
import os
import platform
import queue
import re
import shutil
import sys
import threading
import time
import types
import typing
import warnings
import weakref
import zipfile
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fairseq_recur.errors import CheckpointError, ConfigError, ProcessError
from fairseq_recur.files import whole_file
from fairseq_recur.options import refuse_impossible
from fairseq_recur.values import evaluate

logger = logging.getLogger(__name__)

PACKAGE = Path(__file__).resolve().parent
UNSAFE_VARIABLE = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
_MARK = "_fairseq_recur_adaptations"
_removed_variables: set[str] = set()


@dataclass(frozen=True)
class Adaptation:
    """One change to the installed libraries: what, why, and what makes it needless."""

    name: str
    reason: str
    needless_from: str
    apply: Callable[[], None]


ADAPTATIONS: list[Adaptation] = []


def _adaptation(name: str, reason: str, needless_from: str) -> Callable:
    def register(function: Callable[[], None]) -> Callable[[], None]:
        ADAPTATIONS.append(Adaptation(name, reason, needless_from, function))
        return function

    return register


def apply() -> None:
    """Adapt the installed fairseq and torch; calling it again changes nothing.

    Raises:
        ImportError: fairseq itself cannot be imported; the message has the remedies.
    """
    try:
        import fairseq  # noqa: F401
    except Exception as error:  # a wrong hydra or Python breaks it with many types
        remedies = "".join(f"\n- {p.title}: {p.remedy}" for p in known_problems())
        message = f"fairseq cannot be imported ({type(error).__name__}: {error}); "
        remedy = f"do what helps:{remedies}" if remedies else "install it again with its pins"
        raise ImportError(message + remedy) from error
    for item in ADAPTATIONS:
        item.apply()


def _wrap(owner: Any, attribute: str, label: str, make: Callable) -> None:
    """Put ``make(current)`` in the place of ``owner.attribute``, once for each label."""
    current = getattr(owner, attribute)
    done = getattr(current, _MARK, ())
    if label not in done:
        replacement = functools.wraps(current)(make(current))
        setattr(replacement, _MARK, (*done, label))
        setattr(owner, attribute, replacement)


def _torch_version() -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", torch.__version__)[:2])


# Checkpoints ------------------------------------------------------------------------


def _omegaconf_classes() -> list[Any]:
    """What the configuration in a broadcast checkpoint is made of, in omegaconf 2.0 to 2.3."""
    from omegaconf import DictConfig, ListConfig, base, nodes

    named = "AnyNode StringNode IntegerNode FloatNode BooleanNode EnumNode BytesNode PathNode"
    found = [getattr(nodes, name, None) for name in named.split()]
    builtin = [dict, list, tuple, int, float, str, bool]
    plain = [typing.Any, collections.defaultdict, *builtin]
    containers = [DictConfig, ListConfig, base.ContainerMetadata, base.Metadata]
    return [*containers, *filter(None, found), *plain]


def safe_globals() -> list[Any]:
    """The classes that fairseq's own checkpoints and broadcasts name, for torch's allow-list."""
    import numpy
    from fairseq.distributed.utils import _TensorPlaceholder

    # --eval-bleu keeps its counts as numpy arrays; numpy 1 and 2 write different paths.
    rebuild = numpy.zeros(1).__reduce__()[0]
    arrays = [numpy.ndarray, numpy.dtype, *(type(numpy.dtype(t)) for t in ("i4", "i8", "f4", "f8"))]
    if _torch_version() >= (2, 6):
        names = ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct")
        arrays += [(rebuild, name) for name in names]
    else:
        arrays.append(rebuild)
    return [Namespace, _TensorPlaceholder, *arrays, *_omegaconf_classes()]


@_adaptation(
    "safe checkpoint classes",
    "torch >= 2.6 loads no class that is not allow-listed; fairseq's checkpoints hold Namespace "
    "and numpy arrays, and its broadcast at a multi-process resume holds omegaconf's classes",
    "a fairseq that allow-lists or no longer stores them",
)
def _allow_list() -> None:
    if hasattr(torch.serialization, "add_safe_globals"):  # torch >= 2.4
        torch.serialization.add_safe_globals(safe_globals())


@_adaptation(
    "weights only",
    "torch.load without weights_only=True runs code from the file; fairseq relies on the default",
    "torch 2.6, but for the variable that turns it off",
)
def _load_weights_only() -> None:
    if os.environ.pop(UNSAFE_VARIABLE, None) is not None:
        _removed_variables.add(UNSAFE_VARIABLE)
        logger.warning(
            "%s is set, which lets every checkpoint run code; it was removed for this process: "
            "fairseq's checkpoints load without it. Unset it in your shell.",
            UNSAFE_VARIABLE,
        )
    if _torch_version() < (2, 6):
        os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"


NOTHING = "Nothing in it was executed and nothing was loaded."
AGAIN = "Copy or download it again, or go back to an earlier checkpoint"


def read_checkpoint(path: str) -> dict[str, Any]:
    """Load a checkpoint of fairseq without running code from it.

    Raises:
        CheckpointError: it is none, or damaged, or refused
    """
    if not os.path.exists(path):
        problem = "no such file. Name one of those that fairseq-train wrote into --save-dir"
    elif os.path.isdir(path):
        problem = "this is a folder. Name one file in it, such as checkpoint_best.pt"
    else:
        refuse_damaged(path)
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except PermissionError:
            problem = "cannot be read. Check the file's permissions"
        except Exception as error:  # what damaged bytes raise is open-ended
            problem = _loading_problem(path, error)
        else:
            wrong = _content_problem(path, state)
            if wrong is None:
                return state
            raise CheckpointError(wrong)
    raise CheckpointError(f"{path}: {problem}")


def checkpoint_problem(path: str) -> str | None:
    """Why ``path`` is no checkpoint that fairseq can use, as one message, or None if it is."""
    try:
        read_checkpoint(path)
    except CheckpointError as error:
        return str(error)
    return None


def refuse_damaged(path: str) -> None:
    """Compare the checksums in a checkpoint's zip file, at which torch does not look.

    Raises:
        CheckpointError: one is wrong
    """
    damaged = None
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()
    except PermissionError:
        return  # which loading it explains
    except Exception:  # what damaged bytes raise is open-ended
        damaged = "its index"
    if damaged is not None:
        raise CheckpointError(
            f"{path}: damaged: {damaged} is not what was saved. {NOTHING} {AGAIN}"
        )


def _loading_problem(path: str, error: Exception) -> str:
    """Why torch could not load what is in a file."""
    refused = re.search(r"GLOBAL ([\w.]+) (?:was not|whose)", str(error))
    if refused:
        return (
            f"refused, because it asks for {refused[1]}, which no fairseq checkpoint needs: it "
            f"would run code. {NOTHING} Do not use the file; get the weights from a source that "
            "you trust"
        )
    size = os.path.getsize(path)
    return f"{size} bytes that are no PyTorch checkpoint, or one cut short or damaged. {NOTHING} {AGAIN}"


def _content_problem(path: str, state: Any) -> str | None:
    """Why a loaded ``state`` is not what fairseq saves, or None."""
    wanted = 'a dictionary with "model" and one of "cfg" and "args"'
    advice = "Give a checkpoint that fairseq-train saved"
    if not isinstance(state, dict):
        return f"{path}: it holds a {type(state).__name__}, expected {wanted}. {advice}"
    if "model" not in state or (state.get("cfg") is None and state.get("args") is None):
        keys = ", ".join(sorted(map(str, state))[:8])
        return f"{path}: no fairseq checkpoint: it holds [{keys}], expected {wanted}. {advice}"
    cfg = state.get("cfg") or {}  # omegaconf 2.0 has no .get() for a key that is not there
    model = cfg["model"] if "model" in cfg else None
    settings = vars(model) if isinstance(model, Namespace) else model or {}
    part = settings["recurrence"] if "recurrence" in settings else None
    if part not in (None, "none") and not any("recurrence_encoder." in k for k in state["model"]):
        return (
            f"{path}: its configuration says recurrence={part}, but its weights have no "
            "recurrence encoder: it was changed after it was saved. Use the original checkpoint"
        )
    return None


@_adaptation(
    "evaluated options",
    "fairseq passes options that hold lists or numbers as text to eval(), also those of the "
    "configuration in a checkpoint: --encoder-xformers-att-config, fconv's --encoder-layers",
    "a fairseq that reads them without eval()",
)
def _evaluate_values_alone() -> None:
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in ("fairseq", "fairseq_cli") and isinstance(
            module, types.ModuleType
        ):
            vars(module).setdefault("eval", evaluate)


@_adaptation(
    "checkpoint errors",
    "torch's error for a refused file recommends weights_only=False, which would run its code",
    "stays",
)
def _explain_checkpoint_errors() -> None:
    from fairseq import checkpoint_utils
    from fairseq.file_io import PathManager

    def explaining(load: Callable) -> Callable:
        def wrapper(path: str, *args: Any, **kwargs: Any) -> Any:
            _load_weights_only()
            refuse_damaged(PathManager.get_local_path(path))
            try:
                state = load(path, *args, **kwargs)
            except Exception as error:
                problem = checkpoint_problem(PathManager.get_local_path(path))
                if problem is None and load.__name__ == "load_ema_from_checkpoint":
                    problem = f"{path}: it holds no EMA weights; train with --store-ema"
                if problem is None:
                    raise
                raise CheckpointError(problem) from (error if isinstance(error, OSError) else None)
            problem = None
            if load.__name__ == "load_checkpoint_to_cpu":
                problem = _content_problem(path, state)
            if problem is not None:
                raise CheckpointError(problem)
            return state

        return wrapper

    def finding(load: Callable) -> Callable:
        def wrapper(filenames: list[str], *args: Any, **kwargs: Any) -> Any:
            try:
                return load(filenames, *args, **kwargs)
            except OSError as error:
                if "Model file not found" not in str(error):
                    raise
                path = str(error).rpartition(": ")[2]
                problem = checkpoint_problem(path) or f"{error}; give a --path that is there"
                raise CheckpointError(problem) from None

        return wrapper

    for name in ("load_checkpoint_to_cpu", "load_ema_from_checkpoint"):
        _wrap(checkpoint_utils, name, "checkpoint errors", explaining)
    _wrap(checkpoint_utils, "load_model_ensemble_and_task", "checkpoint errors", finding)


_loading = contextvars.ContextVar("loading", default=False)


def from_checkpoint() -> bool:
    """Whether the model that is being built is one of a checkpoint."""
    return _loading.get()


@_adaptation(
    "defaults of earlier versions",
    "a checkpoint names every option with the default of its time, and a model's build_model is not "
    "told, as the task's is, that nobody has asked for them",
    "a fairseq that hands from_checkpoint on to the model",
)
def _tell_what_is_loaded() -> None:
    from fairseq import checkpoint_utils

    def telling(load: Callable) -> Callable:
        def load_model_ensemble_and_task(*args: Any, **kwargs: Any) -> Any:
            before = _loading.set(True)
            try:
                return load(*args, **kwargs)
            finally:
                _loading.reset(before)

        return load_model_ensemble_and_task

    _wrap(checkpoint_utils, "load_model_ensemble_and_task", "defaults of earlier versions", telling)


@contextlib.contextmanager
def _whole_checkpoint(path: str) -> typing.Iterator[typing.BinaryIO]:
    """`whole_file`, with an error that says what is left and what to do."""
    try:
        with whole_file(Path(path)) as file:
            yield file
    except Exception as error:  # torch's writer turns a full disk into errors of its own
        folder = Path(path).parent
        free = shutil.disk_usage(folder if folder.is_dir() else ".").free
        raise CheckpointError(
            f"{path} could not be written ({type(error).__name__}: {error}); the disk of {folder} "
            f"has {free / 1e9:.2f} GB left. The checkpoints that were there are whole: make room, "
            "and the same command goes on from the last of them"
        ) from error


@_adaptation(
    "whole checkpoints",
    "checkpoint_last.pt is written by copying over it, so that a kill leaves half of one; and "
    "after a failed write fairseq tries again in the same file, behind what it has written",
    "stays",
)
def _write_checkpoints_whole() -> None:
    from fairseq import checkpoint_utils
    from fairseq.file_io import PathManager

    remote = PathManager.path_requires_pathmanager

    def saving(save: Callable) -> Callable:
        def wrapper(obj: Any, filename: str, async_write: bool = False) -> None:
            if async_write or remote(filename):
                return save(obj, filename, async_write=async_write)
            with _whole_checkpoint(filename) as file:
                torch.save(obj, file)

        return wrapper

    def copying(copy: Callable) -> Callable:
        def wrapper(src_path: str, dst_path: str, overwrite: bool = False) -> bool:
            if not overwrite or remote(src_path) or remote(dst_path):
                return copy(src_path, dst_path, overwrite=overwrite)
            with open(src_path, "rb") as source, _whole_checkpoint(dst_path) as file:
                shutil.copyfileobj(source, file)
            return True

        return wrapper

    _wrap(checkpoint_utils, "torch_persistent_save", "whole checkpoints", saving)
    _wrap(PathManager, "copy", "whole checkpoints", copying)


# Training ---------------------------------------------------------------------------


def _refuse_fp16_without_cuda(common: Any) -> None:
    if common.fp16 and not common.memory_efficient_fp16:
        if common.cpu or not torch.cuda.is_available():
            why = "--cpu is given" if common.cpu else "torch finds none"
            raise ConfigError(
                f"--fp16 trains on a CUDA device, and {why}. Leave --fp16 out, or use --bf16 or "
                "--memory-efficient-fp16"
            )


@_adaptation(
    "arguments",
    "--bf16 sets tpu, which crashes without torch_xla; fairseq-validate without --task ends with "
    "KeyError: None; --fp16 without a GPU ends with an AssertionError; --save-interval 0 with a "
    "ZeroDivisionError after the first epoch",
    "a fairseq without `args.tpu = True` in options.parse_args_and_arch",
)
def _mend_arguments() -> None:
    from fairseq import options
    from fairseq.distributed import utils as distributed_utils

    def mending(parse: Callable) -> Callable:
        def parse_args_and_arch(
            parser: Any, input_args: Any = None, *args: Any, **kwargs: Any
        ) -> Any:
            if "--task" in parser._option_string_actions and parser.get_default("task") is None:
                parser.set_defaults(task="translation")
            result = parse(parser, input_args, *args, **kwargs)
            parsed = result[0] if isinstance(result, tuple) else result
            asked_for_tpu = "--tpu" in (sys.argv[1:] if input_args is None else input_args)
            if getattr(parsed, "bf16", False) and distributed_utils.xm is None:
                parsed.tpu = asked_for_tpu
            # Only training has --max-update; generation casts to fp16 on a CPU as well.
            if hasattr(parsed, "max_update") and getattr(parsed, "fp16", None) is not None:
                _refuse_fp16_without_cuda(parsed)
            refuse_impossible(vars(parsed))
            return result

        return parse_args_and_arch

    _wrap(options, "parse_args_and_arch", "arguments", mending)


@_adaptation(
    "option values",
    "a list such as --adaptive-softmax-cutoff '(1' ends in a SyntaxError; a text with a backslash "
    "before its end, or with ${...}, in an error of hydra's parser",
    "a fairseq that hands its options to hydra as values and not as text",
)
def _refuse_unreadable_values() -> None:
    from fairseq.dataclass import utils as dataclass_utils

    def reading(evaluate: Callable) -> Callable:
        def eval_str_list(x: Any, x_type: Callable = float) -> Any:
            try:
                return evaluate(x, x_type)
            except (SyntaxError, TypeError, OverflowError, MemoryError, RecursionError) as error:
                # argparse knows this one
                raise ValueError(f"{x!r}: expected a list of numbers ({error})") from error

        return eval_str_list

    def checking(override: Callable) -> Callable:
        def override_module_args(args: Any) -> Any:
            overrides, deletes = override(args)
            keys = {word.split("=", 1)[0] for word in overrides}
            wrong = [p for p in (_unreadable(word, keys) for word in overrides) if p]
            if wrong:
                raise ConfigError("options that cannot be read:\n- " + "\n- ".join(wrong))
            return overrides, deletes

        return override_module_args

    _wrap(dataclass_utils, "eval_str_list", "option values", reading)
    _wrap(dataclass_utils, "override_module_args", "option values", checking)


def _unreadable(override: str, keys: set[str]) -> str | None:
    """Why hydra would stop at an option, "group.name=value", or None.

    Args:
        override: as fairseq gives it to hydra.
        keys: "group.name" of all options, to which ${...} may refer.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    key, _, value = override.partition("=")
    name = "--" + key.rpartition(".")[2].replace("_", "-")
    if "${" in value:
        unknown = [k for k in re.findall(r"\$\{([^}]*)\}?", value) if k not in keys]
        if unknown or key in value:
            return f"{name} {value}: ${{...}} stands for another option, found none; leave it out"
    if "\\" in value:
        try:
            OverridesParser.create().parse_overrides([override])
        except HydraException:
            return f"{name} {value}: a backslash cannot stand there; use / in paths"
    return None


def _flat(cfg: Any) -> dict[str, Any]:
    """The options of a training as its command line would have them."""
    from omegaconf import DictConfig, OmegaConf

    found: dict[str, Any] = {}
    for name in set(cfg) - {"model", "task"}:
        section = None if OmegaConf.is_missing(cfg, name) else cfg[name]
        if isinstance(section, DictConfig):
            found.update(OmegaConf.to_container(section, resolve=True))
            found[name] = found.pop("_name", None)
    return found


@_adaptation(
    "training checks",
    "fairseq-hydra-train imports the user-dir after its options are read and its processes are "
    "started, so what can no longer be mended is refused here; hydra 1.0 gives base_layers=None",
    "a fairseq that imports the user-dir first and drops hydra 1.0",
)
def _check_training() -> None:
    from fairseq.trainer import Trainer
    from omegaconf import DictConfig, open_dict

    def checking(construct: Callable) -> Callable:
        def __init__(self: Any, cfg: Any, *args: Any, **kwargs: Any) -> None:
            if isinstance(cfg, DictConfig):
                _refuse_fp16_without_cuda(cfg.common)
                refuse_impossible(_flat(cfg))
                processes = _launched_processes()
                if processes > 1 and cfg.distributed_training.distributed_world_size == 1:
                    raise ConfigError(
                        f"torchrun started {processes} processes, and each would train a model of "
                        "its own. Start with `fairseq-recur hydra-train`, which joins them"
                    )
                if getattr(cfg.model, "base_layers", 0) is None:
                    with open_dict(cfg.model):
                        cfg.model.base_layers = 0
            construct(self, cfg, *args, **kwargs)

        return __init__

    _wrap(Trainer, "__init__", "training checks", checking)


@_adaptation(
    "finished trainings",
    "a training that has reached --max-update makes one update more each time it is started again",
    "a fairseq that looks at --max-update before the first update",
)
def _leave_finished_trainings() -> None:
    from fairseq import checkpoint_utils
    from omegaconf import open_dict

    def looking(load: Callable) -> Callable:
        def load_checkpoint(cfg: Any, trainer: Any, **kwargs: Any) -> Any:
            found = load(cfg, trainer, **kwargs)
            optimization = trainer.cfg.optimization
            if 0 < optimization.max_update <= trainer.get_num_updates():
                logger.info(
                    f"Nothing is left to train: {trainer.get_num_updates()} updates are made, "
                    f"--max-update is {optimization.max_update}"
                )
                with open_dict(trainer.cfg):
                    optimization.max_epoch = -1  # no epoch is in the loop of fairseq_cli.train
            return found

        return load_checkpoint

    _wrap(checkpoint_utils, "load_checkpoint", "finished trainings", looking)


@_adaptation(
    "overflow on a CPU",
    "when gradients overflow, the trainer puts a zero into CUDA memory before it takes the update "
    "back, and ends without a GPU",
    "a trainer that puts the norm of an overflow on its own device",
)
def _mend_overflow() -> None:
    from fairseq.logging import metrics
    from fairseq.trainer import Trainer

    def taking_back(step: Callable) -> Callable:
        def train_step(self: Any, samples: Any, raise_oom: bool = False) -> Any:
            try:
                return step(self, samples, raise_oom)
            except (AssertionError, RuntimeError) as error:
                if self.cuda or not isinstance(error.__context__, OverflowError):
                    raise
            self.zero_grad()  # what the trainer was about to do
            metrics.log_stop_time("train_wall")
            return None

        return train_step

    _wrap(Trainer, "train_step", "overflow on a CPU", taking_back)


@_adaptation(
    "NaN detector",
    "its backward hooks fail on encoder outputs with StopIteration, which hides the real error; "
    "it prints all gradients, and the error at the end does not say where they come from",
    "a fairseq whose NanDetector uses no register_backward_hook and raises what it found",
)
def _mend_nan_detector() -> None:
    from fairseq.nan_detector import NanDetector

    def remembering(detect: Callable) -> Callable:
        def _detect(self: Any, *args: Any) -> str | None:
            found = detect(self, *args)
            self.first = getattr(self, "first", None) or found
            return found

        return _detect

    def raising(_: Callable) -> Callable:
        def __exit__(self: Any, kind: Any, *_: Any) -> None:
            self.close()
            message = _not_finite(getattr(self, "first", None), self.named_parameters)
            if kind is None and message is not None:
                raise FloatingPointError(message)

        return __exit__

    def forward_only(_: Callable) -> Callable:
        def add_hooks(self: Any, module: torch.nn.Module) -> None:
            if self.forward:
                self.fhooks.append(module.register_forward_hook(self.fhook_fn))

        return add_hooks

    _wrap(NanDetector, "add_hooks", "NaN detector", forward_only)
    _wrap(NanDetector, "_detect", "NaN detector", remembering)
    _wrap(NanDetector, "__exit__", "NaN detector", raising)


def _not_finite(first: str | None, parameters: list[tuple[str, torch.nn.Parameter]]) -> str | None:
    """Where a pass with NaN or Inf went wrong, and what to do; None if all is finite."""
    wrong = [n for n, p in parameters if p.grad is not None and not p.grad.isfinite().all()]
    if first is None and not wrong:
        return None
    names = ", ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")
    return (
        "the gradients are NaN or Inf. "
        + (f"First in the forward pass: {first}. " if first else "The forward pass is finite. ")
        + (f"Gradients that are not finite: {names}. " if wrong else "")
        + "The update was not made. Train on from the last checkpoint with a lower --lr, a "
        "--clip-norm, a longer --warmup-updates or without half precision; gnorm in the log shows "
        "how the gradients grew"
    )


@_adaptation(
    "amp",
    "without a GPU the disabled GradScaler has no backoff factor, which hides a NaN loss; "
    "--amp-scale-window is read from the wrong option",
    "a fairseq that checks scaler.is_enabled()",
)
def _mend_amp() -> None:
    from fairseq.optim.amp_optimizer import AMPOptimizer

    def with_window(construct: Callable) -> Callable:
        def __init__(self: Any, cfg: Any, *args: Any, **kwargs: Any) -> None:
            construct(self, cfg, *args, **kwargs)
            if getattr(cfg.common, "amp_scale_window", None) is not None:
                self.scaler.set_growth_interval(cfg.common.amp_scale_window)

        return __init__

    def unscaled(clip: Callable) -> Callable:
        def clip_grad_norm(self: Any, max_norm: float, aggregate_norm_fn: Any = None) -> Any:
            if self.scaler.is_enabled():
                return clip(self, max_norm, aggregate_norm_fn)
            norm = self.fp32_optimizer.clip_grad_norm(max_norm, aggregate_norm_fn)
            if not torch.isfinite(norm).all():
                raise FloatingPointError("the gradients are NaN or Inf; train on with a lower --lr")
            return norm

        return clip_grad_norm

    _wrap(AMPOptimizer, "__init__", "amp", with_window)
    _wrap(AMPOptimizer, "clip_grad_norm", "amp", unscaled)


@_adaptation(
    "weight decay",
    "fairseq has one weight decay for all parameters, and reads the optim_overrides with which a "
    "parameter asks for another one in its composite optimizer alone",
    "a fairseq whose optimizers all read optim_overrides",
)
def _decay_as_parameters_ask() -> None:
    from fairseq import optim
    from fairseq.optim.fp16_optimizer import FP16Optimizer
    from omegaconf import open_dict

    def make(build: Callable) -> Callable:
        def build_optimizer(cfg: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
            optimizer = build(cfg, params, *args, **kwargs)
            if getattr(cfg, "_name", None) != "composite":  # which reads them itself
                _split_exempt(optimizer.optimizer)
            return optimizer

        return build_optimizer

    def make_fp16(build: Callable) -> Callable:
        def build_optimizer(cfg: Any, params: Any, **kwargs: Any) -> Any:
            params = list(params)
            if getattr(cfg.optimizer, "weight_decay", 0) and any(map(_asks_for_no_decay, params)):
                # In one flat buffer they could not be told apart.
                cfg = copy.deepcopy(cfg)
                with open_dict(cfg):
                    cfg.common.fp16_no_flatten_grads = True
            return build(cfg, params, **kwargs)

        return build_optimizer

    def make_fp32(build: Callable) -> Callable:
        def build_fp32_params(args: Any, params: Any, flatten: bool = True) -> Any:
            copies = build(args, params, flatten)
            for parameter, own in zip(params, [] if flatten else copies):
                if hasattr(parameter, "optim_overrides"):  # fairseq 0.12.2 leaves it behind
                    own.optim_overrides = parameter.optim_overrides
            return copies

        return build_fp32_params

    _wrap(FP16Optimizer, "build_fp32_params", "weight decay", make_fp32)
    _wrap(optim, "build_optimizer", "weight decay", make)
    _wrap(FP16Optimizer, "build_optimizer", "weight decay", make_fp16)


def _asks_for_no_decay(parameter: torch.nn.Parameter) -> bool:
    overrides = getattr(parameter, "optim_overrides", None) or {}
    return overrides.get("optimizer", {}).get("weight_decay") == 0


def _split_exempt(optimizer: torch.optim.Optimizer) -> None:
    """Move the parameters that ask for no weight decay into groups without it."""
    for group in list(optimizer.param_groups):
        exempt = [p for p in group["params"] if _asks_for_no_decay(p)]
        if not group.get("weight_decay") or not exempt:
            continue
        group["params"] = [p for p in group["params"] if not _asks_for_no_decay(p)]
        optimizer.add_param_group({**group, "params": exempt, "weight_decay": 0.0})


@_adaptation(
    "DistributedDataParallel on CPU",
    "fairseq always passes device_ids, which torch refuses for a model on the CPU",
    "a fairseq that passes device_ids for CUDA alone",
)
def _mend_ddp() -> None:
    from fairseq.models import distributed_fairseq_model

    base = distributed_fairseq_model.DistributedDataParallel
    if hasattr(base, _MARK):
        return

    class CpuOrCudaDistributedDataParallel(base):
        def __init__(self, module: torch.nn.Module, **kwargs: Any) -> None:
            if all(p.device.type == "cpu" for p in module.parameters()):
                kwargs.update(device_ids=None, output_device=None)
            super().__init__(module, **kwargs)

    setattr(CpuOrCudaDistributedDataParallel, _MARK, True)
    distributed_fairseq_model.DistributedDataParallel = CpuOrCudaDistributedDataParallel


def _launched_processes() -> int:
    """How many processes a launcher such as torchrun started; 0 without a launcher."""
    needed = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
    return int(os.environ["WORLD_SIZE"]) if all(k in os.environ for k in needed) else 0


def _join_launched(cfg: Any) -> None:
    rank, devices = int(os.environ["RANK"]), torch.cuda.device_count()
    cfg.distributed_init_method = "env://"
    cfg.distributed_world_size = _launched_processes()
    cfg.distributed_rank = rank
    cfg.device_id = int(os.environ.get("LOCAL_RANK", rank)) % devices if devices else 0
    cfg.distributed_no_spawn = True


@_adaptation(
    "torchrun",
    "without a GPU, processes that torchrun started train one model each, or end with a "
    "ZeroDivisionError; two processes without torchrun end with an obscure error; validation "
    "gathers its results in CUDA memory, and fails where a rank has fewer batches",
    "a fairseq that reads WORLD_SIZE before its own default and knows gloo",
)
def _mend_torchrun() -> None:
    from fairseq.distributed import utils as distributed_utils
    from fairseq.tasks.translation import TranslationTask

    def inferring(infer: Callable) -> Callable:
        def infer_init_method(cfg: Any, force_distributed: bool = False) -> None:
            launched, wanted = _launched_processes(), cfg.distributed_world_size
            given = cfg.distributed_init_method is not None
            given = given or cfg.tpu or cfg.pipeline_model_parallel
            if not given and launched > 1:
                return _join_launched(cfg)
            if not given and launched == 1 and wanted == 1:
                return None  # fairseq 0.12.2 would start NCCL for one process
            slurm = "SLURM_STEP_NODELIST" in os.environ or "SLURM_JOB_NODELIST" in os.environ
            if not given and wanted > 1 and not torch.cuda.is_available() and not slurm:
                raise ConfigError(
                    f"--distributed-world-size {wanted} without a GPU: fairseq starts one process "
                    f"for each GPU only. Use torchrun --nproc_per_node {wanted} --no-python "
                    "fairseq-train ..., and leave --distributed-world-size out"
                )
            return infer(cfg, force_distributed)

        return infer_init_method

    def calling(call: Callable) -> Callable:
        def call_main(cfg: Any, main: Callable, **kwargs: Any) -> Any:
            distributed = getattr(cfg, "distributed_training", None)
            if distributed is not None:
                if cfg.common.cpu or not torch.cuda.is_available():
                    distributed.distributed_backend = "gloo"  # NCCL has no CPU tensors
                # With env:// every rank is 0 unless it is given, and they wait for ever.
                if distributed.distributed_init_method == "env://" and _launched_processes() > 1:
                    _join_launched(distributed)
            return call(cfg, main, **kwargs)

        return call_main

    def gathering(gather: Callable) -> Callable:
        def all_gather_list(data: Any, group: Any = None, max_size: int = 16384) -> list[Any]:
            group = group if group is not None else distributed_utils.get_global_group()
            if torch.distributed.get_backend(group) == "gloo":
                size = max_size * distributed_utils.get_world_size(group=group)
                kept = distributed_utils.all_gather_list  # fairseq keeps its CUDA buffer here
                if not hasattr(kept, "_buffer") or kept._buffer.numel() < size:
                    kept._buffer = torch.ByteTensor(size)
                    kept._cpu_buffer = torch.ByteTensor(max_size)
            return gather(data, group, max_size)

        return all_gather_list

    def skipping(valid: Callable) -> Callable:
        def valid_step(self: Any, sample: Any, model: Any, criterion: Any) -> Any:
            # A rank with fewer batches than the others gets an empty one in fairseq-validate.
            return valid(self, sample, model, criterion) if sample else (0.0, 0, {})

        return valid_step

    _wrap(TranslationTask, "valid_step", "torchrun", skipping)
    _wrap(distributed_utils, "all_gather_list", "torchrun", gathering)
    _wrap(distributed_utils, "infer_init_method", "torchrun", inferring)
    _wrap(distributed_utils, "call_main", "torchrun", calling)


@_adaptation(
    "a process that dies",
    "the others of the training end with an error from the depths of gloo or NCCL, in the middle "
    "of whatever they computed",
    "a fairseq that catches the errors of torch.distributed",
)
def _explain_lost_process() -> None:
    from fairseq.distributed import utils as distributed_utils

    def explaining(call: Callable) -> Callable:
        def call_main(cfg: Any, main: Callable, **kwargs: Any) -> Any:
            return call(cfg, functools.partial(_or_process_error, main), **kwargs)

        return call_main

    _wrap(distributed_utils, "call_main", "a process that dies", explaining)


def _or_process_error(main: Callable, *args: Any, **kwargs: Any) -> Any:
    try:
        return main(*args, **kwargs)
    except RuntimeError as error:
        if not (isinstance(error, torch.distributed.DistError) or "gloo/transport" in str(error)):
            raise
        said = re.sub(r"^\[\S+\] ", "", str(error).strip()).split(". This is typically")[0]
        joined = torch.distributed.is_initialized()
        who = f"rank {torch.distributed.get_rank()}" if joined else "this one, before it joined,"
        raise ProcessError(
            "another process of this training has gone, or could not be reached for too long. "
            f"{who} was told: {said}\nLook for the first error of the "
            "others, or for what killed one (too little memory?); the same command goes on from "
            "the last checkpoint"
        ) from None


# The rest of fairseq ----------------------------------------------------------------


@_adaptation(
    "last batch",
    "fairseq newer than 0.12.2 leaves out a last batch whose size is no multiple of "
    "--required-batch-size-multiple (8): up to 7 sentences are not translated, scored or trained; "
    "where no sentence fits the model, it ends with an IndexError",
    "a fairseq whose batch_by_size returns every index, as its docstring says",
)
def _keep_last_batch() -> None:
    import numpy
    from fairseq.data import data_utils

    def keeping(batch: Callable) -> Callable:
        def batch_by_size(indices: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(indices, numpy.ndarray):
                indices = numpy.fromiter(indices, dtype=numpy.int64)
            if not len(indices):
                raise ConfigError(
                    "no sentence of the data is left to make batches of, found each too long or the "
                    "data empty; give a greater --max-source-positions, --max-target-positions or "
                    "--max-tokens"
                )
            batches = batch(indices, *args, **kwargs)
            fixed = kwargs.get("fixed_shapes", args[5] if len(args) > 5 else None)
            # Batches follow the order of the indices, so what is missing is at their end.
            rest = indices[sum(map(len, batches)) :] if fixed is None else []
            return [*batches, rest] if len(rest) else batches

        return batch_by_size

    _wrap(data_utils, "batch_by_size", "last batch", keeping)


@_adaptation(
    "resumed batches",
    "the batches of all epochs are made in the epoch in which a process starts, and drawn with "
    "that epoch's number: a training resumed in a later epoch trains on others than it would have",
    "a fairseq whose get_batch_iterator seeds ordered_indices without the epoch, as 0.12.2 does",
)
def _repeat_batches_after_resume() -> None:
    from fairseq.tasks.fairseq_task import FairseqTask

    def repeating(build: Callable) -> Callable:
        signature = inspect.signature(build)

        def get_batch_iterator(self: Any, *args: Any, **kwargs: Any) -> Any:
            given = signature.bind(self, *args, **kwargs)
            given.apply_defaults()
            options = given.arguments
            once_for_all_epochs = (
                not options.get("disable_iterator_cache")
                and not options.get("update_epoch_batch_itr")
                and not getattr(self.cfg, "rebuild_batches", False)
                and self.can_reuse_epoch_itr(options["dataset"])
            )
            if not once_for_all_epochs:
                return build(*given.args, **given.kwargs)
            # fairseq adds the epoch; the iterator's own seed orders the batches of each epoch.
            seed, options["seed"] = options["seed"], options["seed"] + 1 - options["epoch"]
            iterator = build(*given.args, **given.kwargs)
            iterator.seed = seed
            return iterator

        return get_batch_iterator

    if "seed + epoch" in inspect.getsource(FairseqTask.get_batch_iterator):
        _wrap(FairseqTask, "get_batch_iterator", "resumed batches", repeating)


@_adaptation(
    "threads at the end",
    "a thread that makes batches ahead of a training that has ended is inside torch when Python "
    "ends: the process aborts (terminate called without an active exception), and torchrun with it",
    "Python 3.14, which lets such threads sleep, or a fairseq that ends its BackgroundConsumer",
)
def _end_background_threads() -> None:
    from fairseq.data.iterators import BackgroundConsumer

    def ending(run: Callable) -> Callable:
        def until_the_end(self: Any) -> None:
            self._source = itertools.takewhile(lambda _: not _ending.is_set(), self._source)
            _consumers.add(self)
            run(self)

        return until_the_end

    _wrap(BackgroundConsumer, "run", "threads at the end", ending)
    atexit.unregister(_end_consumers)
    atexit.register(_end_consumers)


_consumers: "weakref.WeakSet[Any]" = weakref.WeakSet()
_ending = threading.Event()


def _end_consumers() -> None:
    """Let each thread finish its batch and wait for it, at most ten seconds in all."""
    _ending.set()
    last = time.monotonic() + 10
    for consumer in list(_consumers):
        while consumer.is_alive() and time.monotonic() < last:
            with contextlib.suppress(queue.Empty):
                while True:  # it may wait for room
                    consumer._queue.get_nowait()
            consumer.join(0.05)


@_adaptation(
    "checkpoint that does not fit",
    "the trainer replaces the error that says what does not fit with one that does not",
    "a fairseq whose Trainer.load_checkpoint lets the error through",
)
def _let_checkpoint_errors_through() -> None:
    from fairseq.trainer import Trainer

    def explaining(load: Callable) -> Callable:
        def load_checkpoint(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return load(self, *args, **kwargs)
            except Exception as error:
                if isinstance(error.__context__, CheckpointError):
                    raise error.__context__ from None
                raise

        return load_checkpoint

    _wrap(Trainer, "load_checkpoint", "checkpoint that does not fit", explaining)


@_adaptation(
    "numpy names",
    "language modeling with --sample-break-mode eos, and batches by number of tokens in memory, use "
    "numpy.compat.long, which numpy 2 no longer has",
    "a fairseq that says numpy.int64",
)
def _numpy_names() -> None:
    import numpy

    if not hasattr(numpy, "compat"):
        numpy.compat = types.SimpleNamespace(long=int)


@_adaptation(
    "hydra options",
    "an option that a +group.key adds is refused without a hint at the right one; with omegaconf "
    "2.0 the ??? of a configuration hides the default of the dataclass",
    "nothing: a fairseq with hydra >= 1.1 needs the hint alone",
)
def _mend_hydra_options() -> None:
    import fairseq.models
    from fairseq.dataclass import FairseqDataclass
    from fairseq.dataclass import utils as dataclass_utils
    from omegaconf import OmegaConf, open_dict

    def checking(merge: Callable) -> Callable:
        def merge_with_parent(dc: Any, cfg: Any, *args: Any, **kwargs: Any) -> Any:
            options = getattr(dc, "__dataclass_fields__", {})
            kind = dc if isinstance(dc, type) else type(dc)
            if OmegaConf.is_dict(cfg) and issubclass(kind, FairseqDataclass):
                missing = [name for name in cfg if OmegaConf.is_missing(cfg, name)]
                with open_dict(cfg):
                    for name in missing:
                        del cfg[name]
                if not (args or kwargs.get("remove_missing")):
                    _refuse_unknown(kind, sorted(cfg.keys() - options.keys()), list(options))
            return merge(dc, cfg, *args, **kwargs)

        return merge_with_parent

    for module in (dataclass_utils, fairseq.models):
        _wrap(module, "merge_with_parent", "hydra options", checking)


def _refuse_unknown(kind: type, unknown: list[str], options: list[str]) -> None:
    """Raise ConfigError if there are unknown options."""
    if unknown:
        close = (difflib.get_close_matches(name, options, n=1) for name in unknown)
        lines = [
            f"there is no option {name!r}; "
            + (f"did you mean {found[0]}?" if found else "see `fairseq-recur train --help`")
            for name, found in zip(unknown, close)
        ]
        raise ConfigError(f"options of {kind.__name__}:\n- " + "\n- ".join(lines))


@_adaptation(
    "interactive truncation",
    "fairseq-interactive ignores --truncate-source and stops at a long line; the error for a "
    "line that is too long recommends dropping it and does not name --truncate-source",
    "a fairseq that closed its issue 4507",
)
def _truncate_in_interactive() -> None:
    from fairseq.tasks.translation import TranslationTask

    def noting(build: Callable) -> Callable:
        def build_generator(self: Any, models: Any, *args: Any, **kwargs: Any) -> Any:
            # The models of a checkpoint may read less than the task's option says.
            limits = [m.max_positions() for m in models if m is not None]
            self._recur_source_limits = [n[0] for n in limits if isinstance(n, tuple)]
            return build(self, models, *args, **kwargs)

        return build_generator

    def truncating(build: Callable) -> Callable:
        def build_dataset_for_inference(
            self: Any, src_tokens: Any, src_lengths: Any, *args: Any, **kwargs: Any
        ) -> Any:
            if self.cfg.truncate_source:
                known = getattr(self, "_recur_source_limits", [])
                limit = min([self.cfg.max_source_positions, *known])
                src_tokens = [
                    t if len(t) <= limit else torch.cat([t[: limit - 1], t[-1:]])
                    for t in src_tokens
                ]
                src_lengths = [len(t) for t in src_tokens]
            return build(self, src_tokens, src_lengths, *args, **kwargs)

        return build_dataset_for_inference

    def advising(select: Callable) -> Callable:
        def filter_indices_by_size(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return select(self, *args, **kwargs)
            except Exception as error:  # fairseq raises this bare class
                if not str(error).startswith("Size of sample"):
                    raise
                raise ConfigError(
                    f"{error}. Those lines then have no output: cut long sources with "
                    "--truncate-source and --max-source-positions N, and in --task summarization "
                    "long targets with --truncate-target"
                ) from None

        return filter_indices_by_size

    _wrap(TranslationTask, "filter_indices_by_size", "interactive truncation", advising)
    _wrap(TranslationTask, "build_generator", "interactive truncation", noting)
    _wrap(TranslationTask, "build_dataset_for_inference", "interactive truncation", truncating)


@_adaptation(
    "interactive input",
    "a carriage return within a line makes two sentences of it, which shifts all outputs behind "
    "it, and one byte that is not UTF-8 ends the program and loses the lines in its buffer",
    "stays",
)
def _read_any_line() -> None:
    from fairseq_cli import interactive

    def reading(_: Callable) -> Callable:
        def buffered_read(input: str, buffer_size: int) -> typing.Iterator[list[str]]:
            # In notebooks and tests standard input may be text already.
            typed = getattr(sys.stdin, "buffer", sys.stdin)
            with contextlib.nullcontext(typed) if input == "-" else open(input, "rb") as lines:
                texts = map(_sentence, lines)
                while buffer := list(itertools.islice(texts, buffer_size)):
                    yield buffer

        return buffered_read

    _wrap(interactive, "buffered_read", "interactive input", reading)


def _sentence(line: bytes | str) -> str:
    """A line of input as one sentence; what is not UTF-8 becomes U+FFFD."""
    text = line if isinstance(line, str) else line.decode("utf-8", errors="replace")
    return text.replace("\r", " ").strip()


@_adaptation(
    "summarization in other tasks",
    "a command without --task takes translation, also for a model that was trained to read a "
    "prefix before each source; it would be left out without a word",
    "a fairseq that builds the task that a checkpoint was trained with",
)
def _keep_summarization() -> None:
    from fairseq.tasks import FairseqTask

    def asking(load: Callable) -> Callable:
        def load_state_dict(self: Any, state_dict: dict[str, Any]) -> None:
            # By name: this file imports no task.
            if "summarization" in state_dict and "Summarization" not in type(self).__name__:
                raise ConfigError(
                    "this model was trained with --task summarization, which knows its source "
                    "prefix and truncation; give --task summarization here, too"
                )
            load(self, state_dict)

        return load_state_dict

    _wrap(FairseqTask, "load_state_dict", "summarization in other tasks", asking)


@_adaptation(
    "user-dir",
    "--user-dir after `import fairseq_recur` ends with 'not globally unique'",
    "a fairseq that compares the real paths of user modules",
)
def _mend_user_dir() -> None:
    from fairseq import utils

    def importing(import_module: Callable) -> Callable:
        def import_user_module(args: Any) -> None:
            given = getattr(args, "user_dir", None)
            path = Path(os.path.abspath(given)) if given is not None else None
            if path is not None and path.resolve() == PACKAGE:
                utils.import_user_module.memo.add(str(path))
            elif path is not None and path.name == PACKAGE.name and path.is_dir():
                raise ConfigError(
                    f"--user-dir {given} is another copy of {PACKAGE.name}: the one in {PACKAGE} "
                    "was imported first. Leave --user-dir out, or give that path, or uninstall it"
                )
            import_module(args)

        return import_user_module

    _wrap(utils, "import_user_module", "user-dir", importing)
    memo = utils.import_user_module.__dict__.setdefault("memo", set())
    memo.add(str(PACKAGE))


_NOISE = (
    r"hydra\.experimental\.(initialize|compose)\(\) is no longer experimental",
    r"\s*The version_base parameter is not specified",
    r"\s*'\S*config' is validated against ConfigStore schema",
    r"In '\S*config': Usage of deprecated keyword in package header",
    r"\s*The strict flag in the compose API is deprecated",
    r"'pin_memory' argument is set as true but no accelerator is found",
    r"`torch\.cuda\.amp\.(autocast|GradScaler)\(args\.\.\.\)` is deprecated",
    r"torch\.cuda\.amp\.GradScaler is enabled, but CUDA is not available",
    r"Support for mismatched key_padding_mask and attn_mask is deprecated",
    r".*`?broadcast_buffers",
)


@_adaptation(
    "warnings",
    "ten warnings a run about calls inside fairseq that a user cannot change",
    "a fairseq written for the hydra and torch of today",
)
def _hush_warnings() -> None:
    for message in _NOISE:
        warnings.filterwarnings("ignore", message=message)


@_adaptation(
    "log level",
    "fairseq's wav2vec2_classification sets the root logger to DEBUG when it is imported",
    "a fairseq without logging.basicConfig in that file",
)
def _quiet_root_logger() -> None:
    root = logging.getLogger()
    formats = [getattr(h.formatter, "_fmt", None) for h in root.handlers]
    if root.level == logging.DEBUG and formats == [logging.BASIC_FORMAT]:
        root.setLevel(os.environ.get("LOGLEVEL", "INFO").upper())


STALE_ENCODER_KEYS = {
    **{
        f"in_proj_{kind}": tuple(f"self_attn.{x}_proj.{kind}" for x in "qkv")
        for kind in ("weight", "bias")
    },
    **{
        f"{stale}_{kind}": (f"{real}.{kind}",)
        for stale, real in (("out_proj", "self_attn.out_proj"), ("fc1", "fc1"), ("fc2", "fc2"))
        for kind in ("weight", "bias")
    },
}


def drop_stale_encoder_keys(state_dict: dict[str, Any], prefix: str) -> None:
    """Remove the copies of weights that fairseq 0.12.2 saved with its encoder layers.

    Args:
        state_dict: a model's state, changed in place.
        prefix: the name of an encoder or of one of its layers ("encoder.layers.0").
    """
    prefix = prefix.rstrip(".") + "."
    for key in [k for k in state_dict if k.startswith(prefix)]:
        layer, _, name = key.rpartition(".")
        real = STALE_ENCODER_KEYS.get(name)
        if real and all(f"{layer}.{r}" in state_dict for r in real):
            del state_dict[key]


def disable_encoder_fastpath(layer: torch.nn.Module) -> None:
    """Turn off the fused inference path of fairseq 0.12.2's encoder layer, and its copies.

    The path fails on today's torch; its parameters are copies without a gradient, which
    DistributedDataParallel does not accept. Does nothing where there is no such path.
    """
    if hasattr(layer, "can_use_fastpath"):
        layer.can_use_fastpath = False
        for name in STALE_ENCODER_KEYS:
            layer._parameters.pop(name, None)


@_adaptation(
    "encoder fast path",
    "fairseq 0.12.2's fused encoder layer ends with 'Mask Type should be defined' on torch >= 2, "
    "and its checkpoints hold copies of weights that other releases refuse",
    "a fairseq newer than 0.12.2 (its checkpoints stay)",
)
def _mend_encoder_layer() -> None:
    from fairseq.modules.transformer_layer import TransformerEncoderLayerBase as Layer

    def dropping(upgrade: Callable) -> Callable:
        def upgrade_state_dict_named(self: Any, state_dict: Any, name: str) -> None:
            if not hasattr(self, "in_proj_weight"):
                drop_stale_encoder_keys(state_dict, name)
            upgrade(self, state_dict, name)

        return upgrade_state_dict_named

    def slow(construct: Callable) -> Callable:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            construct(self, *args, **kwargs)
            self.can_use_fastpath = False

        return __init__

    def loading(load: Callable) -> Callable:
        def _load_from_state_dict(self: Any, *args: Any) -> None:
            plain = torch.nn.Module._load_from_state_dict
            (load if hasattr(self, "in_proj_weight") else plain)(self, *args)

        return _load_from_state_dict

    _wrap(Layer, "upgrade_state_dict_named", "encoder fast path", dropping)
    if "_load_from_state_dict" in vars(Layer):  # 0.12.2
        _wrap(Layer, "__init__", "encoder fast path", slow)
        _wrap(Layer, "_load_from_state_dict", "encoder fast path", loading)


@_adaptation(
    "hydra errors",
    "hydra 1.0 cannot print an error on Python >= 3.10: a TypeError about 'etype' hides it",
    "hydra-core 1.1",
)
def _show_hydra_errors() -> None:
    if _version("hydra-core").startswith("1.0.") and sys.version_info >= (3, 10):
        os.environ.setdefault("HYDRA_FULL_ERROR", "1")


# What `fairseq-recur check` prints ----------------------------------------------------


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def fairseq_distribution() -> tuple[str, str]:
    """The distribution that provides `fairseq`, and its version: ("ve-fairseq", "0.12.3")."""
    for name in ("ve-fairseq", "fairseq-fixed", "fairseq"):
        if _version(name) != "not installed":
            return name, _version(name)
    return "fairseq", "not installed"


def environment_report() -> list[tuple[str, str]]:
    """Names and versions of all that a run depends on, in the order in which to print them."""
    cuda = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if cuda else f"CPU, {torch.get_num_threads()} threads"
    others = ("hydra-core", "omegaconf", "numpy", "sacrebleu", "sentencepiece", "subword-nmt")
    return [
        ("python", platform.python_version()),
        ("platform", platform.platform()),
        ("torch", torch.__version__),
        ("CUDA", str(torch.version.cuda) if cuda else "not available"),
        ("device", device),
        ("fairseq", " ".join(fairseq_distribution())),
        *((name, _version(name)) for name in others),
    ]


@dataclass(frozen=True)
class Problem:
    """Something on this machine that goes wrong or misleads; severity: error, warning, note."""

    title: str
    remedy: str
    severity: str


def _apex_problem() -> Problem | None:
    """A wrong or half-built apex, told without importing it; an absent one is no problem."""
    spec = importlib.util.find_spec("apex")
    if spec is None:
        return None
    folders = [Path(p) for p in spec.submodule_search_locations or ()]
    if not any((f / "normalization").is_dir() for f in folders):
        return Problem(
            f"the installed apex ({_version('apex')}) is not NVIDIA's: PyPI's `apex` is a toolkit "
            "for the Pyramid web framework",
            "pip uninstall apex; fairseq and this plug-in need none",
            "warning",
        )
    missing = [m for m in ("fused_layer_norm_cuda", "amp_C") if importlib.util.find_spec(m) is None]
    if missing:
        return Problem(
            f"apex is half-built: its extensions {', '.join(missing)} are missing, and on a GPU "
            "fairseq fails when it builds a LayerNorm",
            "pip uninstall apex, or build NVIDIA's sources with the C++ and CUDA extensions",
            "error" if torch.cuda.is_available() else "warning",
        )
    return None


def known_problems() -> list[Problem]:
    """What is wrong on this machine, each with its remedy; empty if nothing is known."""
    found = [problem for problem in [_apex_problem()] if problem]
    name, version = fairseq_distribution()
    official = name == "fairseq" and version == "0.12.2"
    hydra = tuple(int(n) for n in re.findall(r"\d+", _version("hydra-core"))[:3])
    low, high = ((1, 0, 7), (1, 1)) if official else ((1, 3, 2), (1, 4))
    if not low <= hydra < high:
        wanted = "hydra-core>=1.0.7,<1.1" if official else "hydra-core>=1.3.2,<1.4"
        title = f"hydra-core {_version('hydra-core')} does not go with {name} {version}"
        found.append(Problem(title, f'pip install "{wanted}"', "error"))
    if official and sys.version_info >= (3, 11):
        others = "ve-fairseq==0.12.3 (3.11, 3.12) or fairseq-fixed==0.12.3.1"
        remedy = f"pip uninstall fairseq; pip install {others}"
        title = f"fairseq 0.12.2 cannot be imported by Python {platform.python_version()}"
        found.append(Problem(title, remedy, "error"))
    if _torch_version() < (2, 6):
        title = (
            f"torch {torch.__version__}: below 2.6 even weights_only=True lets a crafted "
            "checkpoint run code (CVE-2025-32434)"
        )
        remedy = "pip install --upgrade torch; until then load no checkpoint of a stranger"
        found.append(Problem(title, remedy, "warning"))
    if UNSAFE_VARIABLE in _removed_variables or UNSAFE_VARIABLE in os.environ:
        title = f"{UNSAFE_VARIABLE} is set: every torch.load may run code from the file"
        found.append(Problem(title, f"unset {UNSAFE_VARIABLE}", "warning"))
    if importlib.util.find_spec("fairscale") is not None:
        title = "fairscale is installed, but fully_sharded and slowmo are not supported"
        found.append(Problem(title, "use --ddp-backend pytorch_ddp or legacy_ddp", "note"))
    return found
