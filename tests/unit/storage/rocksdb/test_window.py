"""The window of a bucket never skips a run that is on disk or is being written to disk."""

from __future__ import annotations

from itertools import count, islice
from pathlib import Path

import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest
from dejaq.domain.changes import Create
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession, bucket_of
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.base import apply_one
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.rocksdb.timeline.ready import ReadyWindow
from dejaq.storage.rocksdb.timeline.run import Run
from dejaq.storage.rocksdb.timeline.window import FreeRows, Window

NOW = 1_700_000_000_000


def key(time_slice: int, number: int) -> bytes:
    return keys.run(1, 0, time_slice, number, 0)


def test_a_run_that_is_not_yet_visible_on_disk_is_not_skipped() -> None:
    """G2: of two runs of one write, the first is only on disk; the other, before or after it, does not hide it."""
    for left, kept in ((3, 5), (5, 3)):
        window = Window(1, 0)
        disk: list[bytes] = []

        def first_key(start: bytes, end: bytes, disk: list[bytes] = disk) -> bytes | None:
            return min((one for one in disk if start <= one < end), default=None)

        window.left_on_disk(key(left, 1))
        window.reach_for(key(kept, 2), first_key)
        assert (window.cursor <= key(left, 1)) is True
        assert window.next_unloaded(first_key) == left * keys.SLICE_MS
        disk += [key(left, 1)]
        window.removed(disk.pop())
        assert window.next_unloaded(first_key) is None


@pytest.mark.parametrize("ready", [False, True], ids=["timeline", "priorities"])
def test_rows_that_are_offered_again_behind_the_cursor_do_not_move_it_over_unread_runs(ready: bool) -> None:
    """G2: to make room, a window moved its cursor to such a run, and runs between were leased only after a restart."""
    first = keys.ready_slice(0) if ready else 1
    window = ReadyWindow(1, 0, lambda _: True) if ready else Window(1, 0)
    (window._move_cursor if isinstance(window, ReadyWindow) else window.move_cursor)(key(first + 1, 0))
    window.offer(FreeRows(run(key(first, 1))))
    read_up_to = window.cursor
    window.offer(FreeRows(run(key(first + 6, 3))))
    for _ in range(3):
        window.retreat(window.late_key() or read_up_to)
        assert window.cursor <= read_up_to


def test_after_a_window_is_made_smaller_its_first_slice_is_read_again_before_a_row_leaves() -> None:
    """Found by the model: a row of a lease that had ended left before an older one that a full memory left on disk."""
    window = Window(1, 0)
    window.move_cursor(key(0, 9))
    window.offer(FreeRows(run(key(0, 3))))
    window.read_enough(1)
    assert window.has_enough(1)
    window.retreat(key(0, 1))
    window.offer(FreeRows(run(key(0, 3))))
    assert not window.has_enough(1)


def run(key: bytes) -> Run:
    """A run of one free row, in memory."""
    made = Run(key, records.Run(owner="billing", ids=["a"], ts=[1]), 10)
    made.in_window = True
    return made


async def test_a_lost_lease_does_not_overtake_an_earlier_message_on_disk(tmp_path: Path) -> None:
    """Found by the model: rows of a lease that ended are in memory before the rows before them are read."""
    storage = RocksStorage(tmp_path / "store", journal=True)
    await storage.open(NOW)
    topic = Topic("t", 1, TopicSettings(buckets=64))
    await storage.put_topic(topic, DIRECT_CALL)
    names = (f"m{number}" for number in count())
    first, held, between = islice((name for name in names if bucket_of(name, 64) == 1), 3)

    async def create(number: int, name: str, ts: int) -> None:
        batch = CreateBatch("g", ProducerSession(1, number), 0, [ts], [b"x"], ids=[name])
        assert not (await apply_one(storage, Create(topic, batch), NOW, DIRECT_CALL)).codes

    async def lease(now: int, lease_ms: int, rows_max: int, bucket: int = 1) -> list[str]:
        request = LeaseRequest([bucket], "c", now, now + lease_ms, rows_max=rows_max)
        found = await storage.lease(topic, request, now, DIRECT_CALL)
        return [] if found is None else found.ids()

    # The rows of a topic with many consumers are in runs of their buckets.
    assert await lease(NOW, 500, 1) == []
    await create(1, first, NOW)
    await create(2, held, NOW + 1)
    assert await lease(NOW + 1, 500, 1) == [first]
    assert await lease(NOW + 1, 3_600_000, 1) == [held]
    await create(3, between, NOW + 20_000)
    # This ends the leases, and reads nothing of the other bucket.
    assert await lease(NOW + 7_200_000, 500, 2, bucket=2) == []
    assert await lease(NOW + 7_200_000, 500, 2) == [first, between]
    assert await lease(NOW + 7_200_000, 500, 2) == [held]
    await storage.close()
