"""Options of fairseq's own programs, as they are parsed."""

import importlib.util
import inspect
import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from fairseq_recur.compat.registry import Function, mend, source_of
from fairseq_recur.errors import ConfigError, refuse

PACKAGE = Path(__file__).resolve().parent.parent
"""The folder to give to ``--user-dir``."""

PARSE = "fairseq.options:parse_args_and_arch"


def _parsed(result: Any) -> Namespace:
    """Return the options of parse_args_and_arch, whose result may include unknown words."""
    return result[0] if isinstance(result, tuple) else result


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
    reason="--fp16 without a GPU ends with an AssertionError, --ddp-backend fully_sharded advises "
    "to install fairscale, which is not maintained, and --save-interval 0 ends with a "
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
        refuse_sharding(vars(options))
        refuse_lost_training(vars(options))
    return result


unknown_words = mend(
    "replacement of unknown words",
    reason="--replace-unk ends with a TypeError or IndexError at the first <unk> of an output, "
    "because alignments have the form of pairs",
    until="a fairseq whose utils.replace_unk reads these pairs",
    needed=lambda: "src_tokens[alignment[i]]" in source_of("fairseq.utils:replace_unk"),
)


@unknown_words.patch(PARSE)
def parse_unknown_words(parse: Function, *args: Any, **kwargs: Any) -> Any:
    """Refuse --replace-unk.

    Raises:
        ConfigError: it is given
    """
    result = parse(*args, **kwargs)
    if getattr(_parsed(result), "replace_unk", None) is not None:
        raise ConfigError(
            "--replace-unk: fairseq fails at the first output with <unk>. Remove it; "
            "--print-alignment hard prints which source word each output word belongs to"
        )
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


def refuse_sharding(options: Mapping[str, Any]) -> None:
    """Refuse back ends that need fairscale where it is missing, and what ZeRO cannot divide.

    Args:
        options: of a training, under the names of its flags

    Raises:
        ConfigError: with the options that work
    """
    backend = options.get("ddp_backend")
    if backend in ("fully_sharded", "slowmo") and importlib.util.find_spec("fairscale") is None:
        raise ConfigError(
            f"--ddp-backend {backend} needs fairscale, which is not installed and no longer "
            "maintained. Use pytorch_ddp, the default; with it --zero-sharding os divides the "
            "optimizer's state between the processes"
        )
    if options.get("zero_sharding") != "os":
        return
    for found, given in (
        ("--use-bmuf", options.get("use_bmuf")),
        ("--optimizer composite", options.get("optimizer") == "composite"),
        ("--ddp-backend fully_sharded", backend == "fully_sharded"),
    ):
        if given:
            raise ConfigError(
                f"--zero-sharding os with {found}: expected one optimizer that makes the same "
                "update in all processes; leave one of the two out"
            )
    flat = not (options.get("memory_efficient_fp16") or options.get("fp16_no_flatten_grads"))
    if options.get("fp16") and flat:
        raise ConfigError(
            "--zero-sharding os with --fp16: expected parameters that can be divided, but fairseq "
            "joins them; add --fp16-no-flatten-grads, or use --memory-efficient-fp16 or --bf16"
        )


def refuse_lost_training(options: Mapping[str, Any]) -> None:
    """Refuse values with which a training computes for an epoch and then saves nothing.

    All other options of fairseq are left to fairseq.

    Raises:
        ConfigError: with everything that is wrong, one line each
    """
    refuse("options that would lose the training", _lost_trainings(options))


COMPUTED_BY = {"bleu": "eval_bleu", "accuracy": "report_accuracy"}
"""For a metric of the best checkpoint the option with which a validation computes it."""


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
    metric = options.get("best_checkpoint_metric", "")
    flag = COMPUTED_BY.get(metric)
    if flag and not options.get(flag, True) and not options.get("disable_validation"):
        yield (
            f"--best-checkpoint-metric {metric}, but no validation computes it: give "
            f"--{flag.replace('_', '-')}"
        )


decay = mend(
    "end of a polynomial decay",
    reason="--total-num-update has --max-update as default, but the command line leaves it out, "
    "and --lr-scheduler polynomial_decay ends with a ConfigCompositionException",
    until="a fairseq whose parser leaves options of None to the configuration",
)


@decay.patch(PARSE)
def parse_decay(parse: Function, *args: Any, **kwargs: Any) -> Any:
    """Let a polynomial decay end with the training.

    Raises:
        ConfigError: it has no end
    """
    result = parse(*args, **kwargs)
    options = _parsed(result)
    if getattr(options, "lr_scheduler", None) != "polynomial_decay":
        return result
    if options.total_num_update is None:
        if not options.max_update:
            raise ConfigError(
                "--lr-scheduler polynomial_decay has no end: give --max-update or "
                "--total-num-update"
            )
        options.total_num_update = options.max_update
    return result


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
