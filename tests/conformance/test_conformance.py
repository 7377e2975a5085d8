"""Every backend passes every check."""

import pytest

from dejaq.testing.conformance import CHECKS, Check
from tests.conformance.backends import BACKENDS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("backend", BACKENDS)
async def test_storage(backend: str, check: Check, tmp_path):
    await check.run(BACKENDS[backend](tmp_path / "store"))


def test_every_check_says_what_it_is_about():
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert [check.name for check in CHECKS if not check.about.rstrip().endswith(".")] == []
