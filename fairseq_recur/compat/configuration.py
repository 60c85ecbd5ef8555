"""From options to configurations: what fairseq and hydra make of a command line or a dataclass."""

import difflib
import re
from argparse import Namespace
from dataclasses import is_dataclass
from typing import Any

from fairseq_recur.compat.registry import Function, mend
from fairseq_recur.errors import ConfigError, refuse

old_tasks = mend(
    "options of old tasks",
    reason="the default ${task.max_source_positions} of a model refers to the task's "
    "configuration, which tasks without a dataclass (translation_multi_simple_epoch) lack",
    until="a fairseq whose tasks all have a dataclass",
)


@old_tasks.patch("fairseq.dataclass.utils:override_module_args")
def resolve_old_task(override: Function, args: Namespace) -> tuple[list[str], list[str]]:
    """Put the value of an old task's option in place of a reference to it."""
    from fairseq.dataclass.utils import _set_legacy_defaults
    from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY

    task = getattr(args, "task", None)
    if task not in TASK_REGISTRY or task in TASK_DATACLASS_REGISTRY:
        return override(args)
    options = Namespace(**vars(args))
    _set_legacy_defaults(options, TASK_REGISTRY[task])
    # The names that a model's options refer to; nothing else is added, and *args* is not changed.
    referred = {n: v for n, v in vars(options).items() if isinstance(v, (int, float))}
    overrides, deletes = override(args)
    pattern = re.compile(r"'\$\{task\.(\w+)\}'")
    return [
        pattern.sub(lambda found: str(referred.get(found[1], found[0])), word) for word in overrides
    ], deletes


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
    """Refuse at once the values at which hydra's parser would stop.

    Raises:
        ConfigError: there are such values, or the model's defaults refer to another kind of task
    """
    overrides, deletes = override(args)
    keys = {word.split("=", 1)[0] for word in overrides}
    refuse(
        "--arch and --task do not fit each other",
        [problem for word in overrides if (problem := _wrong_task(word, keys, args))],
    )
    problems = [problem for word in overrides if (problem := _unreadable(word, keys))]
    refuse("options that cannot be read", problems)
    return overrides, deletes


def _wrong_task(override: str, keys: set[str], args: Namespace) -> str | None:
    """Return why an option's default has no value: the task lacks what it refers to. Or None.

    Args:
        override: as fairseq gives it to hydra
        keys: "group.name" of all options, to which ${...} may refer
        args: the command line
    """
    from fairseq.models import (
        ARCH_MODEL_REGISTRY,
        MODEL_DATACLASS_REGISTRY,
        FairseqLanguageModel,
    )
    from fairseq.tasks import TASK_REGISTRY
    from fairseq.tasks.language_modeling import LanguageModelingTask

    found = re.fullmatch(r"model\.(\w+)='(\$\{task\.(\w+)\})'", override)
    if not found or f"task.{found[3]}" in keys:
        return None
    name, value, wanted = found.groups()
    arch = getattr(args, "arch", None)
    if getattr(MODEL_DATACLASS_REGISTRY.get(arch), name, None) != value:
        return None
    decoder_only = issubclass(ARCH_MODEL_REGISTRY[arch], FairseqLanguageModel)
    fitting = "language_modeling" if decoder_only else "translation"
    task = getattr(args, "task", None)
    problem = (
        f"--arch {arch} needs a task that has {wanted}, such as {fitting}; --task {task} has none"
    )
    if issubclass(TASK_REGISTRY.get(task, object), LanguageModelingTask):
        problem += ", and needs a language model, such as --arch rsa_transformer_lm or xl_lm"
    return problem


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


hydra_options = mend(
    "hydra options",
    reason="an option that +group.key adds is refused without a hint at the right one; with "
    "omegaconf 2.0, ??? in a configuration hides the default of the dataclass; and build_model "
    "cannot take a dataclass in place of an omegaconf object",
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
    close = (difflib.get_close_matches(name, options, n=1) for name in unknown)
    lines = [
        f"there is no option {name!r}; "
        + (f"did you mean {found[0]}?" if found else "see `fairseq-recur train --help`")
        for name, found in zip(unknown, close)
    ]
    refuse(f"options of {kind.__name__}", lines)


stored_nodes = mend(
    "nodes of hydra's store",
    reason="hydra's store makes a tree of nodes of every dataclass that is registered, fairseq's "
    "and the presets', and copies all of them when it composes a configuration of a few: "
    "more than a second at the start of each command",
    until="a hydra that makes a node when it is loaded",
    before_fairseq=True,
)


class DeferredNode:
    """Stands in hydra's store for the node of a dataclass, which is made when hydra loads it."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def __deepcopy__(self, memo: dict[int, Any]) -> "DeferredNode":
        """Return itself: hydra copies the whole store for each configuration it composes."""
        return self


@stored_nodes.patch("hydra.core.config_store:ConfigStore.store")
def store(
    original: Function, self: Any, name: str, node: Any, group: str | None = None, *args: Any,
    **kwargs: Any,
) -> None:  # fmt: skip
    """Store a dataclass as a `DeferredNode`."""
    if not is_dataclass(node):
        return original(self, name, node, group, *args, **kwargs)
    original(self, name, {}, group, *args, **kwargs)
    path = f"{group}/{name}" if group else name
    self._load(path if path.endswith(".yaml") else f"{path}.yaml").node = DeferredNode(node)


@stored_nodes.patch("hydra.core.config_store:ConfigStore.load")
def load(original: Function, self: Any, config_path: str) -> Any:
    """Make the node that a `DeferredNode` stands for; it belongs to the caller alone."""
    from omegaconf import OmegaConf

    loaded = original(self, config_path)
    if isinstance(loaded.node, DeferredNode):
        loaded.node = OmegaConf.structured(loaded.node.config)
    return loaded


def model_options(cfg: Any, task: Any) -> Namespace:
    """Return a model's options flat and resolved, in whatever form they come.

    Args:
        cfg: a part of fairseq's configuration, a dataclass or a Namespace
        task: references such as ${task.max_source_positions} are resolved with its options, or
            with the defaults of fairseq's translation and language modeling

    Raises:
        ConfigError: an option refers to one that does not exist
    """
    from fairseq.dataclass.configs import CommonConfig
    from fairseq.tasks.language_modeling import LanguageModelingConfig
    from fairseq.tasks.translation import TranslationConfig
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if not OmegaConf.is_config(cfg) or cfg._get_parent() is None:
        given = getattr(task, "cfg", None) or getattr(task, "args", None)
        known: dict[str, Any] = {}
        for options in (LanguageModelingConfig(), TranslationConfig(), given):
            known.update(
                (n, v) for n, v in _plain(options).items() if type(v) in (bool, int, float)
            )
        groups = {"model": _plain(cfg), "task": known, "common": {"tpu": CommonConfig().tpu}}
        cfg = OmegaConf.create(groups)["model"]
    try:
        values = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    except OmegaConfBaseException as error:
        raise ConfigError(
            f"the model's options cannot be resolved: {error}; give a value"
        ) from error
    assert isinstance(values, dict)
    return Namespace(**{str(name): value for name, value in values.items()})


def _plain(options: Any) -> dict[str, Any]:
    """Return options by their names; references stay as they are."""
    from omegaconf import OmegaConf

    if OmegaConf.is_config(options):
        values = OmegaConf.to_container(options, enum_to_str=True)
        assert isinstance(values, dict)
        return {str(name): value for name, value in values.items()}
    if options is None or not hasattr(options, "__dict__"):
        return {}
    return {n: getattr(v, "value", v) for n, v in vars(options).items()}
