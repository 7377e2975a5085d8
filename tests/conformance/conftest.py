"""The checks are part of the package and use plain asserts; pytest must rewrite them to explain a failure."""

import pytest

pytest.register_assert_rewrite(
    "dejaq.testing.conformance",
    "dejaq.testing.model.machine",
    "dejaq.testing.model.pair",
    "dejaq.testing.model.pair_comparison",
    "dejaq.testing.synchronization",
)
