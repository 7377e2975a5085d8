"""What a client gets of a log: messages, batches of them, and where something was appended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from typing import NamedTuple

from dejaq import limits
from dejaq.domain.headers import decode_headers
from dejaq.errors import Code, error_of
from dejaq.protocol.v1 import log_pb2
from dejaq.sdk.times import to_datetime


class LogOffset(NamedTuple):
    """Where a message is in a log."""

    bucket: int
    offset: int


@dataclass(frozen=True, slots=True)
class AppendedBatch:
    """Where a batch is: its messages have the offsets from `base` on. `name` is what a rollback needs."""

    bucket: int
    base: int
    count: int
    ts_ms: int
    name: str


@dataclass(frozen=True, slots=True)
class LogMessage:
    """One message of a log. `ts_ms` is when the broker appended it."""

    bucket: int
    offset: int
    ts_ms: int
    body: bytes
    key: bytes = b""
    headers_bytes: bytes = b""
    # The batch was rolled back; only readers with `uncommitted` get it.
    aborted: bool = False

    @property
    def at(self) -> datetime:
        """When the broker appended it."""
        return to_datetime(self.ts_ms)

    @property
    def headers(self) -> dict[str, str]:
        """The headers."""
        return decode_headers(self.headers_bytes)


class LogBatch:
    """Messages of one bucket with consecutive offsets, as columns. Iterating over it makes a `LogMessage` of each."""

    __slots__ = ("aborted", "base", "bodies", "bucket", "headers", "keys", "size", "ts_ms")

    def __init__(
        self,
        *,
        bucket: int,
        base: int,
        ts_ms: int,
        bodies: Sequence[bytes],
        keys: Sequence[bytes],
        headers: Sequence[bytes],
        aborted: bool,
        size: int,
    ) -> None:
        self.bucket, self.base, self.ts_ms, self.bodies = bucket, base, ts_ms, bodies
        self.aborted = aborted
        self.keys, self.headers = keys, headers
        # The bytes that its credit was for; 0 for a part that is not the last of a batch.
        self.size = size

    @classmethod
    def of(cls, part: log_pb2.LogSlice) -> LogBatch:
        """The batch that the broker has sent."""
        records = log_pb2.LogRecords.FromString(part.records)
        return cls(
            bucket=part.bucket,
            base=part.base,
            ts_ms=part.ts,
            bodies=records.bodies,
            keys=records.keys,
            headers=records.headers,
            aborted=part.aborted,
            size=len(part.records),
        )

    def __len__(self) -> int:
        return len(self.bodies)

    @property
    def end(self) -> int:
        """The offset behind its last message."""
        return self.base + len(self.bodies)

    def __iter__(self) -> Iterator[LogMessage]:
        return (self.message(row) for row in range(len(self.bodies)))

    def message(self, row: int) -> LogMessage:
        """One message."""
        return LogMessage(
            self.bucket,
            self.base + row,
            self.ts_ms,
            self.bodies[row],
            self.keys[row] if self.keys else b"",
            self.headers[row] if self.headers else b"",
            self.aborted,
        )

    def part(self, start: int, end: int) -> LogBatch:
        """The messages with offsets from `start` to before `end`."""
        first, last = max(start - self.base, 0), min(end, self.end) - self.base
        if first == 0 and last == len(self.bodies):
            return self
        return LogBatch(
            bucket=self.bucket,
            base=self.base + first,
            ts_ms=self.ts_ms,
            bodies=self.bodies[first:last],
            keys=self.keys[first:last] if self.keys else (),
            headers=self.headers[first:last] if self.headers else (),
            aborted=self.aborted,
            size=self.size if last == len(self.bodies) else 0,
        )


def bucket_of_key(key: bytes, buckets: int) -> int:
    """The bucket of a key: the same in every client."""
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big") % buckets


def check_log_body(body: bytes) -> None:
    """Raise for a body that a log does not take."""
    if not isinstance(body, bytes):
        raise error_of(Code.INVALID_ARGUMENT, f"a body is bytes, not {type(body).__name__}")
    if len(body) > limits.BODY_BYTES_MAX:
        raise error_of(Code.BODY_TOO_LARGE, f"a message of a log has at most {limits.BODY_BYTES_MAX} bytes")
