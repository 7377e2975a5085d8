"""Values that are frames of the commit log: the database has a *pointer* in the place of the value.

A pointer begins with a byte that no run begins with, so that both can be under the same key: a run that was created is
a frame; one that was moved out of the log, or that an older release wrote, is in the database itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from struct import Struct
from typing import Protocol

from dejaq.storage.commit_log.record import FrameAddress

# A smaller value costs less in the database than as a frame, which is read by a call of the operating system.
FRAME_BYTES_MIN = 1_024

_ADDRESS = Struct(">IQI")
# A field of a protobuf message never has the number 0.
POINTER = b"\0"
# What a batch of a log begins with that is in the database itself.
MOVED_BATCH = b"\1"
POINTER_BYTES = 1 + _ADDRESS.size


class NewFrame:
    """A frame of a change that is not in the log yet. It has its address from then on, and `data` no more."""

    __slots__ = ("address", "data", "part", "prefix", "suffix", "topic")

    def __init__(self, part: int, data: bytes, topic: int | None, suffix: bytes = b"") -> None:
        # Which part of the operations is to be its address.
        self.part = part
        self.data = data
        # The topic that has it, or None for a record of the journal.
        self.topic = topic
        self.prefix = b"" if topic is None else POINTER
        # What is stored behind the address.
        self.suffix = suffix
        self.address: FrameAddress | None = None


# What a run keeps of the frame that it is stored in.
Stored = FrameAddress | NewFrame | None


def pack_address(address: FrameAddress) -> bytes:
    """What is stored of the address of a record of the journal."""
    return _ADDRESS.pack(*address)


def unpack_address(value: bytes) -> FrameAddress:
    """Where a record of the journal is."""
    return FrameAddress(*_ADDRESS.unpack(value))


def pointer_to(address: FrameAddress) -> bytes:
    """What is stored in the place of a value."""
    return POINTER + _ADDRESS.pack(*address)


def address_in(value: bytes) -> FrameAddress | None:
    """The address in a pointer; None where the value itself is there."""
    return FrameAddress(*_ADDRESS.unpack_from(value, 1)) if value.startswith(POINTER) else None


def behind_pointer(value: bytes) -> bytes:
    """What is stored behind the address in a pointer."""
    return value[POINTER_BYTES:]


def pack_checks(piece_bytes: int, checks: Sequence[int]) -> bytes:
    """What is stored behind the address of a frame of several pieces: their size, and the checksum of each."""
    return array("I", (piece_bytes, *checks)).tobytes()


def unpack_checks(suffix: bytes) -> tuple[int, Sequence[int]]:
    """The size of a piece, and the checksum of each."""
    numbers = array("I", suffix)
    return numbers[0], numbers[1:]


def size_of(stored: bytes) -> int:
    """The size of a value, of which the database may have a pointer."""
    address = address_in(stored)
    return len(stored) if address is None else address.length


class FrameSource(Protocol):
    """Where frames are read: the commit log."""

    @property
    def number(self) -> int:
        """The file of the last record."""

    def read(self, address: FrameAddress) -> bytes:
        """The frame at an address; raises STORE_CORRUPT where it is damaged or gone."""

    def read_part(self, address: FrameAddress, start: int, length: int) -> bytes:
        """Bytes of a frame, which the caller has to check."""

    def read_parts(self, numbers: Sequence[int], offsets: Sequence[int], parts: Sequence[memoryview]) -> list[int]:
        """Fill each part with bytes of the file with its number, which the caller has to check; how many they were."""

    def read_many(self, addresses: Sequence[FrameAddress]) -> list[bytes]:
        """The frames at some addresses."""
