"""Faults of a disk: full, failing, slow. Each begins and ends when a test says so.

`small_disk` is a real file system that can be filled. `FaultyDisk` stands between an open `RocksStorage` and its
database: the store is real, and only what the operating system would have refused is refused.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from dejaq.storage.rocksdb.database import Batch, Database


class FaultUnavailable(RuntimeError):
    """This machine cannot make the fault; the message says why, and is the reason to skip a test."""


class SmallDisk:
    """A file system of a few megabytes that can be filled and freed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self, *, leave_bytes: int = 0) -> None:
        """Take all space but `leave_bytes`."""
        with self._filler.open("ab", buffering=0) as filler:
            for block in (1 << 16, 1 << 12, 1):
                # A full disk takes a part of a block, then none.
                with suppress(OSError):
                    while self.free_bytes() > leave_bytes and filler.write(b"\0" * block):
                        pass

    def free_bytes(self) -> int:
        """What is left."""
        return shutil.disk_usage(self.path).free

    def free(self) -> None:
        """Give back what `fill` took."""
        self._filler.unlink(missing_ok=True)


@contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """A new file system of `size_bytes` at `path`, in memory; raises FaultUnavailable where it cannot be mounted."""
    if os.geteuid() != 0:
        raise FaultUnavailable("mounting a small file system needs root")
    path.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "dejaq-small-disk", str(path)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as cause:
        reason = getattr(cause, "stderr", "") or str(cause)
        raise FaultUnavailable(f"tmpfs cannot be mounted here: {reason.strip()}") from None
    try:
        yield SmallDisk(path)
    finally:
        # Lazily: a process that a test killed may not be quite gone.
        subprocess.run(["umount", "--lazy", str(path)], check=False, capture_output=True)


class FaultyDisk:
    """Makes the writes or syncs of every database in this process fail or wait, while it is open."""

    def __init__(self) -> None:
        self._write, self._sync = Database.write, Database.sync
        self._may_sync = threading.Event()
        self._may_sync.set()
        self.syncs_held = 0
        self.fail_writes = False
        self.fail_syncs = False

    def __enter__(self) -> Self:
        disk = self

        def write(database: Database, batch: Batch) -> None:
            if disk.fail_writes:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            disk._write(database, batch)

        def sync(database: Database) -> None:
            if not disk._may_sync.is_set():
                disk.syncs_held += 1
                disk._may_sync.wait()
            if disk.fail_syncs:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            disk._sync(database)

        _replace("write", write)
        _replace("sync", sync)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.let_syncs_go()
        _replace("write", self._write)
        _replace("sync", self._sync)

    def hold_syncs(self) -> None:
        """A disk so slow that a sync does not end before `let_syncs_go`."""
        self._may_sync.clear()

    def let_syncs_go(self) -> None:
        """End the waiting."""
        self._may_sync.set()

    def heal(self) -> None:
        """Everything works again."""
        self.fail_writes = self.fail_syncs = False
        self.let_syncs_go()


def _replace(name: str, method: Callable[..., None]) -> None:
    setattr(Database, name, method)
