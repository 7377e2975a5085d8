"""A disk in memory that loses what was not synced, as real disks do when the power fails.

`SimulatedDisk` implements the commit log's `FileOperations`. A crash keeps, drops or tears each page that was written
since the last sync, in any order; it keeps or drops each name that was created or removed since the last sync of the
directory.
Writes and syncs can be made to fail. Every choice comes from one generator, so a seed replays a run.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from random import Random

from dejaq.testing.power.content import PAGE_BYTES, SECTOR_BYTES, FileContent


class PowerCut(Exception):
    """The disk ended in the middle of an operation."""


class SimulatedDisk:
    """One directory. `crash` is a power cut; what is left of the disk is used on by the same object."""

    def __init__(self, chance: Random, *, page_bytes: int = PAGE_BYTES, sector_bytes: int = SECTOR_BYTES) -> None:
        self._chance = chance
        self._page, self._sector = page_bytes, sector_bytes
        self._names: dict[str, FileContent] = {}
        self._durable_names: dict[str, FileContent] = {}
        # Called before every operation that changes the disk; it may raise OSError or PowerCut.
        self.before: Callable[[str], None] | None = None

    # What a log does

    def create(self, name: str) -> None:
        """Create an empty file."""
        self._meet("create")
        if name in self._names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        self._names[name] = FileContent(self._chance, page_bytes=self._page, sector_bytes=self._sector)

    def append(self, name: str, blocks: Sequence[bytes]) -> None:
        """Append blocks; where it fails, a part of them may be there."""
        file, data = self._names[name], b"".join(blocks)
        try:
            self._meet("append")
        except BaseException:
            file.put(len(file.content), data[: self._chance.randrange(len(data) + 1)])
            raise
        file.put(len(file.content), data)

    def overwrite(self, name: str, offset: int, data: bytes) -> None:
        """Write over what is there."""
        self._meet("overwrite")
        self._file(name).put(offset, data)

    def sync(self, name: str) -> None:
        """Make a file durable. After a failure, the pages count as written although they may be lost."""
        file = self._file(name)
        try:
            self._meet("sync")
        except OSError:
            file.fail_sync()
            raise
        file.sync()

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Read what programs see."""
        return bytes(self._file(name).content[offset : offset + length])

    def read_into(self, name: str, offsets: Sequence[int], parts: Sequence[memoryview]) -> list[int]:
        """Read what programs see, to some places."""
        found = [self.read(name, offset, len(part)) for offset, part in zip(offsets, parts, strict=True)]
        for part, data in zip(parts, found, strict=True):
            part[: len(data)] = data
        return list(map(len, found))

    def size(self, name: str) -> int:
        """The length of a file."""
        return len(self._file(name).content)

    def truncate(self, name: str, size: int) -> None:
        """Cut a file; until the next sync, a crash may undo it."""
        self._meet("truncate")
        self._file(name).resize(size)

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._meet("remove")
        self._file(name)
        del self._names[name]

    def list(self) -> list[str]:
        """The names of all files."""
        return [*self._names]

    def sync_directory(self) -> None:
        """Make the names durable."""
        self._meet("sync_directory")
        self._durable_names = dict(self._names)

    def release(self, name: str) -> None:
        """Nothing is open."""

    def close(self) -> None:
        """Nothing is open."""

    # What a test does

    def crash(self) -> None:
        """Cut the power: what was not synced is kept, lost or torn."""
        names = dict(self._durable_names)
        for name in {*self._names, *names}:
            if self._names.get(name) is not names.get(name) and self._chance.random() < 0.5:
                if name in self._names:
                    names[name] = self._names[name]
                else:
                    del names[name]
        for file in names.values():
            file.cut()
        self._names, self._durable_names = names, dict(names)

    def flip_bit(self, name: str, position: int) -> None:
        """Change one bit, durably."""
        file = self._file(name)
        file.content[position // 8] ^= 1 << position % 8
        file.durable = bytearray(file.content)

    def cut(self, name: str, size: int) -> None:
        """Remove the end of a file, durably."""
        file = self._file(name)
        del file.content[size:]
        file.durable = bytearray(file.content)

    def _meet(self, operation: str) -> None:
        if self.before is not None:
            self.before(operation)

    def _file(self, name: str) -> FileContent:
        if name not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return self._names[name]
