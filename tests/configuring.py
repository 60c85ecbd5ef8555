"""fairseq's configuration of a command line, without the second or two that hydra takes.

fairseq has hydra compose it from some 350 overrides and a tree of files. The tests run hundreds of
commands and build hundreds of models, so they compose it directly from the same dataclasses.
"""

import re
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fairseq import options
from fairseq.dataclass import utils as dataclass_utils
from fairseq.dataclass.configs import FairseqConfig
from fairseq.models import MODEL_DATACLASS_REGISTRY
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental import initialize_config_dir
from omegaconf import DictConfig, OmegaConf

compose_by_hydra, initialize_hydra = dataclass_utils.compose, dataclass_utils.initialize

DEFAULT_GROUPS = {"criterion": "cross_entropy", "lr_scheduler": "fixed"}
"""Those of fairseq's config/config.yaml."""


@cache
def parse_override(override: str) -> tuple[str, Any]:
    """Return the key and the value of an override such as ``model.dropout=0.1``."""
    (found,) = OverridesParser.create().parse_overrides([override])
    return found.key_or_group, found.value()


@cache
def defaults(chosen: tuple[tuple[str, str | None, type | None], ...]) -> DictConfig:
    """Return a configuration before its overrides.

    Args:
        chosen: sections, the name in the section's group or None, and the dataclass of the model
            of that name, which a new part replaces; the other sections are empty
    """
    nodes = dict.fromkeys(section.name for section in fields(FairseqConfig))
    types = {section.name: section.type for section in fields(FairseqConfig)}
    for section, name, _ in chosen:
        if name is not None:
            nodes[section] = ConfigStore.instance().load(f"{section}/{name}.yaml").node
        elif is_dataclass(types[section]):
            nodes[section] = OmegaConf.structured(types[section])
    return OmegaConf.create(nodes)


def compose_directly(overrides: Sequence[str], group: str | None = None) -> DictConfig:
    """Return what ``hydra.compose("config", overrides)`` returns.

    Args:
        overrides: as fairseq makes them of a command line
        group: compose only this group, such as "model", and those to which its options refer
    """
    if group is not None:
        of_group = " ".join(o for o in overrides if o.startswith(f"{group}."))
        wanted = {group, *re.findall(r"\$\{(\w+)\.", of_group)}
        overrides = [o for o in overrides if re.split("[.=]", o, maxsplit=1)[0] in wanted]
    pairs = [parse_override(override) for override in overrides]
    chosen = {**DEFAULT_GROUPS, **{key: name for key, name in pairs if "." not in key}}
    sections = [s.name for s in fields(FairseqConfig) if group is None or s.name in wanted]
    names = [chosen.get(section) for section in sections]
    kinds = map(MODEL_DATACLASS_REGISTRY.get, names)
    cfg = deepcopy(defaults(tuple(zip(sections, names, kinds))))
    for key, value in pairs:
        *path, name = key.split(".")
        section = cfg
        for step in path:
            section = section[step]
        if path:
            section[name] = deepcopy(value)
    return cfg


def compose(
    name: str, overrides: Sequence[str], group: str | None, fallback: bool, **rest: Any
) -> DictConfig:
    """`compose_directly`; with a fallback, hydra for what that refuses, so the error is hydra's."""
    try:
        return compose_directly(overrides, group)
    except Exception:
        if not fallback:
            raise
        with initialize_config_dir(str(Path(dataclass_utils.__file__).parents[1] / "config")):
            return compose_by_hydra(name, overrides=overrides, **rest)


@contextmanager
def composing_directly(group: str | None = None, fallback: bool = True) -> Iterator[None]:
    """Have fairseq's `convert_namespace_to_omegaconf` use `compose`.

    Hydra's `initialize` would read the source of every function on the stack.
    """
    quick = partial(compose, group=group, fallback=fallback)
    with (
        patch.object(dataclass_utils, "compose", quick),
        patch.object(dataclass_utils, "initialize", lambda config_path: nullcontext()),
    ):
        yield


@contextmanager
def composing_by_hydra() -> Iterator[None]:
    """Have it use hydra again, within `composing_directly`."""
    with (
        patch.object(dataclass_utils, "compose", compose_by_hydra),
        patch.object(dataclass_utils, "initialize", initialize_hydra),
    ):
        yield


def group_config(group: str, args: Namespace, fallback: bool = True) -> Any:
    """A group of the configuration of a parsed command line, such as "model"."""
    with composing_directly(group, fallback):
        return dataclass_utils.convert_namespace_to_omegaconf(args)[group]


def model_config(
    task: str, arch: str, flags: Sequence[str], data: Sequence[str] = ("data",)
) -> Any:
    """The model's configuration for ``fairseq-train data --task TASK --arch ARCH FLAGS``."""
    parser = options.get_training_parser(task)
    return group_config(
        "model", options.parse_args_and_arch(parser, [*data, "--arch", arch, *flags])
    )
