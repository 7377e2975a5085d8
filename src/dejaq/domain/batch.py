"""Batches as columns: the arguments and results of a storage. A row is one index into every column.

Python objects for single messages exist only at the edges; between them a batch is parallel lists, and results name
only the rows whose outcome is not OK.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from dejaq import limits
from dejaq.domain.bodies.body_block import BodyBlock
from dejaq.domain.bodies.large import is_reference, size_of
from dejaq.domain.id_column import IdColumn
from dejaq.domain.ids import COUNTER_MAX, ProducerSession, bucket_of, generated_ids, valid_ids
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.domain.transitions import check_ts
from dejaq.errors import Code, error_of

# A half-open range of row numbers.
RowRange = tuple[int, int]


@dataclass(slots=True)
class Outcomes:
    """The outcome of each row of a batch: a row that is not in `codes` is OK."""

    count: int
    codes: dict[int, Code] = field(default_factory=dict)

    def __getitem__(self, row: int) -> Code:
        return self.codes.get(row, Code.OK)

    @property
    def failed(self) -> dict[int, Code]:
        """The rows for which the request failed."""
        return {row: code for row, code in self.codes.items() if not code.succeeded}

    @classmethod
    def all(cls, count: int, code: Code) -> Outcomes:
        """The same outcome for every row."""
        return cls(count, {} if code is Code.OK else dict.fromkeys(range(count), code))

    @classmethod
    def of_rows(cls, ranges: Iterable[RowRange], code: Code) -> Outcomes:
        """The same outcome for every requested row, by row number."""
        codes = {row: code for start, end in ranges for row in range(start, end)}
        return cls(max(codes, default=-1) + 1, codes)


@dataclass(frozen=True, slots=True)
class ChangeName:
    """Names a batch of changes, so that a repeat is recognised: a session, and in it the counter of each row."""

    session: ProducerSession
    numbers: Sequence[int]

    def of(self, rows: Sequence[int]) -> ChangeName:
        """The name of some of the rows."""
        return ChangeName(self.session, [self.numbers[row] for row in rows])


@dataclass(slots=True)
class CreateBatch:
    """Messages to create, from one producer group.

    With `ids` they are natural and each goes to the bucket of its id. Without, row i has the generated id of counter
    `sequence + i` in `bucket`, and rows must be sorted by (ts, priority). In both cases (`session`, `sequence`) names
    the batch, so that a repeat is recognised even after its messages are gone. `headers` has one encoded map per row
    (empty bytes: none). With `large`, some bodies are references to uploaded bodies (`domain.large`). `refused` has the
    rows that admission refused. `relative_rows` holds the rows, as ranges
    in order, whose time the producer gave as a delay or not at all.
    """

    owner: str
    session: ProducerSession
    sequence: int
    ts: Sequence[int]
    bodies: Sequence[bytes]
    ids: Sequence[str] | None = None
    bucket: int = 0
    priorities: Sequence[int] | None = None
    headers: Sequence[bytes] | None = None
    large: bool = False
    refused: dict[int, Code] = field(default_factory=dict)
    # Every counter of the session below this one was answered, and is never sent again.
    acknowledged: int = 0
    # Computed from the content, the same in every repeat; 0 when only the name identifies a repeat.
    check: int = 0
    relative_rows: Sequence[RowRange] = ()

    def __len__(self) -> int:
        return len(self.ts)

    def id_of(self, row: int) -> str:
        """The id of one row."""
        if self.ids is not None:
            return self.ids[row]
        return generated_ids(self.session.prefix(self.bucket), self.sequence + row, 1)[0]

    def all_ids(self) -> Sequence[str]:
        """The id of each row."""
        return self.ids or generated_ids(self.session.prefix(self.bucket), self.sequence, len(self.ts))

    def bucket_of(self, row: int, buckets: int) -> int:
        """The bucket of one row."""
        return self.bucket if self.ids is None else bucket_of(self.ids[row], buckets)

    def accepts_time(self, row: int, ts: int) -> bool:
        """Whether a message with the id of a row, due at `ts`, has the time that the row asks for.

        A repeat with a delay asks for a later time than the first send did; any time is the same to it.
        """
        if ts == self.ts[row]:
            return True
        place = bisect_right(self.relative_rows, row, key=itemgetter(0))
        return place > 0 and row < self.relative_rows[place - 1][1]


@dataclass(slots=True)
class IdSpan:
    """Consecutive rows whose ids are consecutive counters, or are listed."""

    count: int
    prefix: str = ""
    first: int = 0
    ids: Sequence[str] | None = None

    def expand(self) -> Sequence[str]:
        """The ids, one per row."""
        return self.ids if self.ids is not None else generated_ids(self.prefix, self.first, self.count)


@dataclass(slots=True)
class LeaseSet:
    """Rows leased together to one consumer under one lease id, which is their version: the fencing token.

    Row numbers stay valid for the life of the lease. `rows` lists the number of each row when the numbers are not
    simply 0 to n-1: for rows of several runs that are merged into one order, or for the remaining rows of a lease that
    is pushed again. `attempts` and `priorities` are None when every row has 1 and 0. `dead_lettered` says how many
    messages the same step moved to the dead-letter topic; a set without rows did nothing else.
    """

    lease_id: int
    consumer: str
    expires: int
    spans: list[IdSpan]
    ts: list[int]
    bodies: Sequence[bytes]
    attempts: list[int] | None = None
    priorities: list[int] | None = None
    headers: list[bytes] | None = None
    rows: list[int] | None = None
    dead_lettered: int = 0
    # Whether its rows are due and in the order of (priority, ts).
    by_priority: bool = False
    # Whether some bodies may be references to large bodies.
    large: bool = False
    # Whether nothing else was due in the buckets, so that another request need not ask at once.
    complete: bool = False

    def __len__(self) -> int:
        return len(self.ts)

    def ids(self) -> list[str]:
        """Every id, one per row."""
        return [message_id for span in self.spans for message_id in span.expand()]

    def id_columns(self) -> list[IdColumn]:
        """The listed ids as columns; empty unless all of them are in columns."""
        listed = [span.ids for span in self.spans if span.ids is not None]
        columns = [ids for ids in listed if isinstance(ids, IdColumn)]
        return columns if len(columns) == len(listed) else []


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive rows with the same bucket, owner, version and holder."""

    span: IdSpan
    bucket: int
    owner: str
    version: int
    consumer: str = ""


@dataclass(slots=True)
class Portion:
    """Some messages of a snapshot as columns; values that many rows share are stored once per stretch.

    `priorities`, `attempts` and `headers` are None when every row has 0, 0 and none. `bodies` is None when they were
    not requested.
    """

    stretches: list[Stretch] = field(default_factory=list)
    ts: list[int] = field(default_factory=list)
    bodies: list[bytes] | None = None
    priorities: list[int] | None = None
    attempts: list[int] | None = None
    headers: list[bytes] | None = None

    def __len__(self) -> int:
        return len(self.ts)


@dataclass(slots=True)
class StoredRuns:
    """Some messages of a snapshot as a store keeps them: serialized `Run`s without bodies that are stored separately.

    `rows` has a mask of the rows that belong to the result, little-endian; empty bytes when all do. `count` is the
    number of all rows.
    """

    count: int = 0
    runs: list[bytes] = field(default_factory=list)
    buckets: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    rows: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.runs)

    def add(self, run: bytes, bucket: int, version: int, count: int, rows: bytes = b"") -> None:
        """Add a run of `count` rows."""
        self.count += count
        self.runs.append(run)
        self.buckets.append(bucket)
        self.versions.append(version)
        self.rows.append(rows)


@dataclass(slots=True)
class StoredFrames:
    """Some messages of a snapshot by the places of their stored runs in the files of the store.

    `without` has a mask of the rows that do not belong to the result, little-endian; empty bytes when all do.
    """

    files: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    buckets: list[int] = field(default_factory=list)
    without: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.files)

    def add(self, address: tuple[int, int, int], bucket: int, without: bytes) -> None:
        """Add the run at an address: file, offset and length."""
        file, offset, length = address
        self.files.append(file)
        self.offsets.append(offset)
        self.lengths.append(length)
        self.buckets.append(bucket)
        self.without.append(without)


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """A request for the messages that are due up to `until` in `buckets`, at most `rows_max` rows and about `bytes_max`
    bytes.

    With `dead_letter` the topic's `max_attempts` is applied: a message that has had so many leases is moved to that
    topic instead, and counts as one of the rows.
    """

    buckets: Sequence[int]
    consumer: str
    until: int
    expires: int
    rows_max: int = limits.LEASE_ROWS_MAX
    bytes_max: int = limits.BATCH_BYTES_MAX
    dead_letter: Topic | None = None


def admit(batch: CreateBatch, settings: TopicSettings, now: int) -> None:
    """Record in `batch.refused` every row that no storage may accept; raise when the batch itself is malformed.

    The checks first look at whole columns, and look at single rows only when a column has a fault.
    """
    _check_shape(batch, settings)
    refused = batch.refused
    ts, bodies = batch.ts, batch.bodies
    if min(ts) < 0 or max(ts) > min(limits.TS_MS_MAX, now + settings.max_future_ms):
        for row, value in enumerate(ts):
            code = check_ts(value, now=now, max_future_ms=settings.max_future_ms)
            if code is not Code.OK:
                refused.setdefault(row, code)
    bytes_max = min(settings.max_body_bytes, limits.BODY_BYTES_MAX)
    if batch.large or max(_sizes(bodies)) > bytes_max:
        for row, body in enumerate(bodies):
            if too_large(body, settings, large=batch.large):
                refused.setdefault(row, Code.BODY_TOO_LARGE)
    if batch.priorities is not None:
        for row, priority in enumerate(batch.priorities):
            if not limits.PRIORITY_MIN <= priority <= limits.PRIORITY_MAX:
                refused.setdefault(row, Code.INVALID_PRIORITY)
    if batch.ids is not None:
        _admit_ids(batch.ids, refused)
    elif not _in_order(batch):
        raise error_of(Code.INVALID_ARGUMENT, "a batch with generated ids must be sorted by time and priority")


def too_large(body: bytes, settings: TopicSettings, *, large: bool) -> bool:
    """Whether a body is too large for a topic; with `large`, also a body to which a reference refers."""
    if large and is_reference(body):
        return size_of(body) > settings.max_body_bytes
    return len(body) > min(settings.max_body_bytes, limits.BODY_BYTES_MAX)


def _check_shape(batch: CreateBatch, settings: TopicSettings) -> None:
    count = len(batch.ts)
    columns = (batch.bodies, batch.ids, batch.priorities, batch.headers)
    if count == 0 or any(column is not None and len(column) != count for column in columns):
        raise error_of(Code.INVALID_ARGUMENT, "the columns of a batch must have one same length above 0")
    if count > limits.BATCH_COUNT_MAX:
        raise error_of(Code.BATCH_TOO_LARGE, f"{count} messages in one batch; at most {limits.BATCH_COUNT_MAX}")
    size = sum(_sizes(batch.bodies)) + sum(map(len, batch.headers or ()))
    if size > limits.BATCH_BYTES_MAX:
        raise error_of(Code.BATCH_TOO_LARGE, f"{size} bytes in one batch; at most {limits.BATCH_BYTES_MAX}")
    if batch.sequence < 0 or batch.sequence + count - 1 > COUNTER_MAX:
        raise error_of(Code.INVALID_ARGUMENT, "the sequence of a producer session is a 32-bit counter")
    if not 0 <= batch.bucket < settings.buckets:
        raise error_of(Code.INVALID_ARGUMENT, f"bucket {batch.bucket} is not one of the topic's {settings.buckets}")
    if batch.relative_rows and batch.relative_rows[-1][1] > count:
        raise error_of(Code.INVALID_ARGUMENT, f"`relative_rows` names rows beyond the {count} of the batch")


def _sizes(bodies: Sequence[bytes]) -> Iterable[int]:
    return bodies.sizes if isinstance(bodies, BodyBlock) else map(len, bodies)


def _admit_ids(ids: Sequence[str], refused: dict[int, Code]) -> None:
    if not valid_ids(ids):
        for row, message_id in enumerate(ids):
            if not valid_ids((message_id,)):
                refused.setdefault(row, Code.INVALID_ID)
    if not (isinstance(ids, IdColumn) and ids.are_distinct) and len(set(ids)) != len(ids):
        seen: set[str] = set()
        for row, message_id in enumerate(ids):
            if message_id in seen:
                refused.setdefault(row, Code.DUPLICATE_IN_BATCH)
            elif row not in refused:
                seen.add(message_id)


def _in_order(batch: CreateBatch) -> bool:
    keys: Sequence[object] = batch.ts
    if batch.priorities is not None:
        keys = list(zip(batch.ts, batch.priorities, strict=True))
    return list(keys) == sorted(keys)  # type: ignore[type-var]


def whole(ranges: Iterable[RowRange] | None, count: int) -> list[RowRange]:
    """The ranges, or all rows for None; raises INVALID_ARGUMENT for a range outside the lease."""
    if ranges is None:
        return [(0, count)]
    listed = list(ranges)
    for start, end in listed:
        if not 0 <= start < end <= count:
            raise error_of(Code.INVALID_ARGUMENT, f"rows {start} to {end} are not in a lease of {count}")
    return listed


def ranges_of_rows(rows: Iterable[int]) -> list[RowRange]:
    """Row numbers as ranges, in order."""
    ranges: list[RowRange] = []
    for row in sorted(set(rows)):
        if ranges and ranges[-1][1] == row:
            ranges[-1] = (ranges[-1][0], row + 1)
        else:
            ranges.append((row, row + 1))
    return ranges
