"""The WebSocket of one program: it says who it is, then sends calls and gets answers and leases."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from contextlib import suppress

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from dejaq.errors import Code, DejaqError, Unauthenticated, error_of
from dejaq.web.api.operations.sending import send_rows
from dejaq.web.gateway import Gateway
from dejaq.web.live.hub import LiveClient
from dejaq.web.login.pool import GatewayPool
from dejaq.web.problem import problem_of
from dejaq.web.programs.consumers import ProgramConsumers
from dejaq.web.programs.frames import (
    Answer,
    Call,
    CloseCall,
    Hello,
    OpenCall,
    OperationCall,
    Ready,
    SendCall,
    SettleCall,
    WatchCall,
)
from dejaq.web.programs.operations import run_operation
from dejaq.web.rates import RateLimiter
from dejaq.web.settings import BURST_SECONDS, WebSettings

HELLO_SECONDS = 10.0
SEND_SECONDS = 20.0
# Calls of one program that wait for the brokers at one time.
CALLS_MAX = 64
POLICY, UNKNOWN_CALLER, BUSY = 1008, 4401, 1013
_encoder = msgspec.json.Encoder()


async def program_socket(socket: WebSocket) -> None:
    """Serve one program until it leaves. The guard has checked its host and its origin before."""
    pool: GatewayPool = socket.state.pool
    with suppress(WebSocketDisconnect):
        await socket.accept()
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                hello = msgspec.json.decode(await socket.receive_text(), type=Hello)
        except (TimeoutError, msgspec.DecodeError, KeyError):
            await socket.close(POLICY, "the first frame is a hello, within ten seconds")
            return
        credentials = hello.token or socket.state.credentials
        settings: WebSettings = socket.app.state.settings
        if credentials is None and not settings.login:
            # A site that the operator has named, at a gateway without users.
            credentials = ""
        if credentials is None:
            await socket.close(UNKNOWN_CALLER, "the first frame needs an API key or a token")
            return
        try:
            async with pool.use(credentials) as gateway:
                await _Program(socket, gateway, settings).run()
        except Unauthenticated as error:
            await socket.close(UNKNOWN_CALLER, error.message[:100])
        except DejaqError as error:
            await socket.close(BUSY, error.message[:100])


class _Program:
    """One connected program."""

    def __init__(self, socket: WebSocket, gateway: Gateway, settings: WebSettings) -> None:
        self._socket = socket
        self._gateway = gateway
        self._settings = settings
        self._consumers = ProgramConsumers(gateway.client, self.send)
        self._limiter = RateLimiter(settings.rate, settings.rate * BURST_SECONDS)
        self._sending = asyncio.Lock()
        self._turns = asyncio.Semaphore(CALLS_MAX)
        self._calls: set[asyncio.Task[None]] = set()
        # What it looks at, once it has asked for something.
        self._views: LiveClient | None = None
        self._watching: asyncio.Task[None] | None = None

    async def send(self, value: msgspec.Struct) -> None:
        """Send one frame. A program that reads nothing for long is disconnected."""
        async with self._sending, asyncio.timeout(SEND_SECONDS):
            await self._socket.send_text(_encoder.encode(value).decode())

    async def run(self) -> None:
        """Serve calls until the program leaves; what it has not settled is delivered again."""
        await self.send(Ready(ready=True, now=self._gateway.client.now_ms()))
        try:
            with suppress(WebSocketDisconnect):
                while True:
                    await self._turns.acquire()
                    await self._begin(await self._socket.receive_text())
        finally:
            tasks = [*self._calls, *([self._watching] if self._watching is not None else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._views is not None:
                self._gateway.hub.leave(self._views)
            await self._consumers.close()

    async def _begin(self, text: str) -> None:
        try:
            call = msgspec.json.decode(text, type=Call)
        except (msgspec.DecodeError, RecursionError) as wrong:
            await self._socket.close(POLICY, str(wrong)[:100])
            raise WebSocketDisconnect(POLICY) from None
        wait = self._limiter.wait_seconds("", time.monotonic())
        if wait:
            # The socket is not read meanwhile, so the program waits too.
            await asyncio.sleep(wait)
        task = asyncio.ensure_future(self._answer(call))
        self._calls.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        self._turns.release()
        if not task.cancelled() and task.exception() is not None:
            # It could not be answered, as the program is gone or reads nothing.
            asyncio.ensure_future(_quietly(self._socket.close(BUSY)))  # noqa: RUF006 - it ends with the socket

    async def _answer(self, call: Call) -> None:
        try:
            if self._settings.read_only and not isinstance(call, WatchCall | OperationCall):
                raise error_of(Code.PERMISSION_DENIED, "this gateway is read-only (dejaq web --read-only)")
            answer = await self._done(call)
        except DejaqError as error:
            answer = Answer(call.n, error=problem_of(error))
        await self.send(answer)

    async def _done(self, call: Call) -> Answer:
        match call:
            case SendCall():
                outcomes = await send_rows(self._gateway, call.topic, call.group, call.messages, {})
                return Answer(call.n, results=outcomes)
            case OpenCall():
                return Answer(call.n, consumer=await self._consumers.open(call))
            case CloseCall():
                await self._consumers.end(call.consumer)
                return Answer(call.n)
            case SettleCall():
                expires_ms = await self._consumers.settle(call, self._gateway.client.now_ms())
                return Answer(call.n, expires_ms=expires_ms)
            case OperationCall():
                return await run_operation(self._gateway, self._consumers, call)
            case WatchCall():
                self._watch(call)
                return Answer(call.n)

    def _watch(self, call: WatchCall) -> None:
        if self._views is None:
            self._views = self._gateway.hub.join()
            self._watching = asyncio.ensure_future(self._send_views(self._views))
        self._gateway.hub.choose(self._views, set(call.views))

    async def _send_views(self, views: LiveClient) -> None:
        with suppress(RuntimeError, WebSocketDisconnect, TimeoutError):
            while True:
                for payload in await views.take():
                    async with self._sending, asyncio.timeout(SEND_SECONDS):
                        await self._socket.send_text(payload)


async def _quietly(closing: Awaitable[None]) -> None:
    with suppress(RuntimeError, WebSocketDisconnect):
        await closing
