"""D14: after a failed write or sync, the embedded store acknowledges nothing until it has been opened again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest
from dejaq.domain.changes import Cancel, Create
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import Code, Indefinite, StoreError
from dejaq.storage.base import Filter, apply_one
from dejaq.storage.commit_log.files import DiskFiles
from dejaq.storage.rocksdb.operations import dead_letters
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.rocksdb.timeline.topic_state import TopicState
from dejaq.testing.servers.faults import FaultyDisk
from dejaq.testing.waiting import eventually

NOW = 1_800_000_000_000
SESSION = ProducerSession(NOW, 7)


class Broken(Exception):
    """The error that a test raises in a change."""


def broken(*_: object) -> None:
    raise Broken


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[RocksStorage]:
    made = RocksStorage(tmp_path / "data", journal=True)
    await made.open(NOW)
    yield made
    await made.close()


@pytest.fixture
async def topic(storage: RocksStorage) -> Topic:
    settings = TopicSettings(buckets=2, expiry_backoff="fixed:1s")
    made = Topic("mail", await storage.next_topic_number(), settings, created_ms=NOW)
    await storage.put_topic(made, DIRECT_CALL)
    return made


async def create(storage: RocksStorage, topic: Topic, message_id: str, sequence: int) -> None:
    batch = CreateBatch(
        owner="billing", session=SESSION, sequence=sequence, ts=[NOW], bodies=[b"body"], ids=[message_id]
    )
    outcomes = await apply_one(storage, Create(topic, batch), NOW, DIRECT_CALL)
    assert outcomes.codes == {}


async def ids_in(storage: RocksStorage, topic: Topic) -> set[str]:
    return {message.id for message in (await storage.browse(topic, Filter(), None, 100, NOW)).messages}


async def test_a_batch_that_waits_while_a_sync_fails_is_not_acknowledged(
    storage: RocksStorage, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D14, G1: the batch after a failed sync is not synced and acknowledged as if no sync had failed."""
    with FaultyDisk() as disk:
        sync, failures = DiskFiles.sync, iter([True])

        def fail_once(files: DiskFiles, name: str) -> None:
            sync(files, name)
            if next(failures, False):
                raise OSError("Input/output error")

        monkeypatch.setattr(DiskFiles, "sync", fail_once)
        disk.hold_syncs()
        first = asyncio.create_task(create(storage, topic, "first", 0))
        await eventually(lambda: disk.syncs_held, within=5, what="the sync of the first batch begins")
        second = asyncio.create_task(create(storage, topic, "second", 1))
        await asyncio.sleep(0)
        # As before anything else reads the topic.
        storage._pending.flush()
        disk.let_syncs_go()
        answers = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(answer) for answer in answers] == [Indefinite, Indefinite]
    with pytest.raises(StoreError) as refused:
        await create(storage, topic, "third", 2)
    assert refused.value.code is Code.STORE_FAILED
    await storage.recover(NOW)
    await create(storage, topic, "fourth", 3)
    assert "third" not in await ids_in(storage, topic)


async def test_a_batch_that_waits_for_its_sync_while_a_write_fails_is_not_acknowledged(
    storage: RocksStorage, topic: Topic
) -> None:
    """D14, G1: only opening the store again shows how much of the log a failed write left."""
    with FaultyDisk() as disk:
        disk.hold_syncs()
        first = asyncio.create_task(create(storage, topic, "first", 0))
        await eventually(lambda: disk.syncs_held, within=5, what="the sync of the first batch begins")
        disk.fail_writes = True
        second = asyncio.create_task(create(storage, topic, "second", 1))
        await asyncio.sleep(0)
        # As before anything else reads the topic.
        storage._pending.flush()
        disk.let_syncs_go()
        # One thread writes and syncs, so the write that fails begins when the sync of the first batch has ended.
        await first
        with pytest.raises(Indefinite):
            await second
        disk.heal()
        with pytest.raises(StoreError):
            await create(storage, topic, "third", 2)
    await storage.recover(NOW)
    assert await ids_in(storage, topic) == {"first"}


async def test_a_change_that_cannot_be_built_fails_the_store(
    storage: RocksStorage, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D14: if the counts or the record of a change cannot be built, memory differs from the disk; it is read again."""
    await create(storage, topic, "first", 0)
    with monkeypatch.context() as patch:
        patch.setattr(TopicState, "write_counts", broken)
        with pytest.raises(Broken):
            await create(storage, topic, "second", 1)
    assert storage.failure is not None
    with pytest.raises(StoreError):
        await storage.count(topic, Filter(), NOW)
    await storage.recover(NOW)
    assert await storage.count(topic, Filter(), NOW) == 1
    assert await ids_in(storage, topic) == {"first"}


@pytest.mark.parametrize("place", ["before", "behind"])
async def test_expired_rows_that_cannot_be_delayed_fail_the_store(
    storage: RocksStorage, topic: Topic, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """D14: the same for an error while rows of expired leases are delayed by their back-off."""
    await create(storage, topic, "first", 0)
    later = NOW + 60_000
    assert await storage.lease(topic, LeaseRequest([0, 1], "worker", NOW, NOW + 1_000), NOW, DIRECT_CALL) is not None
    delay_expired = dead_letters.delay_expired

    def break_off(state: TopicState, now: int, batch: object) -> None:
        if place == "behind":
            delay_expired(state, now, batch)  # type: ignore[arg-type]
        raise Broken

    with monkeypatch.context() as patch:
        patch.setattr(dead_letters, "delay_expired", break_off)
        with pytest.raises(Broken):
            await apply_one(storage, Cancel(topic, "billing", ["first"]), later, DIRECT_CALL)
    assert storage.failure is not None
    await storage.recover(later)
    assert (await apply_one(storage, Cancel(topic, "billing", ["first"]), later, DIRECT_CALL)).codes == {}


async def test_a_store_that_failed_and_was_closed_opens_again(tmp_path: Path) -> None:
    """D14: a write that was never acknowledged does not raise the watermark, so its loss is no corruption."""
    storage = RocksStorage(tmp_path / "data")
    await storage.open(NOW)
    before = (tmp_path / "data" / "watermark").read_text()
    with FaultyDisk() as disk:
        disk.fail_syncs = True
        with pytest.raises(Indefinite):
            await storage.put_topic(Topic("mail", 1, TopicSettings(), created_ms=NOW), DIRECT_CALL)
        await storage.close()
    assert (tmp_path / "data" / "watermark").read_text() == before


async def test_a_store_whose_closing_was_cancelled_is_closed_nevertheless(
    storage: RocksStorage, topic: Topic, tmp_path: Path
) -> None:
    """A caller that is cancelled while it closes the store leaves neither a thread nor a locked directory."""
    with FaultyDisk() as disk:
        disk.hold_syncs()
        creating = asyncio.create_task(create(storage, topic, "first", 0))
        await eventually(lambda: disk.syncs_held, within=5, what="the sync begins")
        closing = asyncio.create_task(storage.close())
        await asyncio.sleep(0)
        closing.cancel()
        disk.let_syncs_go()
        await creating
        await asyncio.wait([closing])
    await storage.close()
    another = RocksStorage(tmp_path / "data")
    await another.open(NOW)
    assert await ids_in(another, topic) == {"first"}
    await another.close()
