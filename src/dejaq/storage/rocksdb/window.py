"""The near part of a bucket in memory: which rows are next, found by a heap of the heads of its runs.

Everything before `cursor`, in the order of run keys, is in memory; nothing behind it is. A new run enters the window
when its key lies before the cursor. When the budget is used up the cursor moves back, and rows wait on disk
until the ones before them have left.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from dejaq import limits
from dejaq.storage.rocksdb import keys, masks
from dejaq.storage.rocksdb.lease import Lease, Part
from dejaq.storage.rocksdb.run import Key, Run

# Behind time, rows of different runs leave in order to within this, so that a run leaves in slices, not row by row.
_ORDER_SLACK_MS = 20


@dataclass(slots=True)
class Budget:
    """What all windows together may hold, and how many ids the indexes of all topics."""

    bytes_max: int
    used: int = 0
    ids_max: int = limits.YOUNG_IDS_MAX
    ids: int = 0

    @property
    def spent(self) -> bool:
        """Whether nothing more should be kept."""
        return self.used >= self.bytes_max


@dataclass(slots=True)
class Allowance:
    """How much one lease may still take. Its first row always fits."""

    rows: int
    bytes: int
    sizes: Callable[[Run, int, int], list[int]]
    empty: bool = True

    @property
    def spent(self) -> bool:
        """Whether nothing more fits."""
        return self.rows <= 0 or (self.bytes <= 0 and not self.empty)

    def take(self, run: Run, start: int, stop: int) -> int:
        """Where a range of a run must end to fit; that much is used up. `start` when nothing fits."""
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


class Free:
    """The free rows of a run, or those of them that are in `rows`, as a source of rows to lease."""

    __slots__ = ("rows", "run")

    def __init__(self, run: Run, rows: int = masks.ANY) -> None:
        self.run, self.rows = run, rows

    def only(self, rows: int) -> Free:
        """The same, of fewer rows."""
        return Free(self.run, self.rows & rows)

    def head(self) -> Key | None:
        """(ts, priority) of the next row."""
        # A run that was let go is read again as another object, and this one must give nothing.
        free = self.run.free & self.rows if self.run.in_window else 0
        return self.run.sort_key(masks.lowest(free)) if free else None

    def take(self, bound: Key, allowance: Allowance) -> list[Part]:
        """The rows not behind `bound` that fit; they are no longer free."""
        run = self.run
        parts: list[Part] = []
        for start, stop in masks.ranges(run.free & self.rows & masks.full(run.rows_until(bound))):
            end = allowance.take(run, start, stop)
            if end > start:
                attempts = [n + 1 for n in run.record.attempts[start:end]] or None
                firsts = list(run.record.firsts[start:end]) or None
                parts.append(Part(run, start, end - start, 0, attempts=attempts, firsts=firsts))
                run.free &= ~masks.span(start, end)
            if end < stop:
                break
        return parts


class Lost:
    """Rows of a lease that has ended, those of its run that are in `rows`, as a source of rows to lease again."""

    __slots__ = ("expires", "lease", "part", "rows", "run")

    def __init__(self, lease: Lease, part: Part, expires: int, rows: int = masks.ANY) -> None:
        self.lease, self.part, self.expires, self.rows = lease, part, expires, rows
        self.run = part.run

    def only(self, rows: int) -> Lost:
        """The same, of fewer rows."""
        return Lost(self.lease, self.part, self.expires, self.rows & rows)

    def head(self) -> Key | None:
        """(end of the lease, priority) of the next row."""
        rows = self._rows()
        if not rows:
            return None
        priorities = self.part.run.record.priorities
        return self.expires, min(priorities[row] for row in masks.rows(rows)) if priorities else 0

    def take(self, bound: Key, allowance: Allowance) -> list[Part]:
        """The rows not behind `bound` that fit, taken out of the lease they were lost from; all have the same ts."""
        parts: list[Part] = []
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
        """The rows as masks of the run, lowest priority first: their order in the run is that of times long past."""
        priorities = self.part.run.record.priorities
        if not priorities:
            return [self._rows()]
        masks_of: dict[int, int] = {}
        for row in masks.rows(self._rows()):
            if (self.expires, priorities[row]) <= bound:
                masks_of[priorities[row]] = masks_of.get(priorities[row], 0) | 1 << row
        return [masks_of[priority] for priority in sorted(masks_of)]

    def _leave(self, start: int, end: int) -> Part:
        part = self.part
        attempts = [part.attempts_at(row) + 1 for row in range(start, end)]
        firsts = [part.first_at(row) or self.lease.granted for row in range(start, end)]
        offset = part.offset + start - part.start
        self.lease.drop(masks.span(offset, offset + end - start))
        return Part(
            part.run,
            start,
            end - start,
            0,
            due=self.expires,
            attempts=attempts,
            firsts=firsts,
            lost=self.lease,
        )


Source = Free | Lost


class Window:
    """The near rows of one bucket."""

    def __init__(self, topic: int, bucket: int) -> None:
        self._topic = topic
        self._bucket = bucket
        self._heap: list[tuple[Key, int, Source]] = []
        self._order = count()
        self._peeked: tuple[bytes | None] | None = None
        # The first run that was left on disk by a write that the disk may not show yet.
        self._fresh: bytes | None = None
        self._reach = 0
        self.cursor = keys.of_bucket(keys.RUN, topic, bucket)

    def limit(self, until: int) -> bytes:
        """Where the window ends when it holds everything up to `until`."""
        return keys.slice_start(self._topic, self._bucket, until // keys.SLICE_MS + 1)

    def reaches(self, ts: int) -> bool:
        """Whether everything up to the end of the slice of `ts` is in memory."""
        return self._reach > ts // keys.SLICE_MS

    def offer(self, source: Source) -> None:
        """Have the source's next row considered."""
        key = source.head()
        if key is not None:
            heapq.heappush(self._heap, (key, next(self._order), source))

    def head(self) -> Key | None:
        """(ts, priority) of the next row in memory."""
        while self._heap:
            key, _, source = self._heap[0]
            now_at = source.head()
            if now_at == key:
                return key
            heapq.heappop(self._heap)
            if now_at is not None:
                heapq.heappush(self._heap, (now_at, next(self._order), source))
        return None

    def pop(self) -> Source:
        """Take the first source out; there must be one."""
        return heapq.heappop(self._heap)[2]

    def take(self, other: Key | None, until: int, allowance: Allowance) -> tuple[Source, list[Part]]:
        """Rows of the first source, as far as neither another window (`other`) nor another source is before them."""
        _, _, source = heapq.heappop(self._heap)
        own = self.head()
        following = min((key for key in (other, own) if key is not None), default=None)
        bound = (until, limits.PRIORITY_MAX)
        if following is not None:
            if not _prioritised(source):
                following = (following[0] + _ORDER_SLACK_MS, limits.PRIORITY_MAX)
            bound = min(bound, following)
        parts = source.take(bound, allowance)
        self.offer(source)
        return source, parts

    def next_unloaded(self, first_key: Callable[[bytes, bytes], bytes | None]) -> int | None:
        """The start of the first slice that waits on disk, or None; asks the disk only after a change."""
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
        """Move the cursor behind the key of a new run, unless something unread lies before it.

        So what is due at once stays in memory though nobody consumes yet, and need not be read back, which was
        a quarter of the cost of a lease.
        """
        if key < self.cursor:
            return
        unread = self._first_unloaded(first_key)
        if unread is None or unread > key:
            self.cursor = key + b"\0"
            self._reach = int.from_bytes(key[7:15], "big")

    def left_on_disk(self, key: bytes) -> None:
        """Take note of a run that was written behind the cursor."""
        if self._fresh is None or key < self._fresh or self._fresh < self.cursor:
            self._fresh = key
        if self._peeked is not None and (self._peeked[0] is None or key < self._peeked[0]):
            self._peeked = (key,)

    def removed(self, key: bytes) -> None:
        """Take note of a run that has gone."""
        if self._fresh == key:
            self._fresh = None
        if self._peeked == (key,):
            self._peeked = None

    def move_cursor(self, key: bytes) -> None:
        """Everything before `key` is in memory from now on."""
        self.cursor = key
        self._reach = int.from_bytes(key[7:15], "big")
        self._peeked = None

    def retreat(self, key: bytes) -> list[Run]:
        """Let go of every run from `key` on, and of the ones given back here; the cursor is at `key`."""

        def goes(source: Source) -> bool:
            # What lies over several buckets has its window there, and is only offered here.
            return isinstance(source, Free) and source.run.bucket == self._bucket and source.run.key >= key

        dropped = [source.run for _, _, source in self._heap if goes(source)]
        self._heap = [entry for entry in self._heap if not goes(entry[2])]
        heapq.heapify(self._heap)
        self.move_cursor(key)
        return dropped


def _prioritised(source: Source) -> bool:
    return bool(source.run.record.priorities)


def load_step(window: Window, read: Callable[[bytes, bytes], tuple[list[Run], bool]], until: int) -> bool:
    """Bring the next rows up to `until` into memory; False when there was nothing left to bring."""
    end = window.limit(until)
    if window.cursor >= end:
        return False
    runs, complete = read(window.cursor, end)
    window.move_cursor(end if complete else runs[-1].key + b"\0")
    for run in runs:
        run.in_window = True
        window.offer(Free(run))
    return True
