"""The client's way to a broker over gRPC."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from dejaq import limits
from dejaq.errors import DejaqError, Unavailable
from dejaq.protocol.blocks import reuse_blocks
from dejaq.protocol.grpc_status import error_from_grpc
from dejaq.protocol.poller import hold_poller
from dejaq.protocol.spliced import ClientSent, serialized
from dejaq.protocol.transport import Response
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.security.client import PLAIN, ClientSecurity

# This library carries no types for it.
_rpc: Any = grpc
# Frames that wait for the stream to take them, before a sender has to wait itself.
QUEUE_FRAMES_MAX = 16

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", limits.FRAME_BYTES_MAX),
    ("grpc.max_receive_message_length", limits.FRAME_BYTES_MAX),
    # A broker is reached directly: a proxy meant for the web would only be in the way.
    ("grpc.enable_http_proxy", 0),
    # The SDK has its own back-off over its seeds; a channel that waits longer would only delay it.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
)


def _error(error: grpc.aio.AioRpcError, address: str) -> DejaqError:
    translated = error_from_grpc(error.code(), f"{address}: {error.details() or ''}", error.trailing_metadata())
    translated.__suppress_context__ = True
    return translated


class GrpcSession:
    """The client's end of one `Carrier.Session` over gRPC.

    Frames are written by a task of its own: gRPC takes one write at a time, and ends the whole call when the task
    that writes is cancelled, as user code may be at any moment.
    """

    def __init__(self, call: grpc.aio.StreamStreamCall[Any, Any], address: str) -> None:
        self._call = call
        self._address = address
        self._frames: deque[ClientSent] = deque()
        self._filled = asyncio.Event()
        # A semaphore wakes one sender for each place; an event would wake all that wait, again and again.
        self._room = asyncio.Semaphore(QUEUE_FRAMES_MAX)
        self._waiting = 0
        self._broken: DejaqError | None = None
        self._writer = asyncio.get_running_loop().create_task(self._write(), name=f"dejaq-write-{address}")

    async def send(self, frame: ClientSent) -> None:
        """Send a frame; waits while the broker is not reading."""
        if self._broken is None:
            self._waiting += 1
            try:
                await self._room.acquire()
            finally:
                self._waiting -= 1
        if self._broken is not None:
            raise self._broken
        self._frames.append(frame)
        self._filled.set()

    async def _write(self) -> None:
        try:
            while True:
                while not self._frames:
                    self._filled.clear()
                    await self._filled.wait()
                frame = self._frames.popleft()
                self._room.release()
                await self._call.write(frame)
        except grpc.aio.AioRpcError as error:
            self._broken = _error(error, self._address)
        except (asyncio.InvalidStateError, grpc.aio.UsageError) as error:
            self._broken = Unavailable(f"the session with {self._address} has ended", details=str(error))
        finally:
            self._broken = self._broken or Unavailable(f"the session with {self._address} is closed")
            for _ in range(self._waiting):
                self._room.release()

    async def receive(self) -> carrier.BrokerFrame | None:
        """The next frame; None after the broker ended the session."""
        try:
            frame = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise _error(error, self._address) from None
        except asyncio.InvalidStateError as error:
            raise Unavailable(f"the session with {self._address} has ended") from error
        if frame is grpc.aio.EOF:
            status = await self._call.code()
            if status is grpc.StatusCode.OK:
                return None
            details = await self._call.details() or ""
            reason = error_from_grpc(status, details, await self._call.trailing_metadata())
            if reason.answered and not reason.retryable:
                raise reason
            raise Unavailable(f"the session with {self._address} broke", details=details)
        return frame  # type: ignore[no-any-return]

    async def close(self) -> None:
        """End the session."""
        self._writer.cancel()
        self._call.cancel()
        await asyncio.wait((self._writer,))


class GrpcTransport:
    """One gRPC connection to one broker, opened at its first use."""

    def __init__(self, address: str, security: ClientSecurity = PLAIN) -> None:
        self.address = address
        self._security = security
        # The files that the channel was made with: gRPC does not read them again.
        self._tls_files: object = None
        self._channel: grpc.aio.Channel | None = None
        self._retired: list[grpc.aio.Channel] = []
        self._methods: dict[str, Any] = {}

    def _open(self) -> grpc.aio.Channel:
        if self._channel is None:
            hold_poller()
            reuse_blocks()
            tls = self._security.tls
            if tls is None:
                self._channel = grpc.aio.insecure_channel(self.address, options=OPTIONS)
            else:
                self._tls_files = tls.signature()
                credentials = _rpc.ssl_channel_credentials(*tls.pem())
                self._channel = grpc.aio.secure_channel(self.address, credentials, options=OPTIONS)
        return self._channel

    async def _metadata(self) -> tuple[tuple[str, str], ...]:
        """The client's credentials as every call carries them."""
        return tuple(self._security.headers(await self._security.bearer(self.address)).items())

    def _renew_tls(self) -> None:
        """Begin a new connection where the client's certificate has changed; running sessions keep theirs."""
        tls = self._security.tls
        if tls is not None and self._channel is not None and tls.signature() != self._tls_files:
            self._retired.append(self._channel)
            self._channel = None
            self._methods.clear()

    async def session(self) -> GrpcSession:
        """Open a session."""
        self._renew_tls()
        method: Any = self._open().stream_stream(
            "/dejaq.v1.Carrier/Session",
            request_serializer=serialized,
            response_deserializer=carrier.BrokerFrame.FromString,
        )
        call = method(metadata=await self._metadata())
        try:
            await call.wait_for_connection()
        except grpc.aio.AioRpcError as error:
            raise _error(error, self.address) from None
        except asyncio.CancelledError:
            call.cancel()
            raise
        return GrpcSession(call, self.address)

    async def call(self, method: str, request: Message, response: type[Response], timeout: float) -> Response:
        """A unary call, `method` as in `Overseer.Info`."""
        stub = self._methods.get(method)
        if stub is None:
            stub = self._methods[method] = self._open().unary_unary(
                method_path(method),
                request_serializer=type(request).SerializeToString,
                response_deserializer=response.FromString,
            )
        try:
            return await stub(request, timeout=timeout, metadata=await self._metadata())  # type: ignore[no-any-return]
        except grpc.aio.AioRpcError as error:
            raise _error(error, self.address) from None

    async def stream(self, method: str, request: Message, response: type[Response]) -> AsyncIterator[Response]:
        """A server-streaming call."""
        call = self._open().unary_stream(
            method_path(method),
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )(request, metadata=await self._metadata())
        try:
            async for item in call:
                yield item
        except grpc.aio.AioRpcError as error:
            raise _error(error, self.address) from None
        finally:
            call.cancel()

    async def upload(
        self, method: str, requests: AsyncIterator[Message], response: type[Response], timeout: float
    ) -> Response:
        """A client-streaming call; the requests are one type."""
        stub: Any = self._open().stream_unary(
            method_path(method),
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=response.FromString,
        )
        call = stub(requests, timeout=timeout, metadata=await self._metadata())
        try:
            return await call  # type: ignore[no-any-return]
        except grpc.aio.AioRpcError as error:
            raise _error(error, self.address) from None
        finally:
            call.cancel()

    async def close(self) -> None:
        """Let go of the connection."""
        if self._channel is not None:
            channel, self._channel = self._channel, None
            self._methods.clear()
            await channel.close()
        for channel in self._retired:
            await channel.close()
        self._retired.clear()


def method_path(method: str) -> str:
    """The path of a method such as `Overseer.Info` on the wire."""
    service, _, name = method.partition(".")
    return f"/dejaq.v1.{service}/{name}"
