"""What is due in one bucket of a topic by priority: the most urgent part of it in memory, the rest on disk in order.

What was due when it was written lies on disk in the order of priority: a run by the first of its priorities. Everything
before `cursor`, in the order of run keys, is in memory; nothing behind it is. So what is in memory up to a priority is
all of it, since a run has no priority below its key's.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import count

from dejaq.storage.rocksdb import keys
from dejaq.storage.rocksdb.lease import Part
from dejaq.storage.rocksdb.run import Key, Run
from dejaq.storage.rocksdb.window import Allowance, Free, Lost, Source


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

    def sweep(self, other: Key | None, allowance: Allowance, picked: dict[Run, int]) -> bool:
        """Take rows of runs of several priorities, one by one, while nothing else comes before them.

        False when the first source, which `head` has found, is of another kind. Ends where another bucket (`other`) or
        such a source is next, or where more has to be read. Rows of such a run are due at one time, which has come.
        """
        heap, kept, order = self._heap, self._kept, self._order
        if not isinstance(heap[0][2], Free) or not heap[0][2].run.mixed:
            return False
        swept = False
        while heap and not allowance.spent:
            key, _, source = heap[0]
            priority = key[0]
            if (other is not None and key > other) or not isinstance(source, Free) or not source.run.mixed:
                break
            run = source.run
            free = run.free
            if not free or not kept(run):
                heapq.heappop(heap)
                continue
            row = (free & -free).bit_length() - 1
            priorities = run.record.priorities
            if priorities[row] != priority:
                heapq.heapreplace(heap, ((priorities[row], key[1]), next(order), source))
                continue
            if (swept and not self.reaches(priority)) or allowance.take(run, row, row + 1) == row:
                break
            free &= free - 1
            run.free = free
            picked[run] = picked.get(run, 0) | 1 << row
            swept = True
            if free:
                following = priorities[(free & -free).bit_length() - 1]
                heapq.heapreplace(heap, ((following, key[1]), next(order), source))
            else:
                heapq.heappop(heap)
        return True

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
        self._unread = None


def _run_of(source: Source) -> Run:
    return source.run if isinstance(source, Free) else source.part.run


def _is_free(source: Source) -> bool:
    return isinstance(source, Free)
