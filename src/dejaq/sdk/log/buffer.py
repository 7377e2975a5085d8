"""The batches that a reader has received and its caller has not taken, and the credit that they use."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from dejaq.errors import DejaqError
from dejaq.sdk.log.messages import LogBatch


class LogBuffer:
    """Batches in the order of their arrival; of each bucket, in the order of its offsets without repeats.

    `on_taken` is called with each batch, or part of one, that the caller takes.
    """

    def __init__(self, on_taken: Callable[[LogBatch], None] = lambda batch: None) -> None:
        # The next offset that is expected of each bucket, and the next that the caller gets.
        self.expected: dict[int, int] = {}
        self.handed: dict[int, int] = {}
        # Buckets whose batches are not handed out now.
        self.held: set[int] = set()
        # Buckets that are about to continue at another offset; nothing of them is handed out either.
        self.moving: set[int] = set()
        self.bytes = 0
        self._on_taken = on_taken
        self._batches: deque[LogBatch] = deque()
        self._changed = asyncio.Event()
        self._end: DejaqError | None = None
        self._ended = False

    def begin(self, bucket: int, offset: int) -> int:
        """Expect a bucket from an offset on; the bytes of it that were here and are dropped."""
        held = bucket in self.held
        dropped = self.forget([bucket])
        if held:
            self.held.add(bucket)
        self.expected[bucket] = self.handed[bucket] = offset
        return dropped

    def forget(self, buckets: Iterable[int]) -> int:
        """Drop what is here of some buckets; its bytes, which use credit of the session until the caller returns it."""
        gone, before = set(buckets), self.bytes
        self._batches = deque(batch for batch in self._batches if batch.bucket not in gone)
        self.bytes = sum(batch.size for batch in self._batches)
        for bucket in gone:
            self.expected.pop(bucket, None)
            self.handed.pop(bucket, None)
            self.held.discard(bucket)
        return before - self.bytes

    def arrived(self, batch: LogBatch) -> bool:
        """Take a batch that the broker has sent; False when nothing of it is wanted."""
        expected = self.expected.get(batch.bucket)
        if expected is None or batch.end <= expected:
            return False
        self.expected[batch.bucket] = batch.end
        self._batches.append(batch.part(expected, batch.end))
        self.bytes += batch.size
        self._changed.set()
        return True

    def end(self, error: DejaqError | None = None) -> None:
        """Nothing more arrives; the caller gets what is here, and then the error."""
        self._ended, self._end = True, error
        self._changed.set()

    def wake(self) -> None:
        """Look again whether something can be handed out."""
        self._changed.set()

    async def take(self, count_max: int) -> LogBatch | None:
        """The next messages, at most so many and all of one batch; None at the end."""
        while True:
            batch = self.take_now(count_max)
            if batch is not None:
                return batch
            if self._ended:
                if self._end is not None:
                    raise self._end.with_traceback(None)
                return None
            self._changed.clear()
            await self._changed.wait()

    def take_now(self, count_max: int) -> LogBatch | None:
        """The same without waiting; None when nothing is here."""
        batch = self._next(count_max)
        if batch is not None:
            self._on_taken(batch)
        return batch

    def _next(self, count_max: int) -> LogBatch | None:
        place = 0
        while place < len(self._batches):
            batch = self._batches[place]
            if batch.bucket in self.held or batch.bucket in self.moving:
                place += 1
                continue
            del self._batches[place]
            if not len(batch):
                # The broker says that nothing that the reader wants comes before this offset.
                self.handed[batch.bucket] = batch.end
                continue
            if len(batch) > count_max:
                self._batches.insert(place, batch.part(batch.base + count_max, batch.end))
                batch = batch.part(batch.base, batch.base + count_max)
            self.handed[batch.bucket] = batch.end
            self.bytes -= batch.size
            return batch
        return None
