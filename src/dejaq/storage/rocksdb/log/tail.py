"""The newest batches of all logs, in memory: what most readers read."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from operator import attrgetter

from dejaq.storage.log.base import StoredBatch

# What the objects of a batch take besides its bytes.
_OVERHEAD_BYTES = 300
_HEAD_MAX = 256
_BASE = attrgetter("base")
# In the place of a batch that was removed: without it, the list would keep the batch.
_REMOVED = StoredBatch(0, 0, 0, b"")


class BucketTail:
    """The newest batches of one bucket, without a gap up to its end."""

    __slots__ = ("_batches", "_head")

    def __init__(self) -> None:
        self._batches: list[StoredBatch] = []
        # Those before it were removed; they leave the list many at a time.
        self._head = 0

    def add(self, batch: StoredBatch) -> None:
        """Take the next batch."""
        self._batches.append(batch)

    def remove_first(self) -> StoredBatch | None:
        """Remove the oldest batch."""
        if self._head == len(self._batches):
            return None
        first, self._batches[self._head] = self._batches[self._head], _REMOVED
        self._head += 1
        if self._head > _HEAD_MAX:
            del self._batches[: self._head]
            self._head = 0
        return first

    def first_of(self, offset: int) -> int | None:
        """The place of the batch that has an offset; None when it is not here."""
        place = bisect_right(self._batches, offset, lo=self._head, key=_BASE) - 1
        if place < self._head or self._batches[place].end <= offset:
            return None
        return place

    def at(self, place: int) -> StoredBatch | None:
        """The batch at a place; None behind the last."""
        return self._batches[place] if place < len(self._batches) else None

    def replace(self, batch: StoredBatch) -> None:
        """Put another batch in the place of the one with the same base."""
        place = self.first_of(batch.base)
        if place is not None:
            self._batches[place] = batch

    def trim(self, start: int) -> int:
        """Remove the batches before an offset; how many that were."""
        count = 0
        while self._head < len(self._batches) and self._batches[self._head].base < start:
            self.remove_first()
            count += 1
        return count


class LogTails:
    """The memory that all tails share: when it is used up, the batches that were appended first are removed."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        # In the order of the appends: the tail and the size.
        self._order: deque[tuple[BucketTail, int, int]] = deque()
        self.used = 0

    def add(self, tail: BucketTail, batch: StoredBatch) -> None:
        """Take a batch at the end of its bucket."""
        tail.add(batch)
        size = len(batch.records) + _OVERHEAD_BYTES
        self._order.append((tail, batch.base, size))
        self.used += size
        while self.used > self._bytes_max and self._order:
            oldest, base, freed = self._order.popleft()
            self.used -= freed
            # LogRetention may have removed it already.
            oldest.trim(base + 1)
