"""What is done once in a Python worker of Spark."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from functools import cache

# Of glibc's mallopt.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 64 * 1024 * 1024
_MAPPED_BYTES = 16 * 1024 * 1024


@cache
def settle_in() -> None:
    """Make the worker ready for many batches of a megabyte.

    Spark collects all garbage after each task: what is loaded by now never goes, and looking through it takes longer
    (60 ms) than a small task. And by default a block of a batch's size is mapped and unmapped each time, which costs
    ten times what is done with it.
    """
    gc.freeze()
    # Where the C library is another one, it stays as it is.
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
