"""Compaction by key: of each key, the latest message stays, and nothing else of a log changes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.topic import Encryption, Topic, TopicKind, TopicSettings
from dejaq.errors import DejaqError
from dejaq.protocol.v1 import log_pb2
from dejaq.storage.log.base import Append, Appended, LogName, LogRetention, StoredBatch
from dejaq.storage.rocksdb.engine import inspecting
from dejaq.storage.rocksdb.log import compacting
from dejaq.storage.rocksdb.log.opening import SegmentSettings
from dejaq.storage.rocksdb.log.state import LogBucket, LogState
from dejaq.storage.rocksdb.store import RocksStorage

NOW = 1_700_000_000_000
LOG = Topic("names", 1, TopicSettings(kind=TopicKind.LOG, buckets=1, compact=True))
Message = tuple[bytes, bytes]


class Stage:
    """A compacted log, and what a reader of it must find."""

    def __init__(self, path: Path, settings: SegmentSettings) -> None:
        self.path, self.settings = path, settings
        self.storage = self._new()
        self.now = NOW
        # Every message by its offset, but those of aborted batches.
        self.messages: dict[int, Message] = {}

    def _new(self) -> RocksStorage:
        return RocksStorage(self.path, log_tail_bytes=0, log_segments=self.settings)

    async def open(self) -> None:
        self.storage = self._new()
        await self.storage.open(self.now)
        await self.storage.put_topic(LOG, DIRECT_CALL)

    @property
    def state(self) -> LogState:
        return self.storage.logs._state(LOG)

    @property
    def bucket(self) -> LogBucket:
        return self.state.buckets[0]

    async def append(self, *messages: Message, abort: bool = False) -> None:
        keys, bodies = zip(*messages, strict=True)
        batch = log_pb2.LogRecords(bodies=bodies, keys=keys if any(keys) else []).SerializeToString()
        name = LogName(b"0123456789", self.now - NOW + 1) if abort else None
        append = Append(0, batch, len(messages), name, rollback_ms=10 if abort else 0)
        (answer,) = await self.storage.logs.append(LOG, [append], self.now, DIRECT_CALL)
        assert isinstance(answer, Appended)
        if name is not None:
            await self.storage.logs.rollback(LOG, name, self.now, DIRECT_CALL)
        else:
            self.messages |= {answer.base + place: one for place, one in enumerate(messages)}
        self.now += 1

    async def compact(self) -> None:
        """Move everything into segments, and do a pass."""
        self.now += 100
        await self.bucket.settled(self.now)
        keeper = self.storage.logs.segments
        keeper._now = self.now
        await keeper.move_out(self.state, self.bucket)
        await keeper.settle()
        while any(not one.clean for one in self.bucket.segments):
            assert await compacting.compact(keeper._work, self.state, self.bucket, self.now)

    async def read(self) -> dict[int, Message]:
        found: dict[int, Message] = {}
        at, last = self.bucket.start, -1
        while at < self.bucket.next:
            part = await self.storage.logs.read(
                LOG, 0, at, end=None, bytes_max=200, committed=False, now=self.now + 10**6
            )
            assert part.next > at, "a reader does not come forward"
            for batch in part.batches:
                assert batch.base > last, "batches overlap"
                last = batch.end - 1
                records = log_pb2.LogRecords.FromString(batch.records)
                assert len(records.bodies) == batch.count
                keys = records.keys or [b""] * batch.count
                found |= {batch.base + n: one for n, one in enumerate(zip(keys, records.bodies, strict=True))}
            at = part.next
        return found

    def expected(self, *, tombstones: bool = True) -> dict[int, Message]:
        """The messages that a compaction keeps."""
        latest = {key: offset for offset, (key, _) in sorted(self.messages.items())}
        return {
            offset: (key, body)
            for offset, (key, body) in self.messages.items()
            if not key or (latest[key] == offset and (tombstones or body))
        }


@pytest.mark.parametrize("keys", [100_000, 3])
@pytest.mark.parametrize("seed", range(4))
async def test_the_latest_message_of_each_key_stays(seed: int, keys: int, tmp_path: Path) -> None:
    """Random messages, rolled back batches and restarts; with room for three keys, a pass has many parts."""
    chance = random.Random(seed)
    stage = Stage(tmp_path, SegmentSettings(bytes=600, least_bytes=1, compacted_bytes=10**9, keys=keys))
    await stage.open()
    for _ in range(5):
        for _ in range(chance.randrange(1, 25)):
            count = chance.randrange(1, 8)
            keyed = chance.random() < 0.9
            messages = [
                (b"key %d" % chance.randrange(15) if keyed and chance.random() < 0.9 else b"", chance.randbytes(9))
                for _ in range(count)
            ]
            await stage.append(*messages, abort=chance.random() < 0.1)
        await stage.compact()
        assert await stage.read() == stage.expected()
        if chance.random() < 0.5:
            await stage.storage.close()
            assert inspecting.check(tmp_path)["problems"] == []
            await stage.open()
            assert await stage.read() == stage.expected()
    before = len(stage.messages)
    assert len(stage.expected()) < before / 2 or before < 40
    await stage.storage.close()


async def test_a_tombstone_is_removed_a_day_later(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SegmentSettings(bytes=600, least_bytes=1, compacted_bytes=10**9))
    await stage.open()
    await stage.append((b"a", b"1"), (b"b", b"2"))
    await stage.append((b"a", b""))
    await stage.compact()
    assert await stage.read() == {1: (b"b", b"2"), 2: (b"a", b"")}
    stage.now += compacting.TOMBSTONE_MS
    await stage.append((b"c", b"3"))
    await stage.compact()
    assert await stage.read() == {1: (b"b", b"2"), 3: (b"c", b"3")} == stage.expected(tombstones=False)
    await stage.storage.close()


async def test_no_message_comes_back_whose_old_tombstone_is_in_another_part(tmp_path: Path) -> None:
    """A pass of several parts begins when the tombstones are a day old already."""
    stage = Stage(tmp_path, SegmentSettings(bytes=10**6, least_bytes=1, compacted_bytes=10**9, keys=3))
    await stage.open()
    for number in range(20):
        await stage.append((b"key-%d" % number, b"value"))
    for number in range(20):
        await stage.append((b"key-%d" % number, b""))
    stage.now += 2 * compacting.TOMBSTONE_MS
    await stage.compact()
    assert await stage.read() == {}
    await stage.storage.close()


async def test_passes_begin_by_themselves_beside_retention(tmp_path: Path) -> None:
    """Twenty keys that are written again and again take little space, and old ones are removed by their age."""
    stage = Stage(tmp_path, SegmentSettings(bytes=4_000, least_bytes=1, compacted_bytes=1_000))
    await stage.open()
    for n in range(400):
        await stage.append((b"key %d" % (n % 20), b"%04d" % n * 10))
        if n % 50 == 0:
            await stage.storage.logs.segments.settle()
    await stage.storage.logs.segments.settle()
    assert stage.bucket.size < 20 * 60 + 2_500
    assert (await stage.storage.logs.offsets(LOG, stage.now))[0].next == 400
    found = await stage.read()
    assert {offset: found[offset] for offset in stage.expected()} == stage.expected()
    while await stage.storage.logs.retain(LOG, LogRetention(keep_ms=5), stage.now, DIRECT_CALL):
        pass
    assert min(await stage.read()) >= 395
    await stage.storage.close()
    assert inspecting.check(tmp_path)["problems"] == []


def test_a_batch_without_keys_stays_as_it_is() -> None:
    batch = StoredBatch(5, 2, NOW, log_pb2.LogRecords(bodies=[b"a", b""]).SerializeToString())
    latest = compacting.LatestOffsets(10)
    assert latest.add([batch])
    assert compacting.Chooser(latest, NOW + 1)(batch) == (batch,)


def test_an_encrypted_log_is_not_compacted() -> None:
    with pytest.raises(DejaqError, match="cannot read the keys"):
        TopicSettings(kind=TopicKind.LOG, compact=True, encryption=Encryption.BODIES).check()
