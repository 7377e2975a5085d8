"""A backlog of many runs whose times lie between each other leaves in slices, and is not read as a whole for that."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest, LeaseSet
from dejaq.domain.changes import Create, Delete
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.storage.base import apply_one
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.rocksdb.timeline.window import Window

# The beginning of a slice of ten seconds.
NOW = 1_800_000_000_000
SPREAD_MS = 9_000
TOPIC = Topic("mail", 1, TopicSettings(buckets=1))
MB = 1_000_000
RUNS, ROWS = 48, 250


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[RocksStorage]:
    made = RocksStorage(tmp_path / "data", window_bytes=MB)
    await made.open(NOW)
    await made.put_topic(TOPIC, DIRECT_CALL)
    yield made
    await made.close()


async def fill(storage: RocksStorage, body: bytes) -> set[str]:
    chance = random.Random(3)
    for number in range(RUNS):
        ts = [NOW + chance.randrange(SPREAD_MS) for _ in range(ROWS)]
        ids = [f"{number}-{row}" for row in range(ROWS)]
        batch = CreateBatch("billing", ProducerSession(NOW, 7), number * ROWS, ts, [body] * ROWS, ids=ids)
        assert not (await apply_one(storage, Create(TOPIC, batch), NOW - 60_000, DIRECT_CALL)).codes
    return {f"{number}-{row}" for number in range(RUNS) for row in range(ROWS)}


async def lease(storage: RocksStorage, now: int) -> LeaseSet | None:
    request = LeaseRequest([0], "worker", now, now + 60_000, rows_max=500)
    return await storage.lease(TOPIC, request, now, DIRECT_CALL)


async def test_late_rows_of_many_runs_leave_in_slices(storage: RocksStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """12 MB in one slice: each message once, a few rows of a run at a time, and no more in memory than is needed."""
    takes = 0
    take = Window.take

    def counted(*args: object) -> object:
        nonlocal takes
        takes += 1
        return take(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(Window, "take", counted)
    left = await fill(storage, b"x" * 1_000)
    later = NOW + 2 * SPREAD_MS
    while (held := await lease(storage, later)) is not None:
        ids = held.ids()
        assert left >= set(ids)
        left -= set(ids)
        assert list(held.ts) == sorted(held.ts)
        # Of runs, their copies in the decoder and the lease; the runs alone are 8 MB.
        assert storage.stats()["window_bytes"] < 11 * MB
        assert not (await apply_one(storage, Delete(TOPIC, held.lease_id, "worker", None), later, DIRECT_CALL)).codes
    assert left == set()
    assert takes < RUNS * ROWS / 4


async def test_rows_of_a_small_backlog_leave_in_the_order_of_their_times(storage: RocksStorage) -> None:
    """3 MB: exactly, however late they are, while the memory is not used up."""
    storage._budget.bytes_max = 64 * MB
    left = await fill(storage, b"x" * 200)
    order: list[int] = []
    later = NOW + 2 * SPREAD_MS
    while (held := await lease(storage, later)) is not None:
        order += held.ts
        left -= set(held.ids())
        assert not (await apply_one(storage, Delete(TOPIC, held.lease_id, "worker", None), later, DIRECT_CALL)).codes
    assert left == set()
    assert order == sorted(order)


async def test_rows_that_are_due_now_leave_in_order_also_out_of_a_large_backlog(storage: RocksStorage) -> None:
    """The order is as loose as the rows are late: what is due just now is not passed by what is due later."""
    await fill(storage, b"x" * 1_000)
    held = await lease(storage, NOW + 40)
    assert held is not None
    assert max(held.ts) <= NOW + 40
    assert list(held.ts) == sorted(held.ts)
