"""Changes of one moment share a record of the commit log and a sync; each has its own answer, also when it fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest, LeaseSet, Outcomes
from dejaq.domain.changes import Change, Create, Delete
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import Code, Refused
from dejaq.storage.base import Filter, apply_one
from dejaq.storage.rocksdb.engine import committer, keys, recording
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.transactions import Transaction

NOW = 1_800_000_000_000
SESSION = ProducerSession(NOW, 7)
TOPICS = tuple(Topic(f"mail-{number}", number, TopicSettings(buckets=2), created_ms=NOW) for number in (1, 2))
# Large enough that a run is a frame of the log.
BODY = b"x" * 1_000


async def opened(path: Path) -> RocksStorage:
    storage = RocksStorage(path, journal=True)
    await storage.open(NOW)
    for topic in TOPICS:
        await storage.put_topic(topic, DIRECT_CALL)
    return storage


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[RocksStorage]:
    made = await opened(tmp_path / "data")
    yield made
    await made.close()


def batch(topic: Topic, rows: int, sequence: int = 0) -> Create:
    ids = [f"{topic.name}-{sequence + row}" for row in range(rows)]
    session = ProducerSession(NOW, topic.number)
    return Create(topic, CreateBatch("billing", session, sequence, [NOW] * rows, [BODY] * rows, ids=ids))


async def lease(storage: RocksStorage, topic: Topic, rows: int) -> LeaseSet:
    request = LeaseRequest(range(2), f"worker-{topic.number}", NOW, NOW + 60_000, rows, 1 << 24)
    found = await storage.lease(topic, request, NOW, DIRECT_CALL)
    assert found is not None
    return found


def delete(topic: Topic, held: LeaseSet, row: int) -> Delete:
    return Delete(topic, held.lease_id, held.consumer, [(row, row + 1)], [])


def begun(storage: RocksStorage, change: Change) -> asyncio.Future[list[Outcomes | Refused]]:
    found = storage.begin((change,), NOW, DIRECT_CALL)
    assert found is not None
    return found


def keys_of(storage: RocksStorage) -> list[bytes]:
    """The keys of all runs."""
    return list(storage._database.scan_keys(keys.RUN, keys.after(keys.RUN)))


def records(storage: RocksStorage) -> int:
    assert storage._engine is not None
    return storage._engine.log.sequence


async def test_changes_of_several_topics_share_a_record_and_a_sync(storage: RocksStorage) -> None:
    for topic in TOPICS:
        await apply_one(storage, batch(topic, 100), NOW, DIRECT_CALL)
    before, syncs = records(storage), storage._committer.syncs
    held = await asyncio.gather(*(lease(storage, topic, 10) for topic in TOPICS))
    assert (records(storage), storage._committer.syncs) == (before + 1, syncs + 1)
    changes = [delete(topic, one, row) for topic, one in zip(TOPICS, held, strict=True) for row in range(10)]
    answers = await asyncio.gather(*(begun(storage, change) for change in changes))
    assert [answer[0].codes for answer in answers if isinstance(answer[0], Outcomes)] == [{}] * 20
    assert (records(storage), storage._committer.syncs) == (before + 2, syncs + 2)


async def test_a_bad_change_among_them_has_its_own_error(storage: RocksStorage) -> None:
    topic = TOPICS[0]
    await apply_one(storage, batch(topic, 100), NOW, DIRECT_CALL)
    held = await lease(storage, topic, 10)
    before = records(storage)
    unknown = Topic("nowhere", 99, TopicSettings(buckets=2), created_ms=NOW)
    good = begun(storage, delete(topic, held, 0))
    foreign = begun(storage, Delete(topic, held.lease_id, "thief", [(1, 2)], []))
    lost = begun(storage, delete(topic, held, 0))
    refused = begun(storage, batch(unknown, 1))
    other = begun(storage, delete(topic, held, 2))
    found = [(await one)[0] for one in (good, foreign, lost, refused, other)]
    codes = [one.codes if isinstance(one, Outcomes) else one.code for one in found]
    assert codes == [{}, {1: Code.LEASE_LOST}, {0: Code.LEASE_LOST}, Code.TOPIC_NOT_FOUND, {}]
    assert records(storage) == before + 1
    assert await storage.count(topic, Filter(), NOW) == 98


async def test_transactions_of_one_moment_share_a_record_and_one_that_fails_changes_nothing(
    storage: RocksStorage,
) -> None:
    source, target = TOPICS
    await apply_one(storage, batch(source, 32), NOW, DIRECT_CALL)
    held = await lease(storage, source, 32)
    before = records(storage)

    def transaction(row: int, consumer: str) -> Transaction:
        return Transaction(
            SESSION, row, (Delete(source, held.lease_id, consumer, [(row, row + 1)], []), batch(target, 1, row))
        )

    calls = [transaction(row, "thief" if row == 5 else held.consumer) for row in range(32)]
    verdicts = await asyncio.gather(*(storage.transact(one, NOW, DIRECT_CALL) for one in calls))
    codes = [verdict.code for verdict in verdicts]
    assert codes == [Code.LEASE_LOST if row == 5 else Code.OK for row in range(32)]
    assert records(storage) <= before + 2
    assert await storage.count(source, Filter(), NOW) == 1
    assert await storage.count(target, Filter(), NOW) == 31


async def test_runs_in_one_record_are_found_after_a_restart(tmp_path: Path) -> None:
    storage = await opened(tmp_path / "data")
    before = records(storage)
    await asyncio.gather(
        *(apply_one(storage, batch(topic, 100, n * 100), NOW, DIRECT_CALL) for n in range(3) for topic in TOPICS)
    )
    assert records(storage) < before + 6
    await storage.close()
    again = RocksStorage(tmp_path / "data", journal=True)
    await again.open(NOW)
    for topic in TOPICS:
        page = await again.browse(topic, Filter(), None, 1_000, NOW)
        assert sorted(message.id for message in page.messages) == sorted(f"{topic.name}-{n}" for n in range(300))
        assert {bytes(message.body) for message in page.messages} == {BODY}
    assert len(await again.journal(0, 1 << 24)) == 6
    await again.close()


async def test_a_record_takes_only_so_many_changes(storage: RocksStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "BYTES_MAX", 250_000)
    before, syncs = records(storage), storage._committer.syncs
    calls = [apply_one(storage, batch(TOPICS[0], 100, n * 100), NOW, DIRECT_CALL) for n in range(5)]
    assert [outcomes.codes for outcomes in await asyncio.gather(*calls)] == [{}] * 5
    assert storage._committer.syncs == syncs + 1
    assert records(storage) == before + 3


async def test_a_change_during_a_checkpoint_is_in_it_or_behind_it(storage: RocksStorage, tmp_path: Path) -> None:
    """A checkpoint begins a file of the log, while changes wait whose frames have their addresses."""
    creating = [asyncio.ensure_future(apply_one(storage, batch(TOPICS[0], 100), NOW, DIRECT_CALL))]
    copying = asyncio.ensure_future(storage.checkpoint(tmp_path / "copy"))
    for number in range(1, 30):
        creating.append(
            asyncio.ensure_future(apply_one(storage, batch(TOPICS[0], 100, number * 100), NOW, DIRECT_CALL))
        )
        await asyncio.sleep(0)
    await asyncio.gather(copying, *creating)
    page = await storage.browse(TOPICS[0], Filter(), None, 10_000, NOW)
    assert len(page.messages) == 3_000
    assert {bytes(message.body) for message in page.messages} == {BODY}


async def test_creates_that_come_in_the_pause_behind_a_full_sync_share_a_run(
    storage: RocksStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "PACE_S", 0.3)
    topic = TOPICS[0]
    await apply_one(storage, batch(topic, 100), NOW, DIRECT_CALL)
    held = await lease(storage, topic, 20)
    await asyncio.gather(*(begun(storage, delete(topic, held, row)) for row in range(committer.PACED_CHANGES)))
    assert storage._committer.syncing
    before, syncs = len(keys_of(storage)), storage._committer.syncs
    creating = []
    for number in range(5):
        creating.append(begun(storage, batch(TOPICS[1], 1, number)))
        await asyncio.sleep(0)
    answers = await asyncio.gather(*creating)
    assert [answer[0].codes for answer in answers if isinstance(answer[0], Outcomes)] == [{}] * 5
    assert storage._committer.syncs == syncs + 1
    assert len(keys_of(storage)) == before + 1


@pytest.mark.parametrize(("changes", "part"), [(1, 0.0), (2, 0.0), (3, 0.5), (4, 1.0), (50, 1.0)])
async def test_the_pause_behind_a_sync_grows_with_its_changes_and_a_lone_message_has_none(
    storage: RocksStorage, monkeypatch: pytest.MonkeyPatch, changes: int, part: float
) -> None:
    monkeypatch.setattr(committer, "PACE_S", 60.0)
    topic = TOPICS[0]
    await apply_one(storage, batch(topic, 100), NOW, DIRECT_CALL)
    held = await lease(storage, topic, 60)
    loop = asyncio.get_running_loop()
    pauses: list[float] = []
    monkeypatch.setattr(loop, "call_later", lambda seconds, _: pauses.append(seconds))
    began = time.monotonic()
    await asyncio.gather(*(begun(storage, delete(topic, held, row)) for row in range(changes)))
    took = time.monotonic() - began
    assert storage._committer.syncing == bool(part)
    assert len(pauses) == bool(part)
    assert all(60.0 * part - took <= pause <= 60.0 * part for pause in pauses)
    monkeypatch.undo()
    if part:
        storage._committer._next()
