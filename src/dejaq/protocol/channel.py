"""The client's way to a broker over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from dejaq import limits
from dejaq.errors import DejaqError, Unavailable
from dejaq.protocol.status import error_from_grpc
from dejaq.protocol.transport import Response
from dejaq.protocol.v1 import carrier_pb2 as carrier

_OPTIONS: tuple[tuple[str, int], ...] = (
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
    translated = error_from_grpc(
        error.code(), f"{address}: {error.details() or ''}", error.trailing_metadata()
    )
    translated.__suppress_context__ = True
    return translated


class GrpcSession:
    """The client's end of one `Carrier.Session` over gRPC."""

    def __init__(self, call: grpc.aio.StreamStreamCall[Any, Any], address: str) -> None:
        self._call = call
        self._address = address
        # gRPC takes one write at a time on a stream and fails, rather than waits, on a second.
        self._writing = asyncio.Lock()

    async def send(self, frame: carrier.ClientFrame) -> None:
        """Send a frame; waits while the broker is not reading."""
        try:
            async with self._writing:
                await self._call.write(frame)
        except grpc.aio.AioRpcError as error:
            raise _error(error, self._address) from None
        except (asyncio.InvalidStateError, grpc.aio.UsageError) as error:
            raise Unavailable(f"the session with {self._address} has ended") from error

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
            raise Unavailable(
                f"the session with {self._address} broke", details=await self._call.details() or ""
            )
        return frame  # type: ignore[no-any-return]

    async def close(self) -> None:
        """End the session."""
        self._call.cancel()


class GrpcTransport:
    """One gRPC connection to one broker, opened at its first use."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel: grpc.aio.Channel | None = None
        self._methods: dict[str, Any] = {}

    def _open(self) -> grpc.aio.Channel:
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self.address, options=_OPTIONS)
        return self._channel

    async def session(self) -> GrpcSession:
        """Open a session."""
        method = self._open().stream_stream(
            "/dejaq.v1.Carrier/Session",
            request_serializer=carrier.ClientFrame.SerializeToString,
            response_deserializer=carrier.BrokerFrame.FromString,
        )
        call = method()
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
                _path(method),
                request_serializer=type(request).SerializeToString,
                response_deserializer=response.FromString,
            )
        try:
            return await stub(request, timeout=timeout)  # type: ignore[no-any-return]
        except grpc.aio.AioRpcError as error:
            raise _error(error, self.address) from None

    async def stream(
        self, method: str, request: Message, response: type[Response]
    ) -> AsyncIterator[Response]:
        """A server-streaming call."""
        call = self._open().unary_stream(
            _path(method),
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )(request)
        try:
            async for item in call:
                yield item
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


def _path(method: str) -> str:
    service, _, name = method.partition(".")
    return f"/dejaq.v1.{service}/{name}"
