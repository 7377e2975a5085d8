"""The older batches of logs are in segment files: they are moved, read, rewritten, removed and verified."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.topic import Topic, TopicKind, TopicSettings
from dejaq.errors import Code, DejaqError, StoreError
from dejaq.storage.commit_log.files import DiskFiles
from dejaq.storage.log.base import Append, Appended, LogRetention, StoredBatch
from dejaq.storage.rocksdb.engine import inspecting
from dejaq.storage.rocksdb.engine.database import new_batch
from dejaq.storage.rocksdb.engine.engine import LogSizes
from dejaq.storage.rocksdb.engine.starting import begin_copy
from dejaq.storage.rocksdb.log import moving, records, rewriting
from dejaq.storage.rocksdb.log.opening import SegmentSettings
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.segments.files import OPEN_MAX, SegmentFiles
from dejaq.storage.segments.writer import segment_name
from dejaq.testing.waiting import eventually
from tests.chaos.sizes import FULL

NOW = 1_700_000_000_000
TOPIC = Topic("events", 1, TopicSettings(kind=TopicKind.LOG, buckets=2))
SIZES = LogSizes(file_bytes=64 * 1024, flush_bytes=32 * 1024, bytes_max=256 * 1024)
SEGMENTS = SegmentSettings(bytes=20_000, least_bytes=4_000, merged=4)


async def opened(path: Path, segments: SegmentSettings = SEGMENTS, sizes: LogSizes = SIZES) -> RocksStorage:
    storage = RocksStorage(path, log=sizes, log_tail_bytes=0, log_segments=segments)
    await storage.open(NOW)
    await storage.put_topic(TOPIC, DIRECT_CALL)
    return storage


def content(n: int, size: int = 2_000) -> bytes:
    return bytes([n % 251]) * size


async def filled(storage: RocksStorage, count: int, *, start: int = 0, size: int = 2_000, now: int = NOW) -> None:
    for n in range(start, start + count):
        (answer,) = await storage.logs.append(TOPIC, [Append(0, content(n, size), 10)], now + n, DIRECT_CALL)
        assert isinstance(answer, Appended)


async def batches(storage: RocksStorage, start: int | None = None) -> list[StoredBatch]:
    found: list[StoredBatch] = []
    at = (await storage.logs.offsets(TOPIC, NOW))[0].start if start is None else start
    while True:
        part = await storage.logs.read(TOPIC, 0, at, end=None, bytes_max=10_000, committed=True, now=NOW + 10**6)
        found += part.batches
        if part.next == at:
            return found
        at = part.next


async def contents(storage: RocksStorage) -> list[bytes]:
    return [batch.records for batch in await batches(storage)]


def files_in(path: Path) -> list[str]:
    return sorted(os.listdir(path / "segments"))


async def test_batches_are_read_across_the_border_and_after_a_restart(tmp_path: Path) -> None:
    """A log grows far beyond the commit log; little of it is copied into the database."""
    storage = await opened(tmp_path)
    await filled(storage, 500)
    await storage.logs.segments.settle()
    bucket, count = storage.logs._state(TOPIC).buckets[0], 500
    # All of them may have been moved by now, or be moved with these few, which alone are too little for a segment.
    while count == 500 or (bucket.border == bucket.next and count < 506):
        await filled(storage, 3, start=count)
        await storage.logs.segments.settle()
        count += 3
    expected = [content(n) for n in range(count)]
    # The rest may be moved while it is read.
    assert 4_000 < bucket.border < bucket.next
    assert await contents(storage) == expected
    assert bucket.segments[0].base == 0
    assert storage.stats()["log_moved_bytes"] == 0
    # Repeated bytes are packed.
    assert sum(one.file_bytes for one in bucket.segments) < sum(one.bytes for one in bucket.segments) / 10
    await storage.close()
    report = inspecting.check(tmp_path)
    assert report["problems"] == []
    assert report["segments"] == len(files_in(tmp_path)) > 0
    assert inspecting.inspect(tmp_path)["segments"]["topics"]["1"]["files"] == report["segments"]
    storage = await opened(tmp_path)
    assert await contents(storage) == expected
    at = [await storage.logs.offset_for_time(TOPIC, 0, NOW + n) for n in (0, 7, 333, 499, 500)]
    assert at == [0, 70, 3_330, 4_990, 5_000]
    await storage.close()


async def test_a_full_commit_log_moves_what_is_in_its_files(tmp_path: Path) -> None:
    """Buckets that have too little for a whole segment are moved when the commit log is too long."""
    storage = await opened(tmp_path, SegmentSettings(bytes=1 << 30, least_bytes=4_000))
    await filled(storage, 500)
    await eventually(lambda: storage.stats()["log_bytes"] <= SIZES.bytes_max + 2 * SIZES.file_bytes, within=30)
    bucket = storage.logs._state(TOPIC).buckets[0]
    await eventually(lambda: len(bucket.segments) > 0, within=30)
    assert await contents(storage) == [content(n) for n in range(500)]
    await storage.close()
    assert inspecting.check(tmp_path)["problems"] == []


async def test_small_segments_become_one(tmp_path: Path) -> None:
    storage = await opened(tmp_path, SegmentSettings(bytes=64_000, least_bytes=1, merged=4))
    bucket = storage.logs._state(TOPIC).buckets[0]
    most = 0
    for n in range(64):
        await filled(storage, 1, start=n)
        await storage.logs.segments.move_out(storage.logs._state(TOPIC), bucket)
        most = max(most, len(bucket.segments))
    await storage.logs.segments.settle()
    assert most < 16
    assert len(bucket.segments) < 12
    assert await contents(storage) == [content(n) for n in range(64)]
    assert len(files_in(tmp_path)) == len(bucket.segments)
    await storage.close()


async def test_a_dropped_topic_frees_its_files(tmp_path: Path) -> None:
    storage = await opened(tmp_path)
    await filled(storage, 200)
    await storage.logs.segments.settle()
    assert files_in(tmp_path)
    await storage.drop_topic(TOPIC, NOW, DIRECT_CALL)
    await eventually(lambda: files_in(tmp_path) == [], within=10)
    await storage.close()


class Held:
    """A call of a thread waits, from its begin until `go`."""

    def __init__(self, call: Callable[..., object]) -> None:
        self._call, self._begun, self._go = call, threading.Event(), threading.Event()

    def __call__(self, *arguments: object) -> object:
        self._begun.set()
        assert self._go.wait(30)
        return self._call(*arguments)

    async def begun(self) -> None:
        assert await asyncio.to_thread(self._begun.wait, 30)

    def go(self) -> None:
        self._go.set()


async def test_a_reader_of_a_log_that_is_dropped_meanwhile_finds_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = await opened(tmp_path)
    await filled(storage, 200)
    await storage.logs.segments.settle()
    files = storage.logs.segments.files
    held = Held(files.index)
    monkeypatch.setattr(files, "index", held)
    read = asyncio.ensure_future(
        storage.logs.read(TOPIC, 0, 0, end=None, bytes_max=1_000, committed=True, now=NOW + 10**6)
    )
    await held.begun()
    await storage.drop_topic(TOPIC, NOW + 300, DIRECT_CALL)
    await eventually(lambda: files_in(tmp_path) == [], within=10)
    held.go()
    with pytest.raises(DejaqError) as caught:
        await read
    assert caught.value.code is Code.TOPIC_NOT_FOUND
    assert storage.failure is None
    await storage.close()


@pytest.mark.parametrize("work", ["move", "join"])
async def test_a_log_can_be_dropped_while_its_batches_move(
    work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = await opened(tmp_path, SegmentSettings(bytes=1 << 20, least_bytes=1, merged=2))
    bucket, keeper = storage.logs._state(TOPIC).buckets[0], storage.logs.segments
    await filled(storage, 10)
    if work == "join":
        await keeper.move_out(storage.logs._state(TOPIC), bucket)
        await filled(storage, 10, start=10)
    held = Held(moving._copy if work == "move" else rewriting._copy)
    monkeypatch.setattr(moving if work == "move" else rewriting, "_copy", held)
    moved = asyncio.ensure_future(keeper.move_out(storage.logs._state(TOPIC), bucket))
    await held.begun()
    await storage.drop_topic(TOPIC, NOW + 300, DIRECT_CALL)
    await eventually(lambda: storage._committer.pending() is None, within=10)
    await eventually(lambda: len(files_in(tmp_path)) == 1, within=10)
    held.go()
    await moved
    await keeper.settle()
    assert storage.failure is None
    assert work == "join" or files_in(tmp_path) == []
    await storage.close()


async def test_a_start_removes_files_without_a_record(tmp_path: Path) -> None:
    storage = await opened(tmp_path)
    await filled(storage, 100)
    await storage.logs.segments.settle()
    await storage.close()
    named = files_in(tmp_path)
    for n in range(100):
        (tmp_path / "segments" / f"{900 + n:010d}.seg").write_bytes(b"unfinished")
    assert inspecting.check(tmp_path)["segments_unused"] == 100
    storage = await opened(tmp_path)
    await eventually(lambda: files_in(tmp_path) == named, within=10)
    assert await contents(storage) == [content(n) for n in range(100)]
    await storage.close()


@pytest.mark.parametrize("damage", ["lost", "cut", "bit"])
async def test_damage_is_found(damage: str, tmp_path: Path) -> None:
    """A lost or cut file is found at the start, and a changed bit when it is read; a check finds each."""
    storage = await opened(tmp_path)
    await filled(storage, 100)
    await storage.logs.segments.settle()
    await storage.close()
    file = tmp_path / "segments" / files_in(tmp_path)[0]
    data = bytearray(file.read_bytes())
    if damage == "lost":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(data[:-1])
    else:
        data[len(data) // 2] ^= 4
        file.write_bytes(data)
    assert any(file.name in problem for problem in inspecting.check(tmp_path)["problems"])
    if damage == "bit":
        storage = await opened(tmp_path)
        with pytest.raises(StoreError) as found:
            await contents(storage)
        assert storage.corrupt
        await storage.close()
    else:
        with pytest.raises(StoreError) as found:
            await opened(tmp_path)
    assert found.value.code is Code.STORE_CORRUPT


@pytest.mark.parametrize("operation", ["create", "append", "sync", "sync_directory", "remove"])
async def test_a_disk_that_fails_stops_the_store_and_loses_nothing(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = await opened(tmp_path)
    await filled(storage, 5)

    def fail(self: DiskFiles, *arguments: object) -> None:
        if self._directory.name == "segments":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(self, *arguments)

    original: Callable[..., None] = getattr(DiskFiles, operation)
    monkeypatch.setattr(DiskFiles, operation, fail)
    appended = 5
    for n in range(5, 300):
        try:
            await filled(storage, 1, start=n)
        except DejaqError as error:
            assert error.code is Code.STORE_FAILED
            break
        appended += 1
        if operation == "remove":
            with suppress(DejaqError):
                await storage.logs.retain(TOPIC, LogRetention(keep_bytes=100_000), NOW, DIRECT_CALL)
    assert storage.failure is not None
    monkeypatch.undo()
    await storage.recover(NOW)
    found = await batches(storage)
    assert [one.base for one in found] == list(range(found[0].base, found[-1].end, 10))
    expected = [content(n) for n in range(found[0].base // 10, appended)]
    assert [one.records for one in found][: len(expected)] == expected
    assert operation == "remove" or found[0].base == 0
    await filled(storage, 20, start=appended)
    await storage.logs.segments.settle()
    await storage.close()
    assert inspecting.check(tmp_path)["problems"] == []


async def test_files_stay_when_the_removal_of_their_records_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = await opened(tmp_path)
    await filled(storage, 100)
    await storage.logs.segments.settle()
    before = files_in(tmp_path)

    def fail(self: DiskFiles, *_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(DiskFiles, "append", fail)
    with pytest.raises(DejaqError):
        await storage.logs.retain(TOPIC, LogRetention(keep_bytes=1), NOW, DIRECT_CALL)
    await storage.logs.segments.settle()
    assert files_in(tmp_path) == before
    monkeypatch.undo()
    await storage.recover(NOW)
    assert await contents(storage) == [content(n) for n in range(100)]
    await storage.close()


async def test_a_checkpoint_has_the_segments(tmp_path: Path) -> None:
    storage = await opened(tmp_path / "store")
    await filled(storage, 300)
    unfinished = storage.logs.segments.files.begin(1, 0, 10**6)
    await storage.checkpoint(tmp_path / "copy")
    # A backup would find that such a file changes while it is copied.
    assert segment_name(unfinished.segment.number) not in files_in(tmp_path / "copy")
    # What is removed or replaced from now on stays in the copy.
    await storage.logs.retain(TOPIC, LogRetention(keep_bytes=1), NOW + 10**6, DIRECT_CALL)
    await filled(storage, 100, start=300)
    await storage.close()
    (tmp_path / "copy" / "watermark").write_bytes((tmp_path / "store" / "watermark").read_bytes())
    begin_copy(tmp_path / "copy")
    copy = await opened(tmp_path / "copy")
    assert await contents(copy) == [content(n) for n in range(300)]
    await copy.close()
    assert inspecting.check(tmp_path / "copy")["problems"] == []


def resident_bytes() -> int:
    """The memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_retention_keeps_memory_and_files_flat(tmp_path: Path) -> None:
    """Segments of 100 KB, kept 100 or 1,600 at a time, as 100 GB would be in 1,600 of 64 MB."""
    kept, rounds = (1_600, 20) if FULL else (100, 6)
    size = 100_000
    storage = await opened(tmp_path, SegmentSettings(bytes=size, least_bytes=1), LogSizes(8 << 20, 8 << 20, 64 << 20))
    state = storage.logs._state(TOPIC)
    bucket, open_files, resident = state.buckets[0], list[int](), list[int]()
    for n in range(kept * rounds):
        await filled(storage, 1, start=n, size=size)
        if n % 20 == 0:
            await storage.logs.segments.settle()
            while await storage.logs.retain(TOPIC, LogRetention(keep_bytes=kept * size), NOW, DIRECT_CALL):
                pass
            await storage.logs.read(TOPIC, 0, bucket.start, end=None, bytes_max=1, committed=True, now=NOW + 10**6)
            open_files.append(len(os.listdir("/proc/self/fd")))
            resident.append(resident_bytes())
    await storage.logs.segments.settle()
    assert len(bucket.segments) <= kept + 21
    assert bucket.size <= kept * size + 20 * size
    assert bucket.start >= (kept * (rounds - 1) - 40) * 10
    assert len(files_in(tmp_path)) <= len(bucket.segments)
    assert max(open_files) <= open_files[0] + OPEN_MAX + 40
    assert storage.logs.segments.files.cached_bytes < 20_000_000
    # From then on, as much is removed as is appended, which is 40 MB or 3 GB.
    assert max(resident) - resident[len(resident) // 3] < 24_000_000
    await storage.close()
    assert inspecting.check(tmp_path)["problems"] == []


async def test_a_start_with_ten_thousand_segments_takes_less_than_two_seconds(tmp_path: Path) -> None:
    storage = await opened(tmp_path)
    await filled(storage, 1)
    files: SegmentFiles = storage.logs.segments.files
    writes = new_batch()
    # The files are linked, since to write so many takes longer than the test is worth.
    writer = files.begin(1, 1, 0)
    writer.add(StoredBatch(0, 1, NOW, b"x"))
    first = writer.finish()
    for end, number in enumerate(range(first.number + 1, first.number + 10_001)):
        os.link(tmp_path / "segments" / f"{first.number:010d}.seg", tmp_path / "segments" / f"{number:010d}.seg")
        segment = type(first)(number, end, end + 1, NOW, NOW, 1, 1, first.file_bytes)
        writes.put(records.segment_key(1, 1, end), records.pack_segment(segment))
    await storage._committer.write(writes)
    await storage.close()
    storage = RocksStorage(tmp_path, log=SIZES, log_segments=SEGMENTS)
    began = time.process_time()
    await storage.open(NOW)
    await storage.put_topic(TOPIC, DIRECT_CALL)
    await storage.logs.offsets(TOPIC, NOW)
    assert time.process_time() - began < 2.0
    assert len(storage.logs._state(TOPIC).buckets[1].segments) == 10_000
    await storage.close()
