"""Reading a log: the newest batches from memory, others through the index, with the frames read in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice

from dejaq.errors import StoreError
from dejaq.storage.log.base import LogSlice, StoredBatch
from dejaq.storage.rocksdb.engine.database import RocksDatabase
from dejaq.storage.rocksdb.engine.frames import POINTER_BYTES
from dejaq.storage.rocksdb.log import records
from dejaq.storage.rocksdb.log.records import BatchEntry
from dejaq.storage.rocksdb.log.state import LogBucket, LogState

# What is looked up in one step, since the loop waits for it.
_ENTRIES_MAX = 200
# How often a batch may move while it is read.
_TRIES = 5

Found = tuple[BatchEntry, bytes]


def read_tail(bucket: LogBucket, start: int, stop: int, bytes_max: int, *, committed: bool) -> LogSlice | None:
    """The batches from an offset on, when they are in memory."""
    place = bucket.tail.first_of(start)
    if place is None:
        return None
    found: list[StoredBatch] = []
    size, at = 0, start
    while (batch := bucket.tail.at(place)) is not None and batch.base < stop:
        if found and size + len(batch.records) > bytes_max:
            break
        place += 1
        at = batch.end
        if not (committed and batch.aborted):
            found.append(batch)
            size += len(batch.records)
    return LogSlice(tuple(found), at)


async def read_stored(
    state: LogState,
    database: RocksDatabase,
    bucket: LogBucket,
    start: int,
    stop: int,
    bytes_max: int,
    *,
    committed: bool,
) -> LogSlice:
    """The batches from an offset on, wherever they are."""
    for remaining in reversed(range(_TRIES)):
        entries, at = _entries(state, database, bucket, start, stop, bytes_max, committed=committed)
        # The overlay belongs to the loop.
        pending = [database.overlay.frame(value[:POINTER_BYTES]) for _, value in entries]
        try:
            contents = await asyncio.to_thread(_contents, database, entries, pending)
        except StoreError as error:
            # Meanwhile a file of the commit log may have been emptied and removed, or the batch itself.
            if (
                remaining
                and _entries(state, database, bucket, start, stop, bytes_max, committed=committed)[0] != entries
            ):
                continue
            database.on_fault(error)
            raise
        batches = (
            StoredBatch(entry.base, entry.count, entry.ts, content, entry.aborted)
            for (entry, _), content in zip(entries, contents, strict=True)
        )
        return LogSlice(tuple(batches), at)
    raise AssertionError("the last try returns or raises")


def _entries(
    state: LogState,
    database: RocksDatabase,
    bucket: LogBucket,
    start: int,
    stop: int,
    bytes_max: int,
    *,
    committed: bool,
) -> tuple[list[Found], int]:
    """The index of the batches to read, and the offset behind them."""
    first = state.entry_at(database, bucket.number, start)
    begin = start if first is None else first[0].base
    topic = state.topic.number
    scan = database.scan(records.batch_key(topic, bucket.number, begin), records.batch_key(topic, bucket.number, stop))
    found: list[Found] = []
    size, at = 0, start
    for key, value in islice(scan, _ENTRIES_MAX):
        entry = records.unpack_batch(key, value)
        if found and size + entry.size > bytes_max:
            break
        at = entry.end
        if not (committed and entry.aborted):
            found.append((entry, value))
            size += entry.size
    return found, at


def _contents(database: RocksDatabase, entries: Sequence[Found], pending: Sequence[bytes | None]) -> list[bytes]:
    """The bytes of the batches. Blocks; call it in a thread."""
    contents = []
    for (entry, _), frame in zip(entries, pending, strict=True):
        if frame is not None:
            contents.append(frame)
        elif entry.address is None:
            contents.append(entry.content())
        else:
            assert database.log is not None
            contents.append(database.log.read(entry.address))
    return contents


def offset_for_time(state: LogState, database: RocksDatabase, bucket: LogBucket, ts: int) -> int:
    """The first offset of a time behind the segments: a search by halves, since timestamps do not decrease."""
    low, high = max(bucket.start, bucket.border), bucket.durable
    while low < high:
        found = state.entry_at(database, bucket.number, (low + high) // 2)
        if found is None or found[0].ts < ts:
            low = (low + high) // 2 + 1 if found is None else found[0].end
        else:
            high = found[0].base
    return low
