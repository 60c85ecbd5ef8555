"""The memory allocator of a training on a CPU.

glibc returns every freed block of more than 32 MiB to the system, and the next update gets it back
a page at a time, each filled with zeros. benchmarks/commands.py measures what that costs. A
training needs the same memory in every update, so it keeps it.
"""

import ctypes
import os

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # <malloc.h>
SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_")
"""glibc's environment variables; a user who sets one of them has made the choice."""


def keep_freed_memory() -> bool:
    """Let this process keep what it frees, for its next allocations.

    Results do not change. The process never becomes smaller than it was at its largest.

    Returns:
        Whether it does. It does not if the user has set one of `SETTINGS` or glibc's own
        tunables, or with another C library.
    """
    if any(name in os.environ for name in SETTINGS):
        return False
    if "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(
        mallopt(option, value) == 1 for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1))
    )
