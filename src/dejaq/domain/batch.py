"""Batches as columns: what storage takes and gives. One row is one index into every column.

Python objects for single messages exist only at the edges; between them a batch is parallel lists, and
results name only the rows that did not plainly succeed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dejaq import limits
from dejaq.domain.id_column import IdColumn
from dejaq.domain.ids import COUNTER_MAX, ProducerSession, bucket_of, generated_ids, valid_ids
from dejaq.domain.large import is_reference, size_of
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.domain.transitions import check_ts
from dejaq.errors import Code, error_of

# A half-open range of row numbers.
RowRange = tuple[int, int]


@dataclass(slots=True)
class Outcomes:
    """What became of each row of a batch: a row that is not in `codes` is OK."""

    count: int
    codes: dict[int, Code] = field(default_factory=dict)

    def __getitem__(self, row: int) -> Code:
        return self.codes.get(row, Code.OK)

    @property
    def failed(self) -> dict[int, Code]:
        """The rows that do not stand as asked."""
        return {row: code for row, code in self.codes.items() if not code.succeeded}

    @classmethod
    def all(cls, count: int, code: Code) -> Outcomes:
        """The same outcome for every row."""
        return cls(count, {} if code is Code.OK else dict.fromkeys(range(count), code))


@dataclass(frozen=True, slots=True)
class Deletion:
    """Rows of one lease to delete (None: all), and when user code got them: no time, one for all, or one a row."""

    lease_id: int
    rows: Sequence[RowRange] | None
    handed_us: Sequence[int] = ()


@dataclass(slots=True)
class CreateBatch:
    """Messages to create, from one producer group.

    With `ids` they are natural and each goes to the bucket of its id. Without, row i has the generated id
    of counter `sequence + i` in `bucket`, and rows must be sorted by (ts, priority). In both cases
    (`session`, `sequence`) names the batch, so that a repeat is recognised even after its messages are gone.
    `headers` holds one encoded map a row (empty bytes: none). With `large`, some bodies refer to uploaded ones
    (`domain.large`). `refused` holds the rows that admission refused.
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

    def __len__(self) -> int:
        return len(self.ts)

    def id_of(self, row: int) -> str:
        """The id of one row."""
        if self.ids is not None:
            return self.ids[row]
        return generated_ids(self.session.prefix(self.bucket), self.sequence + row, 1)[0]

    def bucket_of(self, row: int, buckets: int) -> int:
        """The bucket of one row."""
        return self.bucket if self.ids is None else bucket_of(self.ids[row], buckets)


@dataclass(slots=True)
class IdSpan:
    """A stretch of rows whose ids are consecutive counters, or are listed."""

    count: int
    prefix: str = ""
    first: int = 0
    ids: Sequence[str] | None = None

    def expand(self) -> Sequence[str]:
        """The ids, one a row."""
        return self.ids if self.ids is not None else generated_ids(self.prefix, self.first, self.count)


@dataclass(slots=True)
class LeaseSet:
    """Rows leased together to one consumer under one lease id, which is their version: the fencing token.

    Row numbers stay valid for the life of the lease. `rows` lists the number of each row where they are not
    plainly 0 to n-1: rows of several runs brought into one order, or what is left of a lease that is pushed
    again. `attempts` and `priorities` are None where every row has 1 and 0. `dead` says how many messages the same
    step moved to the dead-letter topic; a set without rows did nothing else.
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
    dead: int = 0
    # Whether its rows are due and in the order of (priority, ts).
    by_priority: bool = False
    # Whether some bodies may refer to large ones.
    large: bool = False

    def __len__(self) -> int:
        return len(self.ts)

    def ids(self) -> list[str]:
        """Every id, one a row."""
        return [message_id for span in self.spans for message_id in span.expand()]

    def id_columns(self) -> list[IdColumn]:
        """The listed ids as columns; none unless all of them are in such."""
        listed = [span.ids for span in self.spans if span.ids is not None]
        columns = [ids for ids in listed if isinstance(ids, IdColumn)]
        return columns if len(columns) == len(listed) else []


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows in a row that have their bucket, owner, version and holder in common."""

    span: IdSpan
    bucket: int
    owner: str
    version: int
    consumer: str = ""


@dataclass(slots=True)
class Portion:
    """Some messages of a snapshot as columns; what many share is said once a stretch.

    `priorities`, `attempts` and `headers` are None where every row has 0, 0 and none. `bodies` is None where they
    were not asked for.
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
    """Some messages of a snapshot as a store keeps them: serialized `Run`s, with no body apart.

    `rows` holds a mask of the rows that count, little-endian; empty bytes where all do. `count` is of all rows.
    """

    count: int = 0
    runs: list[bytes] = field(default_factory=list)
    buckets: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    rows: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.runs)


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """Ask for what is due up to `until` in `buckets`, at most `rows_max` rows and about `bytes_max` bytes.

    With `dead_letter` the topic's `max_attempts` holds: a message that has had so many leases is moved there instead,
    and counts as one of the rows.
    """

    buckets: Sequence[int]
    consumer: str
    until: int
    expires: int
    rows_max: int = limits.LEASE_ROWS_MAX
    bytes_max: int = limits.BATCH_BYTES_MAX
    dead_letter: Topic | None = None


def admit(batch: CreateBatch, settings: TopicSettings, now: int) -> None:
    """Record in `batch.refused` every row that no storage may take; raise when the batch itself is malformed.

    The checks run over whole columns first and look at single rows only where a column has a fault.
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
    if batch.large or max(map(len, bodies)) > bytes_max:
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
    """Whether a topic does not take a body, or, where it may be `large`, the one that it refers to."""
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
    size = sum(map(len, batch.bodies)) + sum(map(len, batch.headers or ()))
    if size > limits.BATCH_BYTES_MAX:
        raise error_of(Code.BATCH_TOO_LARGE, f"{size} bytes in one batch; at most {limits.BATCH_BYTES_MAX}")
    if batch.sequence < 0 or batch.sequence + count - 1 > COUNTER_MAX:
        raise error_of(Code.INVALID_ARGUMENT, "the sequence of a producer session is a 32-bit counter")
    if not 0 <= batch.bucket < settings.buckets:
        raise error_of(Code.INVALID_ARGUMENT, f"bucket {batch.bucket} is not one of the topic's {settings.buckets}")


def _admit_ids(ids: Sequence[str], refused: dict[int, Code]) -> None:
    if not valid_ids(ids):
        for row, message_id in enumerate(ids):
            if not valid_ids((message_id,)):
                refused.setdefault(row, Code.INVALID_ID)
    if len(set(ids)) != len(ids):
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
    """The ranges, or all rows when None; raises INVALID_ARGUMENT for one outside the lease."""
    if ranges is None:
        return [(0, count)]
    listed = list(ranges)
    for start, end in listed:
        if not 0 <= start < end <= count:
            raise error_of(Code.INVALID_ARGUMENT, f"rows {start} to {end} are not in a lease of {count}")
    return listed
