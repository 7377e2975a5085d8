"""The windows of a log are read in short steps after a start, and what readers see does not depend on it."""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path

import pytest

from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.topic import Topic, TopicKind, TopicSettings
from dejaq.errors import Code, DejaqError
from dejaq.storage.log.base import Append, LogName, LogSlice
from dejaq.storage.postgres.connection.database import PostgresLink
from dejaq.storage.postgres.store import PostgresStorage
from dejaq.storage.rocksdb.log import records, state
from dejaq.storage.rocksdb.log.records import unpack_batch
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.testing.servers.postgres import shared_server

NOW = 1_700_000_000_000
TOPIC = Topic("events", 1, TopicSettings(kind=TopicKind.LOG, buckets=1), created_ms=NOW)
SESSION = bytes(range(10))
BATCHES, STEP = 57, 5
LENGTH = 10_000


@pytest.fixture
async def restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RocksStorage:
    """A store that was opened again with batches in their windows, one appended each millisecond."""
    monkeypatch.setattr(state, "_WINDOWS_PER_STEP", STEP)
    storage = RocksStorage(tmp_path / "data")
    await storage.open(NOW)
    await storage.put_topic(TOPIC, DIRECT_CALL)
    for number in range(BATCHES):
        batch = Append(0, bytes([number]), 1, LogName(SESSION, number), rollback_ms=LENGTH)
        await storage.logs.append(TOPIC, [batch], NOW + number, DIRECT_CALL)
    await storage.close()
    again = RocksStorage(tmp_path / "data")
    await again.open(NOW + BATCHES)
    return again


async def read(storage: RocksStorage, start: int, now: int) -> LogSlice:
    return await storage.logs.read(TOPIC, 0, start, end=None, bytes_max=10_000, committed=True, now=now)


async def test_windows_are_read_when_they_are_needed(restarted: RocksStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    read_entries: list[int] = []
    unpack = unpack_batch

    def counted(key: bytes, value: bytes) -> object:
        read_entries.append(1)
        return unpack(key, value)

    monkeypatch.setattr(records, "unpack_batch", counted)
    assert (await read(restarted, 0, NOW + BATCHES)).batches == ()
    assert len(read_entries) <= 2 * STEP
    await restarted.close()


async def test_windows_pass_one_by_one_after_a_start(restarted: RocksStorage) -> None:
    for passed in (0, 1, 4, 5, 6, 30, 56, 57):
        (offsets,) = await restarted.logs.offsets(TOPIC, NOW + LENGTH + passed - 1)
        assert (offsets.stable, offsets.next) == (passed, BATCHES)
    assert [batch.base for batch in (await read(restarted, 50, NOW + 2 * LENGTH)).batches] == list(range(50, 57))
    await restarted.close()


async def test_a_batch_far_behind_is_rolled_back_after_a_start(restarted: RocksStorage) -> None:
    await restarted.logs.rollback(TOPIC, LogName(SESSION, 40), NOW + BATCHES, DIRECT_CALL)
    new = Append(0, b"new", 1, LogName(SESSION, BATCHES), rollback_ms=LENGTH)
    await restarted.logs.append(TOPIC, [new], NOW + BATCHES, DIRECT_CALL)
    with pytest.raises(DejaqError) as refused:
        await restarted.logs.rollback(TOPIC, LogName(SESSION, 3), NOW + LENGTH + 10, DIRECT_CALL)
    assert refused.value.code is Code.TOO_LATE
    await restarted.logs.rollback(TOPIC, LogName(SESSION, BATCHES), NOW + LENGTH + 10, DIRECT_CALL)
    (offsets,) = await restarted.logs.offsets(TOPIC, NOW + 2 * LENGTH)
    assert (offsets.stable, offsets.next) == (BATCHES + 1, BATCHES + 1)
    bases = [batch.base for batch in (await read(restarted, 38, NOW + 2 * LENGTH)).batches]
    assert bases == [38, 39, *range(41, BATCHES)]
    await restarted.close()


async def test_a_rollback_that_a_reader_of_another_broker_overtakes_is_too_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that the network held up between two statements took out what readers of another broker had."""
    cluster = f"windows_{secrets.token_hex(4)}"
    mine, other = (PostgresStorage(shared_server().dsn, cluster=cluster, connections=2) for _ in range(2))
    await mine.open(NOW)
    await other.open(NOW)
    topic = replace(TOPIC, number=await mine.next_topic_number())
    await mine.put_topic(topic, DIRECT_CALL)
    await mine.logs.append(topic, [Append(0, b"x", 1, LogName(SESSION, 0), rollback_ms=LENGTH)], NOW, DIRECT_CALL)

    async def seen() -> list[bytes]:
        found = await other.logs.read(topic, 0, 0, end=None, bytes_max=10_000, committed=True, now=NOW + LENGTH)
        return [batch.records for batch in found.batches]

    value, before = PostgresLink.value, list[bytes]()

    async def overtaken(link: PostgresLink, name: str, *arguments: object) -> object:
        if name == "abort_log_batch":
            before.extend(await seen())
        return await value(link, name, *arguments)

    monkeypatch.setattr(PostgresLink, "value", overtaken)
    with pytest.raises(DejaqError) as refused:
        await mine.logs.rollback(topic, LogName(SESSION, 0), NOW + LENGTH - 1, DIRECT_CALL)
    assert refused.value.code is Code.TOO_LATE
    other.logs._cache.forget()
    assert before == await seen() == [b"x"]
    await mine.close()
    await other.close()
