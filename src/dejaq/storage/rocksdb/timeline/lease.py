"""Leases in memory: their rows and ends; finds them by consumer, by row and by end."""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter

from dejaq.domain.batch import IdSpan
from dejaq.domain.id_column import IdColumn
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import RocksDatabase
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.memory.budget import Budget, bytes_of_lease
from dejaq.storage.rocksdb.timeline.run import Run

# With fewer ends than this, it is not worth removing the ends that are no longer valid.
_ENDS_MIN = 1_024
_offset_of = attrgetter("offset")


@dataclass(slots=True)
class LeasePart:
    """Rows of a run, as rows [offset, offset + count) of a lease: [start, start + count), or those that `rows` lists.

    `due` is the ts that the rows had before this lease, when it differs from the run's: the end of the expired lease
    from which they are taken. `attempts` lists their leases including this one; None means 1 each. `firsts` lists when
    each was first leased, when that was before this lease. `expired_lease` is set while rows are taken from an expired
    lease.
    """

    run: Run
    start: int
    count: int
    offset: int
    due: int = 0
    attempts: list[int] | None = None
    firsts: list[int] | None = None
    expired_lease: LeaseState | None = None
    # Ascending, where they do not follow each other. Such a part has neither `due` nor `attempts` nor `firsts`.
    rows: array[int] | None = None

    @classmethod
    def of_mask(cls, run: Run, mask: int) -> LeasePart:
        """Rows that were never leased before; at least one."""
        first = masks.lowest(mask)
        if masks.is_span(mask):
            return cls(run, first, mask.bit_length() - first, 0)
        rows = array("I", masks.rows(mask))
        return cls(run, first, len(rows), 0, rows=rows)

    @property
    def end(self) -> int:
        """The row of the run behind its last row."""
        return self.start + self.count if self.rows is None else self.rows[-1] + 1

    def mask(self) -> int:
        """This part as a mask of the run."""
        return masks.span(self.start, self.start + self.count) if self.rows is None else masks.of_rows(self.rows)

    def in_run(self, rows: int) -> int:
        """The rows of the lease that are in this part, as a mask of the run."""
        own = (rows >> self.offset) & masks.full(self.count)
        if not own:
            return 0
        if self.rows is None:
            return own << self.start
        places = self.rows
        return masks.of_rows(places[row] for row in masks.rows(own))

    def lease_row(self, run_row: int) -> int:
        """The row of the lease that a row of the run is."""
        at = run_row - self.start if self.rows is None else bisect_left(self.rows, run_row)
        return self.offset + at

    def has(self, run_row: int) -> bool:
        """Whether a row of the run is in this part."""
        if self.rows is None:
            return self.start <= run_row < self.start + self.count
        at = bisect_left(self.rows, run_row)
        return at < self.count and self.rows[at] == run_row

    def stretches(self) -> list[tuple[int, int]]:
        """The first row and the number of rows of each stretch of rows that follow each other."""
        if self.rows is None:
            return [(self.start, self.count)]
        return [(start, end - start) for start, end in masks.ranges(self.mask())]

    def until(self, end: int) -> int:
        """Keep only the rows before a row of the run; the others as a mask."""
        count = max(end - self.start, 0) if self.rows is None else bisect_left(self.rows, end)
        if count >= self.count:
            return 0
        mask = self.mask()
        self.count = count
        self.rows = self.rows and self.rows[:count]
        self.attempts = self.attempts and self.attempts[:count]
        self.firsts = self.firsts and self.firsts[:count]
        return mask >> end << end

    def id_spans(self, mask: int) -> Iterator[IdSpan]:
        """The ids of rows of this part, as a mask of the run."""
        if self.rows is None:
            for start, end in masks.ranges(mask):
                yield self.run.id_span(start, end)
        elif mask:
            chosen = masks.pick(self.run.ids, mask)
            yield IdSpan(count=len(chosen), ids=IdColumn(chosen))

    def in_lease(self) -> int:
        """This part as a mask of the lease."""
        return masks.full(self.count) << self.offset

    def attempts_at(self, run_row: int) -> int:
        """The number of leases of a row of the run, including this one."""
        return self.attempts[run_row - self.start] if self.attempts else 1

    def first_at(self, run_row: int) -> int:
        """When a row of the run was first leased; 0: by this lease, or unknown."""
        return self.firsts[run_row - self.start] if self.firsts else 0

    def to_lease(self, rows: int) -> int:
        """Rows of the run, which are in this part, as rows of the lease."""
        if self.rows is None:
            return (rows >> self.start) << self.offset
        return masks.of_rows(map(self.lease_row, masks.rows(rows)))

    def cut(self, start: int, end: int) -> LeasePart:
        """The same for rows start to end-1 of the run, in a lease that is not created yet."""
        rows = slice(start - self.start, end - self.start)
        return replace(
            self,
            start=start,
            count=end - start,
            attempts=self.attempts and self.attempts[rows],
            firsts=self.firsts and self.firsts[rows],
        )

    def due_at(self, run_row: int) -> int:
        """When a row of the run was due."""
        return self.due or self.run.record.ts[run_row]


@dataclass(slots=True)
class LeaseState:
    """One lease set. `terms` maps each end to the remaining rows that end then."""

    id: int
    consumer: str
    parts: list[LeasePart]
    terms: dict[int, int] = field(default_factory=dict)
    # Ends that have passed, and whose rows the window offers again.
    offered: set[int] = field(default_factory=set)
    # Ends that the journal has recorded.
    reported: set[int] = field(default_factory=set)
    # When it was created; 0 when an older release wrote it.
    granted: int = 0
    # The book that has it.
    book: LeaseBook | None = field(default=None, compare=False, repr=False)

    @property
    def count(self) -> int:
        """The number of its rows at the start."""
        last = self.parts[-1]
        return last.offset + last.count

    @property
    def memory_bytes(self) -> int:
        """How much memory it takes, without its runs."""
        return bytes_of_lease(len(self.parts), sum(len(part.rows) for part in self.parts if part.rows is not None))

    @property
    def rows(self) -> int:
        """The remaining rows."""
        mask = 0
        for rows in self.terms.values():
            mask |= rows
        return mask

    def drop(self, rows: int) -> None:
        """Remove rows."""
        for expires, mask in list(self.terms.items()):
            if mask & rows:
                self._set(expires, mask & ~rows)

    def move(self, rows: int, expires: int) -> None:
        """Give rows another end."""
        self.drop(rows)
        self._set(expires, self.terms.get(expires, 0) | rows)

    def parts_of(self, rows: int) -> list[LeasePart]:
        """The parts from that of the first of some rows to that of the last."""
        if not rows:
            return []
        first = bisect_right(self.parts, masks.lowest(rows), key=_offset_of) - 1
        return self.parts[first : bisect_left(self.parts, rows.bit_length(), lo=first, key=_offset_of)]

    def term_of(self, row: int) -> int:
        """When a remaining row ends."""
        return next(expires for expires, mask in self.terms.items() if mask >> row & 1)

    def record(self) -> records.Lease:
        """The stored record of the lease at its start; later terms are stored separately."""
        attempts: list[int] = []
        if any(part.attempts for part in self.parts):
            attempts = [n for part in self.parts for n in part.attempts or [1] * part.count]
        firsts: list[int] = []
        if any(part.firsts for part in self.parts):
            firsts = [n for part in self.parts for n in part.firsts or [0] * part.count]
        stretches = [(part, *stretch) for part in self.parts for stretch in part.stretches()]
        return records.Lease(
            consumer=self.consumer,
            runs=[keys.place(part.run.key) for part, _, _ in stretches],
            starts=[start for _, start, _ in stretches],
            counts=[count for _, _, count in stretches],
            dues=[part.due for part, _, _ in stretches],
            attempts=attempts,
            expires=next(iter(self.terms)),
            granted_ms=self.granted,
            firsts=firsts,
        )

    def terms_record(self) -> records.Terms:
        """The stored record of the terms."""
        return records.Terms(
            expires=list(self.terms),
            masks=[masks.pack(mask) for mask in self.terms.values()],
            reported=[expires in self.reported for expires in self.terms],
        )

    def _set(self, expires: int, mask: int) -> None:
        if self.book is not None:
            self.book.changed(self.id)
        if mask:
            self.terms[expires] = mask
        else:
            self.terms.pop(expires, None)


class LeaseBook:
    """Every lease of a topic; an expired lease stays until its rows are leased again or leave. All of them count."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._by_id: dict[int, LeaseState] = {}
        self._by_consumer: dict[str, dict[int, LeaseState]] = {}
        self._by_run: dict[bytes, dict[int, LeaseState]] = {}
        self._ends: list[tuple[int, int]] = []
        # The leases that changed since a query began to copy them, for each such query.
        self._watchers: list[set[int]] = []

    def __iter__(self) -> Iterator[LeaseState]:
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, lease: LeaseState) -> None:
        """Add a lease with its terms."""
        self._by_id[lease.id] = lease
        lease.book = self
        self.changed(lease.id)
        self._budget.used += lease.memory_bytes
        self._by_consumer.setdefault(lease.consumer, {})[lease.id] = lease
        for part in lease.parts:
            self._by_run.setdefault(part.run.key, {})[lease.id] = lease
        for expires in lease.terms:
            self.schedule(lease, expires)

    def close(self) -> None:
        """Release the memory of every lease."""
        for lease in self:
            self.remove(lease)

    def schedule(self, lease: LeaseState, expires: int) -> None:
        """Schedule a check of the lease for its end."""
        heapq.heappush(self._ends, (expires, lease.id))
        if len(self._ends) > _ENDS_MIN + 4 * len(self._by_id):
            # Most leases are settled long before their end, and an extended one has several ends.
            self._ends = [end for end in self._ends if self._is_ahead(*end)]
            heapq.heapify(self._ends)

    def _is_ahead(self, expires: int, lease_id: int) -> bool:
        """Whether rows of a lease end at this time and are not offered again yet."""
        lease = self._by_id.get(lease_id)
        return lease is not None and expires in lease.terms and expires not in lease.offered

    def remove(self, lease: LeaseState) -> None:
        """Remove a lease without remaining rows."""
        del self._by_id[lease.id]
        self.changed(lease.id)
        self._budget.used -= lease.memory_bytes
        _discard(self._by_consumer, lease.consumer, lease.id)
        for part in lease.parts:
            _discard(self._by_run, part.run.key, lease.id)

    def watch(self) -> set[int]:
        """A set to which the id of every lease is added that is added, changed or removed from now on."""
        self._watchers.append(set())
        return self._watchers[-1]

    def unwatch(self, changed: set[int]) -> None:
        """Add no more to a set that `watch` returned."""
        self._watchers = [one for one in self._watchers if one is not changed]

    def changed(self, lease_id: int) -> None:
        """Take note that a lease was added, changed or removed."""
        for changed in self._watchers:
            changed.add(lease_id)

    @property
    def ids(self) -> list[int]:
        """The id of every lease."""
        return list(self._by_id)

    def get(self, lease_id: int) -> LeaseState | None:
        """The lease, if any of its rows remain."""
        return self._by_id.get(lease_id)

    def of_consumer(self, consumer: str) -> list[LeaseState]:
        """The consumer's leases, oldest first."""
        return sorted(self._by_consumer.get(consumer, {}).values(), key=lambda lease: lease.id)

    def on_run(self, run_key: bytes) -> list[LeaseState]:
        """The leases that have a part in the run."""
        return list(self._by_run.get(run_key, {}).values())

    def has_none(self, run_keys: Mapping[bytes, int]) -> bool:
        """Whether no lease has a part in any of these runs."""
        return self._by_run.keys().isdisjoint(run_keys.keys())

    def leased_rows(self, run_key: bytes) -> int:
        """The rows of the run that are in some lease, as a mask of the run."""
        mask = 0
        for lease in self.on_run(run_key):
            standing = lease.rows
            for part in lease.parts:
                if part.run.key == run_key:
                    mask |= part.in_run(standing)
        return mask

    def find(self, run: Run, row: int) -> tuple[LeaseState, LeasePart, int] | None:
        """The lease, part and lease row that hold a row of a run."""
        for lease in self.on_run(run.key):
            standing = lease.rows
            for part in lease.parts:
                if part.run is run and part.has(row):
                    lease_row = part.lease_row(row)
                    if standing >> lease_row & 1:
                        return lease, part, lease_row
        return None

    def take_ended(self, now: int) -> Iterator[tuple[LeaseState, int]]:
        """Each (lease, end) that has passed and was not returned before."""
        while self._ends and self._ends[0][0] <= now:
            expires, lease_id = heapq.heappop(self._ends)
            lease = self._by_id.get(lease_id)
            if lease is not None and expires in lease.terms and expires not in lease.offered:
                lease.offered.add(expires)
                yield lease, expires

    def next_end(self) -> int | None:
        """The earliest end still ahead."""
        while self._ends:
            if self._is_ahead(*self._ends[0]):
                return self._ends[0][0]
            heapq.heappop(self._ends)
        return None


def _discard(
    table: dict[str, dict[int, LeaseState]] | dict[bytes, dict[int, LeaseState]], key: object, lease_id: int
) -> None:
    leases = table.get(key)  # type: ignore[call-overload]
    if leases is not None:
        leases.pop(lease_id, None)
        if not leases:
            del table[key]  # type: ignore[arg-type]


def load_leases(topic: int, database: RocksDatabase, leased_run: Callable[[bytes], Run]) -> Iterator[LeaseState]:
    """Every lease of a topic on disk; marks its rows as not free; `leased_run` finds a run by its place."""
    prefix = keys.of_topic(keys.LEASE, topic)
    for key, value in list(database.scan(prefix, keys.after(prefix))):
        lease_id = int.from_bytes(key[5:], "big")
        terms = database.get(keys.numbered(keys.TERMS, topic, lease_id))
        lease = _parse(lease_id, records.Lease.FromString(value), terms, leased_run)
        for part in lease.parts:
            part.run.free &= ~part.in_run(lease.rows)
        yield lease


def _parse(
    lease_id: int, record: records.Lease, terms_value: bytes | None, leased_run: Callable[[bytes], Run]
) -> LeaseState:
    parts: list[LeasePart] = []
    standing, offset = 0, 0
    for place, start, count, due in zip(record.runs, record.starts, record.counts, record.dues, strict=True):
        run = leased_run(place)
        attempts = list(record.attempts[offset : offset + count]) or None
        firsts = list(record.firsts[offset : offset + count]) or None
        parts.append(LeasePart(run, start, count, offset, due=due, attempts=attempts, firsts=firsts))
        standing |= ((run.live >> start) & masks.full(count)) << offset
        offset += count
    terms = {record.expires: standing}
    reported: set[int] = set()
    if terms_value is not None:
        parsed = records.Terms.FromString(terms_value)
        terms = dict(zip(parsed.expires, map(masks.unpack, parsed.masks), strict=True))
        reported = {expires for expires, done in zip(parsed.expires, parsed.reported, strict=False) if done}
    terms = {expires: mask & standing for expires, mask in terms.items() if mask & standing}
    return LeaseState(lease_id, record.consumer, parts, terms, reported=reported, granted=record.granted_ms)
