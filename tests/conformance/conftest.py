"""The checks live in the package and use plain asserts: let pytest explain them."""

import pytest

pytest.register_assert_rewrite(
    "dejaq.testing.conformance", "dejaq.testing.model", "dejaq.testing.pair", "dejaq.testing.synchronization"
)
