"""D9: an interrupted first start of the embedded store is completed by the next start."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import Code, StoreError
from dejaq.storage.rocksdb import store
from dejaq.storage.rocksdb.engine import starting, watermark
from dejaq.storage.rocksdb.store import RocksStorage

NOW = 1_800_000_000_000


async def used(path: Path) -> None:
    """Open the store, find it empty and working, and close it."""
    storage = RocksStorage(path)
    await storage.open(NOW)
    assert await storage.topics() == []
    await storage.put_topic(
        Topic("mail", await storage.next_topic_number(), TopicSettings(), created_ms=NOW), DIRECT_CALL
    )
    await storage.close()


async def test_a_first_start_that_is_killed_at_any_point_is_completed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D9: after a kill at each point the directory opens as an empty store."""
    path, kept = tmp_path / "data", list[Path]()

    def keep(point: str) -> None:
        """Copy the files as a kill at this point would leave them, including those not yet synced."""
        if path.exists():
            kept.append(tmp_path / f"{len(kept)}-{point}")
            shutil.copytree(path, kept[-1])

    def keep_at_every_sync(descriptor: int) -> None:
        keep("sync")
        fsync(descriptor)
        keep("synced")

    fsync = os.fsync
    with monkeypatch.context() as patch:
        for module in (store, starting):
            patch.setattr(module, "crash_at", keep)
        patch.setattr(os, "fsync", keep_at_every_sync)
        storage = RocksStorage(path)
        await storage.open(NOW)
    await storage.close()
    points = {one.name.partition("-")[2] for one in kept}
    assert points == {
        "sync",
        "synced",
        "storage.first_mark",
        "storage.database_made",
        "storage.log_begun",
        "storage.boot_written",
        "storage.boot_synced",
        "storage.boot_marked",
    }
    for one in kept:
        await used(one)


@pytest.mark.parametrize("files", [[], ["db"], ["db/MANIFEST-000001"], ["watermark.new"], ["watermark.77"]])
async def test_a_directory_without_a_begun_store_is_accepted(tmp_path: Path, files: list[str]) -> None:
    """D9: the files of a start that was interrupted before the first mark do not prevent another start."""
    for name in files:
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch() if "." in name or "-" in name else path.mkdir()
    await used(tmp_path / "data")


async def test_only_one_of_two_first_starts_at_once_succeeds(tmp_path: Path) -> None:
    """D9: the second start gets the error that the store is locked, and does not remove the first one's mark."""
    winner = RocksStorage(tmp_path / "data")
    await winner.open(NOW)
    mark = (tmp_path / "data" / "watermark").read_text()
    watermark.Watermark(tmp_path / "data" / "watermark").begin()
    with pytest.raises(StoreError) as refused:
        await RocksStorage(tmp_path / "data").open(NOW)
    assert refused.value.code is Code.STORE_LOCKED
    assert (tmp_path / "data" / "watermark").read_text() == mark
    await winner.close()


@pytest.mark.parametrize("lost", ["watermark", "db", "commit"])
async def test_a_store_that_was_used_and_lost_a_part_is_refused(tmp_path: Path, lost: str) -> None:
    """D9: only a store that never acknowledged anything may be treated as empty."""
    await used(tmp_path / "data")
    path = tmp_path / "data" / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(StoreError) as refused:
        await RocksStorage(tmp_path / "data").open(NOW)
    assert refused.value.code is Code.STORE_CORRUPT
