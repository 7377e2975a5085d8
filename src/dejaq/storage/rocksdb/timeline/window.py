"""The rows of a bucket in memory: a heap of the first rows of its runs finds the next rows.

Everything before `cursor`, in the order of run keys, is in memory; nothing after it is. A new run enters the window
when its key is before the cursor. When the budget is used up the cursor moves back, and rows wait on disk until the
rows before them have left.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from dejaq import limits
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.lease import LeasePart, LeaseState
from dejaq.storage.rocksdb.timeline.memory.near_rows import NearRows
from dejaq.storage.rocksdb.timeline.run import Key, Run

# When rows are overdue, rows of different runs are ordered only to within this time, so that a run leaves in slices and
# not row by row.
_ORDER_SLACK_MS = 20
# In a crowded bucket, which has at least so many runs in memory, rows that are late are ordered only to within one part
# in so many of their lateness, and to within a slice. Otherwise batches whose times lie between each other would leave
# a row or two of each run to each lease.
_CROWD_RUNS, _LATE_PARTS = 16, 4
# So many sources are taken out of a heap and put back one by one.
_FEW_SOURCES = 64


@dataclass(slots=True)
class ReadingAllowance:
    """The remaining rows and bytes of one lease. Its first row always fits."""

    rows: int
    bytes: int
    sizes: Callable[[Run, int, int], list[int]]
    empty: bool = True

    @property
    def spent(self) -> bool:
        """Whether nothing more fits."""
        return self.rows <= 0 or (self.bytes <= 0 and not self.empty)

    def fits(self, run: Run, count: int) -> bool:
        """Whether so many rows of a run fit, whichever they are; then the allowance is reduced by them."""
        if count > self.rows or run.size > self.bytes or run.record.apart:
            return False
        self.bytes -= run.size * count // run.count
        self.rows -= count
        self.empty = self.empty and not count
        return True

    def take(self, run: Run, start: int, stop: int) -> int:
        """The end of the part of a range of a run that fits; the allowance is reduced by it.

        `start` when nothing fits.
        """
        end = min(stop, start + self.rows)
        if run.size <= self.bytes and not run.record.apart:
            self.bytes -= run.size * (end - start) // run.count
        else:
            end = start + self._fitting(self.sizes(run, start, end))
        self.rows -= end - start
        self.empty = self.empty and end == start
        return end

    def _fitting(self, sizes: list[int]) -> int:
        for fitting, size in enumerate(sizes):
            if size > self.bytes and not (self.empty and fitting == 0):
                self.bytes = 0
                return fitting
            self.bytes -= size
        return len(sizes)


class FreeRows:
    """The free rows of a run, or those of them that are in `rows`, as a source of rows to lease."""

    __slots__ = ("rows", "run")

    def __init__(self, run: Run, rows: int = masks.ANY) -> None:
        self.run, self.rows = run, rows

    def only(self, rows: int) -> FreeRows:
        """The same source with fewer rows."""
        return FreeRows(self.run, self.rows & rows)

    def head(self) -> Key | None:
        """(ts, priority) of the next row."""
        # A run that was dropped is read again as another object, and this source must return nothing.
        free = self.run.free & self.rows if self.run.in_window else 0
        return self.run.sort_key(masks.lowest(free)) if free else None

    def take(self, bound: Key, allowance: ReadingAllowance) -> list[LeasePart]:
        """The rows up to `bound` that fit; they are no longer free."""
        run = self.run
        parts: list[LeasePart] = []
        mask = run.free & self.rows & masks.full(run.rows_until(bound))
        plain = run.spread and not (run.generated or run.record.attempts or run.record.firsts)
        if mask and plain and allowance.fits(run, mask.bit_count()):
            # Rows of one consumer lie between those of others: one part for all of them.
            run.free &= ~mask
            return [LeasePart.of_mask(run, mask)]
        for start, stop in masks.ranges(mask):
            end = allowance.take(run, start, stop)
            if end > start:
                attempts = [n + 1 for n in run.record.attempts[start:end]] or None
                firsts = list(run.record.firsts[start:end]) or None
                parts.append(LeasePart(run, start, end - start, 0, attempts=attempts, firsts=firsts))
                run.free &= ~masks.span(start, end)
            if end < stop:
                break
        return parts


class ExpiredRows:
    """Rows of an expired lease that are in its run and in `rows`, as a source of rows to lease again."""

    __slots__ = ("expires", "lease", "part", "rows", "run")

    def __init__(self, lease: LeaseState, part: LeasePart, expires: int, rows: int = masks.ANY) -> None:
        self.lease, self.part, self.expires, self.rows = lease, part, expires, rows
        self.run = part.run

    def only(self, rows: int) -> ExpiredRows:
        """The same source with fewer rows."""
        return ExpiredRows(self.lease, self.part, self.expires, self.rows & rows)

    def head(self) -> Key | None:
        """(end of the lease, priority) of the next row."""
        rows = self._rows()
        if not rows:
            return None
        priorities = self.part.run.record.priorities
        return self.expires, min(priorities[row] for row in masks.rows(rows)) if priorities else 0

    def take(self, bound: Key, allowance: ReadingAllowance) -> list[LeasePart]:
        """The rows up to `bound` that fit, removed from the expired lease; all have the same ts."""
        parts: list[LeasePart] = []
        for mask in self._by_priority(bound):
            for start, stop in masks.ranges(mask):
                end = allowance.take(self.part.run, start, stop)
                if end > start:
                    parts.append(self._leave(start, end))
                if end < stop:
                    return parts
        return parts

    def _rows(self) -> int:
        return self.part.in_run(self.lease.terms.get(self.expires, 0)) & self.rows

    def _by_priority(self, bound: Key) -> list[int]:
        """The rows as masks of the run, lowest priority first; the run itself is sorted by the original times."""
        priorities = self.part.run.record.priorities
        if not priorities:
            return [self._rows()]
        masks_of: dict[int, int] = {}
        for row in masks.rows(self._rows()):
            if (self.expires, priorities[row]) <= bound:
                masks_of[priorities[row]] = masks_of.get(priorities[row], 0) | 1 << row
        return [masks_of[priority] for priority in sorted(masks_of)]

    def _leave(self, start: int, end: int) -> LeasePart:
        part = self.part
        attempts = [part.attempts_at(row) + 1 for row in range(start, end)]
        firsts = [part.first_at(row) or self.lease.granted for row in range(start, end)]
        offset = part.lease_row(start)
        self.lease.drop(masks.span(offset, offset + end - start))
        return LeasePart(
            part.run,
            start,
            end - start,
            0,
            due=self.expires,
            attempts=attempts,
            firsts=firsts,
            expired_lease=self.lease,
        )


Source = FreeRows | ExpiredRows


class Window:
    """The rows of one bucket in memory."""

    def __init__(self, topic: int, bucket: int) -> None:
        self._topic = topic
        self._bucket = bucket
        self._heap: list[tuple[Key, int, Source]] = []
        self._order = count()
        # The free rows of small runs, which may be runs over several buckets.
        self.near = NearRows()
        # The runs of this window whose rows wait in other ones.
        self.divided: dict[bytes, Run] = {}
        self._peeked: tuple[bytes | None] | None = None
        # The first run that a write left on disk, and that a read of the disk may not show yet.
        self._fresh: bytes | None = None
        self._reach = 0
        # Whether there are very many rows in very many runs; see `weigh`.
        self.crowded = False
        # Of the first slice, enough was read for the next lease, although it is larger.
        self._enough = -1
        self.cursor = keys.of_bucket(keys.RUN, topic, bucket)

    def limit(self, until: int) -> bytes:
        """The end of the window when it has everything up to `until`."""
        return keys.slice_start(self._topic, self._bucket, until // keys.SLICE_MS + 1)

    @property
    def sources(self) -> Sequence[tuple[Key, int, Source]]:
        """The sources as a heap, each with a key before which it has no row."""
        return self._heap

    @property
    def is_empty(self) -> bool:
        """Whether no row is offered."""
        return not (self._heap or self.near.heap or self.divided)

    def has_nothing(self, until: int) -> bool:
        """Whether it is known without a search that there is no row up to `until`."""
        return not (self._heap or self.near.heap) and self.reaches(until)

    def reaches(self, ts: int) -> bool:
        """Whether everything up to the end of the slice of `ts` is in memory."""
        return self._reach > ts // keys.SLICE_MS

    def has_enough(self, ts: int) -> bool:
        """Whether so much of the slice of `ts` is in memory that its first row may leave."""
        return self.reaches(ts) or self._enough == ts // keys.SLICE_MS

    def read_enough(self, until: int) -> None:
        """Record that the first row up to `until` may leave, also if a part of its slice is on disk."""
        head = self.head()
        self._enough = -1 if head is None or head[0] > until else head[0] // keys.SLICE_MS

    def late_key(self) -> bytes | None:
        """The key behind which a quarter of its runs lie; None when it has none."""
        own = {source.run.key for _, _, source in self._heap if self._is_own(source)}
        own.update(self.divided, (run.key for _, _, run, _ in self.near.heap if not run.spread))
        # Rows of a run behind the cursor are offered here when their lease ended.
        held = sorted(key for key in own if key < self.cursor)
        return held[len(held) * 3 // 4] if held else None

    def _is_own(self, source: Source) -> bool:
        # A run with rows of several buckets, or in the order of priority, belongs to another window and is only
        # offered here.
        if not isinstance(source, FreeRows) or source.run.bucket != self._bucket:
            return False
        return source.run.key < keys.ready_start(self._topic, self._bucket)

    def offer(self, source: Source) -> None:
        """Add the next row of a source to the heap."""
        key = source.head()
        if key is not None:
            heapq.heappush(self._heap, (key, next(self._order), source))

    def only(self, until: int, mask_of: Callable[[Run], int]) -> Window:
        """A window with some rows up to `until`, given by run; what is taken from it is taken from this one too."""
        waiting = self._refreshed(until)
        own = _OwnRows(self._topic, self._bucket, waiting, mask_of)
        own.crowded = self.crowded
        return own

    def head(self) -> Key | None:
        """(ts, priority) of the next row in memory."""
        near = self.near.first()
        while self._heap:
            key, _, source = self._heap[0]
            now_at = source.head()
            if now_at == key:
                return key if near is None or key <= (near, 0) else (near, 0)
            heapq.heappop(self._heap)
            if now_at is not None:
                heapq.heappush(self._heap, (now_at, next(self._order), source))
        return None if near is None else (near, 0)

    def _offer_near(self) -> None:
        """Make the next row a source, if it is one of those that wait one by one."""
        near = self.near.first()
        if near is not None and (not self._heap or (near, 0) <= self._heap[0][0]):
            self.offer(FreeRows(*self.near.pop()))

    def tidy(self, until: int) -> None:
        """Remove the sources up to `until` that have no row any more."""
        self._refreshed(until)

    def _refreshed(self, until: int) -> list[tuple[Key, int, Source]]:
        """Put each source up to `until` where its next row is now, as rows were taken from parts of sources.

        Returns those whose next row is up to `until`. If sources were not moved, every lease would divide again all
        of them from which other leases have taken.
        """
        heap, moved = self._heap, list[tuple[Key, int, Source]]()
        while heap and heap[0][0][0] <= until and len(moved) < _FEW_SOURCES:
            entry = heapq.heappop(heap)
            key = entry[2].head()
            if key is not None:
                moved.append(entry if key == entry[0] else (key, *entry[1:]))
        if heap and heap[0][0][0] <= until:
            # So many are moved faster all at once.
            for entry in heap:
                key = entry[2].head() if entry[0][0] <= until else entry[0]
                if key is not None:
                    moved.append(entry if key == entry[0] else (key, *entry[1:]))
            heapq.heapify(moved)
            self._heap = moved
            return [entry for entry in moved if entry[0][0] <= until]
        for entry in moved:
            heapq.heappush(heap, entry)
        return [entry for entry in moved if entry[0][0] <= until]

    @property
    def expired_first(self) -> bool:
        """Whether the next row, of which there must be one, is of an expired lease."""
        self._offer_near()
        return isinstance(self._heap[0][2], ExpiredRows)

    def pop(self) -> Source:
        """Remove the first source; there must be one."""
        self._offer_near()
        return heapq.heappop(self._heap)[2]

    def take(
        self, other: Key | None, until: int, now: int, allowance: ReadingAllowance
    ) -> tuple[Source, list[LeasePart]]:
        """Rows of the first source that come before those of another window (`other`) and of every other source."""
        source = self.pop()
        own = self.head()
        following = min((key for key in (other, own) if key is not None), default=None)
        bound = (until, limits.PRIORITY_MAX)
        if following is not None:
            if not _prioritised(source):
                slack = max(_ORDER_SLACK_MS, self.order_slack(following[0], now))
                following = (following[0] + slack, limits.PRIORITY_MAX)
            bound = min(bound, following)
        parts = source.take(bound, allowance)
        self.offer(source)
        return source, parts

    def order_slack(self, ts: int, now: int) -> int:
        """By how much later rows may leave before a row that is due at `ts`."""
        return min(max(0, now - ts) // _LATE_PARTS, keys.SLICE_MS) if self.crowded else 0

    def weigh(self, size_max: int) -> None:
        """Find out whether there are so many bytes of rows in so many runs that they may leave in larger slices.

        The size is that of a sample. The heap has the earliest rows in front, so few of the others are not due.
        """
        count = len(self._heap)
        if count < _CROWD_RUNS:
            self.crowded = False
            return
        runs = [entry[2].run for entry in self._heap[:: count // _CROWD_RUNS]]
        size = sum(run.size * run.free.bit_count() // run.count for run in runs)
        self.crowded = size * count >= size_max * len(runs)

    def next_unloaded(self, first_key: Callable[[bytes, bytes], bytes | None]) -> int | None:
        """The start of the first slice that waits on disk, or None; reads the disk only after a change."""
        key = self._first_unloaded(first_key)
        return None if key is None else int.from_bytes(key[7:15], "big") * keys.SLICE_MS

    def _first_unloaded(self, first_key: Callable[[bytes, bytes], bytes | None]) -> bytes | None:
        if self._peeked is None:
            end = keys.after(keys.of_bucket(keys.RUN, self._topic, self._bucket))
            found = first_key(self.cursor, end)
            if self._fresh is not None and self._fresh >= self.cursor and (found is None or self._fresh < found):
                found = self._fresh
            self._peeked = (found,)
        return self._peeked[0]

    def reach_for(self, key: bytes, first_key: Callable[[bytes, bytes], bytes | None]) -> None:
        """Move the cursor after the key of a new run, unless unread rows come before it.

        So rows that are due at once stay in memory before the first consumer leases them, and need not be read from
        disk, which was a quarter of the cost of a lease.
        """
        if key < self.cursor:
            return
        unread = self._first_unloaded(first_key)
        if unread is None or unread > key:
            self.cursor = key + b"\0"
            self._reach = int.from_bytes(key[7:15], "big")

    def left_on_disk(self, key: bytes) -> None:
        """Record that a run was written after the cursor."""
        if self._fresh is None or key < self._fresh or self._fresh < self.cursor:
            self._fresh = key
        if self._peeked is not None and (self._peeked[0] is None or key < self._peeked[0]):
            self._peeked = (key,)

    def removed(self, key: bytes) -> None:
        """Record that a run was removed."""
        if self._fresh == key:
            self._fresh = None
        if self._peeked == (key,):
            self._peeked = None
        self.divided.pop(key, None)

    def move_cursor(self, key: bytes) -> None:
        """Record that everything before `key` is in memory from now on."""
        self.cursor = key
        self._reach = int.from_bytes(key[7:15], "big")
        self._peeked = None

    def retreat(self, key: bytes) -> list[Run]:
        """Drop every run from `key` on and return the dropped runs; the cursor is at `key`."""

        def goes(source: Source) -> bool:
            return self._is_own(source) and key <= source.run.key

        gone = {source.run.key: source.run for _, _, source in self._heap if goes(source)}
        small = [run for _, _, run, _ in self.near.heap if not run.spread]
        gone |= {run.key: run for run in (*small, *self.divided.values()) if key <= run.key}
        self.divided = {one: run for one, run in self.divided.items() if one not in gone}
        dropped = list(gone.values())
        self._heap = [entry for entry in self._heap if not goes(entry[2])]
        heapq.heapify(self._heap)
        self.move_cursor(key)
        self._enough = -1
        if dropped:
            # A run of the change in progress is on disk only when the change is written.
            self.left_on_disk(min(run.key for run in dropped))
        return dropped


class _OwnRows(Window):
    """The rows of some buckets, of sources that are divided when their turn comes: a lease needs few of them."""

    def __init__(
        self, topic: int, bucket: int, waiting: list[tuple[Key, int, Source]], mask_of: Callable[[Run], int]
    ) -> None:
        super().__init__(topic, bucket)
        self._waiting, self._mask_of = waiting, mask_of
        heapq.heapify(waiting)

    def head(self) -> Key | None:
        """(ts, priority) of the next row."""
        while self._waiting:
            head = super().head()
            if head is not None and head <= self._waiting[0][0]:
                return head
            source = heapq.heappop(self._waiting)[2]
            self.offer(source.only(self._mask_of(source.run)))
        return super().head()


def _prioritised(source: Source) -> bool:
    return bool(source.run.record.priorities)


def load_step(window: Window, read: Callable[[bytes, bytes], tuple[list[Run], bool]], until: int) -> bool:
    """Read the next rows up to `until` into memory; False when there was nothing left to read."""
    end = window.limit(until)
    if window.cursor >= end:
        return False
    runs, complete = read(window.cursor, end)
    window.move_cursor(end if complete else runs[-1].key + b"\0")
    for run in runs:
        run.in_window = True
        window.offer(FreeRows(run))
    return True
