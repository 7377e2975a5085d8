"""The batches of logs are frames of the commit log: a check, a crash, an older release and a full log handle them."""

import asyncio
import threading
from pathlib import Path

import pytest

from dejaq import limits
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import Code, Missing, Refused, StoreError
from dejaq.storage.log.base import Append, Appended, LogName, LogRetention
from dejaq.storage.rocksdb.engine import inspecting, starting
from dejaq.storage.rocksdb.engine.engine import LogSizes
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.testing.waiting import eventually

NOW = 1_700_000_000_000
TOPIC = Topic("events", 1, TopicSettings(buckets=2))
SIZES = LogSizes(file_bytes=64 * 1024, flush_bytes=32 * 1024, bytes_max=256 * 1024)


async def opened(path: Path) -> RocksStorage:
    storage = RocksStorage(path, log=SIZES, log_tail_bytes=0)
    await storage.open(NOW)
    await storage.put_topic(TOPIC, DIRECT_CALL)
    return storage


async def filled(storage: RocksStorage, count: int, *, bucket: int = 0) -> None:
    for n in range(count):
        (answer,) = await storage.logs.append(TOPIC, [Append(bucket, bytes([n % 256]) * 2_000, 10)], NOW, DIRECT_CALL)
        assert isinstance(answer, Appended)


async def contents(storage: RocksStorage, bucket: int = 0) -> list[bytes]:
    found, at = [], (await storage.logs.offsets(TOPIC, NOW))[bucket].start
    while True:
        part = await storage.logs.read(TOPIC, bucket, at, end=None, bytes_max=10_000, committed=True, now=NOW)
        found += [batch.records for batch in part.batches]
        if part.next == at:
            return found
        at = part.next


async def test_a_check_verifies_the_batches_and_their_counts(tmp_path: Path) -> None:
    storage = await opened(tmp_path)
    await filled(storage, 300)
    await storage.logs.retain(TOPIC, LogRetention(keep_bytes=400_000), NOW, DIRECT_CALL)
    await storage.close()
    report = inspecting.check(tmp_path)
    assert report["problems"] == []
    assert 0 < report["log_runs"] <= 200


async def test_a_check_finds_a_damaged_batch(tmp_path: Path) -> None:
    storage = await opened(tmp_path)
    await filled(storage, 20)
    await storage.close()
    file = sorted((tmp_path / "commit").iterdir())[0]
    data = bytearray(file.read_bytes())
    at = data.index(bytes([7]) * 2_000)
    data[at + 5] ^= 1
    file.write_bytes(data)
    problems = inspecting.check(tmp_path)["problems"]
    assert any("cannot read 1 runs" in problem for problem in problems), problems


async def test_a_long_log_moves_batches_out_of_the_commit_log(tmp_path: Path) -> None:
    """The commit log stays within its limit, and every batch can still be read, also after a restart."""
    storage = await opened(tmp_path)
    await filled(storage, 500)
    before = await contents(storage)
    assert before == [bytes([n % 256]) * 2_000 for n in range(500)]
    await eventually(lambda: storage.stats()["log_bytes"] <= SIZES.bytes_max + 2 * SIZES.file_bytes, within=30.0)
    # Into segment files, or into the database where those were not finished in time.
    assert storage.stats()["log_moved_bytes"] + storage.stats()["log_segments_moved_bytes"] > 0
    assert await contents(storage) == before
    await storage.close()
    assert inspecting.check(tmp_path)["problems"] == []
    storage = await opened(tmp_path)
    assert await contents(storage) == before
    await storage.close()


async def test_removed_batches_free_the_commit_log(tmp_path: Path) -> None:
    storage = await opened(tmp_path)
    for _ in range(20):
        await filled(storage, 50)
        await storage.logs.retain(TOPIC, LogRetention(keep_bytes=20_000), NOW, DIRECT_CALL)
    await eventually(lambda: storage.stats()["log_bytes"] <= 4 * SIZES.file_bytes, within=30.0)
    assert len(await contents(storage)) == 10
    await storage.close()


async def test_what_is_released_while_files_are_removed_is_removed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last change releases files during a flush, and no other change follows."""
    storage = await opened(tmp_path)
    flushing, released = threading.Event(), threading.Event()
    flush = storage._database.flush

    def slowly() -> None:
        flushing.set()
        assert released.wait(30.0)
        flush()

    monkeypatch.setattr(storage._database, "flush", slowly)
    try:
        await filled(storage, 300)
        assert await asyncio.to_thread(flushing.wait, 30.0)
        await storage.logs.retain(TOPIC, LogRetention(keep_bytes=20_000), NOW, DIRECT_CALL)
    finally:
        released.set()
    await eventually(lambda: storage.stats()["log_bytes"] <= 4 * SIZES.file_bytes, within=10.0)
    await storage.close()


@pytest.mark.parametrize("uses_log", [False, True])
async def test_only_a_store_with_a_log_gets_the_format_that_older_releases_refuse(
    uses_log: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = await opened(tmp_path)
    if uses_log:
        await filled(storage, 1)
    await storage.close()
    # What an older release reads at most.
    monkeypatch.setattr(starting, "LOGS_FORMAT", starting.FORMAT)
    if uses_log:
        with pytest.raises(StoreError, match="has format 11"):
            await RocksStorage(tmp_path).open(NOW)
    else:
        storage = RocksStorage(tmp_path)
        await storage.open(NOW)
        await storage.close()


async def test_old_sessions_are_forgotten_in_steps_that_follow_each_other(tmp_path: Path) -> None:
    """More sessions than one step removes are all removed, without a pause of ten minutes after each step."""
    storage, later = await opened(tmp_path), NOW + limits.PRODUCER_SESSION_MS_MAX + 1
    names = [LogName(n.to_bytes(10, "big"), 0) for n in range(1, 251)]
    await storage.logs.append(TOPIC, [Append(0, b"x", 1, name) for name in names], NOW, DIRECT_CALL)
    kept = LogName(b"\xff" * 10, 0)
    await storage.logs.append(TOPIC, [Append(0, b"y", 1, kept)], later, DIRECT_CALL)
    for _ in range(4):
        await storage.logs.retain(TOPIC, LogRetention(), later, DIRECT_CALL)
    codes = []
    for name in [*names, kept]:
        with pytest.raises((Refused, Missing)) as refused:
            await storage.logs.rollback(TOPIC, name, later, DIRECT_CALL)
        codes.append(refused.value.code)
    assert codes == [Code.NOT_FOUND] * 250 + [Code.TOO_LATE]
    await storage.close()
