"""Topics by priority: how they lie on disk, and how what is next is found among a million messages.

What is due when it is written goes to the *ready* part of its bucket, whose keys are in the order of priority. What is
ahead of its time lies by time, as on a timeline, and is offered beside the ready part when its time comes; its record
stays where it is. A run has one priority; or, in the ready part, a few rows of several priorities that are near each
other, in their order and all due at one time, so that a batch over thousands of priorities makes dozens of runs; or
rows of many such runs, merged when they came next.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice

from dejaq import limits
from dejaq.domain.batch import CreateBatch, LeaseRequest, RowRange
from dejaq.domain.topic import Topic
from dejaq.storage.outbox import Outbox
from dejaq.storage.rocksdb import keys, masks
from dejaq.storage.rocksdb.cells import READY_CELLS, Cells
from dejaq.storage.rocksdb.database import Batch, Database
from dejaq.storage.rocksdb.image import Draft, Image, Near, Row
from dejaq.storage.rocksdb.large import LargeBodies
from dejaq.storage.rocksdb.lease import Lease, Part
from dejaq.storage.rocksdb.ready import FRONT_ROWS_MIN, LAST_RANK, Front, ReadyWindow
from dejaq.storage.rocksdb.run import Key, Run, priority_of, ts_of
from dejaq.storage.rocksdb.window import Allowance, Budget, Free, Lost, load_step

# How much of what is ready is read at once and kept in memory, over all buckets.
_STEP_RUNS = 2_048
_STEP_RUNS_MIN = 32
_KEPT_RUNS = 16_384
_KEPT_RUNS_MIN = 128
_LOAD_STEPS = 8
# A run of several priorities takes no further one when it has so many rows, or would span so many priorities.
_MIXED_ROWS = 64
MIXED_SPAN = 1_024
# How many runs of a priority are looked at for its oldest message.
_OLDEST_RUNS = 8


class PriorityImage(Image):
    """Everything the store keeps in memory of one topic by priority."""

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
        super().__init__(topic, database, budget=budget, number=number, outbox=outbox, large=large)
        buckets = topic.settings.buckets
        self.ready_cells = Cells(topic.number, READY_CELLS)
        self._ready: dict[int, ReadyWindow] = {}
        # Up to which priority the thin runs of a bucket were merged.
        self.merged_until: dict[int, int] = {}
        self._step_runs = max(_STEP_RUNS_MIN, min(_STEP_RUNS // buckets, 512))
        self._kept_runs = max(_KEPT_RUNS_MIN, _KEPT_RUNS // buckets)

    def load(self) -> None:
        """Read the counts of what is ready, and the rest."""
        self.ready_cells.load(self.database)
        super().load()

    @property
    def total(self) -> int:
        """How many messages there are."""
        return self.cells.total + self.ready_cells.total

    def write_counts(self, batch: Batch) -> None:
        """Put every changed count into the batch."""
        super().write_counts(batch)
        self.ready_cells.write(batch)

    def _count(self, run: Run, rows: int, sign: int) -> None:
        if not _is_ready(run):
            super()._count(run, rows, sign)
            return
        ts = run.record.ts
        if ts[0] == ts[-1] and not run.merged:
            self.ready_cells.add(ts[0] // keys.SLICE_MS, sign * rows.bit_count())
            return
        for start, end in masks.ranges(rows):
            times = ts[start:end]
            first, last = min(times) // keys.SLICE_MS, max(times) // keys.SLICE_MS
            slices = {first: end - start} if first == last else Counter(at // keys.SLICE_MS for at in times)
            for time_slice, count in slices.items():
                self.ready_cells.add(time_slice, sign * count)

    @property
    def short_of_memory(self) -> bool:
        """Whether nothing more should be kept at hand."""
        return self._budget.spent

    def slice_for(self, ts: int, priority: int) -> int:
        """Where a row belongs that is written now."""
        return keys.ready_slice(priority) if ts <= self.now else ts // keys.SLICE_MS

    def add_rows(self, batch: Batch, draft: Draft) -> None:
        """Write the rows of a draft as runs of one priority."""
        cuts: dict[tuple[int, int, int, int], list[Row]] = {}
        for (bucket, _, owner), rows in draft.rows.items():
            for row in rows:
                place = (bucket, self.slice_for(row.ts, row.priority), owner, row.priority)
                cuts.setdefault(place, []).append(row)
        for (bucket, time_slice, owner, _), rows in cuts.items():
            self.add_run(batch, bucket, time_slice, owner, self.record_of(owner, rows))

    # What is near

    def ready(self, bucket: int) -> ReadyWindow:
        """What is due in a bucket."""
        window = self._ready.get(bucket)
        if window is None:
            window = self._ready[bucket] = ReadyWindow(self.topic.number, bucket, self.keeps)
        return window

    def home_of(self, run: Run) -> Near:
        """The part of its bucket that a run is kept in."""
        return self.ready(run.bucket) if _is_ready(run) else self.window(run.bucket)

    def offer_free(self, run: Run) -> None:
        """Have the free rows of a run considered again; what is given back was due."""
        self.ready(run.bucket).offer(Free(run))

    def offer_lost(self, lease: Lease, expires: int) -> None:
        """Have the rows of a lease that ended then considered again."""
        for part in lease.parts:
            self.ready(part.run.bucket).offer(Lost(lease, part, expires))

    def _enter_window(self, run: Run) -> None:
        super()._enter_window(run)
        if _is_ready(run):
            ready = self.ready(run.bucket)
            excess = ready.excess(self._kept_runs)
            if excess is not None:
                self._let_go(ready.retreat(excess))

    def head(self, bucket: int, now: int) -> Key | None:
        """(priority, ts) of the next row that is due in a bucket, brought into memory with all of its priority.

        What comes due in the part that is kept by time is found by `ripen`.
        """
        ready = self.ready(bucket)
        steps = 0
        while True:
            head = ready.head()
            if head is not None and head[1] > now:
                # Part of a run that is kept by time, and not due yet; or the clock went back.
                self.window(bucket).offer(ready.pop())
                continue
            if head is not None and (steps >= _LOAD_STEPS or ready.reaches(head[0])):
                return head
            if not ready.load_step(self._read_ready):
                return head
            steps += 1

    def ripen(self, bucket: int, now: int) -> None:
        """Offer what has come due of the part that is kept by time."""
        window = self.window(bucket)
        while load_step(window, self._read_runs, now):
            pass
        while (head := window.head()) is not None and head[0] <= now:
            self.ready(bucket).offer(window.pop())

    def read_on(self, bucket: int) -> bool:
        """Bring some more of what is ready in a bucket into memory; False: all of it is."""
        return self.ready(bucket).load_step(self._read_ready)

    def _read_ready(self, start: bytes, end: bytes) -> tuple[list[Run], bool]:
        return self._read_runs(start, end, self._step_runs)

    def next_due(self, buckets: Sequence[int]) -> int | None:
        """A time before which nothing becomes due; 0 while something is."""
        times = [] if (end := self.leases.next_end()) is None else [end]
        for bucket in buckets:
            ready = self.ready(bucket)
            if ready.head() is not None or ready.has_unread(self.database.first_key):
                return 0
            window = self.window(bucket)
            head = window.head()
            if head is not None:
                times.append(head[0])
            unloaded = window.next_unloaded(self.database.first_key)
            if unloaded is not None and unloaded < keys.READY_SLICE * keys.SLICE_MS:
                times.append(unloaded)
        return min(times, default=None)

    def ready_runs(self, buckets: Sequence[int], first: int = limits.PRIORITY_MIN) -> Iterator[Run]:
        """Every ready run of the buckets that may have this priority or above, bucket by bucket in order."""
        first = max(first - MIXED_SPAN + 1, limits.PRIORITY_MIN)
        for bucket in buckets:
            start = keys.slice_start(self.topic.number, bucket, keys.ready_slice(first))
            for key in self.database.scan_keys(start, keys.ready_end(self.topic.number, bucket)):
                yield self.run_at(keys.place(key))


def _is_ready(run: Run) -> bool:
    return run.slice >= keys.READY_SLICE


def take(image: PriorityImage, request: LeaseRequest, now: int, batch: Batch) -> tuple[list[Part], list[Lease]]:
    """Take due rows, lowest priority first across the buckets; and the lost leases that gave some."""
    image.lapse(now, batch)
    heads: list[tuple[Key, int]] = []
    for bucket in request.buckets:
        image.ripen(bucket, now)
        head = image.head(bucket, now)
        if head is not None:
            heads.append((head, bucket))
    heapq.heapify(heads)
    parts: list[Part] = []
    lost: dict[int, Lease] = {}
    # Rows by run, so that those of one run make one part.
    picked: dict[Run, int] = {}
    allowance = Allowance(request.rows_max, request.bytes_max, image.sizes)
    while heads and not allowance.spent:
        bucket = heads[0][1]
        ready = image.ready(bucket)
        if ready.led_by_run:
            if not _gather(image, [bucket for _, bucket in heads], now, allowance, picked):
                # It does not fit.
                break
            heads = [(head, bucket) for _, bucket in heads if (head := image.head(bucket, now)) is not None]
            heapq.heapify(heads)
            continue
        source, taken = ready.take(min(heads[1:3])[0] if len(heads) > 1 else None, now, allowance)
        if not taken:
            break
        parts += taken
        if isinstance(source, Lost):
            lost[source.lease.id] = source.lease
        head = image.head(bucket, now)
        if head is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (head, bucket))
    parts += (_part(run, start, end) for run, rows in picked.items() for start, end in masks.ranges(rows))
    return parts, list(lost.values())


def _gather(
    image: PriorityImage, buckets: Sequence[int], now: int, allowance: Allowance, picked: dict[Run, int]
) -> bool:
    """Pick the next rows of the buckets as far as they lie in the order of priority; False when none fits."""
    fronts: list[Front] = []
    share, limit = allowance.rows * 3 // 2 // len(buckets) + FRONT_ROWS_MIN, LAST_RANK
    for bucket in buckets:
        found, bound = image.ready(bucket).fronts(min(share, allowance.rows), now)
        fronts += found
        limit = min(limit, bound)
    counts = _fitting(fronts, _first(fronts, limit, allowance.rows), allowance)
    for front, count in zip(fronts, counts, strict=True):
        run = front.source.run
        if count:
            picked[run] = picked.get(run, 0) | front.take(count)
        image.ready(run.bucket).offer(front.source)
    return any(counts)


def _first(fronts: Sequence[Front], limit: int, rows: int) -> list[int]:
    """How many rows of each front are among the first `rows` of those that rank at most `limit`."""
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


def _fitting(fronts: Sequence[Front], counts: list[int], allowance: Allowance) -> list[int]:
    """How many of those rows fit, the first ones; they are used up."""
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


def _part(run: Run, start: int, end: int) -> Part:
    attempts = [n + 1 for n in run.record.attempts[start:end]] or None
    return Part(run, start, end - start, 0, attempts=attempts, firsts=list(run.record.firsts[start:end]) or None)


def cuts(
    image: PriorityImage, incoming: CreateBatch, buckets: Sequence[int], stretches: list[RowRange]
) -> Iterator[tuple[tuple[int, int], Sequence[int]]]:
    """(bucket, slice) and the rows of each run: generated ids as they follow each other, listed ones in their order."""
    ts = incoming.ts
    priorities = incoming.priorities or [0] * len(ts)
    if incoming.ids is None:
        for start, end in stretches:
            # Where the counters go on.
            for time_slice, rows in _cut(image, ts, priorities, range(start, end)):
                yield (incoming.bucket, time_slice), range(rows[0], rows[-1] + 1)
        return
    by_bucket: dict[int, list[int]] = {}
    for start, end in stretches:
        for row in range(start, end):
            by_bucket.setdefault(buckets[row], []).append(row)
    for bucket, chosen in by_bucket.items():
        chosen.sort(key=lambda row: (ts[row] > image.now, priorities[row], ts[row]))
        for time_slice, rows in _cut(image, ts, priorities, chosen):
            yield (bucket, time_slice), rows


def _cut(
    image: PriorityImage, ts: Sequence[int], priorities: Sequence[int], rows: Sequence[int]
) -> Iterator[tuple[int, list[int]]]:
    """Rows that follow each other as runs, each with its slice: of one priority, or of several that are due at once."""
    run: list[int] = []
    place = priority = at = first = 0
    mixed = alike = False
    for row in rows:
        following = image.slice_for(ts[row], priorities[row])
        if run and following == place and priorities[row] == priority and (not mixed or ts[row] == at):
            alike = alike and ts[row] == at
        elif (
            run
            and alike
            and ts[row] == at
            and following >= keys.READY_SLICE
            and priority < priorities[row] < first + MIXED_SPAN
            and len(run) < _MIXED_ROWS
        ):
            mixed, place, priority = True, following, priorities[row]
        else:
            if run:
                yield image.slice_for(ts[run[0]], first), run
            run, mixed, alike = [], False, True
            place, priority, at, first = following, priorities[row], ts[row], priorities[row]
        run.append(row)
    if run:
        yield image.slice_for(ts[run[0]], first), run


def oldest(image: Image, bucket: int, now: int, count: int) -> Iterator[tuple[int, int]]:
    """(priority, ts) of the oldest message that is due, for the most and least urgent priorities of a bucket."""
    if not isinstance(image, PriorityImage):
        return
    ready = image.ready(bucket)
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
    for time_slice in {*_slices(image, bucket, count), *_slices_from_the_end(image, bucket, count)}:
        yield from _oldest_in(image, bucket, time_slice)


def _slices(image: PriorityImage, bucket: int, count: int) -> Iterator[int]:
    topic, database = image.topic.number, image.database
    cursor, end = keys.ready_start(topic, bucket), keys.ready_end(topic, bucket)
    while count and (key := database.first_key(cursor, end)) is not None:
        found = keys.slice_of(key)
        yield found
        cursor = keys.slice_start(topic, bucket, found + 1)
        count -= 1


def _slices_from_the_end(image: PriorityImage, bucket: int, count: int) -> Iterator[int]:
    topic, database = image.topic.number, image.database
    start, cursor = keys.ready_start(topic, bucket), keys.ready_end(topic, bucket)
    while count and (item := database.last_item(start, cursor)) is not None:
        found = keys.slice_of(item[0])
        yield found
        cursor = keys.slice_start(topic, bucket, found)
        count -= 1


def _oldest_in(image: PriorityImage, bucket: int, time_slice: int) -> Iterator[tuple[int, int]]:
    """When the first free row of each priority was due; runs are in the order in which they were written."""
    topic = image.topic.number
    start, end = (keys.slice_start(topic, bucket, one) for one in (time_slice, time_slice + 1))
    for key in islice(image.database.scan_keys(start, end), _OLDEST_RUNS):
        run = image.run_at(keys.place(key))
        if run.mixed:
            yield from ((run.sort_key(row)[1], run.record.ts[row]) for row in masks.rows(run.free))
        elif run.free:
            yield run.sort_key(0)[1], run.record.ts[masks.lowest(run.free)]
            return
