"""A topic in memory: the runs in memory, the leases, the counts; and the steps from which every change is built.

A change alters the state and fills a write batch without a pause; then the batch is written. When the write fails, the
whole state is dropped and read again from disk, so the state is never ahead of the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dejaq.domain.batch import IdSpan
from dejaq.domain.bodies.body_block import BodyBlock
from dejaq.domain.id_column import IdColumn
from dejaq.domain.ids import bucket_in
from dejaq.domain.topic import Topic
from dejaq.domain.transitions import Standing
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.outbox import EXPIRED, Outbox
from dejaq.storage.rocksdb.bodies.body_store import BodyStore
from dejaq.storage.rocksdb.bodies.large import LARGE, LargeBodies
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.created_ids import RocksCreatedIds
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase
from dejaq.storage.rocksdb.engine.frames import FRAME_BYTES_MIN, NewFrame
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.demand import Demand
from dejaq.storage.rocksdb.timeline.directory import Finder
from dejaq.storage.rocksdb.timeline.draft import Draft, record_of
from dejaq.storage.rocksdb.timeline.index import YOUNG_MS, Index
from dejaq.storage.rocksdb.timeline.kept_runs import KeptRuns
from dejaq.storage.rocksdb.timeline.lease import LeaseBook, LeasePart, LeaseState, load_leases
from dejaq.storage.rocksdb.timeline.levels.columns import Encoded
from dejaq.storage.rocksdb.timeline.levels.moved_rows import MovedRows
from dejaq.storage.rocksdb.timeline.levels.settings import LevelSettings
from dejaq.storage.rocksdb.timeline.levels.thin_runs import ThinRuns
from dejaq.storage.rocksdb.timeline.levels.wide_runs import Ids, Shelf, WideRuns, extent_of
from dejaq.storage.rocksdb.timeline.memory.budget import Budget
from dejaq.storage.rocksdb.timeline.memory.minute_table import Column
from dejaq.storage.rocksdb.timeline.memory.near import Near
from dejaq.storage.rocksdb.timeline.memory.near_rows import offer_rows
from dejaq.storage.rocksdb.timeline.memory.owner_counts import OwnerCounts, count_rows
from dejaq.storage.rocksdb.timeline.minute_counts import MinuteCounts
from dejaq.storage.rocksdb.timeline.owners import Owners
from dejaq.storage.rocksdb.timeline.run import Run
from dejaq.storage.rocksdb.timeline.session_sequences import SessionSequences
from dejaq.storage.rocksdb.timeline.window import ExpiredRows, FreeRows, Window, load_step

_SLICE_STEPS = 64
# When the memory is used up, steps are small and there are few of them.
_SLICE_STEPS_FEW = 8
# After so many steps it is found out again whether there are many rows to choose from.
_WEIGHED_STEPS = 24
# So many due rows of a topic in memory, in many runs, need not leave in the exact order of their times.
_CROWD_BYTES, _SPENT_PART = 4 * 1024 * 1024, 8
# (bucket, slice, owner) of a run; its ids and bodies, where they are not in the record, and its times.
_Place = tuple[int, int, int]
_Columns = tuple[IdColumn | None, BodyBlock | None, Column]


class TopicState:
    """The in-memory state of one topic."""

    def __init__(
        self,
        topic: Topic,
        database: RocksDatabase,
        *,
        budget: Budget,
        number: Callable[[], int],
        outbox: Outbox | None,
        large: LargeBodies | None = None,
        levels: LevelSettings | None = None,
    ) -> None:
        self.topic = topic
        self.levels = levels or LevelSettings()
        # The time of the change in progress.
        self.now = 0
        # When rows were last leased or loaded, as the event loop counts.
        self.used_at = 0.0
        self._outbox = outbox
        self.database = database
        self.minute_counts = MinuteCounts(topic.number)
        # Counts by producer group, once somebody has asked for one.
        self.owner_counts: OwnerCounts | None = None
        self.leases = LeaseBook(budget)
        self.runs = KeptRuns(topic.number, database, self.leases, budget)
        self.sequences = SessionSequences(topic.number, database)
        self.created = RocksCreatedIds(topic, database) if topic.settings.dedup_ms else None
        self.next_number = number
        self._windows: dict[int, Window] = {}
        self.demand = Demand(topic.settings.buckets)
        self.owners = Owners(topic)
        self.index = Index(topic.number, topic.settings.buckets, database, budget, number=number)
        self.wide = WideRuns(topic.number, self.index.is_young, budget)
        # Those in the order of priority that are worth merging.
        self.thin = ThinRuns(self.levels)
        self.moved = MovedRows(topic.number, database, self.wide.has_number, budget)
        self.body_store = BodyStore(topic, database, number=number, large=large)

    def load(self) -> None:
        """Read counts, owners and leases; runs are read when they are needed."""
        self.minute_counts.load(self.database)
        self.owners.load(self.database)
        for lease in load_leases(self.topic.number, self.database, self.runs.leased):
            self.leases.add(lease)
        self.index.load(self.runs.at)
        self.wide.load(self.database)
        self.moved.load()
        if self.created is not None:
            self.created.load()

    @property
    def outbox(self) -> Outbox | None:
        """The outbox for the events of a change; None when the topic has no journal."""
        return self._outbox if self.topic.settings.journal else None

    @property
    def total(self) -> int:
        """The number of messages."""
        return self.minute_counts.total

    def write_counts(self, batch: Batch) -> None:
        """Put every changed count into the batch."""
        self.minute_counts.write(batch)
        self.index.write(batch)
        self.body_store.write(batch, self.now)
        if self.created is not None:
            self.created.written()

    def close(self) -> None:
        """Release the memory of this topic."""
        for part in (self.index, self.wide, self.moved, self.runs, self.leases):
            part.close()

    # Runs

    def window(self, bucket: int) -> Window:
        """The window of a bucket."""
        window = self._windows.get(bucket)
        if window is None:
            window = self._windows[bucket] = Window(self.topic.number, bucket)
        return window

    def load_near(self, bucket: int, until: int) -> bool:
        """Read one step of a bucket's rows up to `until` into memory; False when all of them are in memory."""
        if self.runs.budget.spent:
            return False
        return load_step(self.window(bucket), self.runs.read, until)

    def load_due(self, bucket: int, until: int, *, begun: bool = False) -> Window:
        """The window of a bucket with its first due row, if there is one.

        Rows of a slice have no order, so the whole slice is read before a row leaves; of a slice that is larger than
        `_SLICE_STEPS` steps, only these steps. A lease that has `begun`, or that has many rows to choose from, takes
        what is there. Usually `read_step` has read before what a lease needs.
        """
        window = self.window(bucket)
        steps = 0
        while not self._has_due(bucket, until, steps, begun=begun) and load_step(window, self.runs.read, until):
            steps += 1
        return window

    def _crowd_bytes(self, bucket: int) -> int:
        """How many bytes of due rows are enough to choose from; fewer where the memory is used up."""
        enough = _CROWD_BYTES // _SPENT_PART if self.runs.budget.spent else _CROWD_BYTES
        return enough if bucket == keys.SPREAD else enough // self.topic.settings.buckets

    def _has_due(self, bucket: int, until: int, steps: int, *, begun: bool = False) -> bool:
        """Whether enough is in memory to lease the first row up to `until`, after so many steps."""
        window = self.window(bucket)
        head = window.head()
        if head is None or head[0] > until:
            return False
        if not begun and steps % _WEIGHED_STEPS == 0:
            window.weigh(self._crowd_bytes(bucket))
        steps_max = _SLICE_STEPS_FEW if self.runs.budget.exhausted else _SLICE_STEPS
        return begun or window.crowded or steps >= steps_max or window.has_enough(head[0])

    def has_read(self, buckets: Sequence[int], until: int) -> bool:
        """Whether everything up to `until` is in memory."""
        return all(self.window(bucket).reaches(until) for bucket in (*buckets, keys.SPREAD))

    def read_step(self, bucket: int, until: int, steps: int) -> bool:
        """Read one step of what a lease up to `until` needs, after so many others; False when enough is in memory."""
        window = self.window(bucket)
        if self._has_due(bucket, until, steps):
            window.read_enough(until)
            return False
        return load_step(window, self.runs.read, until)

    def read_before(self, bucket: int, ts: int) -> bool:
        """Read one step of the rows before `ts`; False when all of them are in memory.

        Rows of an expired lease are in memory whatever their time, and earlier rows may still be on disk.
        """
        window = self.window(bucket)
        return not window.has_enough(ts) and load_step(window, self.runs.read, ts)

    @property
    def loaded(self) -> list[int]:
        """The buckets that have rows in memory."""
        return [bucket for bucket, window in self._windows.items() if not window.is_empty]

    def unload(self, bucket: int) -> None:
        """Forget the rows of a bucket; they are read again when they are needed."""
        self._let_go(self.window(bucket).retreat(keys.of_bucket(keys.RUN, self.topic.number, bucket)))

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
        times: Column | None = None,
    ) -> Run:
        """Write a new run with its directory entry or its ids in the index, and its count.

        `ids` and `block` have the listed ids and the bodies that the record does not contain; `times` has the times of
        the record as a column, if they are one. A run that is `due` is kept in memory.
        The slice of a wide run is that of its first row.
        """
        if times is None:
            times = np.array(record.ts, dtype=np.int64)
        run = self._new_run(batch, (bucket, time_slice, owner), record, (ids, block, times))
        key, first, last = run.key, int(times[0]), int(times[-1])
        if record.session:
            entry = keys.directory(self.topic.number, bucket, record.session, record.first)
            batch.put(entry, key[7:] + len(times).to_bytes(4, "big"))
        else:
            self.index.add(batch, key, run.ids, times, young=first <= self.now + YOUNG_MS)
        self._count(run, run.live, 1, times)
        if run.wide or (run.spread and first < last and self.index.is_young(key) and not run.is_small):
            self.wide.add(batch, key, extent_of(run, 0, Ids.GENERATED if record.session else Ids.LISTED))
        if due and not self.runs.budget.spent:
            self.window(bucket).reach_for(key, self.database.first_key)
        self._enter_window(run)
        return run

    def _new_run(self, batch: Batch, place: _Place, record: records.Run, columns: _Columns) -> Run:
        ids, block, times = columns
        key = keys.run(self.topic.number, *place[:2], self.next_number(), place[2])
        value = self.database.values.run(key, record, ids, block, times)
        frame = self._put_value(batch, key, value)
        return Run(key, record, len(value), block=block, ids=ids, frame=frame)

    def _put_value(self, batch: Batch, key: bytes, value: bytes) -> NewFrame | None:
        """Write the value of a run: as a frame of the commit log, or into the database where that is cheaper."""
        if len(value) >= FRAME_BYTES_MIN:
            return batch.put_frame(key, value, self.topic.number)
        batch.put(key, value)
        return None

    def add_rows(self, batch: Batch, draft: Draft) -> None:
        """Write the rows of a draft as new runs of listed ids."""
        for (bucket, time_slice, owner), rows in draft.rows.items():
            self.add_run(batch, bucket, time_slice, owner, record_of(self.owners.name(owner), rows))

    def _count(self, run: Run, rows: int, sign: int, times: Column | None = None) -> None:
        count_rows(self.minute_counts, self.owner_counts, run, rows, sign, times)

    def remove_rows(self, batch: Batch, run: Run, mask: int, *, keep_bodies: bool = False) -> None:
        """Remove live rows from a run; with the last row the run is removed."""
        record = run.record
        self._count(run, mask, -1)
        ids = self.wide.ids_of(run.key)
        if not record.session and ids is not Ids.GENERATED_ELSEWHERE:
            self.index.remove(batch, run, mask, moved=ids is Ids.LISTED_ELSEWHERE)
        if record.apart and not keep_bodies:
            for row in masks.rows(mask):
                if record.apart[row]:
                    self.body_store.drop(batch, record.apart[row])
        self._take_out(batch, run, mask)

    def _take_out(self, batch: Batch, run: Run, mask: int) -> None:
        """Mark live rows of a run as gone; with the last of them, remove the run."""
        topic, record = self.topic.number, run.record
        had_gone = run.live != masks.full(run.count)
        run.live &= ~mask
        run.free &= ~mask
        self.runs.stored.forget(run.key)
        if run.live:
            batch.put(keys.gone(run.key), masks.pack(masks.full(run.count) & ~run.live))
            self.runs.shrink(run)
            return
        batch.delete(run.key)
        if run.frame is not None:
            batch.released.append((topic, run.frame))
        if had_gone:
            batch.delete(keys.gone(run.key))
        if record.session and run.number not in self.moved:
            batch.delete(keys.directory(topic, run.bucket, record.session, record.first))
        if run.key in self.wide:
            self.wide.remove(batch, run.key)
            self.moved.removed(batch, run.number)
        if not self.total:
            self.index.emptied(batch)
        self.runs.let_go(run)
        self.home_of(run).removed(run.key)

    def replace_rows(
        self,
        batch: Batch,
        sources: Sequence[tuple[Run, int]],
        merged: Sequence[Encoded],
        *,
        shelf: Shelf,
        merge: int,
    ) -> None:
        """Put new runs, each of a bucket, in the place of free rows of others; nothing else about a row changes.

        The entries of their ids remain as they are; ids in memory get their new run.
        """
        for run, mask in sources:
            if shelf.young:
                self.index.remove(batch, run, mask)
            else:
                self.moved.add_source(batch, run, merge)
                known = self.wide.ids_of(run.key)
                if mask != run.live and known is None:
                    # Of a run with rows elsewhere it must be known that it is there.
                    self.wide.add(batch, run.key, extent_of(run, 0, Ids(shelf.generated)))
                elif mask == run.live and known in (None, Ids.LISTED) and not shelf.generated:
                    self.index.forget_place(batch, run)
            self._take_out(batch, run, mask)
        for bucket, record, ids, block, times in merged:
            record.counted = shelf.by_priority and shelf.generated and bucket == keys.SPREAD
            ready = keys.ready_slice(next(iter(record.priorities), 0)) if shelf.by_priority else 0
            place = bucket, ready or record.ts[0] // keys.SLICE_MS, shelf.owner
            run = self._new_run(batch, place, record, (ids, block, times))
            kind = Ids.GENERATED_ELSEWHERE if shelf.generated else Ids.LISTED if shelf.young else Ids.LISTED_ELSEWHERE
            extent = extent_of(run, shelf.level + 1, kind)
            if shelf.young:
                self.index.add(batch, run.key, ids, times, young=True)
            else:
                self.moved.add_piece(batch, merge, run, extent)
            self.wide.add(batch, run.key, extent)
            self._enter_window(run)
        # Ids in memory that became too many have entries now.
        self.index.write(batch)

    def body(self, run: Run, row: int) -> bytes:
        """The body of a row, wherever it is stored."""
        record = run.record
        if record.apart and 0 < record.apart[row] < LARGE:
            return self.body_store.get(record.apart[row])
        return run.bodies[row]

    def sizes(self, run: Run, start: int, end: int) -> list[int]:
        """About how many bytes each row has in a frame."""
        if run.block is not None:
            return [size + 64 for size in run.block.sizes[start:end]]
        if not run.record.apart:
            return [len(body) + 64 for body in run.bodies[start:end]]
        return [len(self.body(run, row)) + 64 for row in range(start, end)]

    def free_rows(self, run: Run, mask: int) -> None:
        """Make rows of a run free again."""
        run.free |= mask & run.live
        if run.in_window and not self._offer_rows(run, mask & run.live):
            self.offer_free(run)

    # Buckets

    def bucket_of(self, run: Run, message_id: str) -> int:
        """The bucket of a message of a run."""
        return self._buckets_of(run, (message_id,))[0] if run.spread else run.bucket

    def by_bucket(self, run: Run) -> dict[int, int]:
        """The rows of each bucket of a run, as masks."""
        if not run.spread:
            return {run.bucket: masks.full(run.count)}
        rows: dict[int, int] = {}
        for row, bucket in enumerate(self._buckets_of(run, run.ids)):
            rows[bucket] = rows.get(bucket, 0) | 1 << row
        return rows

    def _buckets_of(self, run: Run, ids: Sequence[str]) -> list[int]:
        return list(map(bucket_in, ids)) if run.record.counted else self.index.buckets_of(ids)

    # Ids

    def locate(self, ids: Sequence[str]) -> list[tuple[Run, int] | None]:
        """The run and row of each id; ids of one run share one object."""
        return Finder(self.topic, self.database, self.index, self.moved, self.runs.at).find(ids)

    def standing(self, run: Run, row: int) -> tuple[Standing, tuple[LeaseState, LeasePart, int] | None]:
        """The state of a live row for a decision, and its lease."""
        holding = None if run.free >> row & 1 else self.leases.find(run, row)
        if holding is None:
            return Standing(run.record.ts[row], run.record.owner, "", run.version_at(row)), None
        lease, _, lease_row = holding
        return Standing(lease.term_of(lease_row), run.record.owner, lease.consumer, lease.id), holding

    # Leases

    def expire_leases(self, now: int, batch: Batch) -> None:
        """Offer the rows of every lease that has ended, and record each in the journal once."""
        for lease, expires in self.leases.take_ended(now):
            self.offer_expired(lease, expires)
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
        """Offer the free rows of a run again."""
        self.window(run.bucket).offer(FreeRows(run))

    def offer_expired(self, lease: LeaseState, expires: int) -> None:
        """Offer the rows of a lease that ended at this time again."""
        for part in lease.parts:
            self.window(part.run.bucket).offer(ExpiredRows(lease, part, expires))

    def spans(self, lease: LeaseState, rows: int) -> list[IdSpan]:
        """The ids of rows of a lease, in the order of their numbers."""
        return [span for part in lease.parts_of(rows) for span in part.id_spans(part.in_run(rows))]

    def drop_from_lease(self, batch: Batch, lease: LeaseState, rows: int, *, gone: bool) -> None:
        """Remove rows from a lease; with its last row the lease is removed.

        Rows that are removed from their run need no mark in the lease: when the lease is read, it is found without
        them.
        """
        lease.drop(rows)
        if lease.terms:
            if not gone:
                self.write_terms(batch, lease)
            return
        self.end_lease(batch, lease)

    def end_lease(self, batch: Batch, lease: LeaseState) -> None:
        """Remove a lease without remaining rows."""
        batch.delete(keys.numbered(keys.LEASE, self.topic.number, lease.id))
        batch.delete(keys.numbered(keys.TERMS, self.topic.number, lease.id))
        self.leases.remove(lease)
        for part in lease.parts:
            run = part.run
            if not run.in_window and not self.leases.on_run(run.key):
                self.runs.let_go(run)

    def write_terms(self, batch: Batch, lease: LeaseState) -> None:
        """Write the ends of the rows of a lease."""
        key = keys.numbered(keys.TERMS, self.topic.number, lease.id)
        batch.put(key, lease.terms_record().SerializeToString())

    # Memory

    def home_of(self, run: Run) -> Near:
        """The part of its bucket that keeps a run."""
        return self.window(run.bucket)

    def _enter_window(self, run: Run) -> None:
        window = self.home_of(run)
        if run.key < window.cursor and self.runs.budget.spent:
            # A part of the rows makes room for many; to drop the rows behind each new run would cost more.
            self._let_go(window.retreat(window.late_key() or run.key))
        if run.key >= window.cursor:
            window.left_on_disk(run.key)
        else:
            self.runs.keep(run)
            run.in_window = True
            if not self._offer_rows(run, run.free):
                window.offer(FreeRows(run))

    def _offer_rows(self, run: Run, rows: int) -> bool:
        """Offer rows of a small run one by one, each in its bucket; False for another run."""
        if self.topic.by_priority or not run.is_small:
            return False
        if run.spread:
            self.window(run.bucket).divided[run.key] = run
        offer_rows(run, rows, self._buckets_of, lambda bucket: self.window(bucket).near)
        return True

    def _let_go(self, dropped: Sequence[Run]) -> None:
        """Drop runs that left a window."""
        for run in dropped:
            run.in_window = False
            if not self.leases.on_run(run.key):
                self.runs.let_go(run)
        buckets = {run.bucket for run in dropped if run.is_small}
        for bucket in self._windows if keys.SPREAD in buckets else buckets:
            self.window(bucket).near.forget_dropped()
