"""The gRPC server: the broker's calls, health and reflection on one address."""

from __future__ import annotations

import errno
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from dejaq import limits
from dejaq.broker.context import begin_call
from dejaq.broker.services import Calls, Services
from dejaq.config import BrokerConfig, join_address, split_address
from dejaq.domain.context import CallContext, Endpoint
from dejaq.errors import Code, DejaqError, PortTaken, error_of
from dejaq.protocol.grpc_status import grpc_metadata, grpc_status
from dejaq.protocol.poller import hold_poller
from dejaq.protocol.spliced import serialized
from dejaq.protocol.v1 import access_pb2, carrier_pb2, cron_pb2, log_pb2, overseer_pb2, peer_pb2, rights_pb2
from dejaq.security.base import DEVICE_HEADER, Credentials, bearer_of
from dejaq.security.certificates import certified
from dejaq.security.tls import ServerTls, TlsMaterial

# These libraries carry no types.
_rpc: Any = grpc
_health: Any = health
_health_pb2_grpc: Any = health_pb2_grpc
_reflection: Any = reflection

_SERVICES = (
    carrier_pb2.DESCRIPTOR.services_by_name["Carrier"],
    overseer_pb2.DESCRIPTOR.services_by_name["Overseer"],
    cron_pb2.DESCRIPTOR.services_by_name["Cron"],
    rights_pb2.DESCRIPTOR.services_by_name["Rights"],
    log_pb2.DESCRIPTOR.services_by_name["Log"],
    access_pb2.DESCRIPTOR.services_by_name["Access"],
)
_PEER_SERVICES = (peer_pb2.DESCRIPTOR.services_by_name["Peer"], overseer_pb2.DESCRIPTOR.services_by_name["Overseer"])
# Calls beside the sessions that may run at one time, before gRPC itself refuses more.
_CALLS_MAX = 1_000
_AHEAD_BYTES = 4 * 1024 * 1024
_OPTIONS: tuple[tuple[str, int], ...] = (
    # By default two brokers share one port silently; a taken one must be an error.
    ("grpc.so_reuseport", 0),
    ("grpc.max_send_message_length", limits.FRAME_BYTES_MAX),
    ("grpc.max_receive_message_length", limits.FRAME_BYTES_MAX),
    # A client that disappeared without closing its connection is noticed within these.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    # What a client may send before it is read. By default gRPC estimates it from the time that pings take, and lets
    # each upload to a busy broker buffer more than 30 MB.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", _AHEAD_BYTES),
)


class Server:
    """Serves `Services` to clients, or `Calls` to other brokers, at one address."""

    def __init__(
        self,
        *,
        services: Calls,
        config: BrokerConfig,
        listen: str,
        tls: ServerTls | None = None,
        key: str = "listen",
    ) -> None:
        self._services = services
        self._offered = _SERVICES if isinstance(services, Services) else _PEER_SERVICES
        self._listen = listen
        self._config = config
        self._tls = tls
        # The key of the configuration that gave the address.
        self._key = key
        self._calls_max = config.sessions_max + _CALLS_MAX
        self._server: grpc.aio.Server | None = None
        self._health = _health.aio.HealthServicer()
        self.address = listen

    async def bind(self) -> None:
        """Take the address; raises PORT_TAKEN, or INVALID_ARGUMENT where it cannot be served."""
        host, port = split_address(self._listen)
        self._config.check_reach(self._key, self._listen)
        hold_poller()
        server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=self._calls_max)
        for service in self._offered:
            handlers = {method.name: self._handler(method) for method in service.methods if self._serves(method)}
            server.add_generic_rpc_handlers((_rpc.method_handlers_generic_handler(service.full_name, handlers),))
        _health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = [service.full_name for service in self._offered]
        _reflection.enable_server_reflection([*names, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
        try:
            if self._tls is None:
                bound = server.add_insecure_port(self._listen)
            else:
                bound = server.add_secure_port(self._listen, _credentials(self._tls))
        except RuntimeError:
            bound = 0
        if bound == 0:
            await server.stop(None)
            raise _bind_error(self._listen, host, port)
        self._server = server
        self.address = join_address(host, bound)

    async def start(self) -> None:
        """Serve at the address that was taken."""
        if self._server is None:
            await self.bind()
        assert self._server is not None
        await self.set_serving(True)
        await self._server.start()

    async def set_serving(self, ready: bool) -> None:
        """Say through the health service whether clients should come here."""
        status = health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in (health.OVERALL_HEALTH, *(service.full_name for service in self._offered)):
            await self._health.set(name, status)

    async def stop(self) -> None:
        """Close the address and end what is still open."""
        if self._server is not None:
            await self._server.stop(grace=0.5)
            self._server = None

    def _serves(self, method: MethodDescriptor) -> bool:
        return isinstance(self._services, Services) or _name(method) in self._services.unary

    def _handler(self, method: MethodDescriptor) -> Any:
        name = _name(method)
        request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        services = self._services
        if isinstance(services, Services) and method.client_streaming and not method.server_streaming:
            return _rpc.stream_unary_rpc_method_handler(
                _uploading(services, name),
                request_deserializer=request.FromString,
                response_serializer=response.SerializeToString,
            )
        if isinstance(services, Services) and method.client_streaming:
            return _rpc.stream_stream_rpc_method_handler(
                _serving(services),
                # The session reads its frames itself, and knows their sizes.
                request_deserializer=None,
                response_serializer=serialized,
            )
        if isinstance(services, Services) and method.server_streaming:
            return _rpc.unary_stream_rpc_method_handler(
                _streaming(services, name),
                request_deserializer=request.FromString,
                response_serializer=response.SerializeToString,
            )
        return _rpc.unary_unary_rpc_method_handler(
            _unary(services, name),
            request_deserializer=request.FromString,
            response_serializer=response.SerializeToString,
        )


def _credentials(tls: ServerTls) -> Any:
    """Credentials that follow the certificate: gRPC asks for it at each handshake, on a thread of its own."""
    given = tls.version

    def changed() -> Any:
        nonlocal given
        if given == tls.version:
            return None
        given = tls.version
        return _configuration(tls.material)

    return _rpc.dynamic_ssl_server_credentials(
        _configuration(tls.material), changed, require_client_authentication=tls.files.ca is not None
    )


def _configuration(material: TlsMaterial) -> Any:
    return _rpc.ssl_server_certificate_configuration(((material.key_pem, material.cert_pem),), material.ca_pem)


def _name(method: MethodDescriptor) -> str:
    return f"{method.containing_service.name}.{method.name}"


def _opened(
    calls: Calls, context: grpc.aio.ServicerContext[Any, Any], *, is_session: bool = False
) -> AbstractAsyncContextManager[CallContext]:
    """The context of a call, after its caller was authenticated; other brokers were, by their certificates."""
    seconds = None if is_session else context.time_remaining()
    if not isinstance(calls, Services):
        return nullcontext(begin_call(context.peer(), seconds, endpoint=Endpoint.GRPC))
    credentials = _credentials_of(context)
    return calls.gate.open(credentials, context.peer(), endpoint=Endpoint.GRPC, seconds=seconds, is_session=is_session)


def _credentials_of(context: grpc.aio.ServicerContext[Any, Any]) -> Credentials:
    shown = {name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)}
    names, expires_us = certified(context.auth_context().get("x509_pem_cert", ()))
    return Credentials(
        bearer=bearer_of(shown.get("authorization", "")),
        certificate=names,
        certificate_expires_us=expires_us,
        device=shown.get(DEVICE_HEADER, ""),
    )


def _serving(services: Services) -> Callable[[Any, Any], Any]:
    async def session(frames: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]) -> None:
        try:
            async with _opened(services, context, is_session=True) as call:
                # Lets the client know at once that it has reached a broker.
                await context.send_initial_metadata(())
                await services.session(call, frames, context.write)
        except DejaqError as error:
            await _abort(context, error)

    return session


def _unary(calls: Calls, name: str) -> Callable[[Any, Any], Any]:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            async with _opened(calls, context) as call_context:
                return await calls.call(call_context, name, request)
        except DejaqError as error:
            await _abort(context, error)

    return call


def _uploading(services: Services, name: str) -> Callable[[Any, Any], Any]:
    async def call(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            async with _opened(services, context) as call_context:
                return await services.upload(call_context, name, requests)
        except DejaqError as error:
            await _abort(context, error)

    return call


def _streaming(services: Services, name: str) -> Callable[[Any, Any], AsyncIterator[Any]]:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        try:
            async with _opened(services, context) as call_context:
                async for response in services.stream(call_context, name, request):
                    yield response
        except DejaqError as error:
            await _abort(context, error)

    return call


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: DejaqError) -> None:
    await context.abort(grpc_status(error), str(error), trailing_metadata=grpc_metadata(error))


def _bind_error(address: str, host: str, port: int) -> DejaqError:
    """Why gRPC could not bind, which it does not say: asked of the system by a bind of our own."""
    try:
        family, kind, proto, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.bind(place)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return error_of(Code.INVALID_ARGUMENT, f"cannot listen on {address}: {error.strerror or error}")
    return PortTaken(f"{address} is in use by another process; stop it or listen on another port")
