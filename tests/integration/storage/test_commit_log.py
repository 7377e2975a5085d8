"""The embedded store and its commit log: what is replayed, what is trimmed, and what the journal keeps."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest

from dejaq import limits
from dejaq.domain.batch import CreateBatch
from dejaq.domain.changes import Cancel, Create
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Durability, Topic, TopicSettings
from dejaq.errors import Code, Indefinite, StoreError
from dejaq.protocol.v1 import journal_pb2 as journal
from dejaq.storage.base import Filter, apply_one
from dejaq.storage.rocksdb.engine.database import RocksDatabase
from dejaq.storage.rocksdb.engine.engine import LogSizes
from dejaq.storage.rocksdb.engine.inspecting import check, inspect
from dejaq.storage.rocksdb.engine.starting import begin_copy
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.testing.waiting import eventually, wait_until
from tests.integration.storage.killing import killed

NOW = 1_800_000_000_000
SESSION = ProducerSession(NOW, 7)
BODY = b"x" * 1_000


async def opened(path: Path, *, bytes_max: int = 1 << 30) -> RocksStorage:
    storage = RocksStorage(path, journal=True, log=LogSizes(30_000, 50_000, bytes_max))
    await storage.open(NOW)
    return storage


async def new_topic(storage: RocksStorage) -> Topic:
    topic = Topic("mail", await storage.next_topic_number(), TopicSettings(buckets=2), created_ms=NOW)
    await storage.put_topic(topic, DIRECT_CALL)
    return topic


async def create(storage: RocksStorage, topic: Topic, numbers: range) -> None:
    for number in numbers:
        batch = CreateBatch("billing", SESSION, number, ts=[NOW + number], bodies=[BODY], ids=[f"m-{number}"])
        assert not (await apply_one(storage, Create(topic, batch), NOW, DIRECT_CALL)).codes


async def cancel(storage: RocksStorage, topic: Topic, numbers: range) -> None:
    change = Cancel(topic, "billing", [f"m-{number}" for number in numbers])
    assert not (await apply_one(storage, change, NOW, DIRECT_CALL)).codes


async def ids_in(storage: RocksStorage) -> set[str]:
    (topic,) = await storage.topics()
    return {message.id for message in (await storage.browse(topic, Filter(), None, 1_000, NOW)).messages}


async def sequences(storage: RocksStorage, after: int = 0) -> list[int]:
    """The sequences of all journal records behind one."""
    found: list[int] = []
    while True:
        records = await storage.journal(found[-1] if found else after, 10_000)
        if not records:
            return found
        found += [journal.JournalRecord.FromString(record).sequence for record in records]


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[RocksStorage]:
    made = await opened(tmp_path / "data")
    yield made
    await made.close()


def expected(count: int) -> set[str]:
    return {f"m-{number}" for number in range(count)}


async def test_a_copy_taken_while_the_store_is_in_use_has_everything(storage: RocksStorage, tmp_path: Path) -> None:
    """G1: what is not in the tables is replayed from the log, also when that is everything."""
    topic = await new_topic(storage)
    await create(storage, topic, range(20))
    await killed(tmp_path / "data", tmp_path / "killed")
    again = await opened(tmp_path / "killed")
    assert await ids_in(again) == expected(20)
    assert await sequences(again) == list(range(1, 21))
    await again.close()


async def test_the_database_has_nothing_that_the_log_may_lose(storage: RocksStorage) -> None:
    """RocksDB flushes what was written without its log when it likes to, so it gets only what is durable."""
    topic = await new_topic(storage)
    assert storage._engine is not None
    for number in range(10):
        creating = asyncio.ensure_future(create(storage, topic, range(number, number + 1)))
        while not creating.done():
            await asyncio.sleep(0)
            applied = storage._database.applied
            assert applied is not None
            assert applied <= storage._engine.log.durable


async def test_files_that_nothing_needs_are_removed(storage: RocksStorage, tmp_path: Path) -> None:
    """A file goes when the database was flushed past it, its messages are gone and the journal's records exported."""
    topic = await new_topic(storage)
    await create(storage, topic, range(100))
    await cancel(storage, topic, range(100))
    stats = storage.stats()
    assert stats["log_files"] > 3
    assert stats["log_bytes"] > 100_000
    await storage.trim_journal((await sequences(storage))[-1])
    await create(storage, topic, range(100, 160))
    await cancel(storage, topic, range(100, 160))
    await storage.trim_journal(storage.stats()["journal_sequence"])  # type: ignore[arg-type]
    numbers = count(160)

    async def trimmed() -> bool:
        """The log keeper looks after changes, so changes go on meanwhile."""
        number = next(numbers)
        await create(storage, topic, range(number, number + 1))
        await cancel(storage, topic, range(number, number + 1))
        await storage.trim_journal(storage.stats()["journal_sequence"])  # type: ignore[arg-type]
        return int(storage.stats()["log_bytes"]) < 100_000

    await eventually(trimmed, within=5, what="the log is trimmed")
    assert storage.stats()["log_moved_bytes"] == 0
    await storage.close()
    again = await opened(tmp_path / "data")
    assert await ids_in(again) == set()
    await eventually(lambda: again.stats()["log_files"] == 1, within=5, what="what a clean end left is removed")
    await again.close()


async def test_at_its_limit_the_log_moves_records_of_a_lagging_exporter_into_the_database(tmp_path: Path) -> None:
    """G9: an exporter that lags keeps no more log than the limit, and loses no record."""
    storage = await opened(tmp_path / "data", bytes_max=100_000)
    topic = await new_topic(storage)
    await create(storage, topic, range(300))
    await eventually(lambda: storage.stats()["log_bytes"] < 200_000, within=5, what="old files are removed")
    assert storage.stats()["log_moved_bytes"] > 0
    assert await sequences(storage) == list(range(1, 301))
    assert await sequences(storage, after=150) == list(range(151, 301))
    await storage.close()
    again = await opened(tmp_path / "data", bytes_max=100_000)
    assert await sequences(again) == list(range(1, 301))
    assert await ids_in(again) == expected(300)
    await again.trim_journal(250)
    assert await sequences(again, after=250) == list(range(251, 301))
    await again.close()


async def test_a_checkpoint_has_the_log_that_its_database_needs(storage: RocksStorage, tmp_path: Path) -> None:
    """G9: a restored copy has every message, and every journal record that was not exported."""
    topic = await new_topic(storage)
    await create(storage, topic, range(50))
    await storage.checkpoint(tmp_path / "copy")
    await create(storage, topic, range(50, 60))
    begin_copy(tmp_path / "copy")
    copy = await opened(tmp_path / "copy")
    assert await ids_in(copy) == expected(50)
    assert await sequences(copy) == list(range(1, 51))
    assert copy._number > storage._number + (9_000 << 40)
    await copy.close()
    assert await ids_in(storage) == expected(60)


async def test_a_change_that_the_database_refuses_is_durable_and_not_acknowledged(
    storage: RocksStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1: the outcome is unknown, nothing is taken any more, and the next start replays it."""
    topic = await new_topic(storage)

    def refuse(*_: object) -> None:
        raise OSError("Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(RocksDatabase, "apply", refuse)
        with pytest.raises(Indefinite):
            await create(storage, topic, range(1))
    with pytest.raises(StoreError):
        await create(storage, topic, range(1, 2))
    await storage.recover(NOW)
    assert await ids_in(storage) == expected(1)


async def test_a_lost_log_is_refused(storage: RocksStorage, tmp_path: Path) -> None:
    await new_topic(storage)
    await storage.close()
    shutil.rmtree(tmp_path / "data" / "commit")
    with pytest.raises(StoreError) as refused:
        await storage.open(NOW)
    assert refused.value.code is Code.STORE_CORRUPT


async def test_a_whole_store_is_checked_and_damage_is_named(storage: RocksStorage, tmp_path: Path) -> None:
    """Every record and frame of the log, and every table, is read; the first bad place of each file is named."""
    topic = await new_topic(storage)
    await create(storage, topic, range(100))
    assert 0 < inspect(tmp_path / "data")["flushed"] <= storage._committer.applied
    await storage.close()
    data = tmp_path / "data"
    found = check(data)
    assert found["problems"] == []
    # The values of the runs, and the records of the journal.
    assert found["log_frames"] == 200
    assert found["log_runs"] == 100
    assert inspect(data)["format"] == 10
    assert inspect(data)["log_bytes"] == found["log_bytes"]
    first, second, *_ = sorted((data / "commit").iterdir())
    for path in (first, second):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    problems = check(data)["problems"]
    assert [name for name in (first.name, second.name) if any(name in problem for problem in problems)] == [
        first.name,
        second.name,
    ]
    for table in (data / "db").glob("*.sst"):
        content = bytearray(table.read_bytes())
        content[len(content) // 4 : len(content) // 2] = bytes(len(content) // 2 - len(content) // 4)
        table.write_bytes(content)
    assert any("cannot open the data directory" in problem for problem in check(data)["problems"])


async def test_starts_after_kills_do_not_collect_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every start begins a file. After a thousand kills of an idle broker the store had no file descriptor left."""
    monkeypatch.setattr(limits, "COMMIT_LOG_FILES_MAX", 5)
    path = tmp_path / "0"
    for number in range(20):
        storage = await opened(path)
        if not number:
            # The journal's record of this message keeps its file, as long as nobody exports it.
            await create(storage, await new_topic(storage), range(1))
        engine = storage._engine
        assert engine is not None
        await eventually(lambda used=engine: used.keeper._working is None, within=5)  # type: ignore[misc]
        assert storage.stats()["log_files"] <= 6
        path = tmp_path / str(number + 1)
        await killed(tmp_path / str(number), path)
        await storage.close()
    again = await opened(path)
    assert await ids_in(again) == expected(1)
    assert await sequences(again) == [1]
    await again.close()


async def test_files_stay_until_the_trim_of_the_journal_is_durable(storage: RocksStorage, tmp_path: Path) -> None:
    """A file was removed as soon as its records were trimmed in memory; after a kill the journal still had them."""
    topic = await new_topic(storage)
    await create(storage, topic, range(100))
    engine = storage._engine
    assert engine is not None
    await eventually(lambda: engine.keeper._working is None, within=5)
    write, gate = engine.log.write, threading.Event()

    def slow_write() -> int:
        gate.wait(10)
        return write()

    engine.log.write = slow_write  # type: ignore[method-assign]
    trimming = asyncio.ensure_future(storage.trim_journal(100))
    await eventually(lambda: storage.stats()["log_pending"] == 1, within=5)
    # As after every group that the database gets meanwhile.
    engine.keeper.look()
    await eventually(lambda: engine.keeper._working is None, within=5)
    await killed(tmp_path / "data", tmp_path / "killed")
    gate.set()
    await trimming
    again = await opened(tmp_path / "killed")
    assert await sequences(again) == list(range(1, 101))
    await again.close()


async def test_what_waits_for_a_stuck_disk_has_a_bound(
    storage: RocksStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for a relaxed topic's writes, so they filled the memory of a broker whose disk was stuck."""
    monkeypatch.setattr(limits, "COMMIT_LOG_PENDING_BYTES", 20_000)
    relaxed = TopicSettings(buckets=2, durability=Durability.RELAXED)
    topic = Topic("mail", await storage.next_topic_number(), relaxed, created_ms=NOW)
    await storage.put_topic(topic, DIRECT_CALL)
    sync, gate = storage._engine.log.sync, threading.Event()  # type: ignore[union-attr]

    def slow_sync() -> int:
        gate.wait(10)
        return sync()

    storage._engine.log.sync = slow_sync  # type: ignore[union-attr, method-assign]
    creating = asyncio.ensure_future(create(storage, topic, range(100)))
    await asyncio.wait((creating,), timeout=0.2)
    assert 1 < storage.stats()["log_pending"] < 20
    gate.set()
    await creating
    assert await ids_in(storage) == expected(100)
    await eventually(lambda: storage._committer.pending_bytes == 0, within=5)


async def test_a_cancel_does_not_overtake_a_create_that_waits(storage: RocksStorage) -> None:
    """The requests of a session arrive in order; while merges were behind, a cancelled message was created later."""
    topic = await new_topic(storage)
    storage.merger._behind = 0.01
    batch = CreateBatch("billing", SESSION, 0, ts=[NOW + 1_000_000], bodies=[BODY], ids=["m-0"])
    creating = asyncio.ensure_future(apply_one(storage, Create(topic, batch), NOW, DIRECT_CALL))
    cancelling = asyncio.ensure_future(apply_one(storage, Cancel(topic, "billing", ["m-0"]), NOW, DIRECT_CALL))
    assert not (await creating).codes
    assert not (await cancelling).codes
    assert await ids_in(storage) == set()


def test_the_thread_of_a_store_that_was_left_open_fails_quietly(tmp_path: Path) -> None:
    """Its loop is closed and its directory gone, as after a test that failed; the thread raised into a later test."""

    async def leave_open() -> RocksStorage:
        storage = await opened(tmp_path / "data")
        await create(storage, await new_topic(storage), range(1))
        return storage

    committer = asyncio.run(leave_open())._committer
    shutil.rmtree(tmp_path / "data")
    committer._marked_at -= 10
    committer._wake.set()
    wait_until(lambda: committer.broken, within=10, what="the watermark cannot be written")
    committer._stopping = True
    committer._wake.set()
    committer._thread.join(10)
    assert not committer._thread.is_alive()
