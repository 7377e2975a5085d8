"""The file operations that the commit log needs, and their implementation by the operating system.

Everything that the log does to a disk goes through `FileOperations`, so that tests can use a simulated disk instead.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from dejaq.directories import make_directory, sync_directory

# The most blocks that one writev accepts.
_BLOCKS_MAX = 1_024


class FileOperations(Protocol):
    """The files of one directory, by name. Every operation raises OSError where the disk refuses it."""

    def create(self, name: str) -> None:
        """Create an empty file; it is an error when there is one."""

    def append(self, name: str, blocks: Sequence[bytes]) -> None:
        """Append all blocks to a file that this object created."""

    def overwrite(self, name: str, offset: int, data: bytes) -> None:
        """Write bytes over those that a file has at an offset."""

    def sync(self, name: str) -> None:
        """Make the content and the size of a file durable."""

    def read(self, name: str, offset: int, length: int) -> bytes:
        """The bytes at an offset; fewer where the file ends earlier."""

    def read_into(self, name: str, offsets: Sequence[int], parts: Sequence[memoryview]) -> list[int]:
        """Fill each part with the bytes at its offset; how many they were, fewer where the file ends earlier."""

    def size(self, name: str) -> int:
        """The length of a file in bytes."""

    def truncate(self, name: str, size: int) -> None:
        """Cut a file."""

    def remove(self, name: str) -> None:
        """Remove a file."""

    def list(self) -> list[str]:
        """The names of all files, in any order."""

    def sync_directory(self) -> None:
        """Make the names of created and removed files durable."""

    def release(self, name: str) -> None:
        """Nothing more is appended to a file: it need not stay open."""

    def close(self) -> None:
        """Release what is open."""


class DiskFiles:
    """Implements `FileOperations` in a directory of the operating system, which it makes if necessary.

    Every file that was used stays open; with `open_max`, at most so many of those that are only read.
    """

    def __init__(self, directory: Path, *, open_max: int | None = None) -> None:
        self._directory = directory
        self._open_max = open_max
        # Those that were used last are at the end.
        self._descriptors: dict[str, int] = {}
        # Files that may be appended to.
        self._written: set[str] = set()
        # A descriptor must not be closed, and then stand for another file, while a thread reads from it.
        self._lock = threading.Lock()
        make_directory(directory)

    def create(self, name: str) -> None:
        """Create an empty file."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(self._directory / name, flags, 0o600)
        with self._lock:
            self._descriptors[name] = descriptor
            self._written.add(name)

    def append(self, name: str, blocks: Sequence[bytes]) -> None:
        """Write the blocks with as few calls as possible; a short write is continued."""
        descriptor = self._descriptors[name]
        for start in range(0, len(blocks), _BLOCKS_MAX):
            some = blocks[start : start + _BLOCKS_MAX]
            written = os.writev(descriptor, some)
            if written < sum(map(len, some)):
                rest = memoryview(b"".join(some))[written:]
                while rest:
                    rest = rest[os.write(descriptor, rest) :]

    def overwrite(self, name: str, offset: int, data: bytes) -> None:
        """Write at an offset, whatever the position of the file is."""
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._descriptor(name), rest, offset)
            offset, rest = offset + written, rest[written:]

    def sync(self, name: str) -> None:
        """Call fdatasync, which also makes the size durable."""
        os.fdatasync(self._descriptor(name))

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Read at an offset; one call of the system moves at most 2 GB."""
        with self._lock:
            data = os.pread(self._descriptor(name), length, offset)
            self._use(name)
            return data

    def read_into(self, name: str, offsets: Sequence[int], parts: Sequence[memoryview]) -> list[int]:
        """Fill parts with one call of the system each, which makes no objects."""
        with self._lock:
            descriptor = self._descriptor(name)
            read = [os.preadv(descriptor, (part,), offset) for part, offset in zip(parts, offsets, strict=True)]
            self._use(name)
            return read

    def _use(self, name: str) -> None:
        """Record that a file was read, where only some stay open."""
        if self._open_max is not None:
            self._descriptors[name] = self._descriptors.pop(name)
            self._close_oldest(self._open_max)

    def size(self, name: str) -> int:
        """The length of a file."""
        return (self._directory / name).stat().st_size

    def truncate(self, name: str, size: int) -> None:
        """Cut a file."""
        os.ftruncate(self._descriptor(name), size)

    def remove(self, name: str) -> None:
        """Remove a file and close it."""
        (self._directory / name).unlink()
        with self._lock:
            self._written.discard(name)
            descriptor = self._descriptors.pop(name, None)
            if descriptor is not None:
                os.close(descriptor)

    def list(self) -> list[str]:
        """The names of all files."""
        return [entry.name for entry in os.scandir(self._directory)]

    def sync_directory(self) -> None:
        """Call fsync on the directory."""
        sync_directory(self._directory)

    def release(self, name: str) -> None:
        """Let a file be closed when many others were used after it."""
        with self._lock:
            self._written.discard(name)
            if self._open_max is not None:
                self._close_oldest(self._open_max)

    def _close_oldest(self, count: int) -> None:
        """Close the files that were used first, until so many are open."""
        while len(self._descriptors) > count:
            oldest = next((name for name in self._descriptors if name not in self._written), None)
            if oldest is None:
                return
            os.close(self._descriptors.pop(oldest))

    def close(self) -> None:
        """Close every file."""
        with self._lock:
            while self._descriptors:
                os.close(self._descriptors.popitem()[1])

    def _descriptor(self, name: str) -> int:
        descriptor = self._descriptors.get(name)
        if descriptor is None:
            descriptor = os.open(self._directory / name, os.O_RDWR | os.O_CLOEXEC)
            self._descriptors[name] = descriptor
        return descriptor
