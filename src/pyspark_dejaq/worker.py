"""What is done once in a Python worker of Spark."""

from __future__ import annotations

import gc
from functools import cache

from dejaq.protocol.blocks import keep_blocks


@cache
def settle_in() -> None:
    """Make the worker ready for many batches of a megabyte.

    Spark collects all garbage after each task: what is loaded by now never goes, and looking through it takes longer
    (60 ms) than a small task.
    """
    gc.freeze()
    keep_blocks()
