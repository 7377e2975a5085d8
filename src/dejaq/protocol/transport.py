"""How a client reaches a broker: over WebSocket or gRPC, or directly inside one process. The SDK knows only this."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol, TypeVar, runtime_checkable

from google.protobuf.message import Message

from dejaq.protocol.spliced import ClientSent
from dejaq.protocol.v1 import carrier_pb2 as carrier

Response = TypeVar("Response", bound=Message)


# A frame as it arrived.
Payload = bytes | bytearray | memoryview


class SessionChannel(Protocol):
    """The client's end of one `Carrier.Session`."""

    async def send(self, frame: ClientSent) -> None:
        """Send a frame; waits while the broker is not reading. Raises Unavailable when the session is broken."""

    async def receive(self) -> carrier.BrokerFrame | None:
        """The next frame; None after the broker ended the session. Raises Unavailable when it is broken."""

    async def close(self) -> None:
        """End the session."""


@runtime_checkable
class DirectChannel(Protocol):
    """A session channel that needs no task for a frame, and that breaks when the broker is silent for too long."""

    def send_now(self, frame: ClientSent) -> bool:
        """Send a frame if that needs no waiting, and say whether it was sent."""

    def offer_to(self, take: Callable[[Payload], bool]) -> None:
        """Offer each frame that follows no waiting one to `take`, when it arrives; those not taken are received."""


class Transport(Protocol):
    """A way to one broker."""

    @property
    def address(self) -> str:
        """What to show people: host:port, or `in-process`."""

    async def session(self) -> SessionChannel:
        """Open a session. Raises Unavailable when the broker does not answer."""

    async def call(self, method: str, request: Message, response: type[Response], timeout: float) -> Response:
        """A unary call, `method` as in `Overseer.Info`. Raises a DejaqError."""

    def stream(self, method: str, request: Message, response: type[Response]) -> AsyncIterator[Response]:
        """A server-streaming call. Raises a DejaqError."""

    async def upload(
        self, method: str, requests: AsyncIterator[Message], response: type[Response], timeout: float
    ) -> Response:
        """A client-streaming call; waits while the broker is not reading. Raises a DejaqError."""

    async def close(self) -> None:
        """Let go of the connection."""
