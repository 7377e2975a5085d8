"""A way to a broker for code without an event loop, such as a Spark task: one thread, one call at a time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.message import Message

from dejaq.errors import Unavailable
from dejaq.protocol.channel import OPTIONS, method_path
from dejaq.protocol.status import error_from_grpc
from dejaq.protocol.transport import Response
from dejaq.protocol.v1 import carrier_pb2 as carrier


class BlockingTransport:
    """One gRPC connection to one broker."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = grpc.insecure_channel(address, options=OPTIONS)  # type: ignore[no-untyped-call]

    def call(self, method: str, request: Message, response: type[Response], timeout: float) -> Response:
        """A unary call, `method` as in `Overseer.Info`; waits for the broker up to `timeout` seconds."""
        stub = self._channel.unary_unary(
            method_path(method),
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        try:
            return stub(request, timeout=timeout, wait_for_ready=True)  # type: ignore[no-any-return]
        except grpc.RpcError as error:
            raise self._error(error) from None

    def stream(
        self, method: str, request: Message, response: type[Response], *, silent_s: float = 60.0
    ) -> Iterator[Response]:
        """A server-streaming call, once a unary one has found the broker: a stream does not wait for it.

        It ends with an error when nothing comes for `silent_s` seconds, as from a broker that is frozen.

        To watch the channel instead would take a thread of gRPC's that looks five times per second, and for which
        closing the channel waits.
        """
        call = self._channel.unary_stream(
            method_path(method),
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )(request)
        try:
            while True:
                with _cancelled_after(call, silent_s):
                    portion = next(call, None)
                if portion is None:
                    return
                yield portion
        except grpc.RpcError as error:
            raise self._error(error) from None
        finally:
            call.cancel()

    def session(self) -> BlockingSession:
        """Open a session."""
        return BlockingSession(self._channel, self.address)

    def close(self) -> None:
        """Let go of the connection."""
        self._channel.close()

    def _error(self, error: Any) -> Exception:
        details = f"{self.address}: {error.details() or ''}"
        return error_from_grpc(error.code(), details, error.trailing_metadata())


@contextmanager
def _cancelled_after(call: Any, seconds: float) -> Iterator[None]:
    """Cancel a call from another thread when the block takes longer: a blocking read has no time-out of its own."""
    timer = threading.Timer(seconds, call.cancel)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class BlockingSession:
    """The client's end of one `Carrier.Session`."""

    def __init__(self, channel: grpc.Channel, address: str) -> None:
        self._address = address
        self._frames: queue.SimpleQueue[carrier.ClientFrame | None] = queue.SimpleQueue()
        self._call = channel.stream_stream(  # type: ignore[no-untyped-call]
            method_path("Carrier.Session"),
            request_serializer=carrier.ClientFrame.SerializeToString,
            response_deserializer=carrier.BrokerFrame.FromString,
        )(iter(self._frames.get, None))

    def send(self, frame: carrier.ClientFrame) -> None:
        """Send a frame."""
        self._frames.put(frame)

    def receive(self, timeout: float) -> carrier.BrokerFrame:
        """The next frame; raises Unavailable when the session is over, or nothing comes for `timeout` seconds."""
        try:
            with _cancelled_after(self._call, timeout):
                frame: carrier.BrokerFrame = next(self._call)
        except StopIteration:
            raise Unavailable(f"the broker at {self._address} ended the session") from None
        except grpc.RpcError as error:
            details = str(getattr(error, "details", str)() or "")
            raise Unavailable(f"the session with {self._address} broke", details=details) from None
        return frame

    def close(self) -> None:
        """End the session."""
        self._frames.put(None)
        self._call.cancel()
