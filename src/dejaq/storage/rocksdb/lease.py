"""Leases in memory: what each holds, until when, and finding them by consumer, by row and by end."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.rocksdb import keys, masks
from dejaq.storage.rocksdb.run import Run


@dataclass(slots=True)
class Part:
    """Rows [start, start + count) of a run, as rows [offset, offset + count) of a lease.

    `due` is the ts the rows had before this lease, where that is not the run's: the end of the lease they
    were lost from. `attempts` lists their leases including this one; None means 1 each. `firsts` lists when each was
    first leased, where that was not by this lease. `lost` is the lease that they are taken from, while they are taken.
    """

    run: Run
    start: int
    count: int
    offset: int
    due: int = 0
    attempts: list[int] | None = None
    firsts: list[int] | None = None
    lost: Lease | None = None

    def in_run(self, rows: int) -> int:
        """The rows of the lease that lie in this part, as a mask of the run."""
        return ((rows >> self.offset) & masks.full(self.count)) << self.start

    def in_lease(self) -> int:
        """This part as a mask of the lease."""
        return masks.full(self.count) << self.offset

    def attempts_at(self, run_row: int) -> int:
        """The leases of a row of the run, this one included."""
        return self.attempts[run_row - self.start] if self.attempts else 1

    def first_at(self, run_row: int) -> int:
        """When a row of the run was first leased; 0: by this lease, or not known."""
        return self.firsts[run_row - self.start] if self.firsts else 0

    def to_lease(self, rows: int) -> int:
        """Rows of the run as rows of the lease."""
        return (rows >> self.start) << self.offset

    def cut(self, start: int, end: int) -> Part:
        """The same for rows start to end-1 of the run, in a lease that is yet to be made."""
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
class Lease:
    """One lease set. `terms` maps each end to the rows that end then and still stand."""

    id: int
    consumer: str
    parts: list[Part]
    terms: dict[int, int] = field(default_factory=dict)
    # Ends that have passed and whose rows the window offers again.
    lapsed: set[int] = field(default_factory=set)
    # Ends of which the journal has been told.
    reported: set[int] = field(default_factory=set)
    # When it was given; 0 where an older release wrote it.
    granted: int = 0

    @property
    def count(self) -> int:
        """How many rows it had at first."""
        last = self.parts[-1]
        return last.offset + last.count

    @property
    def rows(self) -> int:
        """The rows that still stand."""
        mask = 0
        for rows in self.terms.values():
            mask |= rows
        return mask

    def drop(self, rows: int) -> None:
        """Take rows out."""
        for expires, mask in list(self.terms.items()):
            if mask & rows:
                self._set(expires, mask & ~rows)

    def move(self, rows: int, expires: int) -> None:
        """Give rows another end."""
        self.drop(rows)
        self._set(expires, self.terms.get(expires, 0) | rows)

    def part_of(self, row: int) -> Part:
        """The part that holds a row of the lease."""
        return next(part for part in self.parts if part.offset <= row < part.offset + part.count)

    def term_of(self, row: int) -> int:
        """When a standing row ends."""
        return next(expires for expires, mask in self.terms.items() if mask >> row & 1)

    def record(self) -> records.Lease:
        """What is stored when it begins; later terms are apart."""
        attempts: list[int] = []
        if any(part.attempts for part in self.parts):
            attempts = [n for part in self.parts for n in part.attempts or [1] * part.count]
        firsts: list[int] = []
        if any(part.firsts for part in self.parts):
            firsts = [n for part in self.parts for n in part.firsts or [0] * part.count]
        return records.Lease(
            consumer=self.consumer,
            runs=[keys.place(part.run.key) for part in self.parts],
            starts=[part.start for part in self.parts],
            counts=[part.count for part in self.parts],
            dues=[part.due for part in self.parts],
            attempts=attempts,
            expires=next(iter(self.terms)),
            granted_ms=self.granted,
            firsts=firsts,
        )

    def terms_record(self) -> records.Terms:
        """What is stored of the terms."""
        return records.Terms(
            expires=list(self.terms),
            masks=[masks.pack(mask) for mask in self.terms.values()],
            reported=[expires in self.reported for expires in self.terms],
        )

    def _set(self, expires: int, mask: int) -> None:
        if mask:
            self.terms[expires] = mask
        else:
            self.terms.pop(expires, None)


class LeaseBook:
    """Every lease of a topic, the lapsed ones too until their rows are leased again or leave."""

    def __init__(self) -> None:
        self._by_id: dict[int, Lease] = {}
        self._by_consumer: dict[str, dict[int, Lease]] = {}
        self._by_run: dict[bytes, dict[int, Lease]] = {}
        self._ends: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[Lease]:
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, lease: Lease) -> None:
        """Enter a lease with its terms."""
        self._by_id[lease.id] = lease
        self._by_consumer.setdefault(lease.consumer, {})[lease.id] = lease
        for part in lease.parts:
            self._by_run.setdefault(part.run.key, {})[lease.id] = lease
        for expires in lease.terms:
            self.schedule(lease, expires)

    def schedule(self, lease: Lease, expires: int) -> None:
        """Remember to look at the lease when it ends."""
        heapq.heappush(self._ends, (expires, lease.id))

    def remove(self, lease: Lease) -> None:
        """Forget a lease of which nothing stands."""
        del self._by_id[lease.id]
        _discard(self._by_consumer, lease.consumer, lease.id)
        for part in lease.parts:
            _discard(self._by_run, part.run.key, lease.id)

    def get(self, lease_id: int) -> Lease | None:
        """The lease, if any of it stands."""
        return self._by_id.get(lease_id)

    def of_consumer(self, consumer: str) -> list[Lease]:
        """The consumer's leases, oldest first."""
        return sorted(self._by_consumer.get(consumer, {}).values(), key=lambda lease: lease.id)

    def on_run(self, run_key: bytes) -> list[Lease]:
        """The leases that have a part in the run."""
        return list(self._by_run.get(run_key, {}).values())

    def leased_rows(self, run_key: bytes) -> int:
        """The rows of the run that stand in some lease, as a mask of the run."""
        mask = 0
        for lease in self.on_run(run_key):
            standing = lease.rows
            for part in lease.parts:
                if part.run.key == run_key:
                    mask |= part.in_run(standing)
        return mask

    def find(self, run: Run, row: int) -> tuple[Lease, Part, int] | None:
        """The lease, part and lease row that hold a row of a run."""
        for lease in self.on_run(run.key):
            standing = lease.rows
            for part in lease.parts:
                if part.run is run and part.start <= row < part.start + part.count:
                    lease_row = part.offset + row - part.start
                    if standing >> lease_row & 1:
                        return lease, part, lease_row
        return None

    def take_ended(self, now: int) -> Iterator[tuple[Lease, int]]:
        """Each (lease, end) that has passed and was not yet given out."""
        while self._ends and self._ends[0][0] <= now:
            expires, lease_id = heapq.heappop(self._ends)
            lease = self._by_id.get(lease_id)
            if lease is not None and expires in lease.terms and expires not in lease.lapsed:
                lease.lapsed.add(expires)
                yield lease, expires

    def next_end(self) -> int | None:
        """The earliest end still ahead."""
        while self._ends:
            expires, lease_id = self._ends[0]
            lease = self._by_id.get(lease_id)
            if lease is not None and expires in lease.terms and expires not in lease.lapsed:
                return expires
            heapq.heappop(self._ends)
        return None


def _discard(table: dict[str, dict[int, Lease]] | dict[bytes, dict[int, Lease]], key: object, lease_id: int) -> None:
    leases = table.get(key)  # type: ignore[call-overload]
    if leases is not None:
        leases.pop(lease_id, None)
        if not leases:
            del table[key]  # type: ignore[arg-type]
