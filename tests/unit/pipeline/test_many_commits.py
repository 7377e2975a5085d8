"""A commit costs the same in a lake that keeps many commits as in a new one, and removes what is no longer kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("pyspark", reason="the pipeline is not installed")

from dejaq.pipeline.lake.lake import COMMITS_KEPT, Lake
from dejaq.pipeline.lake.tables import TABLES
from tests.unit.pipeline.delta.tables import event, write

DAY = "day=2026-11-15"
YEAR_MS = 365 * 86_400_000


def opened(root: Path) -> Lake:
    """A lake of this machine, whose commits need no Spark."""
    return Lake(cast("Any", None), str(root))


def replace_events(lake: Lake, root: Path, *, keep_ms: int) -> None:
    """One more commit, which replaces the file of events."""
    batch = lake.new_batch()
    write(root, "events", f"{batch}/{DAY}/part.parquet", [event(lake.head.version + 1)])
    before = lake.head.files("events")
    after = lake.head.with_table("events", dropped=before, added=[f"{batch}/{DAY}/part.parquet"])
    lake.commit(replace(after, keep_ms=keep_ms))


def versions(directory: Path) -> list[int]:
    return sorted(int(path.name.partition(".")[0]) for path in directory.glob("*.json"))


def test_a_commit_lists_no_directory_of_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = opened(tmp_path)
    with lake.writing():
        replace_events(lake, tmp_path, keep_ms=YEAR_MS)
        listed: set[str] = set()
        listing = lake.files.list

        def noted(name: str) -> list[str]:
            listed.add(name)
            return listing(name)

        monkeypatch.setattr(lake.files, "list", noted)
        # More than between two checkpoints of a log.
        for _ in range(25):
            replace_events(lake, tmp_path, keep_ms=YEAR_MS)
    # Only the logs of tables that this lake does not have.
    assert listed <= {f"{table.name}/_delta_log" for table in TABLES.values() if table.optional}
    assert versions(tmp_path / "_commits") == list(range(1, 27))
    assert versions(tmp_path / "events" / "_delta_log") == list(range(27))


def test_what_is_no_longer_kept_is_removed_by_this_writer_and_by_the_next(tmp_path: Path) -> None:
    lake = opened(tmp_path)
    with lake.writing():
        for _ in range(45):
            replace_events(lake, tmp_path, keep_ms=YEAR_MS)
    assert versions(tmp_path / "_commits") == list(range(1, 46))
    lake = opened(tmp_path)
    with lake.writing():
        replace_events(lake, tmp_path, keep_ms=0)
        assert versions(tmp_path / "_commits") == list(range(47 - COMMITS_KEPT, 47))
        # From the newest checkpoint that is not after the oldest commit kept.
        assert versions(tmp_path / "events" / "_delta_log") == list(range(40, 47))
        for _ in range(20):
            replace_events(lake, tmp_path, keep_ms=0)
    assert versions(tmp_path / "_commits") == list(range(67 - COMMITS_KEPT, 67))
    assert versions(tmp_path / "events" / "_delta_log") == list(range(60, 67))
    assert len(list((tmp_path / "events").glob("batch=*"))) == COMMITS_KEPT
