"""A run in memory: its record, and which of its rows exist and are free."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from dejaq.domain.batch import IdSpan
from dejaq.domain.bodies.body_block import BodyBlock, varint
from dejaq.domain.id_column import IdColumn
from dejaq.domain.ids import ProducerSession, generated_ids
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.frames import Stored
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.levels.row_buckets import RowBuckets

Key = tuple[int, int]
# A run of several priorities lies within an aligned block of so many, as a power of two.
BLOCK_BITS = 10
# The rows of a run wait one by one in memory if there are so few; but not if at least so many are due at one time.
SMALL_RUN_ROWS, EQUAL_ROWS = 64, 8
# Of the times in a run: fixed numbers, packed.
TIMES_TAG = varint(records.Run.TS_FIELD_NUMBER << 3 | 2)
# A shift that is above every ts.
_TS_BITS = 48


def rank(priority: int, ts: int) -> int:
    """(priority, ts) as one number, which sorts faster."""
    return (priority << _TS_BITS) + ts


def priority_of(rank: int) -> int:
    """The priority in a rank."""
    return rank >> _TS_BITS


def ts_of(rank: int) -> int:
    """The ts in a rank."""
    return rank & (1 << _TS_BITS) - 1


def ranks_of(priorities: Sequence[int], ts: Sequence[int]) -> list[int]:
    """The ranks of rows."""
    return [(priority << _TS_BITS) + at for priority, at in zip(priorities, ts, strict=True)]


def are_few(count: int, first: int, last: int) -> bool:
    """Whether so many rows, due between two times, wait one by one."""
    return count < EQUAL_ROWS or (count <= SMALL_RUN_ROWS and first < last)


class Run:
    """Rows that were written together. `live` rows still exist; `free` rows are live and not leased."""

    __slots__ = (
        "_ids",
        "_is_small",
        "block",
        "bucket",
        "by_priority",
        "cells",
        "count",
        "counted",
        "earliest",
        "frame",
        "free",
        "generated",
        "held",
        "in_window",
        "key",
        "latest",
        "live",
        "merged",
        "mixed",
        "number",
        "owner",
        "prefix",
        "ranked",
        "record",
        "row_buckets",
        "size",
        "slice",
        "spread",
        "wide",
    )

    def __init__(
        self,
        key: bytes,
        record: records.Run,
        size: int,
        gone: int = 0,
        leased: int = 0,
        block: BodyBlock | None = None,
        ids: IdColumn | None = None,
        frame: Stored = None,
    ) -> None:
        self.key = key
        # The frame of the commit log that it was stored in; it may have been moved into the database since.
        self.frame = frame
        # Its bodies and listed ids, when they are not in the record.
        self.block = block
        self._ids = ids
        self.bucket, self.slice, self.number, self.owner = keys.unpack_place(keys.place(key))
        self.record = record
        self.count = len(record.ts)
        self.size = size
        self.live = masks.full(self.count) & ~gone
        self.free = self.live & ~leased
        self.in_window = False
        # How many bytes of the budget it takes, and of how many rows it has the columns.
        self.counted = 0
        self.held = self.count
        # Whether its rows belong to several buckets, each to the bucket of its id.
        self.spread = self.bucket == keys.SPREAD
        # Whether its rows lie in several slices; those of a run by priority are not sorted by time.
        ready = self.slice >= keys.READY_SLICE
        self.wide = bool(self.count) and not ready and record.ts[-1] // keys.SLICE_MS != self.slice
        # Whether ids are counters and not listed.
        self.generated = bool(record.session)
        # Whether the first and the last row have different priorities.
        priorities = record.priorities
        self.mixed = bool(priorities) and priorities[0] != priorities[-1]
        # Whether its rows come from several runs, each with a version of its own.
        self.merged = bool(record.versions)
        # Whether its rows are in the order of (priority, ts), and not of (ts, priority).
        self.by_priority = self.merged and ready
        self.prefix = ""
        self.ranked: list[int] | None = None
        # Of a run over several buckets, once consumers share it.
        self.row_buckets: RowBuckets | None = None
        # The least and the greatest ts, once the rows are ranked.
        self.earliest = self.latest = 0
        # Its columns as matrices, once they were copied as such; see `levels.cells`.
        self.cells: object = None
        self._is_small: bool | None = None

    @classmethod
    def parse(cls, key: bytes, value: bytes, gone: int = 0, leased: int = 0, frame: Stored = None) -> Run:
        """The run that was stored under `key`."""
        return cls(key, records.Run.FromString(value), len(value), gone, leased, frame=frame)

    @property
    def bodies(self) -> Sequence[bytes]:
        """The body of each row; empty when it is stored separately."""
        return self.record.bodies if self.block is None else self.block

    @property
    def has_id_objects(self) -> bool:
        """Whether its listed ids were decoded."""
        return self._ids is not None

    @property
    def is_small(self) -> bool:
        """Whether its rows wait one by one: few of them, never leased, without priorities or bodies elsewhere."""
        if self._is_small is None:
            record = self.record
            few = bool(self.count) and are_few(self.count, record.ts[0], record.ts[-1])
            plain = not (self.generated or record.priorities or record.apart or record.attempts or record.firsts)
            self._is_small = few and plain
        return self._is_small

    def replace_columns(self, record: records.Run, ids: IdColumn | None, *, held: int) -> None:
        """Have the columns of fewer rows, under the same row numbers."""
        self.record, self.block, self._ids, self.held = record, None, ids, held
        self.ranked = self.cells = None

    @property
    def ids(self) -> IdColumn:
        """The listed id of each row."""
        if self._ids is None:
            self._ids = IdColumn(list(self.record.ids))
        return self._ids

    def id_span(self, start: int, end: int) -> IdSpan:
        """The ids of rows start to end-1."""
        if self.generated:
            return IdSpan(count=end - start, prefix=self._prefix(), first=self.record.first + start)
        whole = end - start == self.count
        return IdSpan(count=end - start, ids=self.ids if whole else self.ids.cut(start, end))

    def id_at(self, row: int) -> str:
        """The id of one row."""
        if self.generated:
            return generated_ids(self._prefix(), self.record.first + row, 1)[0]
        return self.ids[row]

    def rows_by_id(self) -> dict[str, int]:
        """The row of each listed id."""
        return {message_id: row for row, message_id in enumerate(self.ids)}

    def sort_key(self, row: int) -> Key:
        """(ts, priority) of one row."""
        priorities = self.record.priorities
        return self.record.ts[row], priorities[row] if priorities else 0

    def ranks(self) -> list[int]:
        """(priority, ts) of every row as a number; cached, because every lease reads the ranks of runs in a priority
        topic.
        """
        if self.ranked is None:
            priorities, ts = self.record.priorities, self.record.ts
            self.earliest, self.latest = min(ts), max(ts)
            if not priorities:
                self.ranked = list(ts)
            elif self.latest == self.earliest:
                self.ranked = [(priority << _TS_BITS) + self.latest for priority in priorities]
            else:
                self.ranked = ranks_of(priorities, ts)
        return self.ranked

    def version_at(self, row: int) -> int:
        """The version of a row without a lease."""
        return self.record.versions[row] if self.merged else self.number

    def attempts_at(self, row: int) -> int:
        """How many times the row was leased before it came into this run."""
        return self.record.attempts[row] if self.record.attempts else 0

    def first_at(self, row: int) -> int:
        """When the row was first leased; 0: never, or unknown."""
        return self.record.firsts[row] if self.record.firsts else 0

    def last_at(self, row: int) -> int:
        """When the row was last leased; 0: never, or unknown."""
        return self.record.lasts[row] if self.record.lasts else 0

    def rows_until(self, bound: Key) -> int:
        """The number of rows, from the first on, that have (ts, priority) <= bound."""
        ts = self.record.ts
        if not self.record.priorities:
            return bisect_right(ts, bound[0] if bound[1] >= 0 else bound[0] - 1)
        end = bisect_left(ts, bound[0])
        while end < self.count and self.sort_key(end) <= bound:
            end += 1
        return end

    def rows_between(self, start_ms: int, end_ms: int) -> int:
        """The mask of the rows with start_ms <= ts < end_ms."""
        ts = self.record.ts
        if self.by_priority:
            return sum(1 << row for row, at in enumerate(ts) if start_ms <= at < end_ms)
        low, high = bisect_left(ts, start_ms), bisect_left(ts, end_ms)
        return masks.span(low, high) if high > low else 0

    def _prefix(self) -> str:
        """The beginning of its generated ids; cached, because runs that leave row by row need it again and again."""
        if not self.prefix:
            self.prefix = ProducerSession.unpack(self.record.session).prefix(self.bucket)
        return self.prefix
