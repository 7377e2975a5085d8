"""A change as it is recorded: operations for the database, and frames for the commit log."""

from __future__ import annotations

from collections.abc import Sequence

from dejaq.storage.commit_log.operations import Operations
from dejaq.storage.commit_log.record import FRAME_HEADER_BYTES, FrameAddress
from dejaq.storage.rocksdb.engine.frames import NewFrame, Stored, pack_address

# A record with more of either takes no other change: to write it to the database is one step of the event loop.
OPERATIONS_MAX = 500
BYTES_MAX = 256 * 1024


class RecordedBatch(Operations):
    """An atomic batch of changes, and the frames that go into the commit log with it."""

    __slots__ = ("dropped_topics", "frames", "released", "released_of_files")

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[NewFrame] = []
        # Frames of runs that are removed, with their topics; and topics that lose all of theirs.
        self.released: list[tuple[int, Stored]] = []
        self.dropped_topics: list[int] = []
        # Many frames that are removed at once: the topic, the file, how many they are, and their bytes with headers.
        self.released_of_files: list[tuple[int, int, int, int]] = []

    def put_frame(self, key: bytes, data: bytes, topic: int | None = None, suffix: bytes = b"") -> NewFrame:
        """Put a frame into the commit log, and its address under a key: of a run or log of a topic, or of the journal.

        What is known of the frame besides is the `suffix`.
        """
        frame = NewFrame(len(self.parts) + 1, data, topic, suffix)
        self.put(key, b"")
        self.frames.append(frame)
        return frame

    def place_frames(self, addresses: Sequence[FrameAddress]) -> dict[bytes, bytes]:
        """Fill in where the frames are; returns those of runs by the pointers to them."""
        runs: dict[bytes, bytes] = {}
        for frame, address in zip(self.frames, addresses, strict=True):
            frame.address = address
            pointer = frame.prefix + pack_address(address)
            self.parts[frame.part] = pointer + frame.suffix
            if frame.topic is not None:
                runs[pointer] = frame.data
            frame.data = b""
        return runs


class OpenRecord:
    """The record of the commit log that is not appended yet: the changes of one moment share it, in order.

    A record costs an encoding, a checksum and a write to the database, whether one change is in it or fifty.
    """

    __slots__ = ("batch", "bytes", "frame_bytes", "frames")

    def __init__(self) -> None:
        self.batch = RecordedBatch()
        self.frames: list[bytes] = []
        self.frame_bytes = 0
        self.bytes = 0

    def has_room(self, operations: int, size: int) -> bool:
        """Whether a change fits in besides; a record without one takes any."""
        return not self.batch.kinds or (
            len(self.batch) + operations <= OPERATIONS_MAX and self.bytes + size <= BYTES_MAX
        )

    @property
    def is_full(self) -> bool:
        """Whether nothing else should be added."""
        return self.bytes > BYTES_MAX

    def add(self, batch: RecordedBatch, frames: Sequence[bytes], size: int) -> None:
        """Add a change whose frames have their addresses."""
        self.batch.kinds += batch.kinds
        self.batch.parts += batch.parts
        self.frames += frames
        self.frame_bytes += sum(map(len, frames)) + FRAME_HEADER_BYTES * len(frames)
        self.bytes += size
