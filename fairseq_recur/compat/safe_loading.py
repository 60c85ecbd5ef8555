"""Loading of checkpoints without running code from them."""

import collections
import logging
import os
import re
import typing
from argparse import Namespace
from typing import Any

import torch

from fairseq_recur.compat.registry import mend

logger = logging.getLogger(__name__)

UNSAFE_VARIABLE = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
"""The environment variable that turns torch's safe loading off."""

removed_variables: set[str] = set()
"""Variables that were set when the plug-in was imported and were removed for this process."""


def torch_version() -> tuple[int, ...]:
    """Return the major and minor version of torch: (2, 6)."""
    return tuple(int(n) for n in re.findall(r"\d+", torch.__version__)[:2])


def _omegaconf_classes() -> list[Any]:
    """Return the classes of a broadcast configuration, in omegaconf 2.0 to 2.3."""
    from omegaconf import DictConfig, ListConfig, base, nodes

    names = "AnyNode StringNode IntegerNode FloatNode BooleanNode EnumNode BytesNode PathNode"
    found = [getattr(nodes, name, None) for name in names.split()]
    builtin = [dict, list, tuple, int, float, str, bool]
    plain = [typing.Any, collections.defaultdict, *builtin]
    containers = [DictConfig, ListConfig, base.ContainerMetadata, base.Metadata]
    return [*containers, *filter(None, found), *plain]


def safe_globals() -> list[Any]:
    """Return the classes in fairseq's own checkpoints and broadcasts, for torch's allow-list."""
    import numpy
    from fairseq.distributed.utils import _TensorPlaceholder

    # --eval-bleu keeps its counts as numpy arrays; numpy 1 and 2 write different paths.
    rebuild: Any = numpy.zeros(1).__reduce__()[0]
    dtypes = [type(numpy.dtype(name)) for name in ("i4", "i8", "f4", "f8")]
    arrays: list[Any] = [numpy.ndarray, numpy.dtype, *dtypes]
    if torch_version() >= (2, 6):
        names = ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct")
        arrays += [(rebuild, name) for name in names]
    else:
        arrays.append(rebuild)
    return [Namespace, _TensorPlaceholder, *arrays, *_omegaconf_classes()]


safe_classes = mend(
    "safe checkpoint classes",
    reason="torch >= 2.6 loads only allow-listed classes; fairseq's checkpoints hold Namespace "
    "and numpy arrays, and its broadcast at a multi-process resume holds omegaconf's classes",
    until="a fairseq that allow-lists or no longer stores them",
    needed=lambda: hasattr(torch.serialization, "add_safe_globals"),  # torch >= 2.4
)


@safe_classes.action
def allow_list() -> None:
    """Add the classes to torch's allow-list."""
    torch.serialization.add_safe_globals(safe_globals())


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
