"""A user's package of parts, loaded for some tests only."""

import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairseq.utils import import_user_module

from fairseq_recur.models.extending import SLOTS
from fairseq_recur.models.presets import register_presets


@contextmanager
def loaded_package(folder: Path) -> Iterator[None]:
    """Import a package as fairseq does with --user-dir; afterwards the tables are as before."""
    before = {id(table): (table, dict(table)) for table in SLOTS.values()}
    path, known = sys.path[:], set(sys.modules)
    import_user_module(Namespace(user_dir=str(folder)))
    try:
        yield
    finally:
        for table, parts in before.values():
            table.clear()
            table.update(parts)
        register_presets()
        sys.path[:] = path
        for name in set(sys.modules) - known:
            if name.split(".")[0] == folder.name:
                del sys.modules[name]
        import_user_module.memo.discard(str(folder))  # it can be loaded again
