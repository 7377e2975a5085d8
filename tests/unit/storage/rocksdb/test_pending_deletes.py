"""Deletes that arrive together share a write, a journal record and a sync, and each has its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dejaq.domain.batch import LeaseRequest, LeaseSet, Outcomes
from dejaq.domain.changes import Create, Delete, Extend, Recall
from dejaq.domain.context import DIRECT_CALL
from dejaq.errors import Code, Refused
from dejaq.protocol.v1 import journal_pb2 as journal
from dejaq.storage.base import Filter
from dejaq.storage.rocksdb.operations import pending_changes
from dejaq.storage.rocksdb.store import RocksStorage
from tests.unit.storage.rocksdb.test_pending_creates import BUCKETS, NOW, OTHER, TOPIC, HeldSync, begin, send, single

LEASE_MS = 10_000
Answer = asyncio.Future[list[Outcomes | Refused]]


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[RocksStorage]:
    made = RocksStorage(tmp_path / "store", journal=True)
    await begin(made)
    yield made
    await made.close()


async def leased(storage: RocksStorage, rows: int, *, now: int = NOW) -> LeaseSet:
    """A lease on new messages that are due."""
    await send(storage, [single(number, f"m-{number}", ts=NOW) for number in range(rows)])
    lease = await take(storage, now)
    assert lease is not None
    assert len(lease) == rows
    return lease


async def take(storage: RocksStorage, now: int) -> LeaseSet | None:
    request = LeaseRequest(list(range(BUCKETS)), "c", now, now + LEASE_MS)
    return await storage.lease(TOPIC, request, now, DIRECT_CALL)


def delete(storage: RocksStorage, lease: LeaseSet, *rows: int, now: int = NOW) -> Answer:
    """Begin to delete rows, as a session does."""
    changes = [Delete(TOPIC, lease.lease_id, "c", [(row, row + 1)], []) for row in rows]
    answer = storage.begin(changes, now, DIRECT_CALL)
    assert answer is not None
    return answer


def codes(answers: list[Outcomes | Refused]) -> list[Code]:
    return [code for one in answers for code in (one.codes.values() if isinstance(one, Outcomes) else [one.code])]


async def test_deletes_and_creates_of_one_moment_share_a_record_and_a_sync(storage: RocksStorage) -> None:
    lease = await leased(storage, 20)
    records, writes, syncs = len(await storage.journal(0, 1 << 20)), storage._committer.writes, storage._committer.syncs
    calls = [delete(storage, lease, row) for row in range(20)]
    for number in range(5):
        create = storage.begin((Create(TOPIC, single(100 + number, f"n-{number}")),), NOW, DIRECT_CALL)
        assert create is not None
        calls.append(create)
    assert [codes(await call) for call in calls] == [[]] * 25
    assert (storage._committer.writes, storage._committer.syncs) == (writes + 1, syncs + 1)
    (record,) = (await storage.journal(0, 1 << 20))[records:]
    kinds = [events.kind for events in journal.JournalRecord.FromString(record).events]
    assert kinds[:20] == [journal.EVENT_DELETED] * 20
    assert set(kinds[20:]) == {journal.EVENT_CREATED}
    assert await storage.count(TOPIC, Filter(), NOW) == 5


async def test_each_frame_has_its_own_answer(storage: RocksStorage) -> None:
    lease = await leased(storage, 4)
    calls = [delete(storage, lease, 0, 1), delete(storage, lease, 1, 2), delete(storage, lease, 3)]
    assert [codes(await call) for call in calls] == [[], [Code.LEASE_LOST], []]


async def test_what_waits_during_a_sync_is_seen_by_readers_and_acknowledged_after_the_next(
    storage: RocksStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await leased(storage, 3)
    held = HeldSync(storage, monkeypatch)
    first = delete(storage, lease, 0)
    await held.begun()
    second = delete(storage, lease, 1)
    counting = asyncio.ensure_future(storage.count(TOPIC, Filter(), NOW))
    await asyncio.sleep(0)
    assert not first.done()
    assert not second.done()
    held.release()
    assert codes(await first) == codes(await second) == []
    assert await counting == 1


async def test_a_later_change_of_the_same_rows_comes_behind_a_delete(
    storage: RocksStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await leased(storage, 3)
    held = HeldSync(storage, monkeypatch)
    first = delete(storage, lease, 0)
    await held.begun()
    second = delete(storage, lease, 1)
    extend = Extend(TOPIC, lease.lease_id, "c", [(0, 3)], NOW + 2 * LEASE_MS)
    third = asyncio.ensure_future(storage.apply((extend, Recall(TOPIC, lease.lease_id, "c", None)), NOW, DIRECT_CALL))
    await asyncio.sleep(0)
    held.release()
    assert codes(await first) == codes(await second) == []
    # The two rows that were deleted, in both answers.
    assert codes(await third) == [Code.LEASE_LOST] * 4
    again = await take(storage, NOW)
    assert again is not None
    assert len(again) == 1


async def test_a_delete_in_time_is_done_before_the_rows_are_leased_again(
    storage: RocksStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease ends while its delete waits; the delete came before the end."""
    lease = await leased(storage, 2)
    held = HeldSync(storage, monkeypatch)
    first = delete(storage, lease, 0)
    await held.begun()
    second = delete(storage, lease, 1, now=NOW + LEASE_MS - 1)
    again = asyncio.ensure_future(take(storage, NOW + LEASE_MS))
    await asyncio.sleep(0)
    held.release()
    assert codes(await first) == codes(await second) == []
    assert await again is None


async def test_many_frames_are_not_applied_in_one_step(storage: RocksStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = await leased(storage, 2 * pending_changes.DELETES_MAX)
    held = HeldSync(storage, monkeypatch)
    first = delete(storage, lease, 0)
    await held.begun()
    others = [delete(storage, lease, row) for row in range(1, 2 * pending_changes.DELETES_MAX)]
    assert len(storage._pending._deletes) < pending_changes.DELETES_MAX
    held.release()
    for call in (first, *others):
        assert codes(await call) == []
    assert await storage.count(TOPIC, Filter(), NOW) == 0


async def test_deletes_in_a_topic_that_was_dropped_meanwhile_are_lost(
    storage: RocksStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await leased(storage, 1)
    held = HeldSync(storage, monkeypatch)
    await send(storage, [single(9, "x")], OTHER)
    await held.begun()
    call = delete(storage, lease, 0)
    dropping = asyncio.ensure_future(storage.drop_topic(TOPIC, NOW, DIRECT_CALL))
    await asyncio.sleep(0)
    late = delete(storage, lease, 0)
    held.release()
    await dropping
    assert codes(await call) == []
    assert codes(await late) == [Code.LEASE_LOST]
