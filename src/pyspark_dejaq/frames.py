"""Reads the runs of a snapshot from the files of the broker, by a process on the same machine.

The broker answers a scan with the places of the runs, which costs it a small part of what it costs to read and send
them. It names its directory only to a caller that says it is on the same running system. This process reads there only
where it finds the same device and inode under that name, and may read the files. Otherwise it gets the runs themselves.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from dejaq.directories import directory_identity
from dejaq.errors import StoreError, Unavailable
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.storage.commit_log.reader import SUFFIX, file_name
from dejaq.storage.commit_log.record import FRAME_HEADER_BYTES, read_frame
from dejaq.storage.rocksdb.bodies.row_groups import joined


class FrameFiles:
    """The files of a snapshot. They stay open, and readable, until `close`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptors: dict[int, int] = {}

    @classmethod
    def of(cls, opened: carrier.SnapshotResponse) -> FrameFiles | None:
        """Those of a snapshot; None where this process cannot read them."""
        if not opened.frame_directory:
            return None
        directory = Path(opened.frame_directory)
        with suppress(OSError):
            same = directory_identity(directory) == opened.frame_directory_identity
            if same and all(os.access(file, os.R_OK) for file in directory.glob(f"*{SUFFIX}")):
                return cls(directory)
        return None

    def runs(self, scan: carrier.ScanColumns) -> list[bytes]:
        """The runs whose places a portion has, as serialized `Run`s; raises when one is damaged."""
        return [
            joined(self._read(*place))
            for place in zip(scan.frame_files, scan.frame_offsets, scan.frame_lengths, strict=True)
        ]

    def _read(self, file: int, offset: int, length: int) -> bytes:
        descriptor = self._descriptors.get(file)
        if descriptor is None:
            descriptor = self._descriptors[file] = self._open(file)
        frame = read_frame(os.pread(descriptor, FRAME_HEADER_BYTES + length, offset), length)
        if frame is None:
            raise StoreError(f"{file_name(file)} of the commit log is damaged at {offset}")
        return frame

    def _open(self, file: int) -> int:
        try:
            return os.open(self._directory / file_name(file), os.O_RDONLY | os.O_CLOEXEC)
        except OSError as cause:
            raise Unavailable("a file of the snapshot can no longer be read", details=str(cause)) from None

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def __enter__(self) -> FrameFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
