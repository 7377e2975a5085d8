"""A folder on a disk in memory, for tests of logic that would mostly wait for syncs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def memory_folder() -> Iterator[Path]:
    """An empty folder for the duration of the block; on an ordinary disk where there is none in memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        yield Path(folder)
