"""The registry of mends: what is changed in the installed libraries, why, and until when.

A mend is declared once and patches one or more attributes::

    last_batch = mend(
        "last batch",
        reason="batch_by_size drops a last batch of an odd size",
        until="a fairseq whose batch_by_size returns every index",
        needed=drops_last_batch,
    )

    @last_batch.patch("fairseq.data.data_utils:batch_by_size")
    def batch_by_size(original, indices, *args, **kwargs):
        ...

Each patch receives the function that it replaces as its first argument. A replaced function is
marked, so a second call leaves it alone, and a second copy of this package changes nothing at all.
`extend` uses the same mechanism at once; it is for what the plug-in itself adds to fairseq, which
is not a mend.
"""

import functools
import inspect
import logging
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from fairseq_recur.errors import InstallationError

logger = logging.getLogger(__name__)

Function = Callable[..., Any]
_MARK = "_fairseq_recur_patches"

_COPY = object()
"""Stands for this copy of the package among those that a process has imported."""

APPLIED, NOT_NEEDED, FAILED = "applied", "not needed", "failed"
"""The states of a mend after `Mend.apply`."""


def locate(target: str) -> tuple[Any, str]:
    """Return the owner of an attribute and the attribute's name.

    Args:
        target: "package.module:attribute" or "package.module:Class.attribute"

    Raises:
        AttributeError: the module or the attribute does not exist
    """
    module, _, path = target.partition(":")
    owner_path, _, attribute = path.rpartition(".")
    try:
        owner = pkgutil.resolve_name(f"{module}:{owner_path}")
        getattr(owner, attribute)
    except (ImportError, AttributeError) as error:
        raise AttributeError(f"{target} not found ({error})") from error
    return owner, attribute


def wrap(target: str, label: str, function: Function) -> None:
    """Replace an attribute by ``function(original, ...)``, once for each label.

    Args:
        target: as for `locate`
        label: identifies the patch, so that it is applied only once
        function: called with the original as its first argument
    """
    owner, attribute = locate(target)
    original = getattr(owner, attribute)
    labels = getattr(original, _MARK, ())
    if label in labels:
        return

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)

    setattr(replacement, _MARK, (*labels, label))
    setattr(owner, attribute, replacement)


def extend(target: str, label: str) -> Callable[[Function], Function]:
    """Decorate a function that the plug-in adds around one of fairseq's, and install it at once.

    Raises:
        InstallationError: the installed fairseq lacks the target; the message names both
    """

    def install(function: Function) -> Function:
        try:
            wrap(target, label, function)
        except AttributeError as error:
            raise InstallationError(_misfit(label, error)) from error
        return function

    return install


def source_of(target: str) -> str:
    """Return the source code of an installed function, without the patches around it."""
    owner, attribute = locate(target)
    return inspect.getsource(inspect.unwrap(getattr(owner, attribute)))


def _misfit(name: str, error: Exception) -> str:
    return (
        f"fairseq_recur cannot apply {name!r} to the installed libraries: {error}. Expected a "
        "version listed in docs/compatibility.md; install one of them"
    )


@dataclass(eq=False)
class Mend:
    """One correction of the installed libraries.

    Attributes:
        name: its label in reports and messages
        reason: what goes wrong without it
        until: the version, or the change, that makes it needless
        needed: whether this installation needs it
        required: whether the plug-in refuses to work without it, because it protects the user
        before_fairseq: whether it changes what happens while fairseq is imported
        patches: pairs of a target (see `locate`) and the function that wraps it
        actions: functions that change something other than one attribute; safe to repeat
        status: APPLIED, NOT_NEEDED or FAILED; empty before `apply`
        error: why it failed
    """

    name: str
    reason: str
    until: str
    needed: Callable[[], bool]
    required: bool = False
    before_fairseq: bool = False
    patches: list[tuple[str, Function]] = field(default_factory=list)
    actions: list[Callable[[], None]] = field(default_factory=list)
    status: str = ""
    error: str = ""

    def patch(self, target: str) -> Callable[[Function], Function]:
        """Decorate the function that replaces *target*; see `locate` for its form."""

        def register(function: Function) -> Function:
            self.patches.append((target, function))
            return function

        return register

    def action(self, function: Callable[[], None]) -> Callable[[], None]:
        """Decorate a function that makes the change itself."""
        self.actions.append(function)
        return function

    def apply(self) -> None:
        """Apply the mend if this installation needs it; a second call repeats only its actions.

        Raises:
            InstallationError: the mend is required and does not fit the installed libraries
        """
        try:
            if not self.status and not self.needed():
                self.status = NOT_NEEDED
            if self.status in (NOT_NEEDED, FAILED):
                return
            for target, _ in self.patches:  # all or none
                locate(target)
            for target, function in self.patches:
                wrap(target, self.name, function)
            copies = vars(torch).setdefault("_fairseq_recur_copies", {})
            if copies.setdefault(self.name, _COPY) is _COPY:  # no other copy has applied it before
                for function in self.actions:
                    function()
        except (ImportError, AttributeError, OSError) as error:
            self.status, self.error = FAILED, _misfit(self.name, error)
            if self.required:
                raise InstallationError(_misfit(self.name, error)) from error
            logger.warning("%s", self.error)
        else:
            self.status = APPLIED


MENDS: list[Mend] = []
"""All mends, in the order in which they are applied."""


def mend(
    name: str,
    *,
    reason: str,
    until: str,
    needed: Callable[[], bool] = lambda: True,
    required: bool = False,
    before_fairseq: bool = False,
) -> Mend:
    """Register a mend; see `Mend` for the arguments."""
    assert all(other.name != name for other in MENDS), f"two mends are called {name!r}"
    MENDS.append(Mend(name, reason, until, needed, required, before_fairseq))
    return MENDS[-1]
