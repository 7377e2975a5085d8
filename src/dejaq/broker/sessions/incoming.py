"""The frames that a client has sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from google.protobuf.message import DecodeError

from dejaq.protocol.create_columns import FRAME_BYTES_MIN, CreateColumns, read_create
from dejaq.protocol.v1 import carrier_pb2 as carrier


@runtime_checkable
class OffersFrames(Protocol):
    """The frames of a session, each of which is offered when it arrives; those not taken are iterated over."""

    def offer_to(self, take: Callable[[bytes], bool]) -> None:
        """Offer each frame that follows no waiting one to `take`, which says whether it took it."""


def read_frame(data: bytes) -> carrier.ClientFrame:
    """A frame; one that cannot be read is an empty one, which the session answers, instead of the stream's end."""
    frame = carrier.ClientFrame()
    try:
        frame.ParseFromString(data)
    except DecodeError:
        return carrier.ClientFrame()
    return frame


def read_parts(data: bytes) -> tuple[carrier.ClientFrame, CreateColumns | None]:
    """A frame, and those columns of its create that are not in it because they were not decoded."""
    found = read_create(data) if len(data) >= FRAME_BYTES_MIN else None
    return found or (read_frame(data), None)


def size_of(received: bytes | carrier.ClientFrame) -> int:
    """The size on the wire. To ask a message for it is to serialize it: 0.5 us or more for each body of 1 KB."""
    return received.ByteSize() if isinstance(received, carrier.ClientFrame) else len(received)
