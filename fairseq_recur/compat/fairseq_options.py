"""Options of fairseq's own programs, as they are parsed and turned into a configuration."""

import difflib
import inspect
import os
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import torch

from fairseq_recur.compat.registry import Function, mend, source_of
from fairseq_recur.errors import ConfigError

PACKAGE = Path(__file__).resolve().parent.parent
"""The folder to give to ``--user-dir``."""

PARSE = "fairseq.options:parse_args_and_arch"


def _parsed(result: Any) -> Namespace:
    """Return the options of parse_args_and_arch, whose result may include unknown words."""
    options: Namespace = result[0] if isinstance(result, tuple) else result
    return options


bf16 = mend(
    "bf16 without a TPU",
    reason="--bf16 sets tpu, which crashes without torch_xla",
    until="a fairseq without `args.tpu = True` in options.parse_args_and_arch",
    needed=lambda: "args.tpu = True" in source_of(PARSE),
)


@bf16.patch(PARSE)
def parse_bf16(
    parse: Function, parser: Any, input_args: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Set tpu only where --tpu is given, unless torch_xla is installed."""
    from fairseq.distributed import utils as distributed_utils

    result = parse(parser, input_args, *args, **kwargs)
    options = _parsed(result)
    if getattr(options, "bf16", False) and distributed_utils.xm is None:
        options.tpu = "--tpu" in (sys.argv[1:] if input_args is None else input_args)
    return result


def _validates_without_task() -> bool:
    from fairseq import options

    return (
        inspect.signature(options.get_validation_parser).parameters["default_task"].default is None
    )


validation_task = mend(
    "validate without --task",
    reason="fairseq-validate without --task ends with KeyError: None",
    until="a fairseq whose get_validation_parser has a default task",
    needed=_validates_without_task,
)


@validation_task.patch(PARSE)
def parse_without_task(parse: Function, parser: Any, *args: Any, **kwargs: Any) -> Any:
    """Take the task that the other programs take."""
    if "--task" in parser._option_string_actions and parser.get_default("task") is None:
        parser.set_defaults(task="translation")
    return parse(parser, *args, **kwargs)


training_options = mend(
    "training options",
    reason="--fp16 without a GPU ends with an AssertionError, and --save-interval 0 with a "
    "ZeroDivisionError at the end of the first epoch, before anything is saved",
    until="permanent",
)


@training_options.patch(PARSE)
def parse_training(parse: Function, *args: Any, **kwargs: Any) -> Any:
    """Refuse at once what would lose a training; only training has --max-update."""
    result = parse(*args, **kwargs)
    options = _parsed(result)
    if hasattr(options, "max_update"):
        if getattr(options, "fp16", None) is not None:
            refuse_fp16_without_cuda(options)
        refuse_lost_training(vars(options))
    return result


def refuse_fp16_without_cuda(common: Any) -> None:
    """Refuse --fp16 on a CPU, for which fairseq has no loss scaler.

    Raises:
        ConfigError: with the options that work
    """
    if common.fp16 and not common.memory_efficient_fp16:
        if common.cpu or not torch.cuda.is_available():
            why = "--cpu is given" if common.cpu else "torch finds none"
            raise ConfigError(
                f"--fp16 trains on a CUDA device, and {why}. Leave --fp16 out, or use --bf16 or "
                "--memory-efficient-fp16"
            )


def refuse_lost_training(options: Mapping[str, Any]) -> None:
    """Refuse values with which a training computes for an epoch and then saves nothing.

    All other options of fairseq are left to fairseq.

    Args:
        options: the values of a training's options by their names

    Raises:
        ConfigError: with everything that is wrong, one line each
    """
    problems = list(_lost_trainings(options))
    if problems:
        raise ConfigError("options that would lose the training:\n- " + "\n- ".join(problems))


def _lost_trainings(options: Mapping[str, Any]) -> Iterator[str]:
    """Describe each value that ends a training before its first checkpoint."""
    for name in ("save_interval", "validate_interval"):
        if options.get(name) == 0:
            yield f"--{name.replace('_', '-')} 0: expected a number of epochs; give at least 1"
    steps = options.get("max_valid_steps")
    if steps is not None and steps < 0:
        yield f"--max-valid-steps {steps}: expected at least 0; give another number"
    if options.get("distributed_world_size") == 0:
        yield "--distributed-world-size 0: expected at least 1; give another number"
    if options.get("best_checkpoint_metric") == "bleu" and not options.get("eval_bleu", True):
        if not options.get("disable_validation"):
            yield "--best-checkpoint-metric bleu, but no BLEU is computed: give --eval-bleu"


values = mend(
    "option values",
    reason="a list such as --adaptive-softmax-cutoff '(1' ends with a SyntaxError; a value with a "
    "backslash at its end, or with ${...}, ends with an error of hydra's parser",
    until="a fairseq that hands its options to hydra as values and not as text",
)


@values.patch("fairseq.dataclass.utils:eval_str_list")
def eval_str_list(evaluate: Function, x: Any, x_type: Function = float) -> Any:
    """Raise a ValueError, which argparse reports, for text that is not a list."""
    try:
        return evaluate(x, x_type)
    except (SyntaxError, TypeError, OverflowError, MemoryError, RecursionError) as error:
        raise ValueError(f"{x!r}: expected a list of numbers ({error})") from error


@values.patch("fairseq.dataclass.utils:override_module_args")
def override_module_args(override: Function, args: Namespace) -> tuple[list[str], list[str]]:
    """Refuse at once the values at which hydra's parser would stop."""
    overrides, deletes = override(args)
    keys = {word.split("=", 1)[0] for word in overrides}
    problems = [problem for word in overrides if (problem := _unreadable(word, keys))]
    if problems:
        raise ConfigError("options that cannot be read:\n- " + "\n- ".join(problems))
    return overrides, deletes


def _unreadable(override: str, keys: set[str]) -> str | None:
    """Return why hydra would stop at an option, "group.name=value", or None.

    Args:
        override: as fairseq gives it to hydra
        keys: "group.name" of all options, to which ${...} may refer
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    key, _, value = override.partition("=")
    name = "--" + key.rpartition(".")[2].replace("_", "-")
    if "${" in value:
        unknown = [k for k in re.findall(r"\$\{([^}]*)\}?", value) if k not in keys]
        if unknown or key in value:
            return f"{name} {value}: ${{...}} must name another option; give a value instead"
    if "\\" in value:
        try:
            OverridesParser.create().parse_overrides([override])
        except HydraException:
            return f"{name} {value}: hydra cannot read this backslash; use / in paths"
    return None


old_tasks = mend(
    "options of old tasks",
    reason="the default ${task.max_source_positions} of a model refers to the task's "
    "configuration, which tasks without a dataclass (translation_multi_simple_epoch) lack",
    until="a fairseq whose tasks all have a dataclass",
)


@old_tasks.patch("fairseq.dataclass.utils:override_module_args")
def resolve_old_task(override: Function, args: Namespace) -> tuple[list[str], list[str]]:
    """Put the value of an old task's option in the place of a reference to it."""
    from fairseq.dataclass.utils import _set_legacy_defaults
    from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY

    task = getattr(args, "task", None)
    if task not in TASK_REGISTRY or task in TASK_DATACLASS_REGISTRY:
        result: tuple[list[str], list[str]] = override(args)
        return result
    options = Namespace(**vars(args))
    _set_legacy_defaults(options, TASK_REGISTRY[task])
    # The names that a model's options refer to; nothing else is added, and *args* is not changed.
    referred = {n: v for n, v in vars(options).items() if isinstance(v, (int, float))}
    overrides, deletes = override(args)
    pattern = re.compile(r"'\$\{task\.(\w+)\}'")
    return [
        pattern.sub(lambda found: str(referred.get(found[1], found[0])), word) for word in overrides
    ], deletes


hydra_options = mend(
    "hydra options",
    reason="an option that +group.key adds is refused without a hint at the right one; with "
    "omegaconf 2.0, ??? in a configuration hides the default of the dataclass; and build_model "
    "cannot take a dataclass in the place of an omegaconf object",
    until="permanent; with hydra >= 1.1 only for the hint",
)


@hydra_options.patch("fairseq.models:merge_with_parent")
@hydra_options.patch("fairseq.dataclass.utils:merge_with_parent")
def merge_with_parent(merge: Function, dc: Any, cfg: Any, *args: Any, **kwargs: Any) -> Any:
    """Check the options of a group before they are merged with its defaults."""
    from fairseq.dataclass import FairseqDataclass
    from omegaconf import OmegaConf, open_dict

    if is_dataclass(cfg):
        cfg = OmegaConf.structured(cfg)
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


def _refuse_unknown(kind: type, unknown: list[str], options: list[str]) -> None:
    """Raise ConfigError if there are unknown options, with the nearest known one for each."""
    if unknown:
        close = (difflib.get_close_matches(name, options, n=1) for name in unknown)
        lines = [
            f"there is no option {name!r}; "
            + (f"did you mean {found[0]}?" if found else "see `fairseq-recur train --help`")
            for name, found in zip(unknown, close)
        ]
        raise ConfigError(f"options of {kind.__name__}:\n- " + "\n- ".join(lines))


user_dir = mend(
    "user-dir",
    reason="--user-dir after `import fairseq_recur` ends with 'not globally unique'",
    until="a fairseq that compares the real paths of user modules",
)


@user_dir.patch("fairseq.utils:import_user_module")
def import_user_module(import_module: Function, args: Any) -> None:
    """Recognise this package under every path to it, and refuse another copy of it."""
    from fairseq import utils

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


@user_dir.action
def remember_package() -> None:
    """Tell fairseq that this package is imported."""
    from fairseq import utils

    utils.import_user_module.__dict__.setdefault("memo", set()).add(str(PACKAGE))
