"""A commit log in memory, for tests that write batches into a database themselves."""

from __future__ import annotations

from collections.abc import Sequence

from dejaq.storage.commit_log.record import FRAME_HEADER_BYTES, FrameAddress
from dejaq.storage.rocksdb.engine.database import Batch, RocksDatabase


class MemoryLog:
    """One file, of which only frames are kept."""

    def __init__(self) -> None:
        self.number = 1
        self.data = bytearray()
        # The frames that the last batch released.
        self.released: list[FrameAddress] = []

    def apply(self, database: RocksDatabase, batch: Batch, sequence: int) -> None:
        """Do what a commit does: the frames get their places, and the database the operations."""
        database.log = self  # type: ignore[assignment]
        addresses = []
        for frame in batch.frames:
            addresses.append(FrameAddress(1, len(self.data), len(frame.data)))
            self.data += bytes(FRAME_HEADER_BYTES) + frame.data
        batch.place_frames(addresses)
        self.released = [one for _, one in batch.released if isinstance(one, FrameAddress)]
        database.apply(batch, sequence)

    def read_parts(self, numbers: Sequence[int], offsets: Sequence[int], parts: Sequence[memoryview]) -> list[int]:
        """Fill each part."""
        assert set(numbers) <= {1}
        for offset, part in zip(offsets, parts, strict=True):
            part[:] = self.data[offset : offset + len(part)]
        return list(map(len, parts))
