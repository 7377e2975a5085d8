"""Calls to etcd: one server at a time, and the next one when it does not answer in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from dejaq.errors import ClusterRefused, SynchronizationError, SynchronizationFull
from dejaq.protocol.etcd import rpc_pb2 as rpc
from dejaq.protocol.poller import hold_poller
from dejaq.synchronization.etcd.endpoints import Endpoints

Response = TypeVar("Response", bound=Message)

# One try at one server; the death of a leader is over in less than two seconds.
TRY_SECONDS = 1.0
# All tries of one call together.
CALL_SECONDS = 6.0
PAUSE_SECONDS = 0.05
# How often a quiet watch is asked for a sign of life, and how long that may take.
PULSE_SECONDS = 2.0

# The library carries no types.
_rpc: Any = grpc
_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
)
_ELSEWHERE = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
# The only mark of this error: etcd's own clients know its errors by these words, too.
_NO_SPACE = "mvcc: database space exceeded"
# A server that has lost its leader says so instead of keeping a watcher waiting.
_NEEDS_LEADER = ("hasleader", "true")


class NotThere(SynchronizationError):
    """What the call names is not there."""


@dataclass(frozen=True, slots=True)
class EtcdAnswer(Generic[Response]):
    """An answer of etcd. `unsure`: an earlier try of the same call may have been done already."""

    response: Response
    unsure: bool


class Wire:
    """The way to the servers of one etcd cluster."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._closed = False
        self._place = 0
        self._token = ""

    @property
    def shown(self) -> str:
        """The servers, for people."""
        return self._endpoints.shown

    async def close(self) -> None:
        """Let go of every connection."""
        self._closed = True
        channels = list(self._channels.values())
        self._channels.clear()
        for channel in channels:
            await channel.close()

    async def call(
        self, method: str, request: Message, response: type[Response], *, seconds: float = CALL_SECONDS
    ) -> EtcdAnswer[Response]:
        """A unary call, `method` as in `KV.Range`, to whichever server answers within `seconds`."""
        until = asyncio.get_running_loop().time() + seconds
        unsure = False
        while True:
            address = self._address()
            try:
                await self._log_in(address)
                return EtcdAnswer(await self._unary(address, method, request, response), unsure)
            except grpc.aio.AioRpcError as error:
                trouble = self._judge(error, address)
                unsure = unsure or error.code() is not grpc.StatusCode.UNAUTHENTICATED
            if asyncio.get_running_loop().time() + PAUSE_SECONDS >= until:
                raise trouble
            await asyncio.sleep(PAUSE_SECONDS)

    async def keep_alive(self, lease: int) -> int:
        """Renew a lease by one try at one server; gives the seconds it has now, 0 when it is gone."""
        address = self._address()
        call: Any = None
        try:
            await self._log_in(address)
            call = self._stream(address, "Lease.LeaseKeepAlive", rpc.LeaseKeepAliveRequest, rpc.LeaseKeepAliveResponse)
            await call.write(rpc.LeaseKeepAliveRequest(ID=lease))
            answer = await call.read()
            if answer is grpc.aio.EOF:
                self._rotate(address)
                raise SynchronizationError(f"etcd at {address} ended the renewal", details=await call.details() or "")
            return int(answer.TTL)
        except grpc.aio.AioRpcError as error:
            raise self._judge(error, address) from None
        finally:
            if call is not None:
                call.cancel()

    async def watch(self, request: rpc.WatchCreateRequest) -> AsyncIterator[rpc.WatchResponse]:
        """The answers of one watch at one server, until it ends; SYNCHRONIZATION_FAILED when it broke."""
        address = self._address()
        call: Any = None
        reading: asyncio.Task[Any] | None = None
        try:
            await self._log_in(address)
            call = self._stream(address, "Watch.Watch", rpc.WatchRequest, rpc.WatchResponse, _NEEDS_LEADER)
            await call.write(rpc.WatchRequest(create_request=request))
            while True:
                reading = asyncio.ensure_future(call.read())
                await self._alive(call, reading, address)
                answer = reading.result()
                if answer is grpc.aio.EOF:
                    raise SynchronizationError(f"etcd at {address} ended a watch", details=await call.details() or "")
                yield answer
        except grpc.aio.AioRpcError as error:
            raise self._judge(error, address) from None
        except SynchronizationError:
            self._rotate(address)
            raise
        finally:
            if reading is not None:
                reading.cancel()
            if call is not None:
                call.cancel()

    async def _alive(self, call: Any, reading: asyncio.Task[Any], address: str) -> None:
        """Wait for the reading; a server that is silent must answer a request for its progress."""
        await asyncio.wait((reading,), timeout=PULSE_SECONDS)
        if reading.done():
            return
        await call.write(rpc.WatchRequest(progress_request=rpc.WatchProgressRequest()))
        await asyncio.wait((reading,), timeout=PULSE_SECONDS)
        if not reading.done():
            raise SynchronizationError(f"etcd at {address} is silent")

    def _address(self) -> str:
        return self._endpoints.addresses[self._place % len(self._endpoints.addresses)]

    def _rotate(self, address: str) -> None:
        # Several calls may fail at one server at one time; only the first moves on.
        if self._address() == address:
            self._place += 1

    def _channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._connect(address)
        return channel

    def _connect(self, address: str) -> grpc.aio.Channel:
        if self._closed:
            raise SynchronizationError("the way to etcd is closed")
        hold_poller()
        if not self._endpoints.ca:
            return grpc.aio.insecure_channel(address, options=_OPTIONS)
        authority, key, certificate = self._endpoints.certificates()
        credentials = _rpc.ssl_channel_credentials(authority, key, certificate)
        return grpc.aio.secure_channel(address, credentials, options=_OPTIONS)

    def _metadata(self, *more: tuple[str, str]) -> tuple[tuple[str, str], ...]:
        return (*more, ("token", self._token)) if self._token else more

    async def _unary(self, address: str, method: str, request: Message, response: type[Response]) -> Response:
        stub: Any = self._channel(address).unary_unary(
            _path(method), request_serializer=type(request).SerializeToString, response_deserializer=response.FromString
        )
        return await stub(request, timeout=TRY_SECONDS, metadata=self._metadata())  # type: ignore[no-any-return]

    def _stream(
        self, address: str, method: str, request: type[Message], response: type[Message], *metadata: tuple[str, str]
    ) -> Any:
        stub: Any = self._channel(address).stream_stream(
            _path(method), request_serializer=request.SerializeToString, response_deserializer=response.FromString
        )
        timeout = TRY_SECONDS if method == "Lease.LeaseKeepAlive" else None
        return stub(timeout=timeout, metadata=self._metadata(*metadata))

    async def _log_in(self, address: str) -> None:
        if self._endpoints.user and not self._token:
            request = rpc.AuthenticateRequest(name=self._endpoints.user, password=self._endpoints.password)
            self._token = (await self._unary(address, "Auth.Authenticate", request, rpc.AuthenticateResponse)).token

    def _judge(self, error: grpc.aio.AioRpcError, address: str) -> SynchronizationError:
        """The error to raise if no further try succeeds; raises at once an error that no further try can change."""
        code, details = error.code(), (error.details() or "").removeprefix("etcdserver: ")
        if code is grpc.StatusCode.UNAUTHENTICATED or "auth store is old" in details:
            self._token = ""
        elif code is grpc.StatusCode.NOT_FOUND:
            raise NotThere(f"etcd: {details}") from None
        elif details == _NO_SPACE:
            raise SynchronizationFull(
                f"etcd ({self.shown}) has no space left and takes no writes; compact and defragment it, disarm its "
                "alarm, and see docs/operations.md for its quota"
            ) from None
        elif code not in _ELSEWHERE:
            raise ClusterRefused(f"etcd at {address} refuses this broker: {details}") from None
        else:
            self._rotate(address)
        return SynchronizationError(
            f"no server of etcd answered ({self.shown}); check that they run and that more than half can reach each "
            f"other",
            details=f"{address}: {details}",
        )


def _path(method: str) -> str:
    service, _, name = method.partition(".")
    return f"/etcdserverpb.{service}/{name}"
