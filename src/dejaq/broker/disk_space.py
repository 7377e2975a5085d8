"""The free space of the disk on which a broker has its data: creates are refused before there is none.

A disk without any space stops everything, because a lease and a delete are written too. So the last part of it is kept
for them: consumers continue, and make space.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import NamedTuple

# Of a small disk, one part in so many is kept at most.
DISK_PARTS = 16
# A disk answers at once, or it hangs.
LOOK_SECONDS = 1.0


class Space(NamedTuple):
    """Bytes of a disk."""

    free: int
    total: int


def space_of(path: str) -> Space | None:
    """The space of the disk that has a directory; None where the system does not report it."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


class DiskSpace:
    """Whether the disk of a directory has less free space than it should; without a directory it has enough."""

    def __init__(self, path: str | None, free_min: int, *, read: Callable[[str], Space | None] = space_of) -> None:
        self._path, self._free_min, self._read = path, free_min, read
        self._space: Space | None = None
        self._reading: asyncio.Future[Space | None] | None = None
        self._short = False

    async def look(self) -> None:
        """Read the free space in a thread. Where the disk hangs, the first look waits for a moment, and the next ones
        do not wait.
        """
        if not self._path or not self._free_min:
            return
        reading = self._reading
        if reading is None:
            reading = self._reading = asyncio.get_running_loop().run_in_executor(None, self._read, self._path)
            await asyncio.wait((reading,), timeout=LOOK_SECONDS)
        if reading.done():
            self._reading, self._space = None, reading.result()

    def shortage(self) -> str | None:
        """What was missing at the last look, as a sentence; None while there is enough.

        After a shortage a quarter more must be free, so that creates are not admitted and refused in turns.
        """
        space = self._space
        if space is None:
            return None
        least = min(self._free_min, space.total // DISK_PARTS)
        self._short = space.free < (least + least // 4 if self._short else least)
        if not self._short:
            return None
        return (
            f"the disk of {self._path} has {space.free >> 20} MiB of free space, and {least >> 20} MiB are kept for "
            "consumers; creates are refused until there is more"
        )
