"""Loading of checkpoints without running code from them.

Trusted: the other processes of the same training, whose broadcasts hold omegaconf's classes. Not
trusted: any file; of the classes that it names, it gets torch's own and `stand_ins`.
"""

import collections
import logging
import os
import re
import typing
from argparse import Namespace
from contextvars import ContextVar
from typing import Any

import torch

from fairseq_recur.compat.registry import Function, mend
from fairseq_recur.compat.stand_ins import OMEGACONF_NODES, plain, stand_ins

logger = logging.getLogger(__name__)

UNSAFE_VARIABLE = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
"""The environment variable that turns torch's safe loading off."""

check_loaded: ContextVar[Function | None] = ContextVar("check_loaded", default=None)
"""What looks at an object that torch has loaded before its caller, fairseq, copies it."""

removed_variables: set[str] = set()
"""Variables that were set when the plug-in was imported and were removed for this process."""


def torch_version() -> tuple[int, ...]:
    """Return the major and minor version of torch: (2, 6)."""
    return tuple(int(n) for n in re.findall(r"\d+", torch.__version__)[:2])


def safe_globals() -> list[Any]:
    """Return the stand-ins that a file may name besides torch's classes, for the allow-list."""
    return list(stand_ins())


def _omegaconf_classes() -> list[Any]:
    """Return the classes of a broadcast configuration, in omegaconf 2.0 to 2.3."""
    from omegaconf import DictConfig, ListConfig, base, nodes

    found = [getattr(nodes, name, None) for name in OMEGACONF_NODES.split()]
    builtin = [dict, list, tuple, int, float, str, bool]
    plain_types = [typing.Any, collections.defaultdict, *builtin]
    containers = [DictConfig, ListConfig, base.ContainerMetadata, base.Metadata]
    return [*containers, *filter(None, found), *plain_types]


def broadcast_globals() -> list[Any]:
    """Return the classes of a broadcast, which another process of the same training has sent."""
    from fairseq.distributed.utils import _TensorPlaceholder

    real = [Namespace, _TensorPlaceholder, *_omegaconf_classes()]
    names = {(item.__module__, item.__qualname__) for item in real}
    return [*real, *(s for s in safe_globals() if (s.__module__, s.__qualname__) not in names)]


safe_classes = mend(
    "safe checkpoint classes",
    reason="torch >= 2.6 loads only allow-listed classes; fairseq's checkpoints hold Namespace "
    "and numpy arrays, and its broadcast at a multi-process resume holds omegaconf's classes. A "
    "file gets stand-ins of these classes, because the real ones trust their arguments",
    until="a fairseq that allow-lists or no longer stores them",
)


@safe_classes.action
def allow_list() -> None:
    """Add the classes to torch's allow-list."""
    torch.serialization.add_safe_globals(safe_globals())


@safe_classes.patch("torch:load")
def load(original: Function, *args: Any, **kwargs: Any) -> Any:
    """Replace the stand-ins in what torch has loaded, and check it where that was asked for."""
    loaded = plain(original(*args, **kwargs))
    check = check_loaded.get()
    if check is not None:
        check(loaded)
    return loaded


@safe_classes.patch("fairseq.distributed.utils:_broadcast_object_slow")
def broadcast_object_slow(broadcast: Function, *args: Any, **kwargs: Any) -> Any:
    """Allow omegaconf's real classes while an object of this training's processes is received."""
    before = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(broadcast_globals())
    try:
        return broadcast(*args, **kwargs)
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


weights_only = mend(
    "weights only",
    reason="torch.load without weights_only=True runs code from the file; fairseq relies on the "
    "default, which is unsafe before torch 2.6 and wherever the environment turns it off",
    until="torch 2.6 without the variable that turns it off",
    needed=lambda: torch_version() < (2, 6) or UNSAFE_VARIABLE in os.environ,
    required=True,
)


@weights_only.action
def load_weights_only() -> None:
    """Make safe loading torch's default in this process."""
    if os.environ.pop(UNSAFE_VARIABLE, None) is not None:
        removed_variables.add(UNSAFE_VARIABLE)
        logger.warning(
            "%s is set, which lets every checkpoint run code. It was removed for this process, "
            "because fairseq's checkpoints load without it. Unset it in your shell.",
            UNSAFE_VARIABLE,
        )
    if torch_version() < (2, 6):
        os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
