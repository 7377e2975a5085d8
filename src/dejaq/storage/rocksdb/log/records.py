"""The records of logs in the database: their keys, and what the values have.

A batch is a pointer to a frame of the commit log with 31 bytes behind it; or, after the file of the log was emptied,
these 31 bytes and the batch itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from struct import Struct

from dejaq.storage.commit_log.record import FrameAddress
from dejaq.storage.log.base import CommittedOffset, LogName, MinuteCount
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.frames import MOVED_BATCH, POINTER_BYTES, address_in
from dejaq.storage.segments.writer import LogSegment

_BATCH_KEY = Struct(">cIHQ")
_NAME_KEY = Struct(">cI10sI")
_SESSION_KEY = Struct(">cI10s")
_BATCH = Struct(">IQIB10sI")
_BUCKET = Struct(">QQQQQQ")
# What the first days of format 8 wrote: everything was in the commit log or in the database.
_BUCKET_BEFORE = Struct(">QQQQQ")
_SEGMENT = Struct(">QQQQIQQB")
_OFFSET = Struct(">qQQ")
_MINUTE = Struct(">QQQ")
_NAME = Struct(">HQIQ")
_SESSION = Struct(">IQ")
_NO_SESSION = bytes(10)
_ABORTED, _PREPARED = 1, 2


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """What the index knows of a batch. Its content is at `address`, or it is `moved`."""

    base: int
    count: int
    ts: int
    rollback_ms: int
    aborted: bool
    name: LogName | None
    address: FrameAddress | None
    # The value, where the content is behind it.
    moved: bytes = b""
    # It belongs to a transaction in doubt.
    prepared: bool = False

    @property
    def end(self) -> int:
        """The offset behind its last message."""
        return self.base + self.count

    @property
    def size(self) -> int:
        """The bytes of its content."""
        return self.address.length if self.address is not None else len(self.moved) - 1 - _BATCH.size

    def content(self) -> bytes:
        """The content of a batch that is moved."""
        return self.moved[1 + _BATCH.size :]


def batch_key(topic: int, bucket: int, base: int) -> bytes:
    """Of the batch that begins at an offset."""
    return _BATCH_KEY.pack(keys.LOG_BATCH, topic, bucket, base)


def pack_batch(entry: BatchEntry) -> bytes:
    """What is stored behind the address of a batch."""
    session, sequence = (entry.name.session, entry.name.sequence) if entry.name is not None else (_NO_SESSION, 0)
    state = _ABORTED if entry.aborted else _PREPARED if entry.prepared else 0
    return _BATCH.pack(entry.count, entry.ts, entry.rollback_ms, state, session, sequence)


def unpack_batch(key: bytes, value: bytes) -> BatchEntry:
    """The entry of a batch."""
    address = address_in(value)
    count, ts, rollback_ms, state, session, sequence = _BATCH.unpack_from(
        value, 1 if address is None else POINTER_BYTES
    )
    return BatchEntry(
        base=int.from_bytes(key[7:15], "big"),
        count=count,
        ts=ts,
        rollback_ms=rollback_ms,
        aborted=state == _ABORTED,
        name=None if session == _NO_SESSION else LogName(session, sequence),
        address=address,
        moved=value if address is None else b"",
        prepared=state == _PREPARED,
    )


def resolved_value(entry: BatchEntry, value: bytes, *, aborted: bool) -> bytes:
    """The value of a batch that is rolled back, or of one whose transaction is resolved."""
    packed = pack_batch(replace(entry, aborted=aborted, prepared=False))
    if entry.address is None:
        return MOVED_BATCH + packed + entry.content()
    return value[:POINTER_BYTES] + packed


def bucket_key(topic: int, bucket: int) -> bytes:
    """Of the offsets of a bucket."""
    return keys.of_bucket(keys.LOG_BUCKET, topic, bucket)


def pack_bucket(*, next_offset: int, start: int, stable: int, last_ts: int, size: int, unmoved: int) -> bytes:
    """The offsets and sizes of a bucket."""
    return _BUCKET.pack(next_offset, start, stable, last_ts, size, unmoved)


def unpack_bucket(value: bytes) -> tuple[int, int, int, int, int, int]:
    """(next, start, stable, last timestamp, bytes, bytes that are not in segments)."""
    if len(value) == _BUCKET_BEFORE.size:
        next_offset, start, stable, last_ts, size = _BUCKET_BEFORE.unpack(value)
        return next_offset, start, stable, last_ts, size, size
    return _BUCKET.unpack(value)


def segment_key(topic: int, bucket: int, base: int) -> bytes:
    """Of the segment that begins at an offset."""
    return _BATCH_KEY.pack(keys.LOG_SEGMENT, topic, bucket, base)


def pack_segment(segment: LogSegment) -> bytes:
    """What is known of a segment."""
    one = segment
    return _SEGMENT.pack(one.number, one.end, one.first_ts, one.last_ts, one.rows, one.bytes, one.file_bytes, one.clean)


def unpack_segment(key: bytes, value: bytes) -> LogSegment:
    """What is known of a segment."""
    number, end, first_ts, last_ts, rows, size, file_bytes, clean = _SEGMENT.unpack(value)
    base = int.from_bytes(key[7:15], "big")
    return LogSegment(number, base, end, first_ts, last_ts, rows, size, file_bytes, bool(clean))


def minute_key(topic: int, bucket: int, minute: int) -> bytes:
    """Of the batches of a minute."""
    return _BATCH_KEY.pack(keys.LOG_MINUTE, topic, bucket, minute)


def pack_minute(minute: MinuteCount) -> bytes:
    """The counts of a minute."""
    return _MINUTE.pack(minute.first, minute.count, minute.bytes)


def unpack_minute(key: bytes, value: bytes) -> MinuteCount:
    """The counts of a minute."""
    first, count, size = _MINUTE.unpack(value)
    return MinuteCount(int.from_bytes(key[7:15], "big"), first, count, size)


def offset_key(topic: int, bucket: int, group: str) -> bytes:
    """Of what a group has committed of a bucket."""
    return keys.of_bucket(keys.LOG_OFFSET, topic, bucket) + group.encode()


def group_of(key: bytes) -> tuple[int, str]:
    """(bucket, group)."""
    return int.from_bytes(key[keys.BUCKET_BYTES], "big"), key[7:].decode()


def pack_offset(offset: CommittedOffset) -> bytes:
    """What a group has committed."""
    return _OFFSET.pack(offset.offset, offset.claim, offset.at)


def unpack_offset(value: bytes) -> CommittedOffset:
    """What a group has committed."""
    return CommittedOffset(*_OFFSET.unpack(value))


def name_key(topic: int, name: LogName) -> bytes:
    """Of the batch that has a name."""
    return _NAME_KEY.pack(keys.LOG_NAME, topic, name.session, name.sequence)


def names_of(topic: int, session: bytes) -> bytes:
    """The prefix of the names of a session."""
    return _SESSION_KEY.pack(keys.LOG_NAME, topic, session)


def pack_name(bucket: int, base: int, count: int, ts: int) -> bytes:
    """Where a named batch is."""
    return _NAME.pack(bucket, base, count, ts)


def unpack_name(value: bytes) -> tuple[int, int, int, int]:
    """(bucket, base, count, timestamp)."""
    return _NAME.unpack(value)


def prepared_key(topic: int, name: str) -> bytes:
    """Of a prepared transaction."""
    return keys.of_topic(keys.LOG_PREPARED, topic) + name.encode()


def session_key(topic: int, session: bytes) -> bytes:
    """Of the last sequence of a session."""
    return _SESSION_KEY.pack(keys.LOG_SESSION, topic, session)


def session_of(key: bytes) -> bytes:
    """The session in such a key."""
    return key[5:15]


def pack_session(sequence: int, at: int) -> bytes:
    """The last sequence of a session."""
    return _SESSION.pack(sequence, at)


def unpack_session(value: bytes) -> tuple[int, int]:
    """(sequence, time)."""
    return _SESSION.unpack(value)
