"""Files that are either complete or absent: written under a temporary name, fsynced, renamed, and the directory
fsynced.
"""

from __future__ import annotations

import os
from pathlib import Path

from dejaq.crashpoints import crash_at
from dejaq.journal.names import ASIDE_SUFFIX


def aside_of(path: Path) -> Path:
    """The temporary name of a file."""
    return path.with_name(path.name + ASIDE_SUFFIX)


def write_whole(path: Path, content: bytes, *, what: str, mode: int = 0o644) -> None:
    """Put a file in place, durably; `what` names its crash points."""
    aside = aside_of(path)
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    put_in_place(aside, path, what=what)


def put_in_place(aside: Path, path: Path, *, what: str) -> None:
    """Rename a file from its temporary name, durably."""
    sync(aside)
    crash_at(f"journal.before_{what}_rename")
    aside.rename(path)
    crash_at(f"journal.after_{what}_rename")
    sync(path.parent)


def sync(path: Path) -> None:
    """Make a file's content, or a directory's entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
