"""Faults of a disk: full, failing, slow. A test begins and ends each fault.

`small_disk` is a real file system that can be filled. `FaultyDisk` is a layer between an open `RocksStorage` and the
files of its commit log: the store is real, and only the calls that the operating system would have refused are refused.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from dejaq.storage.commit_log.files import DiskFiles


class FaultUnavailable(RuntimeError):
    """This machine cannot produce the fault; the message says why, and is the reason to skip a test."""


class SmallDisk:
    """A file system of a few megabytes that can be filled and freed."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path, self.size_bytes = path, size_bytes
        self._filler = path / "filler"

    def fill(self, *, leave_bytes: int = 0) -> None:
        """Use all space except `leave_bytes`."""
        with self._filler.open("ab", buffering=0) as filler:
            for block in (1 << 16, 1 << 12, 1):
                # A full disk takes a part of a block, then nothing.
                with suppress(OSError):
                    while self.free_bytes() > leave_bytes and filler.write(b"\0" * block):
                        pass

    def free_bytes(self) -> int:
        """The space that is left."""
        return shutil.disk_usage(self.path).free

    def free(self) -> None:
        """Free the space that `fill` used."""
        self._filler.unlink(missing_ok=True)


@contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """A new file system of `size_bytes` at `path`, in memory; raises FaultUnavailable when it cannot be mounted."""
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
        yield SmallDisk(path, size_bytes)
    finally:
        # A lazy unmount: a process that a test killed may not have ended completely.
        subprocess.run(["umount", "--lazy", str(path)], check=False, capture_output=True)


class FaultyDisk:
    """Makes the writes or syncs of every commit log in this process fail or wait, while it is open."""

    def __init__(self) -> None:
        self._write, self._sync = DiskFiles.append, DiskFiles.sync
        self._may_sync = threading.Event()
        self._may_sync.set()
        self.syncs_held = 0
        self.fail_writes = False
        self.fail_syncs = False

    def __enter__(self) -> Self:
        disk = self

        def write(files: DiskFiles, name: str, blocks: Sequence[bytes]) -> None:
            if disk.fail_writes:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            disk._write(files, name, blocks)

        def sync(files: DiskFiles, name: str) -> None:
            if not disk._may_sync.is_set():
                disk.syncs_held += 1
                disk._may_sync.wait()
            if disk.fail_syncs:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            disk._sync(files, name)

        _replace("append", write)
        _replace("sync", sync)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.let_syncs_go()
        _replace("append", self._write)
        _replace("sync", self._sync)

    def hold_syncs(self) -> None:
        """Simulate a disk so slow that a sync does not end before `let_syncs_go`."""
        self._may_sync.clear()

    def let_syncs_go(self) -> None:
        """Let the waiting syncs continue."""
        self._may_sync.set()

    def heal(self) -> None:
        """End all faults."""
        self.fail_writes = self.fail_syncs = False
        self.let_syncs_go()


def _replace(name: str, method: Callable[..., None]) -> None:
    setattr(DiskFiles, name, method)
