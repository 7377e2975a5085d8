"""A way to a broker in the same process: frames are handed over as objects through short queues."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar, cast

from google.protobuf.message import Message

from dejaq.broker.context import begin_call
from dejaq.broker.services import Services
from dejaq.domain.context import IN_PROCESS, CallContext
from dejaq.errors import Code, Indefinite, Unavailable, error_of
from dejaq.protocol.spliced import BrokerSent, ClientSent, whole
from dejaq.protocol.transport import Response
from dejaq.protocol.v1 import carrier_pb2 as carrier

PIPE_FRAMES_MAX = 16
BeginCall = Callable[[str, float | None], CallContext]
T = TypeVar("T")


class InProcessTransport:
    """Implements `protocol.transport.Transport` without a network. A frame belongs to the broker once sent."""

    def __init__(self, services: Services, begin: BeginCall = begin_call) -> None:
        """`begin` makes the context of each call."""
        self._services = services
        self._begin = begin
        self._sessions: set[InProcessSession] = set()

    @property
    def address(self) -> str:
        """What to show people."""
        return IN_PROCESS

    async def session(self) -> InProcessSession:
        """Open a session."""
        session = InProcessSession(self._services, self._begin(IN_PROCESS, None))
        self._sessions.add(session)
        session.served.add_done_callback(lambda _: self._sessions.discard(session))
        return session

    async def call(self, method: str, request: Message, response: type[Response], timeout: float) -> Response:
        """A unary call, `method` as in `Overseer.Info`."""
        if method not in self._services.unary:
            raise error_of(Code.VERSION_UNSUPPORTED, f"the broker does not know the call {method!r}")
        context = self._begin(IN_PROCESS, timeout)
        try:
            async with asyncio.timeout(timeout):
                return cast(Response, await self._services.call(context, method, request))
        except TimeoutError:
            raise Indefinite(f"{method} was not answered within {timeout} s") from None

    def stream(self, method: str, request: Message, response: type[Response]) -> AsyncIterator[Response]:
        """A server-streaming call."""
        return cast(AsyncIterator[Response], self._services.stream(self._begin(IN_PROCESS, None), method, request))

    async def upload(
        self, method: str, requests: AsyncIterator[Message], response: type[Response], timeout: float
    ) -> Response:
        """A client-streaming call."""
        context = self._begin(IN_PROCESS, timeout)
        try:
            async with asyncio.timeout(timeout):
                return cast(Response, await self._services.upload(context, method, requests))
        except TimeoutError:
            raise Indefinite(f"{method} was not answered within {timeout} s") from None

    async def close(self) -> None:
        """End the sessions that are open."""
        for session in list(self._sessions):
            await session.close()


class InProcessSession:
    """The client's end of a session, and the two pipes to the broker's end."""

    def __init__(self, services: Services, context: CallContext) -> None:
        self._to_broker: _Pipe[carrier.ClientFrame] = _Pipe()
        self._to_client: _Pipe[carrier.BrokerFrame] = _Pipe()
        self.served = asyncio.get_running_loop().create_task(self._serve(services, context), name="in-process session")

    async def _serve(self, services: Services, context: CallContext) -> None:
        try:
            await services.session(context, self._to_broker.items(), self._answer)
        finally:
            self._to_broker.close()
            self._to_client.close()

    async def _answer(self, frame: BrokerSent) -> None:
        await self._to_client.put(whole(frame))

    async def send(self, frame: ClientSent) -> None:
        """Send a frame; waits while the broker is not reading."""
        await self._to_broker.put(whole(frame))

    async def receive(self) -> carrier.BrokerFrame | None:
        """The next frame; None after the broker ended the session."""
        return await self._to_client.get()

    async def close(self) -> None:
        """End the session."""
        self._to_broker.close()
        self._to_client.close()
        await asyncio.wait((self.served,))


class _Pipe(Generic[T]):
    """A bounded queue that can be closed at either end; what is in it can still be taken then."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._changed = asyncio.Event()
        self._closed = False

    async def put(self, item: T) -> None:
        while len(self._items) >= PIPE_FRAMES_MAX and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        if self._closed:
            raise Unavailable("the session has ended")
        self._items.append(item)
        self._changed.set()

    async def get(self) -> T | None:
        while not self._items:
            if self._closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        item = self._items.popleft()
        self._changed.set()
        return item

    async def items(self) -> AsyncIterator[T]:
        while (item := await self.get()) is not None:
            yield item

    def close(self) -> None:
        self._closed = True
        self._changed.set()
