"""A checkpoint of a store that is in use."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from dejaq.errors import StoreError
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.testing.conformance.scene import START_MS
from dejaq.testing.waiting import eventually


async def test_a_store_is_closed_after_its_running_checkpoint(tmp_path: Path) -> None:
    """RocksDB cannot be closed while another thread is in a call, so the directory stayed locked."""
    storage = RocksStorage(tmp_path / "store")
    await storage.open(START_MS)
    database = storage._database
    inside, gate = threading.Event(), threading.Event()
    steps: list[str] = []
    flush, close = database.flush, database.close

    def slow_flush() -> None:
        inside.set()
        gate.wait(10)
        flush()
        steps.append("flushed")

    def closed() -> None:
        steps.append("closed")
        close()

    database.flush, database.close = slow_flush, closed  # type: ignore[method-assign]
    making = asyncio.ensure_future(storage.checkpoint(tmp_path / "copy"))
    await eventually(inside.is_set, within=5)
    closing = asyncio.ensure_future(storage.close())
    await eventually(lambda: not storage._committer._thread.is_alive(), within=5)
    await asyncio.wait((closing,), timeout=0.1)
    gate.set()
    await closing
    with pytest.raises(StoreError):
        await making
    assert steps == ["flushed", "flushed", "closed"]
    again = RocksStorage(tmp_path / "store")
    await again.open(START_MS)
    await again.close()
