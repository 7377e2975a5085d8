from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.memory_disk import memory_folder


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder where syncs cost nothing: these tests are about logic and not about the disk."""
    with memory_folder() as folder:
        yield folder
