"""Compaction by key: of the messages of a key, a bucket of a log keeps the latest.

A pass reads what was added since the last one and remembers the last offset of each key. Then it rewrites the segments
from the first one on, without the messages of these keys at earlier offsets. Messages without a key stay, and batches
that were rolled back are removed. A message with a key and an empty body is a *tombstone*: it removes the earlier
ones, and is itself removed by the first pass a day later.

What stays of a batch are batches of messages that follow each other, so offsets never change and readers see gaps
between batches only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from dejaq.protocol.v1 import log_pb2
from dejaq.storage.log.base import StoredBatch
from dejaq.storage.log.parts import parts_of
from dejaq.storage.rocksdb.log.moving import SegmentWork
from dejaq.storage.rocksdb.log.rewriting import rewrite
from dejaq.storage.rocksdb.log.state import LogBucket, LogState
from dejaq.storage.segments.writer import LogSegment

TOMBSTONE_MS = 24 * 3_600_000
# The messages after which the thread lets the loop run.
_TURN_MESSAGES = 200


class LatestOffsets:
    """The last offset of each key of some segments, as far as they are in one of `parts` equal parts of all keys."""

    def __init__(self, keys_max: int, part: int = 0, parts: int = 1) -> None:
        self._keys_max, self._part, self._parts = keys_max, part, parts
        self._offsets: dict[bytes, int] = {}

    def add(self, batches: Iterable[StoredBatch]) -> bool:
        """Take the batches that follow; whether there was room for all of their keys."""
        for batch in batches:
            if batch.aborted:
                continue
            for place, key in enumerate(_keys_of(batch)):
                if key and (name := self._name(key)) is not None:
                    self._offsets[name] = batch.base + place
                if place % _TURN_MESSAGES == 0:
                    time.sleep(0)
        return len(self._offsets) <= self._keys_max

    def _name(self, key: bytes) -> bytes | None:
        """What stands for a key; None for a key of another part."""
        name = blake2b(key, digest_size=16).digest()
        return name if int.from_bytes(name[:4], "little") % self._parts == self._part else None

    def is_superseded(self, key: bytes, offset: int) -> bool:
        """Whether a later message has the key."""
        name = self._name(key)
        return name is not None and self._offsets.get(name, offset) > offset

    def covers(self, key: bytes) -> bool:
        """Whether a key is in this part of all keys."""
        return self._name(key) is not None


class Chooser:
    """Says what is kept of a batch; tombstones of batches before `tombstones_ms` are not."""

    def __init__(self, latest: LatestOffsets, tombstones_ms: int) -> None:
        self._latest = latest
        self._tombstones_ms = tombstones_ms

    def __call__(self, batch: StoredBatch) -> Sequence[StoredBatch]:
        """The batches that are kept of one."""
        if batch.aborted:
            return ()
        records = log_pb2.LogRecords.FromString(batch.records)
        if not records.keys:
            return (batch,)
        latest, old = self._latest, batch.ts < self._tombstones_ms
        # A tombstone leaves in the turn of its part, together with the earlier messages of its key.
        kept = [
            not key or not (latest.is_superseded(key, batch.base + place) or (old and not body and latest.covers(key)))
            for place, (key, body) in enumerate(zip(records.keys, records.bodies, strict=True))
        ]
        time.sleep(0)
        return list(parts_of(batch, records, kept))


def _keys_of(batch: StoredBatch) -> Sequence[bytes]:
    keys: Sequence[bytes] = log_pb2.LogRecords.FromString(batch.records).keys
    return keys


def is_due(bucket: LogBucket) -> bool:
    """Whether a pass is worth while: what was added is at least half of what was compacted."""
    added = sum(one.bytes for one in bucket.segments if not one.clean)
    return added > 0 and 2 * added >= sum(one.bytes for one in bucket.segments if one.clean)


async def compact(work: SegmentWork, state: LogState, bucket: LogBucket, now: int) -> bool:
    """Do a pass over a bucket; whether it came to its end. Retention waits meanwhile."""
    added = [one for one in bucket.segments if not one.clean]
    if not added or bucket.replacing:
        return False
    bucket.replacing = True
    try:
        read = await _read_keys(work, state, added, LatestOffsets(work.settings.keys))
        if read is None:
            return False
        latest, covered = read
        if covered:
            choose = Chooser(latest, now - TOMBSTONE_MS)
            return await _leave_out(work, state, bucket, choose, covered[-1].end, clean=True)
        return await _compact_by_parts(work, state, bucket, added[0].end, now)
    finally:
        bucket.replacing = False


async def _compact_by_parts(work: SegmentWork, state: LogState, bucket: LogBucket, end: int, now: int) -> bool:
    """Do one part of the keys after the other: not even the first segment has few enough."""
    parts, part = 2, 0
    while part < parts:
        added = [one for one in bucket.segments if not one.clean and one.end <= end]
        latest = LatestOffsets(work.settings.keys, part, parts)
        read = await _read_keys(work, state, added, latest)
        if read is None:
            return False
        if part == 0 and len(read[1]) < len(added):
            parts *= 2
            continue
        part += 1
        choose = Chooser(latest, now - TOMBSTONE_MS)
        if not await _leave_out(work, state, bucket, choose, end, clean=part == parts):
            return False
    return True


async def _read_keys(
    work: SegmentWork, state: LogState, added: Sequence[LogSegment], latest: LatestOffsets
) -> tuple[LatestOffsets, list[LogSegment]] | None:
    """Read the keys of segments; those that were read to their end, while there was room."""
    covered: list[LogSegment] = []
    for segment in added:
        for entry in await asyncio.to_thread(work.files.index, segment):
            if not work.goes_on(state):
                return None
            began = time.monotonic()
            batches = await asyncio.to_thread(work.files.block, segment, entry, keep=False)
            if not await asyncio.to_thread(latest.add, batches):
                return latest, covered
            await work.pause(began)
        covered.append(segment)
    return latest, covered


async def _leave_out(
    work: SegmentWork, state: LogState, bucket: LogBucket, choose: Chooser, end: int, *, clean: bool
) -> bool:
    """Rewrite the segments before an offset, some at a time; whether that came to its end.

    All of them are `clean` then, or those that were before.
    """
    at = 0
    while left := [one for one in bucket.segments if one.base >= at and one.end <= end]:
        group: list[LogSegment] = []
        for one in left:
            if group and (sum(o.bytes for o in group) >= work.settings.bytes or one.clean != group[0].clean):
                break
            group.append(one)
        at = group[-1].end
        if not await rewrite(work, state, bucket, group, choose, clean=clean or group[0].clean):
            return False
    return True
