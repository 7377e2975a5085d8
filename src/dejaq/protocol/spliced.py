"""A frame whose bodies are written behind it as they are, instead of being copied into it first.

A message field that comes twice in a frame is one message to every reader of protobuf, the columns of the second joined
to those of the first. So the rest of a batch is the first, and a block of bodies is the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from dejaq.domain.batch import LeaseSet
from dejaq.domain.bodies.body_block import BodyBlock, BodySlices, varint
from dejaq.domain.id_column import IdColumn
from dejaq.protocol.v1 import carrier_pb2 as carrier

_MESSAGE_TYPE = 2
_CREATE_TAG = varint(carrier.ClientFrame.CREATE_FIELD_NUMBER << 3 | _MESSAGE_TYPE)
_PUSH_TAG = varint(carrier.BrokerFrame.PUSH_FIELD_NUMBER << 3 | _MESSAGE_TYPE)

Frame = TypeVar("Frame", carrier.ClientFrame, carrier.BrokerFrame)


@dataclass(frozen=True, slots=True)
class Spliced(Generic[Frame]):
    """A frame, all but its bodies, and the bytes that have them."""

    frame: Frame
    behind: Sequence[bytes | memoryview]

    @property
    def request(self) -> int:
        """The number of the request."""
        return self.frame.request

    def SerializeToString(self) -> bytes:  # noqa: N802  as a message has it
        """The whole frame as it is on the wire."""
        return b"".join((self.frame.SerializeToString(), *self.behind))

    def whole(self) -> Frame:
        """The frame with its bodies in it, for a reader in the same process."""
        frame = type(self.frame)()
        frame.ParseFromString(self.SerializeToString())
        return frame


# What a client and what a broker sends.
ClientSent = carrier.ClientFrame | Spliced[carrier.ClientFrame]
BrokerSent = carrier.BrokerFrame | Spliced[carrier.BrokerFrame]


def create_frame(
    frame: carrier.ClientFrame, bodies: Sequence[bytes], ids: Sequence[str] | None = None
) -> Spliced[carrier.ClientFrame]:
    """A frame that has a create, with these bodies and ids."""
    block = bodies if isinstance(bodies, BodyBlock) else BodyBlock(bodies)
    listed = ids if isinstance(ids, IdColumn) else IdColumn(ids or ())
    columns = (listed.wire if len(listed) else b"", block.data)
    return Spliced(frame, (_CREATE_TAG, varint(sum(map(len, columns))), *columns))


def push_frame(frame: carrier.BrokerFrame, lease: LeaseSet) -> BrokerSent:
    """A frame that has a push, with the bodies and ids of the lease that `write_push` left out."""
    columns: list[bytes | memoryview] = [ids.wire for ids in lease.id_columns()]
    if isinstance(lease.bodies, BodySlices):
        columns += lease.bodies.cuts()
    return Spliced(frame, (_PUSH_TAG, varint(sum(map(len, columns))), *columns)) if columns else frame


def whole(frame: Frame | Spliced[Frame]) -> Frame:
    """The frame as one message."""
    return frame.whole() if isinstance(frame, Spliced) else frame


def serialized(frame: Frame | Spliced[Frame]) -> bytes:
    """The frame as it is on the wire."""
    return frame.SerializeToString()


def pieces(frame: Frame | Spliced[Frame]) -> Sequence[bytes | memoryview]:
    """The parts of the frame as it is on the wire, for a transport that joins them with its own."""
    if isinstance(frame, Spliced):
        return (frame.frame.SerializeToString(), *frame.behind)
    return (frame.SerializeToString(),)
