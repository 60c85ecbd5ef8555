"""torch.compile and torch.export in the installed torch, without importing the compiler."""

from collections.abc import Callable
from typing import Any

import torch


def outside_graphs(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that torch.compile leaves out of its graphs.

    torch.compiler.disable does this, but imports the compiler, a second or two, in every program.
    torch's own modules have a late import for it, under a name that may change.
    """
    try:
        from torch._compile import _disable_dynamo
    except ImportError:
        return torch.compiler.disable(function)
    return _disable_dynamo(function)


def is_exporting() -> bool:
    """Whether torch.export calls; an older torch does not tell, and ends with its own error."""
    return bool(getattr(torch.compiler, "is_exporting", bool)())
