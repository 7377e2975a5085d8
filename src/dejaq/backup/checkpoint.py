"""A checkpoint: the files of a data directory as they are at one moment, linked rather than copied, to be copied from.

It lies in the data directory itself, so that a client of the broker cannot choose where the broker writes. The
client that copies it removes it; a forgotten one is removed by the next checkpoint that is made a day later.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol, runtime_checkable

from dejaq.errors import Code, error_of

PREFIX = "checkpoint-"
FORGOTTEN_SECONDS = 24 * 3_600
JOURNAL, KEY = "journal", "journal.key"


@runtime_checkable
class MakesCheckpoints(Protocol):
    """A storage that can link its files as they are at one moment."""

    async def checkpoint(self, path: Path) -> None:
        """Put everything that was acknowledged before the call into the directory `path`."""


async def make_checkpoint(
    storage: object,
    data: Path | None,
    journal: Path | None,
    *,
    held: AbstractAsyncContextManager[None],
    now_ms: int,
) -> Path:
    """Make one in the data directory; `held` keeps the exporter of the journal from writing meanwhile."""
    if data is None or not isinstance(storage, MakesCheckpoints):
        raise error_of(Code.INVALID_ARGUMENT, _why_not(storage))
    path = await asyncio.to_thread(_begin, data, now_ms)
    try:
        # The segments end where the outbox of the database begins, because nothing is exported between the two.
        async with held:
            await storage.checkpoint(path)
            await asyncio.to_thread(_link_journal, data, journal, path)
    except OSError as cause:
        shutil.rmtree(path, ignore_errors=True)
        raise error_of(Code.STORE_FAILED, f"cannot make a checkpoint at {path}", details=str(cause)) from None
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return path


def _why_not(storage: object) -> str:
    if getattr(getattr(storage, "capabilities", None), "shared", False):
        return (
            "the messages are in PostgreSQL, whose own tools make its backups (pg_dump, pg_basebackup or pgBackRest): "
            "only they know its log, its roles and the other machines; see docs/backup.md"
        )
    return "this broker keeps its messages in memory only; start it with --data to have something to back up"


def _begin(data: Path, now_ms: int) -> Path:
    """An empty directory for a checkpoint."""
    path = data.absolute() / f"{PREFIX}{secrets.token_hex(4)}"
    try:
        for other in data.glob(f"{PREFIX}*"):
            if other.stat().st_mtime * 1_000 < now_ms - FORGOTTEN_SECONDS * 1_000:
                shutil.rmtree(other)
        path.mkdir(mode=0o700)
    except OSError as cause:
        raise error_of(Code.STORE_FAILED, f"cannot make {path}", details=str(cause)) from None
    return path


def _link_journal(data: Path, journal: Path | None, path: Path) -> None:
    if (data / KEY).exists():
        _link(data / KEY, path / KEY)
    if journal is None or not journal.is_dir():
        return
    (path / JOURNAL).mkdir()
    for file in journal.iterdir():
        if file.is_file():
            _link(file, path / JOURNAL / file.name)


def _link(source: Path, target: Path) -> None:
    """Files of the journal are replaced and never changed, so a link keeps what is there now."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        # The oldest segments are dropped at any time.
        return
    except OSError:
        shutil.copy2(source, target)
