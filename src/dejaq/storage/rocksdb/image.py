"""A topic in memory: the near runs, the leases, the counts; and the steps every change is made of.

A change alters the image and fills a write batch in one go, without a pause between; then the batch is written. When
the write fails the whole image is thrown away and read again from disk, so it can never be ahead of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from dejaq.domain.batch import IdSpan
from dejaq.domain.body_block import BodyBlock
from dejaq.domain.id_column import IdColumn
from dejaq.domain.ids import GENERATED_LENGTH, parse_generated
from dejaq.domain.topic import Topic
from dejaq.domain.transitions import Standing
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.outbox import EXPIRED, Outbox
from dejaq.storage.rocksdb import keys, masks
from dejaq.storage.rocksdb.apart import Apart
from dejaq.storage.rocksdb.cells import Cells
from dejaq.storage.rocksdb.database import Batch, Database
from dejaq.storage.rocksdb.demand import Demand
from dejaq.storage.rocksdb.directory import Directory
from dejaq.storage.rocksdb.index import YOUNG_MS, Index
from dejaq.storage.rocksdb.large import LARGE, LargeBodies
from dejaq.storage.rocksdb.lease import Lease, LeaseBook, Part
from dejaq.storage.rocksdb.run import Run
from dejaq.storage.rocksdb.seen import Seen
from dejaq.storage.rocksdb.window import Budget, Free, Lost, Source, Window, load_step

# One step of loading: small enough that the loop is not held up, large enough to be worth a seek.
_STEP_BYTES = 512 * 1024
_STEP_RUNS = 512
_SLICE_STEPS = 8


@dataclass(slots=True)
class Row:
    """One row that is about to enter a new run."""

    id: str
    ts: int
    body: bytes
    priority: int
    attempts: int
    headers: bytes
    apart: int
    # When it was first and last leased; 0: never, or not known.
    first: int = 0
    last: int = 0


@dataclass(slots=True)
class Draft:
    """Rows by (bucket, slice, owner), to become one run each."""

    rows: dict[tuple[int, int, int], list[Row]] = field(default_factory=dict)

    def add(self, bucket: int, owner: int, row: Row) -> None:
        """Add a row at its ts."""
        self.rows.setdefault((bucket, row.ts // keys.SLICE_MS, owner), []).append(row)


class Near(Protocol):
    """The part of a bucket that is in memory, up to `cursor` in the order of run keys."""

    cursor: bytes

    def offer(self, source: Source) -> None:
        """Have the source's next row considered."""

    def left_on_disk(self, key: bytes) -> None:
        """Take note of a run that was written behind the cursor."""

    def removed(self, key: bytes) -> None:
        """Take note of a run that has gone."""

    def retreat(self, key: bytes) -> list[Run]:
        """Let go of every run from `key` on."""


class Image:
    """Everything the store keeps in memory of one topic."""

    def __init__(
        self,
        topic: Topic,
        database: Database,
        *,
        budget: Budget,
        number: Callable[[], int],
        outbox: Outbox | None,
        large: LargeBodies | None = None,
    ) -> None:
        self.topic = topic
        # The time of the change that is being made.
        self.now = 0
        self._outbox = outbox
        self.database = database
        self.cells = Cells(topic.number)
        self.leases = LeaseBook()
        self.seen = Seen(topic.number, database)
        self.next_number = number
        self._budget = budget
        self._windows: dict[int, Window] = {}
        self.demand = Demand(topic.settings.buckets)
        self._runs: dict[bytes, Run] = {}
        self._owners: dict[str, int] = {}
        self._owner_names: dict[int, str] = {}
        self.index = Index(topic.number, topic.settings.buckets, database, budget)
        self._shared: dict[bytes, Run] | None = None
        self.apart = Apart(topic, database, number=number, large=large)

    def load(self) -> None:
        """Read counts, owners and leases; runs come when they are near."""
        self.cells.load(self.database)
        prefix = keys.of_topic(keys.OWNER, self.topic.number)
        for key, value in self.database.scan(prefix, keys.after(prefix)):
            self._enter_owner(value.decode(), int.from_bytes(key[5:], "big"))
        prefix = keys.of_topic(keys.LEASE, self.topic.number)
        for key, value in list(self.database.scan(prefix, keys.after(prefix))):
            self._load_lease(int.from_bytes(key[5:], "big"), records.Lease.FromString(value))
        self.index.load(self.run_at)

    @property
    def outbox(self) -> Outbox | None:
        """Where a change tells what it did; None when nobody wants to know."""
        return self._outbox if self.topic.settings.journal else None

    @property
    def total(self) -> int:
        """How many messages there are."""
        return self.cells.total

    def write_counts(self, batch: Batch) -> None:
        """Put every changed count into the batch."""
        self.cells.write(batch)
        self.apart.write(batch)

    def close(self) -> None:
        """Give back the memory this topic had."""
        self.index.close()
        for run in list(self._runs.values()):
            self._unregister(run)

    # Owners

    def owner_number(self, name: str, batch: Batch) -> int:
        """The number of a producer group, given on its first message."""
        number = self._owners.get(name)
        if number is None:
            number = len(self._owners) + 1
            self._enter_owner(name, number)
            batch.put(keys.owner(self.topic.number, number), name.encode())
        return number

    def known_owner(self, name: str) -> int | None:
        """The number of a producer group that has sent here."""
        return self._owners.get(name)

    def owner_name(self, number: int) -> str:
        """The name behind the number."""
        return self._owner_names[number]

    @property
    def owner_count(self) -> int:
        """How many producer groups have sent here."""
        return len(self._owners)

    def _enter_owner(self, name: str, number: int) -> None:
        self._owners[name] = number
        self._owner_names[number] = name

    # Runs

    def window(self, bucket: int) -> Window:
        """The near part of a bucket."""
        window = self._windows.get(bucket)
        if window is None:
            window = self._windows[bucket] = Window(self.topic.number, bucket)
        return window

    def load_near(self, bucket: int, until: int) -> bool:
        """Bring a step of a bucket's rows up to `until` into memory; False: all of them are."""
        if self._budget.spent:
            return False
        return load_step(self.window(bucket), self._read_runs, until)

    def load_due(self, bucket: int, until: int) -> Window:
        """The window of a bucket with the first row that is due in it, if there is any.

        Rows of a slice come in no order, so all of it is read before one leaves; of a slice that is larger than
        `_SLICE_STEPS`, so much.
        """
        window = self.window(bucket)
        steps = 0
        while True:
            head = window.head()
            due = head is not None and head[0] <= until
            if due and (steps >= _SLICE_STEPS or (head is not None and window.reaches(head[0]))):
                break
            if not load_step(window, self._read_runs, until):
                break
            steps += 1
        return window

    def run_at(self, place: bytes) -> Run:
        """The run at a place: the one in memory, or read from disk for this use only."""
        key = keys.at_place(keys.RUN, self.topic.number, place)
        run = self._shared.get(key) if self._shared is not None else None
        run = run or self._runs.get(key)
        if run is None:
            value, gone = self.database.get_many([key, keys.gone(key)])
            if value is None:
                raise KeyError(key)
            run = Run.parse(key, value, masks.unpack(gone or b""), self.leases.leased_rows(key))
        if self._shared is not None:
            self._shared[key] = run
        return run

    @contextmanager
    def sharing_runs(self) -> Iterator[None]:
        """Within it a run stays one object, even when it is not kept, so that several steps of one write can alter it.

        The database does not know of the first step when the second reads.
        """
        self._shared = {}
        try:
            yield
        finally:
            self._shared = None

    def runs_between(self, start_ms: int, end_ms: int, owner: int | None = None) -> Iterator[Run]:
        """Every run of the slices that touch [start_ms, end_ms), bucket by bucket."""
        first, last = start_ms // keys.SLICE_MS, (end_ms - 1) // keys.SLICE_MS
        for bucket in (*range(self.topic.settings.buckets), keys.SPREAD):
            start = keys.slice_start(self.topic.number, bucket, first)
            end = keys.slice_start(self.topic.number, bucket, last + 1)
            for key in self.database.scan_keys(start, end):
                if owner is None or int.from_bytes(key[-4:], "big") == owner:
                    yield self.run_at(keys.place(key))

    def add_run(
        self,
        batch: Batch,
        bucket: int,
        time_slice: int,
        owner: int,
        record: records.Run,
        *,
        ids: IdColumn | None = None,
        due: bool = False,
        block: BodyBlock | None = None,
    ) -> Run:
        """Write a new run with its directory entry or its ids in the index, and its count.

        `ids` and `block` have the listed ids and the bodies that the record leaves out. What is `due` is kept at hand.
        """
        topic, number = self.topic.number, self.next_number()
        key = keys.run(topic, bucket, time_slice, number, owner)
        value = b"".join((record.SerializeToString(), ids.wire if ids else b"", block.data if block else b""))
        batch.put(key, value)
        if record.session:
            entry = keys.directory(topic, bucket, record.session, record.first)
            batch.put(entry, key[7:] + len(record.ts).to_bytes(4, "big"))
        else:
            ids = ids or IdColumn(list(record.ids))
            self.index.add(batch, key, ids, young=record.ts[0] <= self.now + YOUNG_MS)
        run = Run(key, record, len(value), block=block, ids=ids)
        self._count(run, run.live, 1)
        if due and not self._budget.spent:
            self.window(bucket).reach_for(key, self.database.first_key)
        self._enter_window(run)
        return run

    def add_rows(self, batch: Batch, draft: Draft) -> None:
        """Write the rows of a draft as new runs of listed ids."""
        for (bucket, time_slice, owner), rows in draft.rows.items():
            self.add_run(batch, bucket, time_slice, owner, self.record_of(owner, rows))

    def record_of(self, owner: int, rows: list[Row]) -> records.Run:
        """A run of listed ids, in order."""
        rows.sort(key=lambda row: (row.ts, row.priority))
        record = records.Run(
            owner=self.owner_name(owner),
            ids=[row.id for row in rows],
            ts=[row.ts for row in rows],
            bodies=[row.body for row in rows],
        )
        if any(row.priority for row in rows):
            record.priorities.extend([row.priority for row in rows])
        if any(row.attempts for row in rows):
            record.attempts.extend([row.attempts for row in rows])
        if any(row.headers for row in rows):
            record.headers.extend([row.headers for row in rows])
        if any(row.apart for row in rows):
            record.apart.extend([row.apart for row in rows])
        if any(row.first or row.last for row in rows):
            record.firsts.extend([row.first for row in rows])
            record.lasts.extend([row.last for row in rows])
        return record

    def _count(self, run: Run, rows: int, sign: int) -> None:
        self.cells.add(run.slice, sign * rows.bit_count())

    def remove_rows(self, batch: Batch, run: Run, mask: int, *, keep_bodies: bool = False) -> None:
        """Take live rows out of a run; the run goes with its last row."""
        topic = self.topic.number
        record = run.record
        self._count(run, mask, -1)
        if not record.session:
            self.index.remove(batch, run, mask)
        if record.apart and not keep_bodies:
            for row in masks.rows(mask):
                if record.apart[row]:
                    self.apart.drop(batch, record.apart[row])
        had_gone = run.live != masks.full(run.count)
        run.live &= ~mask
        run.free &= ~mask
        if run.live:
            batch.put(keys.gone(run.key), masks.pack(masks.full(run.count) & ~run.live))
            return
        batch.delete(run.key)
        if had_gone:
            batch.delete(keys.gone(run.key))
        if record.session:
            batch.delete(keys.directory(topic, run.bucket, record.session, record.first))
        if not self.total:
            self.index.emptied()
        self._unregister(run)
        self.home_of(run).removed(run.key)

    def row(self, run: Run, row: int, *, ts: int, attempts: int) -> Row:
        """A row of a run, to be put into another at `ts`."""
        record = run.record
        return Row(
            id=run.id_at(row),
            ts=ts,
            body=run.bodies[row],
            priority=record.priorities[row] if record.priorities else 0,
            attempts=attempts,
            headers=record.headers[row] if record.headers else b"",
            apart=record.apart[row] if record.apart else 0,
            first=run.first_at(row),
            last=run.last_at(row),
        )

    def body(self, run: Run, row: int) -> bytes:
        """The body of a row, wherever it is stored."""
        record = run.record
        if record.apart and 0 < record.apart[row] < LARGE:
            return self.apart.get(record.apart[row])
        return run.bodies[row]

    def sizes(self, run: Run, start: int, end: int) -> list[int]:
        """About how many bytes each row takes on the wire."""
        if run.block is not None:
            return [size + 64 for size in run.block.sizes[start:end]]
        if not run.record.apart:
            return [len(body) + 64 for body in run.bodies[start:end]]
        return [len(self.body(run, row)) + 64 for row in range(start, end)]

    def give_back(self, run: Run, mask: int) -> None:
        """Make rows of a run free again."""
        run.free |= mask & run.live
        if run.in_window:
            self.offer_free(run)

    # Buckets

    def bucket_of(self, run: Run, message_id: str) -> int:
        """The bucket of a message of a run."""
        return self.index.buckets_of((message_id,))[0] if run.spread else run.bucket

    def by_bucket(self, run: Run) -> dict[int, int]:
        """The rows of each bucket of a run, as masks."""
        if not run.spread:
            return {run.bucket: masks.full(run.count)}
        rows: dict[int, int] = {}
        for row, bucket in enumerate(self.index.buckets_of(run.ids)):
            rows[bucket] = rows.get(bucket, 0) | 1 << row
        return rows

    def share_out(self) -> None:
        """Offer the next rows that lie over several buckets in the bucket of each, to who asks for some of them."""
        source = self.window(keys.SPREAD).pop()
        for bucket, rows in self.by_bucket(source.run).items():
            self.window(bucket).offer(source.only(rows))

    # Ids

    def locate(self, ids: Sequence[str]) -> list[tuple[Run, int] | None]:
        """The run and row of each id; ids of one run share one object."""
        runs: dict[bytes, Run] = {}
        rows: dict[bytes, dict[str, int]] = {}
        found: list[tuple[Run, int] | None] = []
        for message_id, at in zip(ids, self._places(ids), strict=True):
            if at is None:
                found.append(None)
                continue
            place, counter = at
            run = runs.get(place)
            if run is None:
                run = runs[place] = self.run_at(place)
            if counter is not None:
                row = counter - run.record.first
            elif place in rows:
                row = rows[place][message_id]
            else:
                rows[place] = run.rows_by_id()
                row = rows[place][message_id]
            found.append((run, row) if run.live >> row & 1 else None)
        return found

    def _places(self, ids: Sequence[str]) -> list[tuple[bytes, int | None] | None]:
        """The place of the run of each id, and the counter of an id that is found by it."""
        generated = {
            item: parsed
            for item, message_id in enumerate(ids)
            if len(message_id) == GENERATED_LENGTH
            and (parsed := parse_generated(message_id)) is not None
            and parsed[1] < self.topic.settings.buckets
        }
        # A generated row that was released or changed is listed in the bucket it was born in.
        listed = self.index.find(ids, {item: bucket for item, (_, bucket, _) in generated.items()})
        places: list[tuple[bytes, int | None] | None] = [None if place is None else (place, None) for place in listed]
        if not generated:
            return places
        with self.database.seeking() as last_item:
            directory = Directory(self.topic.number, last_item)
            for item, parsed in generated.items():
                if places[item] is None:
                    places[item] = directory.find(*parsed)
        return places

    def standing(self, run: Run, row: int) -> tuple[Standing, tuple[Lease, Part, int] | None]:
        """What a decision about a live row needs to know, and the lease it stands in."""
        holding = None if run.free >> row & 1 else self.leases.find(run, row)
        if holding is None:
            return Standing(run.record.ts[row], run.record.owner, "", run.version_at(row)), None
        lease, _, lease_row = holding
        return Standing(lease.term_of(lease_row), run.record.owner, lease.consumer, lease.id), holding

    # Leases

    def lapse(self, now: int, batch: Batch) -> None:
        """Offer the rows of every lease that has ended, and tell the journal once."""
        for lease, expires in self.leases.take_ended(now):
            self.offer_lost(lease, expires)
            if self.outbox is not None and expires not in lease.reported:
                spans = self.spans(lease, lease.terms[expires])
                self.outbox.settled(
                    EXPIRED,
                    self.topic.name,
                    consumer=lease.consumer,
                    lease_id=lease.id,
                    spans=spans,
                    expires=expires,
                )
                lease.reported.add(expires)
                self.write_terms(batch, lease)

    def offer_free(self, run: Run) -> None:
        """Have the free rows of a run considered again."""
        self.window(run.bucket).offer(Free(run))

    def offer_lost(self, lease: Lease, expires: int) -> None:
        """Have the rows of a lease that ended then considered again."""
        for part in lease.parts:
            self.window(part.run.bucket).offer(Lost(lease, part, expires))

    def spans(self, lease: Lease, rows: int) -> list[IdSpan]:
        """The ids of rows of a lease, in the order of their numbers."""
        return [part.run.id_span(start, end) for part in lease.parts for start, end in masks.ranges(part.in_run(rows))]

    def drop_from_lease(self, batch: Batch, lease: Lease, rows: int, *, gone: bool) -> None:
        """Take rows out of a lease; the lease goes with its last row.

        Rows that are gone from their run need no mark in the lease: it is found without them when it is read.
        """
        lease.drop(rows)
        if lease.terms:
            if not gone:
                self.write_terms(batch, lease)
            return
        self.end_lease(batch, lease)

    def end_lease(self, batch: Batch, lease: Lease) -> None:
        """Remove a lease of which nothing stands."""
        batch.delete(keys.numbered(keys.LEASE, self.topic.number, lease.id))
        batch.delete(keys.numbered(keys.TERMS, self.topic.number, lease.id))
        self.leases.remove(lease)
        for part in lease.parts:
            run = part.run
            if not run.in_window and not self.leases.on_run(run.key):
                self._unregister(run)

    def write_terms(self, batch: Batch, lease: Lease) -> None:
        """Write when the rows of a lease end."""
        key = keys.numbered(keys.TERMS, self.topic.number, lease.id)
        batch.put(key, lease.terms_record().SerializeToString())

    def _load_lease(self, lease_id: int, record: records.Lease) -> None:
        parts: list[Part] = []
        standing, offset = 0, 0
        for place, start, count, due in zip(record.runs, record.starts, record.counts, record.dues, strict=True):
            run = self._leased_run(place)
            attempts = list(record.attempts[offset : offset + count]) or None
            firsts = list(record.firsts[offset : offset + count]) or None
            parts.append(Part(run, start, count, offset, due=due, attempts=attempts, firsts=firsts))
            standing |= ((run.live >> start) & masks.full(count)) << offset
            offset += count
        terms = {record.expires: standing}
        reported: set[int] = set()
        value = self.database.get(keys.numbered(keys.TERMS, self.topic.number, lease_id))
        if value is not None:
            parsed = records.Terms.FromString(value)
            terms = dict(zip(parsed.expires, map(masks.unpack, parsed.masks), strict=True))
            reported = {expires for expires, told in zip(parsed.expires, parsed.reported, strict=False) if told}
        terms = {expires: mask & standing for expires, mask in terms.items() if mask & standing}
        lease = Lease(lease_id, record.consumer, parts, terms, reported=reported, granted=record.granted_ms)
        self.leases.add(lease)
        for part in parts:
            part.run.free &= ~part.in_run(lease.rows)

    def _leased_run(self, place: bytes) -> Run:
        """The run of a part; one without rows where every row has left."""
        try:
            run = self.run_at(place)
        except KeyError:
            return Run(keys.at_place(keys.RUN, self.topic.number, place), records.Run(), 0)
        self._register(run)
        return run

    # Memory

    def home_of(self, run: Run) -> Near:
        """The part of its bucket that a run is kept in."""
        return self.window(run.bucket)

    def keeps(self, run: Run) -> bool:
        """Whether this is the object of the run that is kept."""
        return self._runs.get(run.key) is run

    def _enter_window(self, run: Run) -> None:
        window = self.home_of(run)
        if run.key >= window.cursor:
            window.left_on_disk(run.key)
        elif self._budget.spent:
            self._let_go(window.retreat(run.key))
            window.left_on_disk(run.key)
        else:
            self._register(run)
            run.in_window = True
            window.offer(Free(run))

    def _let_go(self, dropped: Sequence[Run]) -> None:
        """Keep runs no longer that left a window."""
        for run in dropped:
            run.in_window = False
            if not self.leases.on_run(run.key):
                self._unregister(run)

    def _read_runs(self, start: bytes, end: bytes, runs_max: int = _STEP_RUNS) -> tuple[list[Run], bool]:
        """The next runs from `start`, a step's worth, and whether that is all before `end`."""
        items: list[tuple[bytes, bytes]] = []
        size = 0
        for item in self.database.scan(start, end):
            items.append(item)
            size += len(item[1])
            if size >= _STEP_BYTES or len(items) >= runs_max:
                break
        if not items:
            return [], True
        span = self.database.scan(keys.gone(items[0][0]), keys.gone(items[-1][0]) + b"\0")
        gone = {key[1:]: masks.unpack(value) for key, value in span}
        runs: list[Run] = []
        for key, value in items:
            run = self._runs.get(key)
            if run is None:
                run = Run.parse(key, value, gone.get(key[1:], 0), self.leases.leased_rows(key))
                self._register(run)
            runs.append(run)
        return runs, size < _STEP_BYTES and len(items) < runs_max

    def _register(self, run: Run) -> None:
        if run.key not in self._runs:
            self._runs[run.key] = run
            self._budget.used += run.size

    def _unregister(self, run: Run) -> None:
        if self._runs.pop(run.key, None) is not None:
            self._budget.used -= run.size
