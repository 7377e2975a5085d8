"""Priority topics: their order on disk, and how the next rows are found among a million messages.

Messages that are due when they are written go to the *ready* part of their bucket, whose keys are in the order of
priority. Messages that are ahead of their time are sorted by time, as on a timeline, and are offered together with the
ready part when their time comes; their records stay where they are. A run has one priority; or, in the ready part, a
few rows of several similar priorities, sorted and all due at one time, so that a batch with thousands of priorities
becomes dozens of runs (`priority_cuts`); or the merged rows of many such runs (`levels.thin_runs`).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice

from dejaq.domain.batch import LeaseRequest
from dejaq.domain.topic import Topic
from dejaq.storage.outbox import Outbox
from dejaq.storage.rocksdb.bodies.large import LargeBodies
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.draft import Draft, DraftRow, record_of
from dejaq.storage.rocksdb.timeline.lease import LeasePart, LeaseState
from dejaq.storage.rocksdb.timeline.levels.settings import LevelSettings
from dejaq.storage.rocksdb.timeline.memory.budget import Budget
from dejaq.storage.rocksdb.timeline.memory.minute_table import Column
from dejaq.storage.rocksdb.timeline.memory.near import Near
from dejaq.storage.rocksdb.timeline.minute_counts import READY_COUNTS, MinuteCounts
from dejaq.storage.rocksdb.timeline.priority_cuts import slice_for
from dejaq.storage.rocksdb.timeline.ready import FRONT_ROWS_MIN, LAST_RANK, Front, ReadyWindow
from dejaq.storage.rocksdb.timeline.run import Key, Run, priority_of, rank, ts_of
from dejaq.storage.rocksdb.timeline.topic_state import TopicState
from dejaq.storage.rocksdb.timeline.window import ExpiredRows, FreeRows, ReadingAllowance, load_step

# How many bytes of the ready part are read at once and kept in memory, over all buckets.
_STEP_RUNS = 2_048
_STEP_RUNS_MIN, _STEP_RUNS_MAX = 32, 64
_KEPT_RUNS = 16_384
_KEPT_RUNS_MIN = 128
_LOAD_STEPS = 8
# A bucket from which a lease took fewer than `FEW_ROWS` rows per run, from at least so many runs, is merged soon.
PARTS_MIN = 8
FEW_ROWS = 4
# So many runs over several buckets are divided in one lease.
_DIVIDED_RUNS = 8
# How many runs of a priority are read to find its oldest message.
_OLDEST_RUNS = 8


class PriorityTopicState(TopicState):
    """The in-memory state of one priority topic."""

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
        super().__init__(topic, database, budget=budget, number=number, outbox=outbox, large=large, levels=levels)
        buckets = topic.settings.buckets
        self.ready_minute_counts = MinuteCounts(topic.number, READY_COUNTS)
        self._ready: dict[int, ReadyWindow] = {}
        self._step_runs = max(_STEP_RUNS_MIN, min(_STEP_RUNS // buckets, _STEP_RUNS_MAX))
        self._kept_runs = max(_KEPT_RUNS_MIN, _KEPT_RUNS // buckets)

    def load(self) -> None:
        """Read the counts of the ready part, and the rest of the state."""
        self.ready_minute_counts.load(self.database)
        super().load()

    @property
    def total(self) -> int:
        """The number of messages."""
        return self.minute_counts.total + self.ready_minute_counts.total

    def write_counts(self, batch: Batch) -> None:
        """Put every changed count into the batch."""
        super().write_counts(batch)
        self.ready_minute_counts.write(batch)

    def _count(self, run: Run, rows: int, sign: int, times: Column | None = None) -> None:
        if not _is_ready(run):
            super()._count(run, rows, sign, times)
            return
        ts = run.record.ts
        first, last = ts[0], ts[-1]
        if run.merged:
            if not run.latest:
                run.ranks()
            first, last = run.earliest, run.latest
        if first // keys.MINUTE_MS == last // keys.MINUTE_MS:
            self.ready_minute_counts.add(first // keys.SLICE_MS, sign * rows.bit_count())
            return
        for start, end in masks.ranges(rows):
            self.ready_minute_counts.add_times(ts[start:end], sign)

    def add_rows(self, batch: Batch, draft: Draft) -> None:
        """Write the rows of a draft as runs of one priority."""
        cuts: dict[tuple[int, int, int, int], list[DraftRow]] = {}
        for (bucket, _, owner), rows in draft.rows.items():
            for row in rows:
                place = (bucket, slice_for(row.ts, row.priority, self.now), owner, row.priority)
                cuts.setdefault(place, []).append(row)
        for (bucket, time_slice, owner, _), rows in cuts.items():
            self.add_run(batch, bucket, time_slice, owner, record_of(self.owners.name(owner), rows))

    # Rows in memory

    def ready(self, bucket: int) -> ReadyWindow:
        """The due rows of a bucket."""
        window = self._ready.get(bucket)
        if window is None:
            window = self._ready[bucket] = ReadyWindow(self.topic.number, bucket, self.runs.keeps)
        return window

    def home_of(self, run: Run) -> Near:
        """The part of its bucket that keeps a run."""
        return self.ready(run.bucket) if _is_ready(run) else self.window(run.bucket)

    def offer_free(self, run: Run) -> None:
        """Offer the free rows of a run again; rows that become free again were due."""
        self.ready(run.bucket).offer(FreeRows(run))

    def offer_expired(self, lease: LeaseState, expires: int) -> None:
        """Offer the rows of a lease that ended at this time again."""
        for part in lease.parts:
            self.ready(part.run.bucket).offer(ExpiredRows(lease, part, expires))

    def _enter_window(self, run: Run) -> None:
        ready = self.ready(run.bucket) if _is_ready(run) else None
        if ready is not None and not (self.runs.budget.spent or ready.has_unread(self.database.first_key)):
            # Nothing waits on disk, so the run need not be read again before it is leased or merged.
            ready.reach_end()
        super()._enter_window(run)
        if ready is not None:
            self._note_thin(run)
            excess = ready.excess(self._kept_runs)
            if excess is not None:
                self._let_go(ready.retreat(excess))

    @property
    def spreads(self) -> bool:
        """Whether rows of several buckets are stored together: if there are few consumers, that is best for them."""
        return self.topic.settings.buckets > 1 and not self.demand.shared_by_many

    def _note_thin(self, run: Run) -> None:
        known = self.wide.at(run.key) if run.key in self.wide else None
        # Of a listed id that lies in a bucket it is not known whether it says so.
        counted = run.generated or run.record.counted
        self.thin.add(run, known, keys.SPREAD if counted and self.spreads else run.bucket)

    def _take_out(self, batch: Batch, run: Run, mask: int) -> None:
        super()._take_out(batch, run, mask)
        if not run.live:
            self.thin.discard(run.key)

    def want_merge(self, parts: Sequence[LeasePart]) -> None:
        """Have thin runs merged if a lease took single rows of many of them."""
        thin = [part.count for part in parts if part.run.key in self.thin]
        if len(thin) >= PARTS_MIN and sum(thin) < FEW_ROWS * len(thin):
            self.thin.want()

    def first_priority(self, buckets: Sequence[int], now: int) -> int | None:
        """The priority of the next row of some buckets, if there is one."""
        heads = (self.head(bucket, now) for bucket in (*buckets, keys.SPREAD))
        return min((head[0] for head in heads if head is not None), default=None)

    def divide(self) -> None:
        """Offer the rows of the next run over several buckets in the bucket of each; `head` has found one."""
        source = self.ready(keys.SPREAD).pop()
        for bucket, rows in self.by_bucket(source.run).items():
            self.ready(bucket).offer(source.only(rows))

    def divide_step(self, buckets: Sequence[int], now: int) -> bool:
        """Divide the next run over several buckets, for a consumer of some buckets; False once one of its own rows
        comes next, or there is no such run.
        """
        if len(set(buckets)) == self.topic.settings.buckets or (first := self.head(keys.SPREAD, now)) is None:
            return False
        for bucket in buckets:
            self.ripen(bucket, now)
            head = self.head(bucket, now)
            if head is not None and head <= first:
                return False
        self.divide()
        return True

    def head(self, bucket: int, now: int) -> Key | None:
        """(priority, ts) of the next due row of a bucket, which is read into memory with all rows of its priority.

        Rows that become due in the part that is sorted by time are found by `ripen`.
        """
        ready = self.ready(bucket)
        steps = 0
        while True:
            head = ready.head()
            if head is not None and head[1] > now:
                # Part of a run that is sorted by time and is not due yet; or the clock was set back.
                self.window(bucket).offer(ready.pop())
                continue
            if head is not None and (steps >= _LOAD_STEPS or ready.reaches(head[0])):
                return head
            if not ready.load_step(self._read_ready):
                return head
            steps += 1

    def ripen(self, bucket: int, now: int) -> None:
        """Offer the rows that have become due in the part that is sorted by time."""
        window = self.window(bucket)
        while not self._has_ripe(bucket, now) and load_step(window, self.runs.read, now):
            pass
        while (head := window.head()) is not None and head[0] <= now:
            self.ready(bucket).offer(window.pop())

    def _has_ripe(self, bucket: int, now: int) -> bool:
        """Whether all rows that are due are in memory; or some of them, when the memory is used up."""
        window = self.window(bucket)
        if not self.runs.budget.exhausted:
            return window.reaches(now)
        head = window.head()
        return self.ready(bucket).head() is not None or (head is not None and head[0] <= now)

    def read_step(self, bucket: int, until: int, steps: int) -> bool:
        """Read one step of what a lease needs, after so many others; False when enough is in memory."""
        if not self._has_ripe(bucket, until):
            return load_step(self.window(bucket), self.runs.read, until)
        ready = self.ready(bucket)
        head = ready.head()
        if steps >= _LOAD_STEPS or (head is not None and ready.reaches(head[0])):
            return False
        return self.read_on(bucket)

    def has_read(self, buckets: Sequence[int], until: int) -> bool:
        """Whether everything up to `until`, and the most urgent of what was due before, is in memory."""
        return self.ready(keys.SPREAD).has_first and all(
            self.window(bucket).reaches(until) and self.ready(bucket).has_first for bucket in buckets
        )

    def unload(self, bucket: int) -> None:
        """Forget the rows of a bucket; they are read again when they are needed."""
        super().unload(bucket)
        ready = self._ready.get(bucket)
        if ready is not None:
            self._let_go(ready.retreat(keys.ready_start(self.topic.number, bucket)))
            self._let_go(ready.forget_ripe())
            if shared := ready.forget_shared():
                self._let_go(shared)
                spread = self.ready(keys.SPREAD)
                self._let_go(spread.retreat(keys.ready_start(self.topic.number, keys.SPREAD)))

    @property
    def loaded(self) -> list[int]:
        """The buckets that have rows in memory."""
        ready = [bucket for bucket, window in self._ready.items() if not window.is_empty]
        return list({*super().loaded, *ready})

    def read_on(self, bucket: int) -> bool:
        """Read some more of the ready part of a bucket into memory; False when all of it is in memory."""
        return self.ready(bucket).load_step(self._read_ready)

    def _read_ready(self, start: bytes, end: bytes) -> tuple[list[Run], bool]:
        runs, complete = self.runs.read(start, end, self._step_runs)
        for run in runs:
            self._note_thin(run)
        return runs, complete

    def next_due(self, buckets: Sequence[int]) -> int | None:
        """A time before which nothing becomes due; 0 while something is due."""
        times = [] if (end := self.leases.next_end()) is None else [end]
        for bucket in (*buckets, keys.SPREAD):
            ready = self.ready(bucket)
            if ready.head() is not None or ready.has_unread(self.database.first_key):
                return 0
        for bucket in buckets:
            window = self.window(bucket)
            head = window.head()
            if head is not None:
                times.append(head[0])
            unloaded = window.next_unloaded(self.database.first_key)
            if unloaded is not None and unloaded < keys.READY_SLICE * keys.SLICE_MS:
                times.append(unloaded)
        return min(times, default=None)


def _is_ready(run: Run) -> bool:
    return run.slice >= keys.READY_SLICE


def take(
    state: PriorityTopicState, request: LeaseRequest, now: int, batch: Batch
) -> tuple[list[LeasePart], list[LeaseState]]:
    """Take due rows, lowest priority first over all buckets; returns them and the expired leases of some rows."""
    state.expire_leases(now, batch)
    whole = state.demand.note(request.buckets, now)
    for bucket in request.buckets:
        state.ripen(bucket, now)
    heads = _heads(state, [*request.buckets, keys.SPREAD], now)
    parts: list[LeasePart] = []
    expired: dict[int, LeaseState] = {}
    # Rows by run, so that the rows of one run form one part.
    picked: dict[Run, int] = {}
    allowance = ReadingAllowance(request.rows_max, request.bytes_max, state.sizes)
    divided = 0
    while heads and not allowance.spent:
        bucket = heads[0][1]
        ready = state.ready(bucket)
        if bucket == keys.SPREAD and not whole:
            if divided == _DIVIDED_RUNS:
                break
            divided += 1
            state.divide()
            heads = _heads(state, [*request.buckets, keys.SPREAD], now)
            continue
        if ready.led_by_run:
            if not _gather(state, heads, now, allowance, picked, whole=whole):
                # The row does not fit.
                break
            heads = _heads(state, [bucket for _, bucket in heads], now)
            continue
        source, taken = ready.take(min(heads[1:3])[0] if len(heads) > 1 else None, now, allowance)
        if not taken:
            break
        parts += taken
        if isinstance(source, ExpiredRows):
            expired[source.lease.id] = source.lease
        head = state.head(bucket, now)
        if head is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (head, bucket))
    parts += (part for run, rows in picked.items() for part in _parts(run, rows))
    return parts, list(expired.values())


def _heads(state: PriorityTopicState, buckets: Iterable[int], now: int) -> list[tuple[Key, int]]:
    """The first row of each bucket that has one, as a heap."""
    heads = [(head, bucket) for bucket in buckets if (head := state.head(bucket, now)) is not None]
    heapq.heapify(heads)
    return heads


def _gather(
    state: PriorityTopicState,
    heads: Sequence[tuple[Key, int]],
    now: int,
    allowance: ReadingAllowance,
    picked: dict[Run, int],
    *,
    whole: bool,
) -> bool:
    """Choose the next rows of the buckets while they are in the order of priority; False when none fits."""
    fronts: list[Front] = []
    share, limit = allowance.rows * 3 // 2 // len(heads) + FRONT_ROWS_MIN, LAST_RANK
    known: dict[bytes, int] = {}
    # Runs over several buckets first: rows of them may be offered in their buckets too.
    for head, bucket in sorted(heads, key=lambda one: -one[1]):
        spread = bucket == keys.SPREAD
        if spread and not whole:
            limit = min(limit, rank(*head))
            continue
        wanted = allowance.rows if spread else min(share, allowance.rows)
        found, bound = state.ready(bucket).fronts(wanted, now, known)
        fronts += found
        limit = min(limit, bound)
    counts = _fitting(fronts, _first(fronts, limit, allowance.rows), allowance)
    for front, count in zip(fronts, counts, strict=True):
        run = front.source.run
        if count:
            picked[run] = picked.get(run, 0) | front.take(count)
        front.home.offer(front.source)
    return any(counts)


def _first(fronts: Sequence[Front], limit: int, rows: int) -> list[int]:
    """How many rows of each front are among the first `rows` rows whose rank is at most `limit`."""
    counts = [bisect_right(front.ranks, limit) for front in fronts]
    if sum(counts) <= rows:
        return counts
    ranks = sorted(chain.from_iterable(front.ranks[:count] for front, count in zip(fronts, counts, strict=True)))
    last = ranks[rows - 1]
    counts = [bisect_left(front.ranks, last) for front in fronts]
    left = rows - sum(counts)
    for number, front in enumerate(fronts):
        alike = min(left, bisect_right(front.ranks, last) - counts[number])
        counts[number] += alike
        left -= alike
    return counts


def _fitting(fronts: Sequence[Front], counts: list[int], allowance: ReadingAllowance) -> list[int]:
    """How many of these rows fit, counted from the first; they are removed from the allowance."""
    runs = [front.source.run for front in fronts]
    size = sum(run.size * count // run.count for run, count in zip(runs, counts, strict=True))
    if size <= allowance.bytes and not any(run.record.apart for run in runs):
        allowance.rows -= sum(counts)
        allowance.bytes -= size
        allowance.empty = allowance.empty and not any(counts)
        return counts
    following = sorted(
        (front.ranks[at], number, front.rows[at]) for number, front in enumerate(fronts) for at in range(counts[number])
    )
    counts = [0] * len(counts)
    for _, number, row in following:
        if allowance.spent or allowance.take(runs[number], row, row + 1) == row:
            break
        counts[number] += 1
    return counts


def _parts(run: Run, rows: int) -> Iterator[LeasePart]:
    if run.spread and not (run.record.attempts or run.record.firsts):
        # Rows of one consumer lie between those of others: one part for all of them.
        yield LeasePart.of_mask(run, rows)
        return
    for start, end in masks.ranges(rows):
        attempts = [n + 1 for n in run.record.attempts[start:end]] or None
        yield LeasePart(
            run, start, end - start, 0, attempts=attempts, firsts=list(run.record.firsts[start:end]) or None
        )


def oldest(state: TopicState, bucket: int, now: int, count: int) -> Iterator[tuple[int, int]]:
    """(priority, ts) of the oldest due message, for the most and least urgent priorities of a bucket."""
    if not isinstance(state, PriorityTopicState):
        return
    ready = state.ready(bucket)
    yield from (key for key in ready.kept_by_time() if key[1] <= now)
    # A merged run may be older than runs that were written before it.
    merged = sorted((run for run in ready.runs() if run.merged), key=lambda run: run.key)
    for runs in (merged, merged[::-1]):
        seen: set[int] = set()
        for run in runs:
            rows = [run.ranks()[row] for row in masks.rows(run.free)]
            yield from ((priority_of(one), ts_of(one)) for one in rows)
            seen.update(map(priority_of, rows))
            if len(seen) >= count:
                break
    for time_slice in {*_slices(state, bucket, count), *_slices_from_the_end(state, bucket, count)}:
        yield from _oldest_in(state, bucket, time_slice)


def _slices(state: PriorityTopicState, bucket: int, count: int) -> Iterator[int]:
    topic, database = state.topic.number, state.database
    cursor, end = keys.ready_start(topic, bucket), keys.ready_end(topic, bucket)
    while count and (key := database.first_key(cursor, end)) is not None:
        found = keys.slice_of(key)
        yield found
        cursor = keys.slice_start(topic, bucket, found + 1)
        count -= 1


def _slices_from_the_end(state: PriorityTopicState, bucket: int, count: int) -> Iterator[int]:
    topic, database = state.topic.number, state.database
    start, cursor = keys.ready_start(topic, bucket), keys.ready_end(topic, bucket)
    while count and (item := database.last_item(start, cursor)) is not None:
        found = keys.slice_of(item[0])
        yield found
        cursor = keys.slice_start(topic, bucket, found)
        count -= 1


def _oldest_in(state: PriorityTopicState, bucket: int, time_slice: int) -> Iterator[tuple[int, int]]:
    """When the first free row of each priority was due; runs are in the order in which they were written."""
    topic = state.topic.number
    start, end = (keys.slice_start(topic, bucket, one) for one in (time_slice, time_slice + 1))
    for key in islice(state.database.scan_keys(start, end), _OLDEST_RUNS):
        run = state.runs.at(keys.place(key))
        if run.mixed:
            yield from ((run.sort_key(row)[1], run.record.ts[row]) for row in masks.rows(run.free))
        elif run.free:
            yield run.sort_key(0)[1], run.record.ts[masks.lowest(run.free)]
            return
