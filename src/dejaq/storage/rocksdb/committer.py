"""Group commit: one thread makes writes durable; whoever wrote meanwhile shares the next sync."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from dejaq.crashpoints import crash_at
from dejaq.errors import Code, Indefinite, error_of
from dejaq.storage.rocksdb.database import Batch, Database
from dejaq.storage.rocksdb.watermark import Mark, Watermark, manifest_of

_WATERMARK_S = 1.0


class Committer:
    """Writes batches at once, on the loop, and syncs them in a thread, off the loop."""

    def __init__(self, database: Database, watermark: Watermark, on_failure: Callable[[str], None]) -> None:
        self._database = database
        self._watermark = watermark
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._waiting: asyncio.Future[None] | None = None
        self._syncing: asyncio.Future[None] | None = None
        self._wake = threading.Event()
        self._stopping = False
        self._marked_at = time.monotonic()
        self._manifest = manifest_of(database.path)
        self.syncs = 0
        self.writes = 0
        self.sync_seconds = 0.0
        self._thread = threading.Thread(target=self._run, name="dejaq-commit", daemon=True)
        self._thread.start()

    def write(self, batch: Batch) -> asyncio.Future[None]:
        """Write `batch` now; the future is done when it is durable, or fails with Indefinite."""
        crash_at("storage.before_write")
        try:
            self._database.write(batch)
        except Exception as cause:  # noqa: BLE001  rocksdict raises plain Exception
            self._on_failure(f"write failed: {cause}")
            raise error_of(Code.INDEFINITE, "the storage failed while writing", details=str(cause)) from None
        crash_at("storage.after_write")
        self.writes += 1
        with self._lock:
            if self._waiting is None:
                self._waiting = self._loop.create_future()
                # Nobody may wait for a relaxed topic's write; a failure is known by `on_failure` too.
                self._waiting.add_done_callback(_retrieve)
                self._wake.set()
            return self._waiting

    def pending(self) -> asyncio.Future[None] | None:
        """What to wait for so that everything visible now is durable; None when it is."""
        with self._lock:
            return self._waiting or self._syncing

    async def stop(self) -> None:
        """Make durable what was written, and end the thread."""
        pending = self.pending()
        if pending is not None:
            await asyncio.wait([pending])
        self._stopping = True
        self._wake.set()
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            with self._lock:
                future, self._waiting = self._waiting, None
                self._syncing = future
            if future is not None:
                error = self._sync()
                try:
                    self._loop.call_soon_threadsafe(self._finish, future, error)
                except RuntimeError:  # the loop is closed: the program is ending
                    return
            elif self._stopping:
                return

    def _sync(self) -> Indefinite | None:
        began = time.monotonic()
        try:
            sequence = self._database.sequence
            crash_at("storage.before_sync")
            self._database.sync()
            crash_at("storage.after_sync")
            if time.monotonic() - self._marked_at >= _WATERMARK_S:
                self._mark(sequence)
        except Exception as cause:  # noqa: BLE001
            return Indefinite("the storage failed while syncing", details=str(cause))
        self.sync_seconds += time.monotonic() - began
        self.syncs += 1
        return None

    def _mark(self, sequence: int) -> None:
        """Raise the watermark. The manifest is taken as it was a mark ago: by now that much of it is durable."""
        name, size = self._manifest
        self._manifest = manifest_of(self._database.path)
        if name != self._manifest[0]:
            name, size = "", 0
        self._watermark.write(Mark(sequence, name, size))
        self._marked_at = time.monotonic()

    def _finish(self, future: asyncio.Future[None], error: Indefinite | None) -> None:
        with self._lock:
            if self._syncing is future:
                self._syncing = None
        if error is None:
            future.set_result(None)
        else:
            self._on_failure(str(error))
            future.set_exception(error)


def _retrieve(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()
