"""A process that appends to logs whose batches move into segments at once, until it is killed.

Batch n of the log has the content `content(n)`; the compacted log gets a message with the key n % 7.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.topic import Topic, TopicKind, TopicSettings
from dejaq.protocol.v1 import log_pb2
from dejaq.storage.log.base import Append, LogRetention
from dejaq.storage.rocksdb.engine.engine import LogSizes
from dejaq.storage.rocksdb.log.opening import SegmentSettings
from dejaq.storage.rocksdb.store import RocksStorage

NOW = 1_700_000_000_000
LOG = Topic("log", 1, TopicSettings(kind=TopicKind.LOG, buckets=1))
COMPACTED = Topic("compacted", 2, TopicSettings(kind=TopicKind.LOG, buckets=1, compact=True))
KEYS = 7
KEPT_BYTES = 60_000


def content(n: int) -> bytes:
    """The content of a batch."""
    return b"%06d" % n * 100


def at(path: Path) -> RocksStorage:
    """The store, with small files."""
    sizes = LogSizes(file_bytes=16_384, flush_bytes=8_192, bytes_max=65_536)
    segments = SegmentSettings(bytes=3_000, least_bytes=500, merged=3, compacted_bytes=500)
    return RocksStorage(path, log=sizes, log_tail_bytes=0, log_segments=segments)


async def _texts(storage: RocksStorage, topic: Topic) -> tuple[int, dict[int, bytes]]:
    found: dict[int, bytes] = {}
    (offsets,) = await storage.logs.offsets(topic, NOW)
    start = offsets.start
    while True:
        part = await storage.logs.read(topic, 0, start, end=None, bytes_max=5_000, committed=True, now=NOW)
        found |= {batch.base: batch.records for batch in part.batches}
        if part.next == start:
            return offsets.next, found
        start = part.next


async def verify(path: Path, acknowledged: int) -> None:
    """Check what a killed process has left: it had appended so many batches to each log."""
    storage = at(path)
    await storage.open(NOW)
    end, found = await _texts(storage, LOG)
    assert end >= acknowledged, f"batch {acknowledged - 1} was acknowledged; the log ends at {end}"
    assert [*found] == [*range(min(found, default=end), end)], "the offsets have a hole"
    assert all(found[n] == content(n) for n in found)
    # Retention keeps at least so much.
    assert len(found) >= min(end, KEPT_BYTES // len(content(0)) - 1), f"only {len(found)} batches of {end} are left"
    end, found = await _texts(storage, COMPACTED)
    assert end >= acknowledged
    for n in range(max(end - KEYS, 0), end):
        batch = next(batch for base, batch in found.items() if base == n)
        assert log_pb2.LogRecords.FromString(batch).bodies == [b"%d" % n], f"message {n} is another one"
    await storage.close()


async def _append(path: Path) -> None:
    storage = at(path)
    await storage.open(NOW)
    for topic in (LOG, COMPACTED):
        await storage.put_topic(topic, DIRECT_CALL)
    ((offsets,), (compacted,)) = [await storage.logs.offsets(topic, NOW) for topic in (LOG, COMPACTED)]
    # A kill may have lost the second of two appends.
    for n in range(compacted.next, offsets.next):
        await _append_key(storage, n)
    for n in range(max(offsets.next, compacted.next), 1_000_000):
        await storage.logs.append(LOG, [Append(0, content(n), 1)], NOW, DIRECT_CALL)
        await _append_key(storage, n)
        print(n + 1, flush=True)
        if n % 10 == 0:
            await storage.logs.retain(LOG, LogRetention(keep_bytes=KEPT_BYTES), NOW, DIRECT_CALL)


async def _append_key(storage: RocksStorage, n: int) -> None:
    batch = log_pb2.LogRecords(bodies=[b"%d" % n], keys=[b"key %d" % (n % KEYS)]).SerializeToString()
    await storage.logs.append(COMPACTED, [Append(0, batch, 1)], NOW, DIRECT_CALL)


if __name__ == "__main__":
    asyncio.run(_append(Path(sys.argv[1])))
