"""Carries records from the store's outbox into segments: reads, writes a segment, then trims what is in it.

The outbox is trimmed only when the segment is durable, and the files in the directory decide where to continue: after
a crash at any point, each record is in exactly one segment. The work is done in one thread, off the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from dejaq.crashpoints import crash_at
from dejaq.errors import InvalidArgument
from dejaq.journal.keys import SigningKey
from dejaq.journal.ledger import Ledger
from dejaq.journal.origin import new_origin, origin_of
from dejaq.journal.retention import RetentionPolicy
from dejaq.protocol.v1 import journal_pb2 as journal
from dejaq.storage.base import Storage
from dejaq.timekeeper.clock import Clock

log = logging.getLogger(__name__)

# The most that one segment contains, and the most that one read of the outbox returns; the event loop waits for the
# latter.
SEGMENT_BYTES = 8 * 1024 * 1024
STEP_BYTES = 256 * 1024
LOOK_SECONDS = 0.25
# A store that has made so many small segments, one at almost every interval, makes larger ones: it then waits this many
# intervals for each, unless there is more to write. A day of little work is 17,000 files instead of 86,000.
SMALL_BYTES = 256 * 1024
SMALL_IN_A_ROW = 60
SLOW_INTERVALS = 5
BACKOFF_SECONDS_MIN = 1.0
BACKOFF_SECONDS_MAX = 30.0

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class Figures:
    """The exporter's figures for the metrics."""

    segments: int = 0
    segment_bytes: int = 0
    last: int = 0


class Exporter:
    """Exports one store's journal to a directory."""

    def __init__(
        self,
        *,
        storage: Storage,
        clock: Clock,
        directory: Path,
        home: Path,
        interval_ms: int = 1_000,
        policy: RetentionPolicy | None = None,
        on_problem: Callable[[str | None], None] | None = None,
        on_exported: Callable[[int], None] | None = None,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._directory = directory
        # The directory of the origin and the key.
        self._home = home
        self._interval = interval_ms / 1_000
        self._policy = policy or RetentionPolicy()
        self._on_problem = on_problem or (lambda sentence: None)
        self._on_exported = on_exported or (lambda events: None)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dejaq-journal")
        self._ledger: Ledger | None = None
        # Whether this exporter has made the origin that it writes under.
        self._new_origin = False
        self._read: list[bytes] = []
        self._read_bytes = 0
        # The last sequence that was read from the outbox.
        self._position = 0
        # When the last small segments were made.
        self._small: deque[float] = deque(maxlen=SMALL_IN_A_ROW)
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._lag = _Lag(storage)
        self._turn = asyncio.Lock()
        self.figures = Figures()

    # Life

    async def start(self) -> None:
        """Find the end of the journal and continue from there; raises if the directory cannot be used."""
        try:
            await self._open()
        except BaseException:
            self._thread.shutdown(wait=False)
            raise
        self._task = asyncio.get_running_loop().create_task(self._run(), name="journal exporter")

    async def stop(self) -> None:
        """Export the remaining records and end; records that cannot be exported remain in the store."""
        self._stopping.set()
        if self._task is not None:
            await self._task
            try:
                await self._export_all()
            except Exception as fault:  # noqa: BLE001  after any error, the broker must end and keep its records
                log.warning("the rest of the journal remains in the store: %s", fault)
        await asyncio.to_thread(self._thread.shutdown)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Export nothing in the block, so that the directory and the outbox of the store fit together."""
        async with self._turn:
            yield

    async def _run(self) -> None:
        backoff = BACKOFF_SECONDS_MIN
        while not self._stopping.is_set():
            try:
                async with self._turn:
                    await self._export_all()
                    await self._in_thread(self._drop)
                self._on_problem(None)
            except Exception as fault:
                log.debug("the journal cannot be exported", exc_info=fault)
                self._on_problem(f"the journal cannot be exported; its records wait in the store: {fault}")
                self._ledger = None
                await self._pause(backoff)
                backoff = min(backoff * 2, BACKOFF_SECONDS_MAX)
            else:
                backoff = BACKOFF_SECONDS_MIN
                await self._wait_for_more()

    async def _wait_for_more(self) -> None:
        waited = 0.0
        slow = self._is_slow()
        longest = self._interval * (SLOW_INTERVALS if slow else 1)
        while waited < longest and not self._stopping.is_set() and self.lag()[1] < SEGMENT_BYTES:
            if waited >= self._interval and self.lag()[1] >= SMALL_BYTES:
                break
            step = min(LOOK_SECONDS, longest - waited)
            await self._pause(step)
            waited += step

    def _is_slow(self) -> bool:
        """Whether small segments have followed one another for a while."""
        window = 1.5 * SLOW_INTERVALS * SMALL_IN_A_ROW * self._interval
        return len(self._small) == SMALL_IN_A_ROW and self._clock.monotonic() - self._small[0] < window

    async def _pause(self, seconds: float) -> None:
        waits = [
            asyncio.ensure_future(self._clock.sleep(seconds)),
            asyncio.ensure_future(self._stopping.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    # Beginning

    async def _open(self) -> Ledger:
        ledger = await self._in_thread(self._open_ledger)
        try:
            await self._storage.trim_journal(ledger.last)
        except InvalidArgument:
            # The store is older than its journal. What it writes now must not be mistaken for earlier exports.
            log.warning(
                "the journal of origin %s has more records than the store has written, as after restoring a backup; "
                "it continues under a new origin",
                ledger.origin,
            )
            await self._in_thread(new_origin, self._home / "origin")
            self._new_origin = True
            ledger = await self._in_thread(self._open_ledger)
        self._ledger = ledger
        self._read, self._read_bytes, self._position = [], 0, ledger.last
        self._take_figures(ledger)
        return ledger

    def _open_ledger(self) -> Ledger:
        key = SigningKey.of(self._home / "journal.key")
        # Optional: a storage that several brokers can share has an identity of its own.
        store = self._storage.identity
        path = self._home / "origin"
        self._new_origin = self._new_origin or not path.exists()
        return Ledger.open(self._directory, origin=origin_of(path), key=key, store=store, new_origin=self._new_origin)

    # Exporting

    async def _export_all(self) -> None:
        """Export what is in the outbox now. Records that arrive meanwhile are exported next time, because under load
        this would never end.
        """
        ledger = self._ledger or await self._open()
        target = self._lag.sequence()
        while await self._gather(target):
            await self._export(ledger)

    async def _gather(self, target: int) -> bool:
        """Read records up to `target`, about as many as fit into a segment; False if there are none."""
        while self._read_bytes < SEGMENT_BYTES and self._position < target:
            found = await self._storage.journal(self._position, STEP_BYTES)
            if not found:
                break
            self._read += found
            self._read_bytes += sum(map(len, found))
            self._position = journal.JournalRecord.FromString(found[-1]).sequence
            # Reading is done on the loop: let others run between the steps.
            await asyncio.sleep(0)
        return bool(self._read)

    async def _export(self, ledger: Ledger) -> None:
        before = ledger.last
        crash_at("journal.before_export")
        written = await self._in_thread(ledger.append, self._read, self._clock.now_ms())
        if before and written.first != before + 1:
            log.error("records %d to %d of the journal are gone from the store", before + 1, written.first - 1)
        size = sum(map(len, self._read[: written.records]))
        del self._read[: written.records]
        self._read_bytes -= size
        crash_at("journal.before_trim")
        await self._storage.trim_journal(ledger.last)
        crash_at("journal.after_trim")
        if size < SMALL_BYTES:
            self._small.append(self._clock.monotonic())
        else:
            self._small.clear()
        self._on_exported(written.events)
        self._lag.exported(written.first, size)
        self._take_figures(ledger)

    def _drop(self) -> None:
        if self._ledger is not None:
            dropped = self._ledger.drop(self._policy, self._clock.now_ms())
            if dropped:
                log.info("dropped the %d oldest segments of the journal", dropped)
            self._take_figures(self._ledger)

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(self._thread, lambda: work(*args, **kwargs)))

    # Figures

    def lag(self) -> tuple[int, int]:
        """How many records, and about how many bytes, are in the store and not yet in a segment."""
        return self._lag.measure(self.figures.last)

    def _take_figures(self, ledger: Ledger) -> None:
        self.figures.segments = ledger.segments
        self.figures.segment_bytes = ledger.size
        self.figures.last = ledger.last


class _Lag:
    """Compares what the store has written since it was opened with what was exported of that."""

    def __init__(self, storage: Storage) -> None:
        self._stats = storage.journal_stats
        self._opened = 0
        self._bytes = 0

    def sequence(self) -> int:
        """The last record that the store has written."""
        return self._read().get("journal_sequence", 2**63)

    def exported(self, first: int, size: int) -> None:
        """Records from `first` on, of so many bytes, are in a segment."""
        stats = self._read()
        if self._opened != stats.get("journal_opened", 0):
            self._opened, self._bytes = stats["journal_opened"], 0
        if first > self._opened:
            self._bytes += size

    def measure(self, last: int) -> tuple[int, int]:
        """Records and bytes after the last exported one."""
        stats = self._read()
        records = stats.get("journal_sequence", 0) - last
        return max(0, records), max(0, stats.get("journal_bytes", 0) - self._bytes)

    def _read(self) -> dict[str, int]:
        return {name: int(value) for name, value in self._stats().items()}
