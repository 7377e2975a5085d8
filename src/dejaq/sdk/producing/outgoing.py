"""Messages to send, as columns: checked, sorted, and cut to the size of a batch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import le
from typing import TypeVar

from isal.isal_zlib import crc32

from dejaq import limits
from dejaq.domain.bodies.body_block import BodyBlock
from dejaq.domain.headers import encode_header_change, encode_headers
from dejaq.domain.id_column import IdColumn
from dejaq.domain.ids import valid_ids
from dejaq.domain.message import check_headers
from dejaq.errors import Code, error_of

# Frames of this size keep the pipeline full and do not delay the frames behind them for long.
CHUNK_COUNT_MAX = 5_000
CHUNK_BYTES_MAX = 1024 * 1024

Headers = Mapping[str, str]
# Headers to set, and None for each header to remove.
HeaderChange = Mapping[str, str | None]
Item = TypeVar("Item")


@dataclass(slots=True)
class OutgoingColumns:
    """Parallel columns of messages to create; a column that is None has the default in every row."""

    ts: list[int]
    bodies: list[bytes]
    ids: list[str] | None = None
    priorities: list[int] | None = None
    headers: list[bytes] | None = None
    # Whether some bodies are references to large bodies.
    large: bool = False
    # Whether each time was given as a delay or not at all; only where the ids are given too.
    relative: list[bool] | None = None

    def __len__(self) -> int:
        return len(self.ts)

    def extend(self, other: OutgoingColumns) -> None:
        """Add rows that have the same columns."""
        self.ts += other.ts
        self.bodies += other.bodies
        for mine, more in (
            (self.ids, other.ids),
            (self.priorities, other.priorities),
            (self.headers, other.headers),
            (self.relative, other.relative),
        ):
            if mine is not None and more is not None:
                mine.extend(more)  # type: ignore[arg-type]

    def contents(self) -> Contents:
        """The columns in the form of the protocol, with the check value of the batch."""
        return Contents.of(self)

    def take(self, rows: Sequence[int] | slice) -> OutgoingColumns:
        """The given rows, in the given order."""
        pick = _picker(rows)
        return OutgoingColumns(
            ts=pick(self.ts),
            bodies=pick(self.bodies),
            ids=None if self.ids is None else pick(self.ids),
            priorities=None if self.priorities is None else pick(self.priorities),
            headers=None if self.headers is None else pick(self.headers),
            large=self.large,
            relative=None if self.relative is None else pick(self.relative),
        )

    def order(self) -> list[int] | None:
        """The order of the rows by (ts, priority); None when they are already sorted."""
        if self.priorities is None:
            ts = self.ts
            if all(map(le, ts, ts[1:])):
                return None
            return sorted(range(len(ts)), key=ts.__getitem__)
        keys = list(zip(self.ts, self.priorities, strict=True))
        if all(map(le, keys, keys[1:])):
            return None
        return sorted(range(len(keys)), key=keys.__getitem__)

    def cuts(self) -> Iterator[slice]:
        """The rows in slices that fit one batch each."""
        sizes = list(map(len, self.bodies))
        if self.headers is not None:
            sizes = [a + len(b) for a, b in zip(sizes, self.headers, strict=True)]
        start, count = 0, len(sizes)
        while start < count:
            end = min(start + CHUNK_COUNT_MAX, count)
            if sum(sizes[start:end]) > CHUNK_BYTES_MAX:
                totals = list(accumulate(sizes[start:end]))
                end = start + max(1, bisect_right(totals, CHUNK_BYTES_MAX))
            yield slice(start, end)
            start = end


@dataclass(frozen=True, slots=True)
class Contents:
    """Bodies and ids in the form of the protocol, and a check value of the whole batch, which is never 0."""

    bodies: BodyBlock
    ids: IdColumn | None
    check: int

    @classmethod
    def of(cls, outgoing: OutgoingColumns) -> Contents:
        """The contents of a batch."""
        bodies = BodyBlock(outgoing.bodies)
        ids = IdColumn(outgoing.ids) if outgoing.ids else None
        texts = crc32(ids.wire) if ids is not None else 0
        if outgoing.headers is not None:
            texts = crc32(BodyBlock(outgoing.headers).data, texts)
        # Only this process and its copies compute the value of this batch, so Python's own hash is good enough.
        rest = hash((tuple(outgoing.ts), tuple(outgoing.priorities or ()), texts))
        return cls(bodies, ids, ((rest << 32) ^ crc32(bodies.data)) % 2**64 or 1)


def _picker(rows: Sequence[int] | slice) -> Callable[[list[Item]], list[Item]]:
    if isinstance(rows, slice):
        return lambda column: column[rows]
    return lambda column: [column[row] for row in rows]


def refusals(outgoing: OutgoingColumns, *, bytes_max: int = limits.BODY_BYTES_MAX) -> dict[int, Code]:
    """The rows that cannot be encoded or that every broker would refuse. Whole columns are checked first."""
    refused: dict[int, Code] = {}
    if not outgoing.ts:
        return refused
    if min(outgoing.ts) < 0 or max(outgoing.ts) > limits.TS_MS_MAX:
        for row, ts in enumerate(outgoing.ts):
            if not 0 <= ts <= limits.TS_MS_MAX:
                refused[row] = Code.INVALID_TIME
    if max(map(len, outgoing.bodies)) > bytes_max:
        for row, body in enumerate(outgoing.bodies):
            if len(body) > bytes_max:
                refused.setdefault(row, Code.BODY_TOO_LARGE)
    if outgoing.priorities is not None:
        for row, priority in enumerate(outgoing.priorities):
            if not limits.PRIORITY_MIN <= priority <= limits.PRIORITY_MAX:
                refused.setdefault(row, Code.INVALID_PRIORITY)
    if outgoing.ids is not None:
        _refuse_ids(outgoing.ids, refused)
    return refused


def _refuse_ids(ids: list[str], refused: dict[int, Code]) -> None:
    if not valid_ids(ids):
        for row, message_id in enumerate(ids):
            if not valid_ids((message_id,)):
                refused.setdefault(row, Code.INVALID_ID)
    if len(set(ids)) != len(ids):
        # Checked over all ids that the caller gave, because its parts may be sent in different batches.
        seen: set[str] = set()
        for row, message_id in enumerate(ids):
            if message_id in seen:
                refused.setdefault(row, Code.DUPLICATE_IN_BATCH)
            elif row not in refused:
                seen.add(message_id)


def body_column(bodies: Sequence[bytes]) -> list[bytes]:
    """The bodies; raises an error unless each is bytes."""
    if isinstance(bodies, bytes | bytearray | memoryview | str):
        raise error_of(Code.INVALID_ARGUMENT, "bodies are a sequence of bytes, one per message; this is a single one")
    column = list(bodies)
    if not set(map(type, column)) <= {bytes}:
        column = [as_body(body) for body in column]
    return column


def as_body(body: object) -> bytes:
    """A body as bytes; the error for a text says how to encode it."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    hint = "; encode it first: text.encode()" if isinstance(body, str) else ""
    raise error_of(Code.INVALID_ARGUMENT, f"a body is bytes, not {type(body).__name__}{hint}")


def id_column(ids: Sequence[str], count: int) -> list[str]:
    """The ids, one per message, each a string."""
    if isinstance(ids, str):
        raise error_of(Code.INVALID_ARGUMENT, "ids are a sequence of strings, one per message; this is a single one")
    column = list(ids)
    if not set(map(type, column)) <= {str}:
        wrong = next(value for value in column if not isinstance(value, str))
        raise error_of(Code.INVALID_ID, f"an id is a string, not {type(wrong).__name__}")
    if len(column) != count:
        raise error_of(Code.INVALID_ARGUMENT, f"{len(column)} ids for {count} messages")
    return column


def priority_column(priorities: int | Sequence[int] | None, count: int) -> list[int] | None:
    """The priorities, one per message; None when all are 0."""
    if priorities is None or priorities == 0:
        return None
    column = [priorities] * count if isinstance(priorities, int) else list(priorities)
    if not set(map(type, column)) <= {int}:
        raise error_of(Code.INVALID_PRIORITY, "a priority is an int")
    if len(column) != count:
        raise error_of(Code.INVALID_ARGUMENT, f"{len(column)} priorities for {count} messages")
    return column if any(column) else None


def check_priority(priority: object) -> None:
    """Raise INVALID_PRIORITY when the value is not a priority."""
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise error_of(Code.INVALID_PRIORITY, details=repr(priority)[:100])
    if not limits.PRIORITY_MIN <= priority <= limits.PRIORITY_MAX:
        raise error_of(Code.INVALID_PRIORITY, details=str(priority))


def header_column(headers: Headers | Sequence[Headers | None] | None, count: int) -> list[bytes] | None:
    """The encoded headers, one per message; None when no message has headers."""
    if not headers:
        return None
    if isinstance(headers, Mapping):
        return [encoded_headers(headers)] * count
    if len(headers) != count:
        raise error_of(Code.INVALID_ARGUMENT, f"{len(headers)} headers for {count} messages")
    column = [encoded_headers(one) for one in headers]
    return column if any(column) else None


def encoded_headers(headers: Headers | None) -> bytes:
    """A map of headers in the form of the protocol; raises INVALID_HEADERS."""
    if not headers:
        return b""
    _check_headers(headers)
    return encode_headers(headers)


def encoded_header_change(change: HeaderChange) -> bytes:
    """A change of headers in the form of the protocol; raises INVALID_HEADERS."""
    _check_headers(change, removes=True)
    return encode_header_change(change)


def _check_headers(headers: object, *, removes: bool = False) -> None:
    good = isinstance(headers, Mapping)
    if isinstance(headers, Mapping):
        values = {key: "" if removes and value is None else value for key, value in headers.items()}
        good = check_headers(values) is Code.OK
    if not good:
        raise error_of(
            Code.INVALID_HEADERS,
            f"headers map at most {limits.HEADERS_COUNT_MAX} strings to strings, "
            f"{limits.HEADERS_BYTES_MAX} bytes together",
        )
