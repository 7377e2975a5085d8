"""The broker's HTTP/1.1 endpoint on TCP or on a Unix socket: WebSocket, health and metrics on one port."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import socket
from contextlib import suppress
from pathlib import Path

from dejaq.broker.metrics import Metrics
from dejaq.broker.services import Services
from dejaq.broker.websocket.connected_client import ConnectedClient, RunningCalls
from dejaq.broker.websocket.http import HttpConnection, Pages
from dejaq.broker.websocket.methods import methods_of
from dejaq.config import BrokerConfig, join_address, split_address
from dejaq.domain.context import Endpoint
from dejaq.errors import Code, DejaqError, PortTaken, error_of
from dejaq.protocol.websocket.connecting import UNIX
from dejaq.protocol.websocket.framing import CloseCode
from dejaq.security.base import Credentials
from dejaq.security.logins import logins_page
from dejaq.security.settings import AuthSettings
from dejaq.security.tls import ServerTls

# Connections that have not become a WebSocket, besides those that have.
_REQUESTS_MAX = 256
# Calls beside the sessions that may run at one time.
_CALLS_MAX = 1_000
_BACKLOG = 1_024
# How long the handshake of TLS and its end may take.
HANDSHAKE_SECONDS, CLOSE_SECONDS = 5.0, 2.0
_OWNER_ONLY = 0o600


class WebSocketServer:
    """Serves `Services` at one address: `host:port`, or `unix:/path`."""

    def __init__(
        self,
        *,
        services: Services,
        config: BrokerConfig,
        listen: str,
        metrics: Metrics,
        tls: ServerTls | None = None,
        key: str = "listen",
        auth: AuthSettings | None = None,
    ) -> None:
        self._services = services
        self._listen = listen
        self._endpoint = Endpoint.LOCAL if listen.startswith(UNIX) else Endpoint.WEBSOCKET
        self._config = config
        # A Unix socket has none: only this machine can use it.
        self._tls = None if listen.startswith(UNIX) else tls
        # The key of the configuration that gave the address.
        self._key = key
        self._connections_max = config.connections_max + _REQUESTS_MAX
        self._methods = methods_of(services)
        self._calls = RunningCalls(_CALLS_MAX)
        self._pages = Pages(
            render_metrics=metrics.render,
            any_host=self._any_host(config),
            tls=self._tls is not None,
            logins=logins_page(auth),
        )
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._requests: set[HttpConnection] = set()
        self._clients: set[ConnectedClient] = set()
        self._numbers = itertools.count(1)
        self.address = listen

    def _any_host(self, config: BrokerConfig) -> bool:
        """Whether the Host header may name any host: a page of another site has no certificate for this broker."""
        return config.insecure or self._tls is not None or self._listen.startswith(UNIX)

    def refer_grpc_to(self, address: str | None) -> None:
        """Say to gRPC clients that come here where they should go."""
        self._pages.grpc_address = address

    @property
    def running_calls(self) -> int:
        """The number of calls, beside the sessions, that are being answered."""
        return self._calls.count

    async def bind(self) -> None:
        """Take the address; raises PORT_TAKEN, or INVALID_ARGUMENT where it cannot be served."""
        if self._listen.startswith(UNIX):
            self._socket = _unix_socket(Path(self._listen.removeprefix(UNIX)))
            return
        host, port = split_address(self._listen)
        self._config.check_reach(self._key, self._listen)
        self._socket = await _tcp_socket(self._listen, host, port)
        self.address = self._pages.address = join_address(host, self._socket.getsockname()[1])

    async def start(self) -> None:
        """Serve at the address that was taken."""
        if self._socket is None:
            await self.bind()
        assert self._socket is not None
        self._pages.ready = True
        if self.address.startswith(UNIX):
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(self._connected, sock=self._socket)
        else:
            self._server = await self._listening(self._socket)

    async def _listening(self, bound: socket.socket) -> asyncio.Server:
        """Accept connections with the certificate of this moment; the bound socket stays with this object."""
        loop = asyncio.get_running_loop()
        if self._tls is None:
            return await loop.create_server(self._connected, sock=bound.dup())
        return await loop.create_server(
            self._connected,
            sock=bound.dup(),
            ssl=self._tls.material.context,
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
            ssl_shutdown_timeout=CLOSE_SECONDS,
        )

    async def renew_tls(self) -> None:
        """Use the new certificate for new connections; those that are open keep theirs."""
        if self._tls is not None and self._server is not None and self._socket is not None:
            before, self._server = self._server, await self._listening(self._socket)
            before.close()

    async def set_serving(self, ready: bool) -> None:
        """Say whether clients should come here."""
        self._pages.ready = ready

    async def stop(self) -> None:
        """Close the address and end what is still open."""
        if self._server is not None:
            self._server.close()
        if self._socket is not None:
            self._socket.close()
        if self._socket is not None and self.address.startswith(UNIX):
            with suppress(FileNotFoundError):
                os.unlink(self.address.removeprefix(UNIX))
        self._server = self._socket = None
        for request in list(self._requests):
            request.abort()
        ending = [client.finish(CloseCode.GOING_AWAY, "the broker has stopped") for client in self._clients]
        await asyncio.gather(*ending)

    def _connected(self) -> HttpConnection:
        return HttpConnection(
            pages=self._pages,
            upgrade=self._upgrade,
            identify=self._identify,
            on_begin=self._begin_request,
            on_end=self._requests.discard,
        )

    def _begin_request(self, request: HttpConnection) -> bool:
        """Whether there is room for one more connection."""
        self._requests.add(request)
        return len(self._requests) + len(self._clients) <= self._connections_max

    async def _identify(self, credentials: Credentials, transport: asyncio.Transport) -> object:
        """Raise UNAUTHENTICATED unless the broker accepts the caller."""
        return await self._services.gate.identify(credentials, self._peer_of(transport))

    def _upgrade(self, transport: asyncio.Transport, behind: bytes, credentials: Credentials) -> None:
        client = ConnectedClient(
            peer=self._peer_of(transport),
            credentials=credentials,
            endpoint=self._endpoint,
            services=self._services,
            methods=self._methods,
            calls=self._calls,
            on_gone=self._clients.discard,
        )
        self._clients.add(client)
        client.socket.attach(transport, behind)

    def _peer_of(self, transport: asyncio.Transport) -> str:
        """The client's address, in the form that gRPC gives it."""
        name = transport.get_extra_info("peername")
        if not isinstance(name, tuple):
            return f"{UNIX}{next(self._numbers)}"
        return f"ipv6:[{name[0]}]:{name[1]}" if ":" in name[0] else f"ipv4:{name[0]}:{name[1]}"


async def _tcp_socket(address: str, host: str, port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    try:
        family, kind, proto, _, place = (await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
        # Only for a socket with its protocol does asyncio switch off Nagle's algorithm, which holds a small message
        # back, up to 40 ms, until the client has acknowledged the one before.
        made = socket.socket(family, kind, proto)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(place)
            made.listen(_BACKLOG)
        except OSError:
            made.close()
            raise
    except OSError as error:
        raise _bind_error(address, error) from None
    return made


def _unix_socket(path: Path) -> socket.socket:
    """Bind a socket in the file system; a socket file that a broker left behind when it was killed is replaced."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            try:
                made.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
            else:
                raise PortTaken(f"{path} is in use by another process; stop it or listen elsewhere")
        # Without users, who may open the socket decides who may use the broker.
        before = os.umask(0o777 & ~_OWNER_ONLY)
        try:
            made.bind(str(path))
        finally:
            os.umask(before)
        made.listen(_BACKLOG)
    except OSError as error:
        made.close()
        raise _bind_error(str(path), error) from None
    except PortTaken:
        made.close()
        raise
    return made


def _bind_error(address: str, error: OSError) -> DejaqError:
    if error.errno == errno.EADDRINUSE:
        return PortTaken(f"{address} is in use by another process; stop it or listen on another port")
    return error_of(Code.INVALID_ARGUMENT, f"cannot listen on {address}: {error.strerror or error}")
