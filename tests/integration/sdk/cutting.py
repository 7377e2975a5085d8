"""A transport to a real broker that breaks where a test says so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from google.protobuf.message import Message

from dejaq.errors import NoBroker, Unavailable
from dejaq.protocol.spliced import ClientSent, whole
from dejaq.protocol.transport import Response, SessionChannel, Transport
from dejaq.protocol.v1 import carrier_pb2 as carrier


@dataclass
class Cut:
    """Break the session at a command of this kind: before it reaches the broker, or after the broker has done it."""

    command: str
    done: bool
    times: int = 1
    # The number of such commands that pass before the cut.
    after: int = 0


class CuttingTransport:
    """Forwards everything, except at the cuts that a test requests."""

    def __init__(self, inner: Transport, address: str = "cutting") -> None:
        self.address = address
        self.down = False
        self.sessions = 0
        self.frames: list[carrier.ClientFrame] = []
        self._inner = inner
        self._cuts: list[Cut] = []
        self._open: list[CuttingSession] = []

    @property
    def sent(self) -> list[str]:
        """The command of every frame that a client sent, including frames that were cut."""
        return [frame.WhichOneof("command") or "" for frame in self.frames]

    def transport(self) -> CuttingTransport:
        return self

    def cut(self, command: str, *, done: bool, times: int = 1, after: int = 0) -> None:
        self._cuts.append(Cut(command, done, times, after))

    async def cut_now(self) -> None:
        """Break every open session."""
        for session in list(self._open):
            await session.sever()

    def struck(self, command: str) -> Cut | None:
        for cut in self._cuts:
            if cut.command == command and cut.times:
                if cut.after:
                    cut.after -= 1
                    return None
                cut.times -= 1
                return cut
        return None

    async def session(self) -> SessionChannel:
        if self.down:
            raise NoBroker("it is down")
        self.sessions += 1
        session = CuttingSession(await self._inner.session(), self)
        self._open.append(session)
        return session

    async def call(self, method: str, request: Message, response: type[Response], timeout: float) -> Response:
        if self.down:
            raise NoBroker("it is down")
        return await self._inner.call(method, request, response, timeout)

    async def upload(
        self, method: str, requests: AsyncIterator[Message], response: type[Response], timeout: float
    ) -> Response:
        if self.down:
            raise NoBroker("it is down")
        return await self._inner.upload(method, requests, response, timeout)

    async def stream(self, method: str, request: Message, response: type[Response]) -> AsyncIterator[Response]:
        if self.down:
            raise NoBroker("it is down")
        async for item in self._inner.stream(method, request, response):
            yield item
            if self.down:
                raise NoBroker("it went down")

    async def close(self) -> None:
        await self._inner.close()


class CuttingSession:
    def __init__(self, inner: SessionChannel, transport: CuttingTransport) -> None:
        self._inner = inner
        self._transport = transport
        self._swallow: set[int] = set()
        self._severed = False

    async def sever(self) -> None:
        self._severed = True
        await self._inner.close()

    async def send(self, sent: ClientSent) -> None:
        frame = whole(sent)
        command = frame.WhichOneof("command") or ""
        self._transport.frames.append(frame)
        cut = self._transport.struck(command)
        if cut is not None and not cut.done:
            await self.sever()
        if self._severed:
            raise Unavailable("the session was cut")
        if cut is not None:
            self._swallow.add(frame.request)
        await self._inner.send(frame)

    async def receive(self) -> carrier.BrokerFrame | None:
        frame = await self._inner.receive()
        if frame is not None and frame.request in self._swallow and frame.WhichOneof("event") == "outcomes":
            await self.sever()
        if self._severed:
            raise Unavailable("the session was cut")
        return frame

    async def close(self) -> None:
        await self._inner.close()
