"""A folder on a disk in memory, for tests of logic, which would mostly wait for syncs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def memory_folder() -> Iterator[Path]:
    """An empty folder for the duration of the block; on an ordinary disk where there is none in memory."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    # A process that a test killed may still write.
    with tempfile.TemporaryDirectory(prefix="dejaq-test-", dir=memory, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder where syncs cost nothing; a conftest module that imports this name has its tests use it."""
    with memory_folder() as folder:
        yield folder
