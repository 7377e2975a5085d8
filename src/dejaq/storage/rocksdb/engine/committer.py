"""Group commit: one thread makes changes durable in the commit log; all changes made during one sync share the next.

They share a record of the log as well, and so a checksum and a write to the database. While many changes come, a sync
begins some milliseconds after the one before, so that each has more of them.

A change can be read at once, from the overlay of the database. When its group is durable, the loop writes it to the
database, and only then is it acknowledged: the database never has what the log may lose.

A failure is final: after a write or a sync that failed, nothing is written, synced or acknowledged by this committer.
The content of the disk is known again when the store has been opened again, with another committer.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from dejaq import limits
from dejaq.crashpoints import crash_at
from dejaq.errors import Code, Indefinite, StoreError, error_of
from dejaq.storage.commit_log.writer import CommitLog
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase, write_error
from dejaq.storage.rocksdb.engine.frame_uses import FrameUses
from dejaq.storage.rocksdb.engine.overlay import Generation
from dejaq.storage.rocksdb.engine.recording import OpenRecord
from dejaq.storage.rocksdb.engine.watermark import NO_MANIFEST, Mark, Watermark, manifest_of

_WATERMARK_S = 1.0
# The loop does other work after this time of writing to the database.
_STEP_S = 0.001
# Behind a sync of so many small changes, the next one begins at the earliest so long after its begin; half as long
# behind one change less. A message that is due now has two: its create and its lease.
PACED_CHANGES, PACED_BYTES_MAX, PACE_S = 4, 256 * 1024, 0.003


class CommitGroup:
    """The changes that share a sync."""

    __slots__ = ("batches", "bytes", "changes", "failure", "future", "generation")

    def __init__(self, generation: Generation, future: asyncio.Future[None]) -> None:
        self.generation = generation
        self.future = future
        # The records of the log, each with its sequence.
        self.batches: deque[tuple[int, Batch]] = deque()
        self.bytes = 0
        self.changes = 0
        self.failure: StoreError | None = None


class Committer:
    """Appends batches to the log on the loop, writes and syncs the log in a thread, and then fills the database."""

    def __init__(
        self,
        database: RocksDatabase,
        log: CommitLog,
        watermark: Watermark,
        uses: FrameUses,
        on_failure: Callable[[StoreError], None],
    ) -> None:
        self._database = database
        self._log = log
        self._watermark = watermark
        self._on_failure = on_failure
        # What runs need of the log.
        self.uses = uses
        # Called when the database has got another group, and before what waits is synced.
        self.on_applied: Callable[[], None] = lambda: None
        self.before_sync: Callable[[], None] = lambda: None
        self._loop = asyncio.get_running_loop()
        # The group that is open for changes, its record, and the last group that was opened.
        self._waiting: CommitGroup | None = None
        self._record = OpenRecord()
        self._last: CommitGroup | None = None
        # What the thread is given; whether it has not returned it, or a pause follows; and when that began.
        self._given: CommitGroup | None = None
        self._in_sync = False
        self._began = 0.0
        # Groups that are durable, or failed, and are not in the database yet.
        self._synced: deque[CommitGroup] = deque()
        self._applying = False
        self._wake = threading.Event()
        self._stopping = False
        self._broken: StoreError | None = None
        self._marked = log.durable
        self._marked_at = time.monotonic()
        self._manifest = manifest_of(database.path)
        # The last change that the database has.
        self.applied = log.sequence
        # Of the changes that the database does not have yet.
        self.pending_bytes = self.pending_changes = 0
        self.syncs = 0
        self.writes = 0
        self.sync_seconds = 0.0
        self._thread = threading.Thread(target=self._run, name="dejaq-commit", daemon=True)
        self._thread.start()

    def write(self, batch: Batch, *, changes: int = 1) -> asyncio.Future[None]:
        """Take `batch`, which can be read from now on; the future is done when it is durable, or fails with Indefinite.

        It has the effects of so many `changes`.

        Raises STORE_FAILED, and takes nothing, when an earlier write or sync failed.
        """
        if self._broken is not None:
            raise error_of(Code.STORE_FAILED, "the storage takes no writes after a failure", details=str(self._broken))
        crash_at("storage.before_write")
        frames = [frame.data for frame in batch.frames]
        size = sum(map(len, batch.parts)) + sum(map(len, frames))
        if self._waiting is None:
            self._waiting = self._last = self._new_group()
            # Not at once: what else is ready to run belongs to the same group.
            self._loop.call_soon(self._begin_sync)
        group = self._waiting
        if not self._record.has_room(len(batch), size):
            self.seal()
        runs = batch.place_frames(self._log.addresses(frames, behind=self._record.frame_bytes))
        self.uses.record(batch, self._log.sequence + 1)
        self._record.add(batch, frames, size)
        if self._record.is_full:
            self.seal()
        group.bytes += size
        group.changes += changes
        self.pending_changes += changes
        self.pending_bytes += size
        group.generation.add(batch)
        group.generation.frames.update(runs)
        self.writes += 1
        return group.future

    def seal(self) -> None:
        """Append the open record to the log: what comes next has another one. Raises STORE_FAILED."""
        record, self._record = self._record, OpenRecord()
        if record.batch.kinds and self._waiting is not None:
            sequence = self._log.append(record.batch.encode(), record.frames)
            self._waiting.batches.append((sequence, record.batch))

    def _begin_sync(self) -> None:
        """Give the thread what waits, unless it is at work; the end of a sync begins the next one."""
        if self._in_sync or self._waiting is None:
            return
        try:
            self.seal()
        except StoreError as cause:
            self._broken = self._broken or cause
        self._in_sync, self._began = True, time.monotonic()
        self._given, self._waiting = self._waiting, None
        self._wake.set()

    def _new_group(self) -> CommitGroup:
        future = self._loop.create_future()
        # Nobody may wait for a relaxed topic's write; a failure is known by `on_failure` too.
        future.add_done_callback(_retrieve)
        return CommitGroup(self._database.overlay.begin(), future)

    def pending(self) -> asyncio.Future[None] | None:
        """What to wait for so that everything visible now is durable; None when it is."""
        if self._last is None or self._last.future.done():
            return None
        return self._last.future

    @property
    def syncing(self) -> bool:
        """Whether a sync is in progress, or a pause behind it: at the end, `before_sync` is called."""
        return self._in_sync

    @property
    def crowded(self) -> bool:
        """Whether the changes that are not durable yet take too much memory."""
        return self.pending_bytes > limits.COMMIT_LOG_PENDING_BYTES and self._broken is None

    async def make_room(self) -> None:
        """Wait while it is crowded, because the disk is slow or stuck."""
        while self.crowded:
            pending = self.pending()
            if pending is None:
                return
            await asyncio.wait([pending])

    @property
    def broken(self) -> bool:
        """Whether a write or a sync has failed."""
        return self._broken is not None

    async def stop(self) -> None:
        """Make durable what was written, and end the thread."""
        pending = self.pending()
        if pending is not None:
            await asyncio.wait([pending])
        self._stopping = True
        self._wake.set()
        await asyncio.to_thread(self._thread.join)

    # In the thread

    def _run(self) -> None:
        while True:
            marked = self._marked == self._log.durable or self._broken is not None
            if not self._stopping:
                self._wake.wait(None if marked else _WATERMARK_S)
            self._wake.clear()
            group, self._given = self._given, None
            if group is not None:
                group.failure = self._broken or self._sync()
                self._mark()
                try:
                    self._loop.call_soon_threadsafe(self._finish, group)
                except RuntimeError:  # the loop is closed: the program is ending
                    return
            elif self._stopping:
                return
            else:
                self._mark()

    def _sync(self) -> StoreError | None:
        """Write and sync everything that was appended; the reason where that failed."""
        began = time.monotonic()
        try:
            self._log.write()
            crash_at("storage.after_write")
            crash_at("storage.before_sync")
            self._log.sync()
            crash_at("storage.after_sync")
        except Exception as cause:  # noqa: BLE001
            self._broken = write_error(self._database.path.parent, getattr(cause, "details", "") or cause)
            return self._broken
        self.sync_seconds += time.monotonic() - began
        self.syncs += 1
        return None

    def _mark(self) -> None:
        """Raise the watermark, at most once per second.

        The manifest is taken as it was at the last mark: by now that much of it is durable.
        """
        sequence = self._log.durable
        if self._broken or sequence == self._marked or time.monotonic() - self._marked_at < _WATERMARK_S:
            return
        try:
            durable, self._manifest = self._manifest, manifest_of(self._database.path, self._manifest)
            if durable[0] != self._manifest[0]:
                durable = NO_MANIFEST
            self._watermark.write(Mark(sequence, *durable))
        except Exception as cause:  # noqa: BLE001
            self._broken = write_error(self._database.path.parent, cause)
            # Where the loop is closed, the program is ending.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._on_failure, self._broken)
            return
        self._marked, self._marked_at = sequence, time.monotonic()

    # On the loop again

    def _finish(self, group: CommitGroup) -> None:
        wait = self._began + _pace_of(group) - time.monotonic()
        if wait > 0 and not self._broken:
            self._loop.call_later(wait, self._next)
        else:
            self._next()
        self._synced.append(group)
        if not self._applying:
            self._apply()

    def _next(self) -> None:
        """Begin the next sync, with everything that waits for it."""
        self._in_sync = False
        self.before_sync()
        self._begin_sync()

    def _apply(self) -> None:
        """Write what is durable to the database, in order, for a short time; then let others run."""
        began = time.monotonic()
        self._applying = False
        while self._synced:
            group = self._synced[0]
            if group.failure is None and not self._fill(group, began + _STEP_S):
                self._applying = True
                self._loop.call_soon(self._apply)
                return
            if group.failure is not None:
                self._refuse(group.failure)
                return
            self._synced.popleft()
            self._database.overlay.drop(group.generation)
            self.pending_bytes -= group.bytes
            self.pending_changes -= group.changes
            group.future.set_result(None)
            self.on_applied()

    def _fill(self, group: CommitGroup, until: float) -> bool:
        """Write changes of a group to the database; whether none is left to be written."""
        while group.batches:
            sequence, batch = group.batches[0]
            try:
                if self.applied != sequence - 1:
                    raise error_of(Code.STORE_FAILED, f"change {sequence} does not follow {self.applied}")
                self._database.apply(batch, sequence)
            except Exception as cause:  # noqa: BLE001  rocksdict raises plain Exception
                self._broken = write_error(self._database.path, cause)
                group.failure = self._broken
                return True
            self.applied = sequence
            group.batches.popleft()
            if group.batches and time.monotonic() > until:
                return False
        return True

    def _refuse(self, failure: StoreError) -> None:
        """Acknowledge nothing of the first group, and nothing behind it, also if it is durable."""
        self._on_failure(failure)
        self._synced.popleft().future.set_exception(
            Indefinite("the storage failed while writing", details=failure.details)
        )
        if self._synced:
            self._applying = True
            self._loop.call_soon(self._apply)


def _pace_of(group: CommitGroup) -> float:
    """How long after the begin of its sync the next one begins at the earliest."""
    missing = max(0, PACED_CHANGES - group.changes)
    return PACE_S / (1 + missing) if missing <= 1 and group.bytes <= PACED_BYTES_MAX else 0.0


def _retrieve(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()
