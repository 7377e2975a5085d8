"""One client's WebSocket connection: its sessions and calls, each a stream with a task of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace

from google.protobuf.message import DecodeError, Message

from dejaq.broker.services import Services
from dejaq.broker.websocket.methods import Form, Method
from dejaq.domain.context import CallContext, Endpoint
from dejaq.errors import Code, DejaqError, Indefinite, InternalError, InvalidArgument, Unavailable, error_of
from dejaq.protocol.spliced import BrokerSent, pieces
from dejaq.protocol.status import error_to_proto
from dejaq.protocol.v1.websocket_pb2 import Call
from dejaq.protocol.websocket.connection import WebSocketConnection
from dejaq.protocol.websocket.framing import CloseCode, FrameError, Payload
from dejaq.protocol.websocket.messages import Kind, head, parse, parse_credit
from dejaq.protocol.websocket.stream import Stream
from dejaq.security.base import Credentials

log = logging.getLogger(__name__)

PING_SECONDS = 5.0
# For so long messages of one connection are delivered in one turn of the event loop.
STEP_SECONDS = 0.002
# How long a client waits that was refused a call because too many are running.
_BUSY_MS = 100


@dataclass(slots=True)
class RunningCalls:
    """The calls that an endpoint serves at one time, of all its clients, and the most that it may."""

    most: int
    count: int = 0


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A call that was read: its method, its request, and how many seconds it may take."""

    method: Method
    request: Message
    seconds: float | None
    # Newer credentials than those of the handshake; empty for those.
    bearer: str = field(default="", repr=False)


class ConnectedClient:
    """Serves one connection until it is lost."""

    def __init__(
        self,
        *,
        peer: str,
        credentials: Credentials,
        endpoint: Endpoint,
        services: Services,
        methods: Mapping[str, Method],
        calls: RunningCalls,
        on_gone: Callable[[ConnectedClient], None],
    ) -> None:
        self.peer = peer
        self._credentials = credentials
        self._endpoint = endpoint
        self.socket = WebSocketConnection(
            client=False,
            on_message=self._received,
            on_lost=self._lost,
            step_seconds=STEP_SECONDS,
            ping_seconds=PING_SECONDS,
            idle=lambda: not self._streams,
        )
        self._services = services
        self._methods = methods
        self._calls = calls
        self._on_gone = on_gone
        self._streams: dict[int, Stream] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        # Streams that are calls: those are cancelled when the client leaves, and sessions end in order.
        self._call_numbers: set[int] = set()
        self._last = 0

    @property
    def idle(self) -> bool:
        """Whether nothing of it is still running."""
        return not self._tasks

    def _received(self, message: Payload) -> None:
        kind, number, payload = parse(message)
        if kind in (Kind.SESSION, Kind.CALL):
            self._begin(kind, number, payload)
            return
        if number > self._last:
            raise FrameError(CloseCode.PROTOCOL_ERROR, f"stream {number} has not begun")
        stream = self._streams.get(number)
        if stream is None:
            # A stream that the broker has ended meanwhile.
            return
        if kind is Kind.MESSAGE:
            stream.arrive(payload)
        elif kind is Kind.CREDIT:
            stream.credit(parse_credit(payload))
        elif kind is Kind.END:
            stream.end_of_messages()
        elif kind is Kind.CANCEL:
            self._cancel(stream)
        else:
            raise FrameError(CloseCode.PROTOCOL_ERROR, f"a client does not send {kind.name}")

    def _begin(self, kind: Kind, number: int, payload: Payload) -> None:
        if number <= self._last:
            raise FrameError(CloseCode.PROTOCOL_ERROR, f"stream {number} follows stream {self._last}")
        self._last = number
        stream = Stream(number, self.socket)
        if kind is Kind.SESSION:
            self._run(stream, self._serve_session(stream, bytes(payload)), 0)
            return
        try:
            if self._calls.count >= self._calls.most:
                raise error_of(Code.OVERLOADED, throttled_ms=_BUSY_MS)
            call = self._parse_call(payload)
        except DejaqError as error:
            self._refuse(stream, error)
            return
        self._calls.count += 1
        self._call_numbers.add(number)
        self._run(stream, self._serve_call(stream, call), len(payload))

    def _run(self, stream: Stream, work: Coroutine[None, None, None], size: int) -> None:
        """Run a stream; its request counts as received bytes that wait until it has ended."""
        self._streams[stream.number] = stream
        self.socket.resume_pings()
        self.socket.hold(size)
        task = asyncio.get_running_loop().create_task(work, name=f"stream {stream.number} of {self.peer}")
        self._tasks[stream.number] = task

        def over(_: asyncio.Task[None]) -> None:
            self._streams.pop(stream.number, None)
            self._tasks.pop(stream.number, None)
            if stream.number in self._call_numbers:
                self._call_numbers.remove(stream.number)
                self._calls.count -= 1
            self.socket.release(size)
            stream.discard()

        task.add_done_callback(over)

    # Sessions

    def _shown(self, bearer: str) -> Credentials:
        """The caller's credentials: those of the handshake, or newer ones."""
        return replace(self._credentials, bearer=bearer) if bearer else self._credentials

    async def _serve_session(self, stream: Stream, bearer: bytes) -> None:
        sender = StreamSender(stream)
        try:
            credentials = self._shown(bearer.decode("ascii", "replace"))
            async with self._services.gate.open(
                credentials, self.peer, endpoint=self._endpoint, is_session=True
            ) as context:
                await self._services.session(context, SessionFrames(stream), sender)
        except DejaqError as error:
            self._refuse(stream, error)
        except Exception:
            log.exception("a session of %s failed", self.peer)
            self._refuse(stream, InternalError())
        else:
            self._write(stream, Kind.END)

    # Calls

    def _parse_call(self, payload: Payload) -> ParsedCall:
        try:
            call = Call.FromString(payload)
        except DecodeError:
            raise InvalidArgument("the call cannot be read") from None
        method = self._methods.get(call.method)
        if method is None:
            raise error_of(Code.VERSION_UNSUPPORTED, f"the broker does not know the call {call.method[:100]!r}")
        seconds = call.timeout_ms / 1_000 if call.timeout_ms else None
        return ParsedCall(method, _request(method, call.request), seconds, call.bearer)

    async def _serve_call(self, stream: Stream, call: ParsedCall) -> None:
        try:
            async with asyncio.timeout(call.seconds):
                await self._answer(stream, call)
        except TimeoutError:
            late = Indefinite(f"{call.method.name} was not done within {call.seconds} s")
            self._refuse(stream, late)
        except DejaqError as error:
            self._refuse(stream, error)
        except Exception:
            log.exception("a call of %s failed", self.peer)
            self._refuse(stream, InternalError())

    async def _answer(self, stream: Stream, call: ParsedCall) -> None:
        async with self._services.gate.open(
            self._shown(call.bearer), self.peer, endpoint=self._endpoint, seconds=call.seconds
        ) as context:
            await self._answer_to(context, stream, call)

    async def _answer_to(self, context: CallContext, stream: Stream, call: ParsedCall) -> None:
        name = call.method.name
        if call.method.form is Form.STREAM:
            await self._stream(stream, self._services.stream(context, name, call.request))
            return
        if call.method.form is Form.UPLOAD:
            requests = (_request(call.method, payload) async for payload in _messages(stream))
            response = await self._services.upload(context, name, requests)
        else:
            response = await self._services.call(context, name, call.request)
        await self.socket.wait_writable()
        self._write(stream, Kind.RESULT, response.SerializeToString())

    async def _stream(self, stream: Stream, responses: AsyncIterator[Message]) -> None:
        async for response in responses:
            try:
                await stream.send(response.SerializeToString())
            except Unavailable:
                # The client is gone.
                return
        self._write(stream, Kind.END)

    def _write(self, stream: Stream, kind: Kind, payload: bytes = b"") -> None:
        """Send the last message of a stream."""
        if not stream.ended:
            self.socket.write(head(kind, stream.number), payload)

    def _refuse(self, stream: Stream, error: DejaqError) -> None:
        self._write(stream, Kind.ERROR, error_to_proto(error).SerializeToString())

    # The end

    def _cancel(self, stream: Stream) -> None:
        """The client wants no more of a stream."""
        stream.end(Unavailable("the client has left"))
        if stream.number in self._call_numbers:
            self._tasks[stream.number].cancel()

    def _lost(self, reason: str) -> None:
        log.debug("the connection of %s ended: %s", self.peer, reason)
        for stream in list(self._streams.values()):
            self._cancel(stream)
        self._on_gone(self)

    async def finish(self, code: CloseCode, reason: str) -> None:
        """Close the connection and wait until what it began has ended, shortly."""
        await self.socket.shut(code, reason)
        if self._tasks:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.wait(list(self._tasks.values()), timeout=1.0)


class SessionFrames:
    """The frames of a session in a stream: offered as they arrive, or iterated over."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def offer_to(self, take: Callable[[bytes], bool]) -> None:
        """Offer each frame that follows no waiting one to `take`; a large one is a bytearray, which is read as well."""
        self._stream.offer_to(take)  # type: ignore[arg-type]

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _messages(self._stream)


class StreamSender:
    """Sends the frames of a session in a stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def __call__(self, frame: BrokerSent) -> None:
        """Send a frame; waits while the client is not reading."""
        await self._stream.send(*pieces(frame))

    def now(self, frame: BrokerSent) -> bool:
        """Send a frame if that needs no waiting, and say whether it was sent."""
        return self._stream.send_now(*pieces(frame))


async def _messages(stream: Stream) -> AsyncIterator[bytes]:
    """What the client sends in a stream until it ends; a client that is gone sends nothing more."""
    while True:
        try:
            payload = await stream.receive()
        except Unavailable:
            return
        if payload is None:
            return
        yield payload  # type: ignore[misc]


def _request(method: Method, data: Payload) -> Message:
    try:
        return method.request.FromString(data)
    except DecodeError:
        raise InvalidArgument(f"the request of {method.name} cannot be read") from None
