"""The checks are part of the package and use plain asserts; pytest must rewrite them to explain a failure.

These tests are about logic and not about the disk.
"""

import pytest

from tests.memory_disk import tmp_path

__all__ = ["tmp_path"]

pytest.register_assert_rewrite(
    "dejaq.testing.conformance",
    "dejaq.testing.model.machine",
    "dejaq.testing.model.pair",
    "dejaq.testing.model.pair_comparison",
    "dejaq.testing.synchronization",
)
