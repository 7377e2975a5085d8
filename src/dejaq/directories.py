"""Directories that a power cut does not undo: a new name is durable when the directory that has it was synced.

And whether two processes see the same directory.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def make_directory(path: Path, *, mode: int = 0o777) -> None:
    """Create a directory, and those above it that are missing, durably."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    for made in missing:
        # A directory that this user may not read cannot be synced.
        with suppress(PermissionError):
            sync_directory(made.parent)
    if not missing:
        # The process that made it may have been killed before its sync.
        with suppress(OSError):
            sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def machine() -> str:
    """The running system, the same for all its processes until it is started again; empty where that is unknown."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def directory_identity(path: Path) -> str:
    """Device and inode of a directory: two processes of one machine that find the same ones see one directory."""
    found = path.stat()
    return f"{found.st_dev}:{found.st_ino}"
