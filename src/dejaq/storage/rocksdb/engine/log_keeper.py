"""Keeps the commit log short: files that nothing needs any more are removed.

A file is needed until the database has written its changes to tables, as long as runs are frames of it, until the
journal's records in it have been exported, and as long as a view is open that may read it. A file that is old and
mostly dead is emptied: what is alive in it is copied into the database. So are the files with the fewest live bytes
when the log exceeds its limit, and the oldest ones when the exporter of the journal lags too far.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import pairwise

from dejaq import limits
from dejaq.crashpoints import crash_at
from dejaq.errors import StoreError
from dejaq.storage.commit_log.writer import CommitLog, LogFile
from dejaq.storage.rocksdb.engine import journal
from dejaq.storage.rocksdb.engine.committer import Committer
from dejaq.storage.rocksdb.engine.database import RocksDatabase, write_error
from dejaq.storage.rocksdb.engine.emptying import empty

log = logging.getLogger(__name__)

# A file is mostly dead when less than one part in so many is needed for runs, and old when so many files are newer.
DEAD_PART = 4
OLD_FILES = 4


class LogKeeper:
    """Has the database flushed after so many bytes of log, and removes files of the log in a thread."""

    def __init__(
        self,
        database: RocksDatabase,
        commit_log: CommitLog,
        committer: Committer,
        *,
        flushed: int,
        replayed_bytes: int,
        flush_bytes: int,
        bytes_max: int,
        journal_bytes_max: int,
        on_failure: Callable[[StoreError], None],
    ) -> None:
        self._database = database
        self._log = commit_log
        self._committer = committer
        self._uses = committer.uses
        # The last change that is in tables; the bytes that the log had then.
        self._flushed, self._flushed_bytes = flushed, -replayed_bytes
        self._flush_bytes, self._bytes_max, self._journal_bytes_max = flush_bytes, bytes_max, journal_bytes_max
        self._on_failure = on_failure
        self._working: asyncio.Task[None] | None = None
        # Whether changes were applied that the work in progress may not have considered.
        self._changed = False
        self._stopping = False
        # Files that were emptied, and are not removed yet.
        self._emptied: set[int] = set()
        # How much was copied into the database.
        self.moved_bytes = 0
        # Held while the files must stay; and while a file is emptied, so that nothing else moves what it has.
        self.files_needed = asyncio.Lock()
        self.emptying = asyncio.Lock()
        # Takes what it can out of a file before that is emptied.
        self.before_emptying: Callable[[int], Awaitable[None]] | None = None
        # The names of the segments of logs that do not change any more.
        self.finished_segments: Callable[[], list[str]] = list
        committer.on_applied = self.look

    def topics_of(self, file: int) -> list[int]:
        """The topics that have frames in a file."""
        return self._uses.topics_of(file)

    def look(self) -> None:
        """Begin to work when there is something to do; while it works, it looks again at the end."""
        self._changed = self._working is not None
        if self._working is None and not self._stopping and (self._must_flush or len(self._log.files) > 1):
            if not self._must_flush and not self._removable() and self._next_to_empty() is None:
                return
            self._working = asyncio.get_running_loop().create_task(self._work())
            self._working.add_done_callback(self._worked)

    @property
    def _must_flush(self) -> bool:
        if self._log.bytes_written - self._flushed_bytes >= self._flush_bytes:
            return True
        # What has lost its last run since the flush before.
        return sum(file.size for file in self._in_tables() if self._is_waiting(file)) >= self._flush_bytes

    def _is_waiting(self, file: LogFile) -> bool:
        """Whether a file could be removed behind another flush."""
        number = file.number
        return not self._uses.live_bytes(number) and not self._uses.is_free(number, self._flushed)

    def _in_tables(self) -> list[LogFile]:
        """The files of which the tables of the database have every change, oldest first."""
        return [file for file, after in pairwise(self._log.files) if after.first <= self._flushed + 1]

    def _removable(self) -> set[int]:
        """The files that are not needed."""
        free = {file.number for file in self._in_tables() if self._uses.is_free(file.number, self._flushed)}
        if not free:
            return free
        pinned = journal.first_file(self._database)
        return {file for file in free if (pinned is None or file < pinned) and not self._database.viewed(file)}

    def _next_to_empty(self) -> int | None:
        """The file of which the live bytes are to be copied."""
        files, held = self._in_tables(), self._log.files
        dead = [file for file in files if self._is_mostly_dead(file)]
        limit = min(self._bytes_max, self._journal_bytes_max)
        many = len(held) > limits.COMMIT_LOG_FILES_MAX
        if not files or not (dead or many or sum(file.size for file in held) > limit):
            return None
        pinned = journal.first_file(self._database)
        kept = [file for file in files if not self._is_emptied(file, pinned)]
        freed = [file for file in files if self._is_emptied(file, pinned)]
        size = sum(file.size for file in held) - sum(file.size for file in freed)
        too_long = size > self._bytes_max or len(held) - len(freed) > limits.COMMIT_LOG_FILES_MAX
        behind = sum(file.size for file in held if pinned is not None and file.number >= pinned)
        if behind > self._journal_bytes_max and any(file.number == pinned for file in kept):
            log.debug("the exporter of the journal lags: file %d of the commit log is emptied", pinned)
            return pinned
        choice = [file for file in kept if (too_long or file in dead) and (pinned is None or file.number < pinned)]
        # What a file has of the journal moves in the order of the journal.
        choice = choice or (kept[:1] if too_long else [])
        return min(choice, key=lambda file: self._uses.live_bytes(file.number)).number if choice else None

    def _is_emptied(self, file: LogFile, pinned: int | None) -> bool:
        """Whether nothing is left to be copied."""
        dead = not self._uses.live_bytes(file.number) and (pinned is None or file.number < pinned)
        return dead or file.number in self._emptied

    def _is_mostly_dead(self, file: LogFile) -> bool:
        live = self._uses.live_bytes(file.number)
        return 0 < live * DEAD_PART < file.size and file.number + OLD_FILES <= self._log.number

    async def _work(self) -> None:
        await self._flush_and_remove(needed=self._must_flush)
        while not self._stopping and (number := self._next_to_empty()) is not None:
            if self.before_emptying is not None:
                await self.before_emptying(number)
            async with self.emptying:
                if self._next_to_empty() == number:
                    self.moved_bytes += await self._empty(number)
                    self._emptied.add(number)
            last = self._next_to_empty() is None
            await self._flush_and_remove(needed=self._must_flush or (last and self._too_long))

    async def _empty(self, number: int) -> int:
        return await empty(number, self._database, self._log, self._committer, lambda: self._stopping)

    @property
    def _too_long(self) -> bool:
        files = self._log.files
        return sum(file.size for file in files) > self._bytes_max or len(files) > limits.COMMIT_LOG_FILES_MAX

    async def _flush_and_remove(self, *, needed: bool) -> None:
        if needed:
            applied, written = self._committer.applied, self._log.bytes_written
            await asyncio.to_thread(self._database.flush)
            self._flushed, self._flushed_bytes = applied, written
        async with self.files_needed:
            numbers = self._removable()
            if numbers:
                await asyncio.to_thread(self._log.trim, self._flushed + 1, files=numbers)
                crash_at("storage.files_removed")
                self._emptied -= numbers
                for number in numbers:
                    self._uses.forget(number)

    def _worked(self, working: asyncio.Task[None]) -> None:
        self._working = None
        if working.cancelled():
            return
        cause = working.exception()
        if cause is not None:
            self._on_failure(cause if isinstance(cause, StoreError) else write_error(self._database.path.parent, cause))
        elif self._changed:
            # Without this, what the last change of all released would stay until the next one.
            self.look()

    async def stop(self) -> None:
        """Begin nothing more, and wait for the work in progress."""
        self._stopping = True
        if self._working is not None:
            await asyncio.wait([self._working])
