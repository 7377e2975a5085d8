"""The due rows of one bucket of a priority topic: the most urgent ones in memory, the others on disk in order.

Rows that were due when they were written are on disk in the order of priority: the key of a run has the first of its
priorities. Everything before `cursor`, in the order of run keys, is in memory; nothing after it is. So the rows in
memory up to a priority are complete, because a run has no priority below that of its key.

Runs over several buckets have a window of their own. A consumer of some buckets has them divided: then their rows are
offered in the windows of their buckets.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice

from dejaq import limits
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.timeline import masks
from dejaq.storage.rocksdb.timeline.lease import LeasePart
from dejaq.storage.rocksdb.timeline.run import Key, Run, rank, ts_of
from dejaq.storage.rocksdb.timeline.window import ExpiredRows, FreeRows, ReadingAllowance, Source

# At least so many rows of a run are ranked ahead, and at most so many runs are read at once.
FRONT_ROWS_MIN = 16
FRONTS_MAX = 128
LAST_RANK = rank(limits.PRIORITY_MAX + 1, 0)


@dataclass(slots=True)
class Front:
    """The first free rows of a run, with their ranks in order; the rows after them have a rank of at least `limit`."""

    home: ReadyWindow
    source: FreeRows
    rows: Sequence[int]
    ranks: list[int]
    limit: int

    @classmethod
    def of(cls, home: ReadyWindow, source: FreeRows, count: int, now: int) -> Front:
        """At most `count` rows that are due, and at least the first."""
        run, ranks, free = source.run, source.run.ranks(), source.run.free & source.rows
        start, end = next(masks.ranges(free))
        rows: Sequence[int] = range(start, min(end, start + count))
        if len(rows) == count or not free >> end:
            ranks = ranks[start : rows[-1] + 1]
        else:
            rows = list(islice(masks.rows(free), count))
            ranks = [ranks[row] for row in rows]
        if run.latest > now:
            # The clock was set back.
            due = next((at for at, one in enumerate(ranks) if ts_of(one) > now), len(ranks))
            rows, ranks = rows[:due], ranks[:due]
        whole = len(rows) == free.bit_count()
        return cls(home, source, rows, ranks, LAST_RANK if whole else ranks[-1])

    def take(self, count: int) -> int:
        """The first so many rows as a mask; they are no longer free."""
        first, last = self.rows[0], self.rows[count - 1]
        mask = self.source.run.free & self.source.rows & masks.span(first, last + 1)
        self.source.run.free &= ~mask
        return mask


class ReadyWindow:
    """The due rows of one bucket, found by a heap of (priority, ts) of the first rows of their runs.

    Rows that became due in the part of the bucket that is sorted by time are offered here too. `kept` returns whether a
    run is still the object that the state keeps.
    """

    def __init__(self, topic: int, bucket: int, kept: Callable[[Run], bool]) -> None:
        self._topic, self._bucket = topic, bucket
        self._kept = kept
        self._heap: list[tuple[Key, int, Source]] = []
        self._order = count()
        self._unread: bool | None = None
        self._end = keys.ready_end(topic, bucket)
        self._move_cursor(keys.ready_start(topic, bucket))

    def offer(self, source: Source) -> None:
        """Add the next row of a source to the heap."""
        head = source.head()
        if head is not None:
            heapq.heappush(self._heap, (head[::-1], next(self._order), source))

    def head(self) -> Key | None:
        """(priority, ts) of the next row in memory."""
        while self._heap:
            key, _, source = self._heap[0]
            now_at = source.head() if self._kept(_run_of(source)) else None
            if now_at is not None and now_at[::-1] == key:
                return key
            heapq.heappop(self._heap)
            if now_at is not None:
                heapq.heappush(self._heap, (now_at[::-1], next(self._order), source))
        return None

    def pop(self) -> Source:
        """Remove the first source; there must be one."""
        return heapq.heappop(self._heap)[2]

    @property
    def led_by_run(self) -> bool:
        """Whether the next row, which `head` has found, is in the part that is in the order of priority on disk."""
        return _is_ready(self._heap[0][2])

    def fronts(self, rows: int, now: int, known: dict[bytes, int]) -> tuple[list[Front], int]:
        """Remove the next runs from the heap, until they have about `rows` of the next rows.

        Rows that are `known`, as masks by the keys of their runs, are removed only; others are added to them. Also
        returns the rank up to which no other row of the bucket comes before their rows. The caller must offer the runs
        again.
        """
        fronts: list[Front] = []
        runs = 1
        while True:
            self._add_fronts(fronts, runs, rows, now, known)
            limit = min([self._complete, *(front.limit for front in fronts)])
            head = self.head()
            bound = limit if head is None else min(limit, rank(*head))
            if fronts:
                # The first row is always within the bound.
                bound = max(bound, fronts[0].ranks[0])
            if head is None or bound < rank(*head) or len(fronts) < runs or runs >= FRONTS_MAX:
                return fronts, bound
            if sum(bisect_right(front.ranks, bound) for front in fronts) >= rows:
                return fronts, bound
            runs *= 2

    def _add_fronts(self, fronts: list[Front], runs: int, rows: int, now: int, known: dict[bytes, int]) -> None:
        """Remove the next runs until there are so many; each row once, although it may be offered twice."""
        while len(fronts) < runs and (head := self.head()) is not None and head[1] <= now:
            source = self._heap[0][2]
            if not isinstance(source, FreeRows) or not _is_ready(source):
                return
            heapq.heappop(self._heap)
            # A run over several buckets may be offered in each of them, with other rows.
            before = known.get(source.run.key, 0)
            source = source.only(~before)
            if source.run.free & source.rows:
                known[source.run.key] = before | source.rows
                fronts.append(Front.of(self, source, max(2 * rows // runs, FRONT_ROWS_MIN), now))

    def runs(self) -> list[Run]:
        """The runs in the order of priority that have free rows in memory, each once."""
        found = {s.run.key: s.run for _, _, s in self._heap if isinstance(s, FreeRows) and _is_ready(s) and s.run.free}
        return [run for run in found.values() if self._kept(run)]

    def take(self, other: Key | None, until: int, allowance: ReadingAllowance) -> tuple[Source, list[LeasePart]]:
        """Due rows of the first source that come before those of another bucket (`other`) and of every other source."""
        (priority, at), _, source = heapq.heappop(self._heap)
        if isinstance(source, ExpiredRows):
            # The rows have one time and may have several priorities.
            until = at
        own = self.head()
        following = min((key for key in (other, own) if key is not None), default=None)
        if following is not None and following[0] == priority:
            until = min(until, following[1])
        parts = source.take((until, priority), allowance)
        self.offer(source)
        return source, parts

    @property
    def has_first(self) -> bool:
        """Whether the most urgent rows are in memory, with all rows of their priority."""
        return self.cursor >= self._end or ((head := self.head()) is not None and self.reaches(head[0]))

    def reaches(self, priority: int) -> bool:
        """Whether all rows up to this priority are in memory."""
        return keys.ready_slice(priority) < self._reach

    def load_step(self, read: Callable[[bytes, bytes], tuple[list[Run], bool]]) -> bool:
        """Read the next runs into memory; False when there was nothing left to read."""
        if self.cursor >= self._end:
            return False
        runs, complete = read(self.cursor, self._end)
        self._move_cursor(self._end if complete else runs[-1].key + b"\0")
        for run in runs:
            run.in_window = True
            self.offer(FreeRows(run))
        return True

    def has_unread(self, first_key: Callable[[bytes, bytes], bytes | None]) -> bool:
        """Whether rows wait on disk; reads the disk only after a change."""
        if self._unread is None:
            self._unread = self.cursor < self._end and first_key(self.cursor, self._end) is not None
        return self._unread

    def reach_end(self) -> None:
        """Record that nothing waits on disk."""
        if self.cursor < self._end:
            self._move_cursor(self._end)

    def left_on_disk(self, key: bytes) -> None:
        """Record that a run was written after the cursor."""
        self._unread = True

    def removed(self, key: bytes) -> None:
        """Record that a run was removed."""
        if key >= self.cursor:
            self._unread = None

    def retreat(self, key: bytes) -> list[Run]:
        """Drop every run from `key` on; the cursor is then at `key`. Rows that are sorted by time stay."""
        dropped = [s.run for _, _, s in self._heap if isinstance(s, FreeRows) and self.cursor > s.run.key >= key]
        gone = {run.key for run in dropped}
        self._heap = [entry for entry in self._heap if _run_of(entry[2]).key not in gone or not _is_free(entry[2])]
        heapq.heapify(self._heap)
        self._move_cursor(key)
        if dropped:
            # A run of the change in progress is on disk only when the change is written.
            self._unread = True
        return dropped

    def forget_ripe(self) -> list[Run]:
        """Drop the runs that are sorted by time."""
        ripe = [s.run for _, _, s in self._heap if isinstance(s, FreeRows) and not _is_ready(s)]
        self._heap = [entry for entry in self._heap if not _is_free(entry[2]) or _is_ready(entry[2])]
        heapq.heapify(self._heap)
        return ripe

    def forget_shared(self) -> list[Run]:
        """Drop the runs over several buckets of which rows are offered here."""
        if self._bucket == keys.SPREAD:
            return []
        shared = [s.run for _, _, s in self._heap if isinstance(s, FreeRows) and s.run.spread]
        if shared:
            self._heap = [entry for entry in self._heap if not _is_free(entry[2]) or not _run_of(entry[2]).spread]
            heapq.heapify(self._heap)
        return shared

    @property
    def is_empty(self) -> bool:
        """Whether no row is offered."""
        return not self._heap

    def late_key(self) -> bytes | None:
        """The key behind which a quarter of the runs in the order of priority lie; None when it has none."""
        # Rows of a run behind the cursor are offered here when their lease ended.
        held = sorted(
            s.run.key for _, _, s in self._heap if isinstance(s, FreeRows) and _is_ready(s) and s.run.key < self.cursor
        )
        return held[len(held) * 3 // 4] if held else None

    def kept_by_time(self) -> Iterator[Key]:
        """(priority, ts) of the offered rows that are sorted by time or were lost."""
        start = keys.ready_start(self._topic, self._bucket)
        for key, _, source in self._heap:
            if not _is_free(source) or _run_of(source).key < start:
                yield key

    def excess(self, runs_max: int) -> bytes | None:
        """The key from which to drop runs when the heap has grown to twice `runs_max`; None while it has not."""
        if len(self._heap) < 2 * runs_max:
            return None
        start = keys.ready_start(self._topic, self._bucket)
        held = sorted(
            s.run.key for _, _, s in self._heap if isinstance(s, FreeRows) and start <= s.run.key < self.cursor
        )
        return held[runs_max] if len(held) > runs_max else None

    def _move_cursor(self, key: bytes) -> None:
        self.cursor = key
        self._reach = keys.slice_of(key)
        # The last rank up to which everything is in memory.
        self._complete = LAST_RANK if key >= self._end else rank(keys.ready_priority(self._reach), 0) - 1
        self._unread = None


def _run_of(source: Source) -> Run:
    return source.run if isinstance(source, FreeRows) else source.part.run


def _is_ready(source: Source) -> bool:
    return isinstance(source, FreeRows) and source.run.slice >= keys.READY_SLICE


def _is_free(source: Source) -> bool:
    return isinstance(source, FreeRows)
