"""Every storage backend passes every check of the conformance suite."""

from pathlib import Path

import pytest

from dejaq.testing.conformance import CHECKS, Check
from tests.conformance.backends import BACKENDS, merge_eagerly


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("backend", BACKENDS)
async def test_storage(backend: str, check: Check, tmp_path: Path) -> None:
    await check.run(BACKENDS[backend](tmp_path / "store"))


@pytest.mark.parametrize("check", [c for c in CHECKS if "priorit" in c.name], ids=lambda check: check.name)
async def test_merged_runs(check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded store keeps every guarantee of a priority topic when it merges runs at every lease."""
    merge_eagerly(monkeypatch)
    await check.run(BACKENDS["rocksdb"](tmp_path / "store"))


def test_every_check_has_a_description() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert [check.name for check in CHECKS if not check.about.rstrip().endswith(".")] == []
