"""The log, the database and the threads between them, as one part of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dejaq import limits
from dejaq.errors import StoreError
from dejaq.storage.rocksdb.engine import journal
from dejaq.storage.rocksdb.engine.checkpoints import Checkpoints, CheckpointSource
from dejaq.storage.rocksdb.engine.committer import Committer
from dejaq.storage.rocksdb.engine.database import RocksDatabase, new_batch
from dejaq.storage.rocksdb.engine.frame_uses import FrameUses
from dejaq.storage.rocksdb.engine.log_keeper import LogKeeper
from dejaq.storage.rocksdb.engine.starting import COMMIT, SEGMENTS, start_log
from dejaq.storage.rocksdb.engine.watermark import Mark, Watermark, manifest_of


@dataclass(frozen=True, slots=True)
class LogSizes:
    """The size of a file of the log, the log between two flushes of the database, and the limits of the whole log."""

    file_bytes: int = limits.COMMIT_LOG_FILE_BYTES
    flush_bytes: int = limits.COMMIT_LOG_FLUSH_BYTES
    bytes_max: int = limits.COMMIT_LOG_BYTES_MAX
    # What a lagging exporter keeps.
    journal_bytes_max: int = limits.COMMIT_LOG_JOURNAL_BYTES_MAX


class Engine:
    """An open database with its log. After `begin` it takes changes."""

    def __init__(self, path: Path, database: RocksDatabase, watermark: Watermark, mark: Mark, sizes: LogSizes) -> None:
        self._path = path
        self._watermark = watermark
        self._sizes = sizes
        self._started = start_log(path, database, watermark, mark, file_bytes=sizes.file_bytes)
        self._checkpoints = Checkpoints()
        self.database = database
        self.log = self._started.log
        self.boot = self._started.boot
        database.log, database.log_path = self.log, path / COMMIT
        self._uses = FrameUses()
        # The start itself was the last change, and has no frame.
        self._uses.load(database, (file.number for file in self.log.files), self.log.sequence - 1)

    def begin(self, on_failure: Callable[[StoreError], None]) -> None:
        """Start the thread that commits."""
        self.committer = Committer(self.database, self.log, self._watermark, self._uses, on_failure)
        self.keeper = LogKeeper(
            self.database,
            self.log,
            self.committer,
            flushed=self._started.flushed,
            replayed_bytes=self._started.replayed_bytes,
            flush_bytes=self._sizes.flush_bytes,
            bytes_max=self._sizes.bytes_max,
            journal_bytes_max=self._sizes.journal_bytes_max,
            on_failure=on_failure,
        )
        self.keeper.look()

    async def stop(self) -> None:
        """Make durable what was taken, and end the thread."""
        await self.keeper.stop()
        await self.committer.stop()

    async def close(self) -> None:
        """Close everything; nothing else may be inside a call. Raises what RocksDB raises."""
        await self._checkpoints.finish()
        self.log.close()
        await asyncio.to_thread(self.database.close)

    async def mark(self) -> None:
        """Record that everything is durable, after a close without a failure."""
        mark = Mark(self.log.durable, *manifest_of(self.database.path))
        await asyncio.to_thread(self._watermark.write, mark)

    async def checkpoint(self, path: Path) -> None:
        """Put everything that was acknowledged into a new directory, of links to the same files where possible."""
        source = CheckpointSource(
            self.database, self.log, self.committer, self.keeper, self._path / COMMIT, self._path / SEGMENTS
        )
        await self._checkpoints.make(source, path)

    async def journal(self, after: int, bytes_max: int, check_working: Callable[[], None]) -> list[bytes]:
        """The journal's records behind a sequence that were there at the call, when they are durable."""
        up_to = journal.extent(self.database)[1]
        durable = self.committer.pending()
        if durable is not None:
            await asyncio.shield(durable)
            check_working()
        return journal.records_behind(self.database, self.log, range(after + 1, up_to + 1), bytes_max)

    async def trim_journal(self, up_to: int) -> None:
        """Remove the journal's records up to a sequence, and the files of the log that nothing needs then."""
        batch = new_batch()
        journal.trim(self.database, up_to, batch)
        if len(batch):
            await asyncio.shield(self.committer.write(batch))
            self.keeper.look()

    def stats(self) -> dict[str, float]:
        """Numbers for the metrics."""
        files = self.log.files
        return {
            "log_files": len(files),
            "log_bytes": sum(file.size for file in files),
            "log_live_bytes": self._uses.total_bytes,
            "log_moved_bytes": self.keeper.moved_bytes,
            "log_pending": self.committer.pending_changes,
            "writes": self.committer.writes,
            "syncs": self.committer.syncs,
            "sync_seconds": self.committer.sync_seconds,
        }
