"""What is done once in a Python worker of Spark."""

from __future__ import annotations

import gc
from functools import cache


@cache
def settle_in() -> None:
    """Take what is loaded by now out of every later collection of garbage.

    Spark collects all of it after each task. What the modules hold never goes, and looking through it takes longer
    (60 ms) than a small task.
    """
    gc.freeze()
