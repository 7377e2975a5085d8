"""The process that serves the file system, so that a test and the broker never wait for each other's GIL.

It is started by `PowerDisk` as `python -m dejaq.testing.power.server PATH SEED [PATTERN ...]`. It reads commands from
stdin, answers each with a line on stdout, and unmounts when stdin ends:

cut COUNT   after so many further changes of the disk, stop answering and print `stopped`; -1: never
restore KEEP   undo everything that may be undone, mount what is left, and print `mounted`; KEEP 1 keeps some of it
"""

from __future__ import annotations

import errno
import os
import select
import sys
from pathlib import Path
from random import Random

from dejaq.testing.power import fuse
from dejaq.testing.power.filesystem import FileSystem
from dejaq.testing.servers.faults import FaultUnavailable


class PowerServer:
    """Serves one file system at a path, until stdin ends."""

    def __init__(self, path: Path, files: FileSystem) -> None:
        self._path = path
        self._files = files
        self._request = bytearray(fuse.REQUEST_BYTES_MAX)
        self._descriptor = -1
        # The number of changes after which the power is cut; None: never. While it is cut nothing is answered.
        self._last_change: int | None = None
        self._cut = False

    def run(self) -> None:
        """Serve until stdin ends."""
        self._mount()
        try:
            while True:
                waiting = [sys.stdin.fileno()] if self._cut else [sys.stdin.fileno(), self._descriptor]
                ready, _, _ = select.select(waiting, [], [])
                if self._descriptor in ready:
                    self._serve()
                elif not self._obey(os.read(sys.stdin.fileno(), 100).decode().split()):
                    return
        finally:
            self._unmount()

    def _serve(self) -> None:
        """Answer one request, and count it."""
        try:
            length = os.readv(self._descriptor, [self._request])
        except OSError as cause:
            # The request was interrupted before it was read.
            if cause.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                return
            raise
        answer = self._files.answer(memoryview(self._request)[:length])
        if self._last_change is not None and self._files.changes >= self._last_change:
            # The caller never learns that the last change was done.
            self._stop()
        elif answer is not None:
            try:
                os.write(self._descriptor, answer)
            except OSError as cause:
                # The caller was killed meanwhile.
                if cause.errno != errno.ENOENT:
                    raise

    def _obey(self, words: list[str]) -> bool:
        match words:
            case ["cut", count]:
                self._last_change = None if int(count) < 0 else self._files.changes + int(count)
                if self._last_change == self._files.changes and not self._cut:
                    self._stop()
            case ["restore", keep]:
                self._unmount()
                self._files.tree.cut(keep_some=keep == "1")
                self._last_change, self._cut = None, False
                self._mount()
            case _:
                return False
        return True

    def _stop(self) -> None:
        self._cut = True
        _say("stopped")

    def _mount(self) -> None:
        self._files.begin()
        self._descriptor = fuse.mount(self._path)
        _say("mounted")

    def _unmount(self) -> None:
        if self._descriptor >= 0:
            fuse.unmount(self._path)
            # A program that still waits for an answer gets an error.
            os.close(self._descriptor)
            self._descriptor = -1


def _say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


def main(path: str, seed: str, *unsynced: str) -> None:
    """Serve, or print why this machine cannot."""
    try:
        PowerServer(Path(path), FileSystem(Random(seed), unsynced)).run()
    except FaultUnavailable as reason:
        _say(str(reason))


if __name__ == "__main__":
    main(*sys.argv[1:])
