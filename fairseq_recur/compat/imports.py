"""Libraries that fairseq imports at the start of each command for what few commands do."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from fairseq_recur.compat.registry import mend

USERS = ("fairseq.criterions.sentence_prediction", "fairseq.tasks.audio_classification")
"""The modules of fairseq that import them."""

score_libraries = mend(
    "libraries of scores",
    reason="scikit-learn and scipy.stats are imported for five scores of one criterion and one "
    "task, which takes a quarter of the start of each command",
    until="a fairseq that imports them where it computes these scores",
    needed=lambda: not any(name in sys.modules for name in USERS),
    before_fairseq=True,
)


@score_libraries.action
def postpone() -> None:
    """Let the modules of fairseq that import these libraries find functions that import them."""
    if not any(isinstance(finder, ImportsLater) for finder in sys.meta_path):
        sys.meta_path.insert(0, ImportsLater())


class LaterModule(ModuleType):
    """Stands for a module; any of its functions imports the real one when it is called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python's import asks for
            raise AttributeError(name)

        def function(*args: Any, **kwargs: Any) -> Any:
            return getattr(import_module(self.__name__), name)(*args, **kwargs)

        return function


@contextmanager
def stand_ins() -> Iterator[None]:
    """Have `LaterModule` in place of the libraries that have not been imported yet."""
    later = {name: LaterModule(name) for name in ("sklearn", "sklearn.metrics", "scipy.stats")}
    vars(later["sklearn"])["metrics"] = later["sklearn.metrics"]
    later = {name: module for name, module in later.items() if name not in sys.modules}
    sys.modules.update(later)
    try:
        yield
    finally:
        for name in later:
            del sys.modules[name]


class ImportsLater:
    """Finds the modules `USERS`, and executes them with `stand_ins`; Python's own do the rest."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return Python's own description of a module of `USERS`; None for all others."""
        spec = PathFinder.find_spec(name, path) if name in USERS else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            with stand_ins():
                execute(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
