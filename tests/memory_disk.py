"""A folder on a disk in memory, for tests of logic, which would mostly wait for syncs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dejaq.testing.servers.memory_folder import folder


@contextmanager
def memory_folder() -> Iterator[Path]:
    """An empty folder for the duration of the block; on an ordinary disk where there is none in memory."""
    with folder("test") as path:
        yield path


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder where syncs cost nothing; a conftest module that imports this name has its tests use it."""
    with memory_folder() as path:
        yield path
