"""Keeps the older batches of logs in segment files, in the background: one task moves batches, replaces segments,
compacts logs and removes files, one after the other, with pauses between short steps.

The commit log asks for batches to be moved when it is too long. Everything is done by one step at a time, and each is
durable before the next, so a crash leaves at most files without a record; a start removes them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import islice

from dejaq.crashpoints import crash_at
from dejaq.domain.topic import Topic
from dejaq.errors import StoreError
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.committer import Committer
from dejaq.storage.rocksdb.engine.database import RocksDatabase, write_error
from dejaq.storage.rocksdb.engine.log_keeper import LogKeeper
from dejaq.storage.rocksdb.log import records
from dejaq.storage.rocksdb.log.compacting import compact, is_due
from dejaq.storage.rocksdb.log.moving import SegmentWork, move
from dejaq.storage.rocksdb.log.opening import OpenedSegments
from dejaq.storage.rocksdb.log.rewriting import rewrite, small_segments
from dejaq.storage.rocksdb.log.state import LogBucket, LogState
from dejaq.storage.segments.files import SegmentFiles
from dejaq.storage.segments.writer import LogSegment

log = logging.getLogger(__name__)

# Files that are removed in one step.
_REMOVED_PER_STEP = 32
_READ_PER_TURN = 200


class SegmentKeeper:
    """The work on the segments of all logs of a store."""

    def __init__(
        self,
        database: RocksDatabase,
        committer: Committer,
        opened: OpenedSegments,
        keeper: LogKeeper,
        *,
        state_of: Callable[[int], LogState | None],
        check: Callable[[], None],
        altering: Callable[[], AbstractContextManager[None]],
        on_failure: Callable[[StoreError], None],
    ) -> None:
        self._keeper = keeper
        self._state_of = state_of
        self._on_failure = on_failure
        self._work = SegmentWork(database, committer, opened.files, opened.settings, check, altering, self._is_live)
        self._work.removable += opened.unused
        self._queue: dict[tuple[int, int], None] = {}
        self._working: asyncio.Task[None] | None = None
        self._sweeping = False
        self._now = 0
        keeper.before_emptying, keeper.finished_segments = self._relieve, opened.files.finished
        self._start()

    @property
    def files(self) -> SegmentFiles:
        """The files."""
        return self._work.files

    def _is_live(self, state: LogState) -> bool:
        return self._state_of(state.topic.number) is state

    def look(self, state: LogState, bucket: LogBucket, now: int) -> None:
        """Have batches of a bucket moved when there are enough of them."""
        self._now = max(self._now, now)
        enough = self._enough(state, bucket)
        if bucket.unmoved >= max(enough, bucket.move_from) and bucket.movable() >= enough:
            self._queue[state.topic.number, bucket.number] = None
            self._start()

    def _enough(self, state: LogState, bucket: LogBucket) -> int:
        settings = self._work.settings
        if not state.topic.settings.compact:
            return settings.bytes
        return min(settings.bytes, max(settings.compacted_bytes, (bucket.size - bucket.unmoved) // 2))

    def removed(self, segments: list[LogSegment]) -> None:
        """The records of segments were removed, durably: remove the files."""
        self._work.removable += [one.number for one in segments]
        self._start()

    def sweep(self, topic: Topic) -> None:
        """Remove the files of a topic that was dropped, durably."""
        self._sweeping |= topic.is_log
        self._start()

    def stats(self) -> dict[str, float]:
        """Numbers for the metrics."""
        return {
            "log_segments_moved_bytes": self._work.moved_bytes,
            "log_segments_rewritten_bytes": self._work.rewritten_bytes,
            "log_segments_cached_bytes": self.files.cached_bytes,
        }

    async def settle(self) -> None:
        """Wait until there is nothing to do."""
        while self._working is not None:
            await asyncio.wait([self._working])
            await asyncio.sleep(0)

    async def stop(self) -> None:
        """Begin nothing more, and wait for the step in progress."""
        self._work.stopping = True
        await self.settle()

    # The task

    def _start(self) -> None:
        some = self._queue or self._work.removable or self._sweeping
        if some and self._working is None and not self._work.stopping:
            self._working = asyncio.get_running_loop().create_task(self._run())
            self._working.add_done_callback(self._ended)

    async def _run(self) -> None:
        while not self._work.stopping:
            if self._queue:
                number, place = next(iter(self._queue))
                del self._queue[number, place]
                state = self._state_of(number)
                if state is not None:
                    await self._work_on(state, state.buckets[place])
            elif self._sweeping:
                self._sweeping = False
                await self._sweep()
            elif self._work.removable:
                await self._remove()
            else:
                return

    async def _work_on(self, state: LogState, bucket: LogBucket) -> None:
        while self._work.goes_on(state) and bucket.movable() >= (enough := self._enough(state, bucket)):
            async with self._keeper.emptying:
                segment = await move(self._work, state, bucket)
            await self._replace(state, bucket)
            if segment is None or segment.bytes < enough // 2:
                # The others may still be rolled back.
                bucket.move_from = bucket.unmoved + enough // 2
                return
            bucket.move_from = 0

    async def _replace(self, state: LogState, bucket: LogBucket) -> None:
        """Compact a bucket, or make one segment of several small ones, when that is worth while."""
        if bucket.replacing or not self._work.goes_on(state):
            return
        try:
            await self._compact_or_join(state, bucket)
        except StoreError:
            # A log that was dropped meanwhile has no files.
            if self._is_live(state):
                raise

    async def _compact_or_join(self, state: LogState, bucket: LogBucket) -> None:
        if state.topic.settings.compact:
            if is_due(bucket):
                await compact(self._work, state, bucket, self._now)
            return
        small = small_segments(bucket.segments, self._work.settings.bytes, self._work.settings.merged)
        if small:
            bucket.replacing = True
            try:
                await rewrite(self._work, state, bucket, small, None, clean=False)
            finally:
                bucket.replacing = False

    async def _relieve(self, file: int) -> None:
        """Move the batches of logs out of a file of the commit log; few batches of a bucket stay."""
        self._work.hurried = True
        try:
            for topic in self._keeper.topics_of(file):
                state = self._state_of(topic)
                for bucket in state.buckets if state is not None else ():
                    if state is not None and bucket.movable() >= self._work.settings.least_bytes:
                        await self.move_out(state, bucket)
                    await asyncio.sleep(0)
        finally:
            self._work.hurried = False

    async def move_out(self, state: LogState, bucket: LogBucket) -> None:
        """Move what can be moved of a bucket, unless it is little."""
        while bucket.movable() >= self._work.settings.least_bytes:
            async with self._keeper.emptying:
                if await move(self._work, state, bucket) is None:
                    break
        await self._replace(state, bucket)
        self._start()

    async def _sweep(self) -> None:
        """Find the files that no record names. What was begun after the first line is not among them."""
        known, unfinished = self.files.next_number, set(self._work.unfinished)
        found = await asyncio.to_thread(self._unknown)
        self._work.removable += [number for number in found if number < known and number not in unfinished]

    def _unknown(self) -> list[int]:
        numbers, named = self.files.numbers(), set()
        database = self._work.database
        start = keys.LOG_SEGMENT
        while some := list(islice(database.scan_applied(start, keys.after(keys.LOG_SEGMENT)), _READ_PER_TURN)):
            named |= {records.unpack_segment(*item).number for item in some}
            start = some[-1][0] + b"\0"
        return sorted(numbers - named)

    async def _remove(self) -> None:
        """Remove some files, unless a checkpoint needs them."""
        async with self._keeper.files_needed:
            # After a failure, it is not known which records are durable.
            self._work.check()
            some = self._work.removable[:_REMOVED_PER_STEP]
            await asyncio.to_thread(self.files.remove, some)
            del self._work.removable[: len(some)]
        crash_at("storage.segments_removed")

    def _ended(self, working: asyncio.Task[None]) -> None:
        self._working = None
        if working.cancelled():
            return
        cause = working.exception()
        if cause is not None:
            # The store must be opened again.
            self._work.stopping = True
            self._on_failure(cause if isinstance(cause, StoreError) else write_error(self._work.database.path, cause))
        else:
            self._start()
