"""Folders on a disk in memory, for servers and stores of tests and benches; what a killed process left is removed.

A process holds a lock on each of its folders, which the system releases when the process ends, however it ends. A
folder whose lock is free is forgotten, and the next process that makes a folder removes it. A server that still runs in
it stops by itself: PostgreSQL looks once per minute whether its files are there.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

# Only folders with this beginning are looked at.
_PREFIX = "dejaq-held-"
# The open file of each folder of this process, which has the lock.
_held: dict[Path, int] = {}


def root() -> Path:
    """Where syncs cost nothing; an ordinary folder where there is no disk in memory."""
    memory = Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())


def new_folder(name: str, *, place: Path | None = None) -> Path:
    """A new folder that others recognise as used while this process runs. `name` says for what; `place` may be on an
    ordinary disk.
    """
    place = root() if place is None else place
    _remove_forgotten_once(place)
    while True:
        path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{name}-", dir=place))
        lock = _open(path)
        # Another process may have taken it for a forgotten one before the lock, and removed it.
        if lock is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists():
                _held[path] = lock
                return path
            os.close(lock)


def remove_folder(path: Path) -> None:
    """Remove a folder and everything in it."""
    # A process that a test killed may still write.
    shutil.rmtree(path, ignore_errors=True)
    lock = _held.pop(path, None)
    if lock is not None:
        os.close(lock)


@contextmanager
def folder(name: str) -> Iterator[Path]:
    """A new folder for the duration of the block."""
    path = new_folder(name)
    try:
        yield path
    finally:
        remove_folder(path)


def remove_forgotten(place: Path) -> list[Path]:
    """Remove the folders of processes that have ended; returns them."""
    found = []
    for path in place.glob(f"{_PREFIX}*"):
        lock = _open(path)
        if lock is None:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            shutil.rmtree(path, ignore_errors=True)
            found.append(path)
        finally:
            os.close(lock)
    return found


@cache
def _remove_forgotten_once(place: Path) -> None:
    remove_forgotten(place)


def _open(path: Path) -> int | None:
    """An open file of a folder; None when it is gone, or another user's."""
    with suppress(OSError):
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    return None
