"""The client's way to an open WebSocket connection: TCP or a Unix socket, then the handshake."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from dejaq.errors import Code, DejaqError, NoBroker, Unauthenticated, Unavailable, error_of
from dejaq.protocol.websocket.handshake import (
    END,
    HEAD_BYTES_MAX,
    REASON_HEADER,
    SUBPROTOCOL,
    BadHttpHead,
    HttpHead,
    accept_of,
    new_key,
    parse_head,
    request_head,
)
from dejaq.security.client import PLAIN, ClientSecurity

UNIX = "unix:"
_SECONDS = 5.0
# The answer of a broker that refuses for now, such as one with too many connections.
_LATER = "503"
# The answer to a caller that the broker does not accept.
_UNKNOWN = "401"


async def open_socket(
    address: str, security: ClientSecurity = PLAIN, bearer: str = ""
) -> tuple[asyncio.Transport, bytes]:
    """A transport to `host:port` or `unix:/path` after the handshake, and the bytes that came behind the answer.

    Raises NoBroker when nothing answers in time, and VERSION_UNSUPPORTED when something else than a broker does.
    """
    loop = asyncio.get_running_loop()
    key = new_key()
    protocol = _Handshake()
    transport: asyncio.Transport | None = None
    try:
        async with asyncio.timeout(_SECONDS):
            transport = await _connect(loop, address, lambda: protocol, security)
            host = "localhost" if address.startswith(UNIX) else address
            transport.write(request_head(host, key, security.headers(bearer)))
            _check(await protocol.head, key, address)
    except BaseException as error:
        if transport is not None:
            transport.abort()
        if isinstance(error, TimeoutError):
            raise NoBroker(details=f"{address}: nothing answered within {_SECONDS:g} s") from None
        if isinstance(error, OSError):
            hint = ""
            if isinstance(error, ConnectionError) and security.tls is not None and security.tls.files.cert is None:
                hint = "; a broker that asks for client certificates does so, then give cert and key"
            raise NoBroker(details=f"{address}: {_reason(error)}{hint}") from None
        raise
    return transport, protocol.behind


async def _connect(
    loop: asyncio.AbstractEventLoop, address: str, made: Callable[[], asyncio.Protocol], security: ClientSecurity
) -> asyncio.Transport:
    if address.startswith(UNIX):
        transport, _ = await loop.create_unix_connection(made, address.removeprefix(UNIX))
    else:
        host, _, port = address.rpartition(":")
        name = host.removeprefix("[").removesuffix("]")
        context = security.tls.context() if security.tls is not None else None
        # The certificate must be one for the name in the address.
        expected = name if context is not None else None
        transport, _ = await loop.create_connection(made, name, int(port), ssl=context, server_hostname=expected)
    return transport


class _Handshake(asyncio.Protocol):
    """Collects the answer's head."""

    def __init__(self) -> None:
        self.head: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.behind = b""
        self._received = b""

    def data_received(self, data: bytes) -> None:
        """Called by the transport: more of the answer."""
        if self.head.done():
            self.behind += data
            return
        self._received += data
        head, end, behind = self._received.partition(END)
        if end:
            self.behind = behind
            self.head.set_result(head)
        elif len(self._received) > HEAD_BYTES_MAX or self._received[:9] != b"HTTP/1.1 "[: len(self._received)]:
            self.head.set_result(b"")

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the transport at the end."""
        if not self.head.done():
            # A server that refuses a client's certificate says so when the handshake looks done to the client.
            reason = _reason(exc) if isinstance(exc, ssl.SSLError) else "the connection was closed before the answer"
            self.head.set_exception(ConnectionResetError(reason))
            # The caller may have given up.
            self.head.exception()


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        if error.reason in ("WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING"):
            return "it does not speak TLS; use dejaq:// for a broker without TLS"
        return f"TLS failed: {(error.reason or str(error)).replace('_', ' ').lower()}"
    return error.strerror or str(error)


def _check(received: bytes, key: str, address: str) -> None:
    try:
        head = parse_head(received)
    except BadHttpHead:
        raise _no_broker(
            address, f"it does not answer in HTTP; if it is a gRPC endpoint, use dejaq+grpc://{address}"
        ) from None
    version, status, phrase = head.first
    if status == _UNKNOWN:
        error = Unauthenticated(head.headers.get(REASON_HEADER.lower(), ""))
        error.answered = True
        raise error
    if status == _LATER:
        raise Unavailable(f"the broker at {address} refuses connections for now: {phrase}")
    if version != "HTTP/1.1" or status != "101" or not _accepted(head, key):
        raise _no_broker(address, f"its answer to the handshake is {status} {phrase}")


def _accepted(head: HttpHead, key: str) -> bool:
    return (
        head.has_token("upgrade", "websocket")
        and head.headers.get("sec-websocket-accept") == accept_of(key)
        and head.headers.get("sec-websocket-protocol") == SUBPROTOCOL
    )


def _no_broker(address: str, why: str) -> DejaqError:
    return error_of(Code.VERSION_UNSUPPORTED, f"{address} is not a broker's WebSocket endpoint (dejaq://): {why}")
