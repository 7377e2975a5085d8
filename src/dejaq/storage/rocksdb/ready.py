"""What is due in one bucket of a topic by priority: the most urgent part of it in memory, the rest on disk in order.

What was due when it was written lies on disk in the order of priority: a run by the first of its priorities. Everything
before `cursor`, in the order of run keys, is in memory; nothing behind it is. So what is in memory up to a priority is
all of it, since a run has no priority below its key's.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice

from dejaq import limits
from dejaq.storage.rocksdb import keys, masks
from dejaq.storage.rocksdb.lease import Part
from dejaq.storage.rocksdb.run import Key, Run, priority_of, rank, ts_of
from dejaq.storage.rocksdb.window import Allowance, Free, Lost, Source

# A run is looked at so many rows ahead at least, and so many runs at most in one go.
FRONT_ROWS_MIN = 16
FRONTS_MAX = 128
LAST_RANK = rank(limits.PRIORITY_MAX + 1, 0)


@dataclass(slots=True)
class Front:
    """The first free rows of a run, with their ranks in order; those behind them rank `limit` or above."""

    source: Free
    rows: Sequence[int]
    ranks: list[int]
    limit: int

    @classmethod
    def of(cls, source: Free, count: int, now: int) -> Front:
        """At most `count` rows that are due, and at least the first."""
        run, ranks = source.run, source.run.ranks()
        start, end = next(masks.ranges(run.free))
        rows: Sequence[int] = range(start, min(end, start + count))
        if len(rows) == count or not run.free >> end:
            ranks = ranks[start : rows[-1] + 1]
        else:
            rows = list(islice(masks.rows(run.free), count))
            ranks = [ranks[row] for row in rows]
        if run.latest > now:
            # The clock went back.
            due = next((at for at, one in enumerate(ranks) if ts_of(one) > now), len(ranks))
            rows, ranks = rows[:due], ranks[:due]
        whole = len(rows) == run.free.bit_count()
        return cls(source, rows, ranks, LAST_RANK if whole else ranks[-1])

    def take(self, count: int) -> int:
        """The first so many rows as a mask; they are no longer free."""
        first, last = self.rows[0], self.rows[count - 1]
        mask = self.source.run.free & masks.span(first, last + 1)
        self.source.run.free &= ~mask
        return mask


class ReadyWindow:
    """The due rows of one bucket, found by a heap of (priority, ts) of the heads of their runs.

    Rows that came due in the part of the bucket that is kept by time are offered here too. `kept` tells whether a run
    is still the one that the image knows.
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
        """Have the source's next row considered."""
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
        """Take the first source out; there must be one."""
        return heapq.heappop(self._heap)[2]

    @property
    def led_by_run(self) -> bool:
        """Whether the next row, which `head` has found, lies in the order of priority on disk."""
        return _is_ready(self._heap[0][2])

    def fronts(self, rows: int, now: int) -> tuple[list[Front], int]:
        """Take out the runs that come next, until about `rows` of their rows do.

        With them comes the rank up to which no other row of the bucket is before theirs. They have to be offered again.
        """
        fronts: list[Front] = []
        runs = 1
        while True:
            self._add_fronts(fronts, runs, rows, now)
            limit = min([self._complete, *(front.limit for front in fronts)])
            head = self.head()
            bound = limit if head is None else min(limit, rank(*head))
            if fronts:
                # What was loaded in vain tells nothing of its first row.
                bound = max(bound, fronts[0].ranks[0])
            if head is None or bound < rank(*head) or len(fronts) < runs or runs >= FRONTS_MAX:
                return fronts, bound
            if sum(bisect_right(front.ranks, bound) for front in fronts) >= rows:
                return fronts, bound
            runs *= 2

    def _add_fronts(self, fronts: list[Front], runs: int, rows: int, now: int) -> None:
        """Take out the next runs until there are so many; each once, though it may be offered twice."""
        taken = {front.source.run.key for front in fronts}
        while len(fronts) < runs and (head := self.head()) is not None and head[1] <= now:
            source = self._heap[0][2]
            if not isinstance(source, Free) or not _is_ready(source):
                return
            heapq.heappop(self._heap)
            if source.run.key not in taken:
                taken.add(source.run.key)
                fronts.append(Front.of(source, max(rows // runs, FRONT_ROWS_MIN), now))

    def runs(self) -> list[Run]:
        """The runs in the order of priority that have free rows in memory, each once."""
        found = {s.run.key: s.run for _, _, s in self._heap if isinstance(s, Free) and _is_ready(s) and s.run.free}
        return [run for run in found.values() if self._kept(run)]

    @property
    def unread_priority(self) -> int:
        """The first priority of which there may be more on disk."""
        return priority_of(self._complete) + 1

    def prune(self) -> None:
        """Forget the runs that have no free row any more."""
        self._heap = [entry for entry in self._heap if not isinstance(entry[2], Free) or entry[2].run.free]
        heapq.heapify(self._heap)

    def take(self, other: Key | None, until: int, allowance: Allowance) -> tuple[Source, list[Part]]:
        """Due rows of the first source, as far as no other bucket (`other`) and no other source is before them."""
        (priority, at), _, source = heapq.heappop(self._heap)
        if isinstance(source, Lost):
            # They have one time and, it may be, several priorities.
            until = at
        own = self.head()
        following = min((key for key in (other, own) if key is not None), default=None)
        if following is not None and following[0] == priority:
            until = min(until, following[1])
        parts = source.take((until, priority), allowance)
        self.offer(source)
        return source, parts

    def reaches(self, priority: int) -> bool:
        """Whether everything up to this priority is in memory."""
        return keys.ready_slice(priority) < self._reach

    def load_step(self, read: Callable[[bytes, bytes], tuple[list[Run], bool]]) -> bool:
        """Bring the next runs into memory; False when there was nothing left to bring."""
        if self.cursor >= self._end:
            return False
        runs, complete = read(self.cursor, self._end)
        self._move_cursor(self._end if complete else runs[-1].key + b"\0")
        for run in runs:
            run.in_window = True
            self.offer(Free(run))
        return True

    def has_unread(self, first_key: Callable[[bytes, bytes], bytes | None]) -> bool:
        """Whether something waits on disk; asks the disk only after a change."""
        if self._unread is None:
            self._unread = self.cursor < self._end and first_key(self.cursor, self._end) is not None
        return self._unread

    def left_on_disk(self, key: bytes) -> None:
        """Take note of a run that was written behind the cursor."""
        self._unread = True

    def removed(self, key: bytes) -> None:
        """Take note of a run that has gone."""
        if key >= self.cursor:
            self._unread = None

    def retreat(self, key: bytes) -> list[Run]:
        """Let go of every run from `key` on; the cursor is at `key`. What is kept by time stays."""
        dropped = [s.run for _, _, s in self._heap if isinstance(s, Free) and self.cursor > s.run.key >= key]
        gone = {run.key for run in dropped}
        self._heap = [entry for entry in self._heap if _run_of(entry[2]).key not in gone or not _is_free(entry[2])]
        heapq.heapify(self._heap)
        self._move_cursor(key)
        return dropped

    def kept_by_time(self) -> Iterator[Key]:
        """(priority, ts) of what is offered here and does not lie in the order of priority, or was lost."""
        start = keys.ready_start(self._topic, self._bucket)
        for key, _, source in self._heap:
            if not _is_free(source) or _run_of(source).key < start:
                yield key

    def excess(self, runs_max: int) -> bytes | None:
        """Where to retreat to when the heap has grown to twice `runs_max`; None while it has not."""
        if len(self._heap) < 2 * runs_max:
            return None
        start = keys.ready_start(self._topic, self._bucket)
        held = sorted(s.run.key for _, _, s in self._heap if isinstance(s, Free) and start <= s.run.key < self.cursor)
        return held[runs_max] if len(held) > runs_max else None

    def _move_cursor(self, key: bytes) -> None:
        self.cursor = key
        self._reach = keys.slice_of(key)
        # The last rank of which everything is in memory.
        self._complete = LAST_RANK if key >= self._end else rank(keys.ready_priority(self._reach), 0) - 1
        self._unread = None


def _run_of(source: Source) -> Run:
    return source.run if isinstance(source, Free) else source.part.run


def _is_ready(source: Source) -> bool:
    return isinstance(source, Free) and source.run.slice >= keys.READY_SLICE


def _is_free(source: Source) -> bool:
    return isinstance(source, Free)
