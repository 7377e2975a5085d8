"""The client's way to a broker over WebSocket: sessions and calls are streams of one connection."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable

from google.protobuf.message import DecodeError, Message

from dejaq import limits
from dejaq.errors import (
    Code,
    DejaqError,
    Indefinite,
    InternalError,
    NoBroker,
    Unauthenticated,
    Unavailable,
    error_of,
)
from dejaq.protocol.blocks import reuse_blocks
from dejaq.protocol.spliced import ClientSent, pieces
from dejaq.protocol.status import error_from_proto
from dejaq.protocol.transport import Response
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import errors_pb2
from dejaq.protocol.v1.websocket_pb2 import Call
from dejaq.protocol.websocket.connecting import open_socket
from dejaq.protocol.websocket.connection import WebSocketConnection
from dejaq.protocol.websocket.framing import CloseCode, FrameError, Payload
from dejaq.protocol.websocket.messages import Kind, head, parse, parse_credit
from dejaq.protocol.websocket.stream import Stream
from dejaq.security.client import PLAIN, ClientSecurity

# A little less than the broker's, so that the client's pings are enough for both.
PING_SECONDS = 4.5


class ClientConnection:
    """One connection and its streams."""

    def __init__(self, address: str, bearer: str = "") -> None:
        self.address = address
        # The credentials of the handshake.
        self.bearer = bearer
        self.socket = WebSocketConnection(
            client=True,
            on_message=self._received,
            on_lost=self._lost,
            ping_seconds=PING_SECONDS,
            idle=lambda: not self._streams,
        )
        self._streams: dict[int, Stream] = {}
        self._numbers = itertools.count(1)

    def begin(self, kind: Kind, payload: bytes = b"") -> Stream:
        """Begin a session or a call."""
        stream = Stream(next(self._numbers), self.socket)
        if not self.socket.open:
            # It was lost since the caller got it, and nobody would end the stream.
            stream.end(self._broken(self.socket.reason))
            return stream
        self._streams[stream.number] = stream
        self.socket.resume_pings()
        self.socket.write(head(kind, stream.number), payload)
        return stream

    def finish(self, stream: Stream) -> None:
        """Forget a stream; a stream that has not ended is cancelled at the broker."""
        self._streams.pop(stream.number, None)
        if not stream.ended:
            self.socket.write(head(Kind.CANCEL, stream.number))
        stream.discard()

    def _received(self, message: Payload) -> None:
        kind, number, payload = parse(message)
        stream = self._streams.get(number)
        if stream is None:
            # A stream that was cancelled meanwhile.
            return
        if kind is Kind.MESSAGE:
            stream.arrive(payload)
        elif kind is Kind.RESULT:
            stream.arrive(payload)
            stream.end()
        elif kind is Kind.CREDIT:
            stream.credit(parse_credit(payload))
        elif kind is Kind.END:
            stream.end()
        elif kind is Kind.ERROR:
            stream.end(_error_in(payload))
        else:
            raise FrameError(CloseCode.PROTOCOL_ERROR, f"a broker does not send {kind.name}")

    def _lost(self, reason: str) -> None:
        for stream in list(self._streams.values()):
            stream.end(self._broken(reason))

    def _broken(self, reason: str) -> DejaqError:
        return NoBroker(details=f"{self.address}: {reason}")


def _error_in(payload: Payload) -> DejaqError:
    try:
        return error_from_proto(errors_pb2.Error.FromString(payload))
    except DecodeError:
        return InternalError("the broker's error cannot be read")


class WebSocketSession:
    """The client's end of one session."""

    def __init__(self, connection: ClientConnection, bearer: str = "") -> None:
        self._connection = connection
        self._stream = connection.begin(Kind.SESSION, bearer.encode())

    async def send(self, frame: ClientSent) -> None:
        """Send a frame; waits while the broker is not reading."""
        parts = pieces(frame)
        _check_size(sum(map(len, parts)))
        try:
            await self._stream.send(*parts)
        except DejaqError as error:
            raise Unavailable(f"the session with {self._connection.address} has ended", details=str(error)) from None

    def send_now(self, frame: ClientSent) -> bool:
        """Send a frame if that needs no waiting, and say whether it was sent."""
        parts = pieces(frame)
        return sum(map(len, parts)) <= limits.FRAME_BYTES_MAX and self._stream.send_now(*parts)

    def offer_to(self, take: Callable[[Payload], bool]) -> None:
        """Offer each frame that follows no waiting one to `take`, when it arrives."""
        self._stream.offer_to(take)

    async def receive(self) -> carrier.BrokerFrame | None:
        """The next frame; None after the broker ended the session."""
        try:
            payload = await self._stream.receive()
        except DejaqError as error:
            if error.answered and not error.retryable:
                raise
            raise Unavailable(f"the session with {self._connection.address} broke", details=str(error)) from None
        return None if payload is None else carrier.BrokerFrame.FromString(payload)

    async def close(self) -> None:
        """End the session."""
        self._connection.finish(self._stream)


class WebSocketTransport:
    """One WebSocket connection to the broker at `host:port` or `unix:/path`, opened at its first use and again when
    it broke.
    """

    def __init__(self, address: str, security: ClientSecurity = PLAIN) -> None:
        self.address = address
        self._security = security
        self._connection: ClientConnection | None = None
        self._opening: asyncio.Task[ClientConnection] | None = None

    async def _open(self) -> ClientConnection:
        """The open connection. Everything that needs one at the same time waits for the same attempt."""
        if self._connection is not None and self._connection.socket.open:
            return self._connection
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._connect(), name=f"connect-{self.address}")
        opening = self._opening
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled():
                raise Unavailable(f"the connection to {self.address} was closed") from None
            raise

    async def _connect(self) -> ClientConnection:
        try:
            reuse_blocks()
            bearer = await self._security.bearer(self.address)
            try:
                transport, behind = await open_socket(self.address, self._security, bearer)
            except Unauthenticated:
                self._forget_credentials()
                raise
            connection = ClientConnection(self.address, bearer)
            connection.socket.attach(transport, behind)
            self._connection = connection
            return connection
        finally:
            self._opening = None

    async def session(self) -> WebSocketSession:
        """Open a session."""
        connection = await self._open()
        return WebSocketSession(connection, await self._newer(connection))

    async def _newer(self, connection: ClientConnection) -> str:
        """The credentials of now, where they are others than those of the handshake."""
        bearer = await self._security.bearer(self.address)
        return bearer if bearer != connection.bearer else ""

    def _forget_credentials(self) -> None:
        if self._security.credentials is not None:
            self._security.credentials.invalidate()

    async def call(self, method: str, request: Message, response: type[Response], timeout: float) -> Response:
        """A unary call, `method` as in `Overseer.Info`."""
        return await self._answer(method, request.SerializeToString(), None, response, timeout)

    async def upload(
        self, method: str, requests: AsyncIterator[Message], response: type[Response], timeout: float
    ) -> Response:
        """A client-streaming call; the requests are one type."""
        return await self._answer(method, b"", requests, response, timeout)

    async def _answer(
        self,
        method: str,
        request: bytes,
        requests: AsyncIterator[Message] | None,
        response: type[Response],
        timeout: float,
    ) -> Response:
        _check_size(len(request))
        asked = False
        try:
            async with asyncio.timeout(timeout):
                connection = await self._open()
                await connection.socket.wait_writable()
                bearer = await self._newer(connection)
                call = Call(method=method, timeout_ms=max(round(timeout * 1_000), 1), request=request, bearer=bearer)
                stream = connection.begin(Kind.CALL, call.SerializeToString())
                asked = True
                try:
                    if requests is not None:
                        await _send_all(connection, stream, requests)
                    payload = await stream.receive()
                finally:
                    connection.finish(stream)
        except TimeoutError:
            if not asked:
                raise NoBroker(details=f"{self.address}: no connection within {timeout:g} s") from None
            raise Indefinite(f"{method} was not answered within {timeout:g} s", details=self.address) from None
        if payload is None:
            raise InternalError(f"{self.address} ended {method} without an answer")
        return response.FromString(payload)  # type: ignore[no-any-return]

    async def stream(self, method: str, request: Message, response: type[Response]) -> AsyncIterator[Response]:
        """A server-streaming call."""
        connection = await self._open()
        bearer = await self._newer(connection)
        call = Call(method=method, request=request.SerializeToString(), bearer=bearer)
        stream = connection.begin(Kind.CALL, call.SerializeToString())
        try:
            while (payload := await stream.receive()) is not None:
                yield response.FromString(payload)
        finally:
            connection.finish(stream)

    async def close(self) -> None:
        """Let go of the connection."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait((self._opening,))
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.socket.shut(CloseCode.NORMAL, "the client is closed")


async def _send_all(connection: ClientConnection, stream: Stream, requests: AsyncIterator[Message]) -> None:
    """Send the requests of an upload, until the broker has ended it."""
    async for request in requests:
        if stream.ended:
            return
        data = request.SerializeToString()
        _check_size(len(data))
        try:
            await stream.send(data)
        except DejaqError:
            # The broker's own reason is what the caller receives.
            return
    connection.socket.write(head(Kind.END, stream.number))


def _check_size(size: int) -> None:
    if size > limits.FRAME_BYTES_MAX:
        raise error_of(Code.LIMIT_EXCEEDED, f"a request has at most {limits.FRAME_BYTES_MAX} bytes, not {size}")
