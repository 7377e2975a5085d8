"""The checks are part of the package and use plain asserts; pytest must rewrite them to explain a failure."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.memory_disk import memory_folder

pytest.register_assert_rewrite(
    "dejaq.testing.conformance",
    "dejaq.testing.model.machine",
    "dejaq.testing.model.pair",
    "dejaq.testing.model.pair_comparison",
    "dejaq.testing.synchronization",
)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder where syncs cost nothing: these tests are about logic and not about the disk."""
    with memory_folder() as folder:
        yield folder
