"""Checkpoints of a store that is in use: its database, and the files of the commit log that it needs."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dejaq.errors import Code, StoreError, error_of
from dejaq.storage.commit_log.reader import file_name
from dejaq.storage.commit_log.writer import CommitLog
from dejaq.storage.rocksdb.engine.committer import Committer
from dejaq.storage.rocksdb.engine.database import RocksDatabase
from dejaq.storage.rocksdb.engine.log_keeper import LogKeeper

DATABASE = "db"


@dataclass(frozen=True, slots=True)
class CheckpointSource:
    """What a checkpoint is made of."""

    database: RocksDatabase
    log: CommitLog
    committer: Committer
    keeper: LogKeeper
    # The directory of the log's files.
    log_path: Path
    # The directory of the segments of logs.
    segments_path: Path


class Checkpoints:
    """The checkpoints that are being made; the database must not be closed before they are finished."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Future[None]] = set()

    async def make(self, source: CheckpointSource, path: Path) -> None:
        """Make one in a new directory; a caller that goes away does not end it."""
        making = asyncio.ensure_future(_make(source, path))
        self._under_way.add(making)
        making.add_done_callback(self._made)
        try:
            await asyncio.shield(making)
        except StoreError:
            raise
        except Exception as cause:  # noqa: BLE001  rocksdict raises plain Exception
            raise error_of(Code.STORE_FAILED, f"cannot make a checkpoint at {path}", details=str(cause)) from None

    def _made(self, making: asyncio.Future[None]) -> None:
        self._under_way.discard(making)
        if not making.cancelled():
            making.exception()

    async def finish(self) -> None:
        """Wait until none is being made."""
        if self._under_way:
            await asyncio.wait(self._under_way)


async def _make(source: CheckpointSource, path: Path) -> None:
    """First the database, then the log, which is ahead of it: a start on the copy replays the difference."""
    async with source.keeper.files_needed:
        await asyncio.to_thread(path.mkdir, parents=True, exist_ok=True)
        await asyncio.to_thread(source.database.checkpoint, path / DATABASE)
        # What is written from now on goes into another file, so that those that are linked do not change any more.
        source.committer.seal()
        last = source.log.number
        source.log.roll()
        pending = source.committer.pending()
        if pending is not None:
            await asyncio.shield(pending)
        names = [file_name(file.number) for file in source.log.files if file.number <= last]
        await asyncio.to_thread(_link, source.log_path, path / source.log_path.name, names)
        # No segment is removed meanwhile, and none that is needed is being written.
        segments = await asyncio.to_thread(source.keeper.finished_segments)
        await asyncio.to_thread(_link, source.segments_path, path / source.segments_path.name, segments)


def _link(source: Path, target: Path, names: Sequence[str]) -> None:
    target.mkdir()
    for name in names:
        try:
            os.link(source / name, target / name)
        except OSError:
            shutil.copy2(source / name, target / name)
