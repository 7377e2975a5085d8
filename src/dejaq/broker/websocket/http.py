"""One HTTP/1.1 connection of the endpoint: its one request is answered, or begins a WebSocket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import cast

from dejaq.broker.websocket.http2_refusal import PREFACE_BEGIN, Http2Refusal, NotHttp2
from dejaq.config import is_loopback
from dejaq.errors import Code, DejaqError, error_of
from dejaq.protocol.websocket.handshake import (
    END,
    HEAD_BYTES_MAX,
    PATH,
    REASON_HEADER,
    SUBPROTOCOL,
    BadHttpHead,
    HttpHead,
    parse_head,
    response,
    upgrade_head,
    valid_key,
)
from dejaq.security.base import DEVICE_HEADER, Credentials, bearer_of
from dejaq.security.certificates import end_of, names_of
from dejaq.security.logins import LOGIN_PATH

log = logging.getLogger(__name__)

# How long a client may take to send its request, and to read the answer.
REQUEST_SECONDS = 5.0
# The first byte of TLS: a record of its handshake.
_CLIENT_HELLO = b"\x16"
HEALTH_PATH, READY_PATH, METRICS_PATH = "/healthz", "/readyz", "/metrics"
_PATHS = (HEALTH_PATH, READY_PATH, METRICS_PATH, LOGIN_PATH)
JSON_KIND = "application/json"
METRICS_KIND = "text/plain; version=0.0.4; charset=utf-8"


class Pages:
    """What the endpoint answers besides WebSocket."""

    def __init__(
        self, *, render_metrics: Callable[[], bytes], any_host: bool, tls: bool = False, logins: bytes = b""
    ) -> None:
        """`logins` is the page about the issuers at which users log in; empty for none."""
        self.ready = False
        # Where gRPC clients should go instead, if anywhere; and this endpoint's own address.
        self.grpc_address: str | None = None
        self.address = ""
        self._scheme = "dejaqs" if tls else "dejaq"
        # Whether a request may name any host; otherwise a page of another site could reach a broker on loopback.
        self.any_host = any_host
        self._render_metrics = render_metrics
        self._logins = logins

    def refuses_host(self, head: HttpHead) -> bool:
        """Whether the request names a host that is not this machine."""
        return not self.any_host and not is_loopback(_host_of(head.headers.get("host", "")))

    def url(self, address: str) -> str:
        """What a client connects to at an address of this endpoint."""
        return f"{self._scheme}://{address}"

    def grpc_refusal(self) -> DejaqError:
        """What a gRPC client is answered here."""
        there = (
            f"this broker serves gRPC at {self._scheme}+grpc://{self.grpc_address}"
            if self.grpc_address is not None
            else "this broker serves no gRPC: start it with --grpc HOST:PORT for gRPC clients"
        )
        return error_of(
            Code.VERSION_UNSUPPORTED,
            f"{self.address} serves WebSocket, not gRPC: connect with {self.url(self.address)} and an SDK newer than "
            f"0.2, or to the gRPC endpoint; {there}",
        )

    async def answer(self, path: str, *, with_body: bool) -> bytes:
        """The response to a GET or HEAD of a path."""
        if path == HEALTH_PATH:
            return response(HTTPStatus.OK, b"alive\n", with_body=with_body)
        if path == READY_PATH:
            if self.ready:
                return response(HTTPStatus.OK, b"ready\n", with_body=with_body)
            return response(HTTPStatus.SERVICE_UNAVAILABLE, b"not ready\n", with_body=with_body)
        if path == LOGIN_PATH:
            if self._logins:
                return response(HTTPStatus.OK, self._logins, kind=JSON_KIND, with_body=with_body)
            return response(HTTPStatus.NOT_FOUND, b"nobody logs in at this broker\n", with_body=with_body)
        # Rendered by a thread, as it takes milliseconds with many topics.
        text = await asyncio.to_thread(self._render_metrics)
        return response(HTTPStatus.OK, text, kind=METRICS_KIND, with_body=with_body)


class HttpConnection(asyncio.Protocol):
    """Reads one request; a client that sends none in time is disconnected."""

    def __init__(
        self,
        *,
        pages: Pages,
        upgrade: Callable[[asyncio.Transport, bytes, Credentials], None],
        identify: Callable[[Credentials, asyncio.Transport], Awaitable[object]],
        on_begin: Callable[[HttpConnection], bool],
        on_end: Callable[[HttpConnection], None],
    ) -> None:
        self._pages = pages
        self._upgrade = upgrade
        self._identify = identify
        self._on_begin = on_begin
        self._on_end = on_end
        self._received = b""
        self._http2: Http2Refusal | None = None
        self._answering: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the transport at the begin."""
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        self._timer = asyncio.get_running_loop().call_later(REQUEST_SECONDS, self.abort)
        if not self._on_begin(self):
            self._finish(response(HTTPStatus.SERVICE_UNAVAILABLE, b"too many connections are open; try again later\n"))

    def data_received(self, data: bytes) -> None:
        """Called by the transport: more of the request."""
        if self._answering is not None or self._transport is None or self._transport.is_closing():
            return
        if self._http2 is not None:
            self._refuse_http2(self._http2, data)
            return
        self._received += data
        if self._received.startswith(_CLIENT_HELLO):
            # The answer makes the client say what is wrong.
            self._refuse(HTTPStatus.BAD_REQUEST, "this port does not speak TLS")
            return
        if self._received.startswith(PREFACE_BEGIN):
            self._http2 = Http2Refusal(self._pages.grpc_refusal())
            self._refuse_http2(self._http2, self._received)
            return
        end = self._received.find(END)
        if end > HEAD_BYTES_MAX or (end < 0 and len(self._received) > HEAD_BYTES_MAX):
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a head has at most {HEAD_BYTES_MAX} bytes")
        elif end >= 0:
            self._request(self._received[:end], self._received[end + len(END) :])

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the transport at the end."""
        self._leave()

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        self._on_end(self)

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def _refuse_http2(self, refusal: Http2Refusal, data: bytes) -> None:
        assert self._transport is not None
        try:
            self._transport.write(refusal.received(data))
        except NotHttp2:
            self._transport.close()

    def _request(self, data: bytes, behind: bytes) -> None:
        try:
            head = parse_head(data)
        except BadHttpHead as error:
            self._refuse(HTTPStatus.BAD_REQUEST, f"the request cannot be read: {error}")
            return
        method, target, version = head.first
        path = target.partition("?")[0]
        if version not in ("HTTP/1.1", "HTTP/1.0"):
            self._refuse(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "this port serves HTTP/1.1")
        elif self._pages.refuses_host(head):
            self._refuse(HTTPStatus.FORBIDDEN, "the Host header must name this machine: localhost or 127.0.0.1")
        elif path == PATH:
            self._begin_websocket(method, version, head, behind)
        elif path not in _PATHS:
            known = f"{PATH} (WebSocket), {HEALTH_PATH}, {READY_PATH} and {METRICS_PATH}"
            self._refuse(HTTPStatus.NOT_FOUND, f"there is no such page; there are {known}")
        elif method not in ("GET", "HEAD"):
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "GET and HEAD are allowed", Allow="GET, HEAD")
        else:
            self._answering = asyncio.get_running_loop().create_task(self._answer(path, head, method == "GET"))

    async def _answer(self, path: str, head: HttpHead, with_body: bool) -> None:
        transport = self._transport
        if transport is None:
            return
        try:
            if path == METRICS_PATH:
                await self._identify(_credentials(head, transport), transport)
            answer = await self._pages.answer(path, with_body=with_body)
        except DejaqError as error:
            self._refuse_caller(error)
            return
        except Exception:
            log.exception("the request for %s failed", path)
            answer = response(HTTPStatus.INTERNAL_SERVER_ERROR, b"the request failed\n")
        self._finish(answer)

    def _begin_websocket(self, method: str, version: str, head: HttpHead, behind: bytes) -> None:
        key = head.headers.get("sec-websocket-key", "")
        origin = head.headers.get("origin")
        if method != "GET":
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "a WebSocket begins with GET", Allow="GET")
        elif (
            version != "HTTP/1.1"
            or not head.has_token("upgrade", "websocket")
            or not head.has_token("connection", "upgrade")
        ):
            there = self._pages.url(head.headers.get("host", self._pages.address))
            text = f"{PATH} is a WebSocket of the subprotocol {SUBPROTOCOL}: connect a DejaQ client to {there}"
            self._refuse(HTTPStatus.UPGRADE_REQUIRED, text, Upgrade="websocket", Connection="Upgrade")
        elif head.headers.get("sec-websocket-version") != "13":
            text = "the version of WebSocket is 13"
            self._refuse(HTTPStatus.UPGRADE_REQUIRED, text, **{"Sec-WebSocket-Version": "13", "Upgrade": "websocket"})
        elif not head.has_token("sec-websocket-protocol", SUBPROTOCOL):
            self._refuse(HTTPStatus.BAD_REQUEST, f"the request must offer the subprotocol {SUBPROTOCOL}")
        elif not valid_key(key):
            self._refuse(HTTPStatus.BAD_REQUEST, "Sec-WebSocket-Key is not 16 bytes in base64")
        elif origin is not None and origin.partition("://")[2] != head.headers.get("host"):
            # A browser names the site whose page asks.
            self._refuse(HTTPStatus.FORBIDDEN, "pages of other sites are not served")
        elif (transport := self._transport) is not None:
            # What the client sends meanwhile waits in the socket.
            transport.pause_reading()
            work = self._admit(transport, key, behind, _credentials(head, transport))
            self._answering = asyncio.get_running_loop().create_task(work)

    async def _admit(self, transport: asyncio.Transport, key: str, behind: bytes, credentials: Credentials) -> None:
        """Begin the WebSocket of a caller that the broker accepts."""
        try:
            await self._identify(credentials, transport)
        except DejaqError as error:
            self._refuse_caller(error)
            return
        except Exception:
            log.exception("a caller could not be identified")
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "the request failed")
            return
        if self._transport is None or transport.is_closing():
            return
        transport.write(upgrade_head(key))
        self._leave()
        transport.resume_reading()
        self._upgrade(transport, behind, credentials)

    def _refuse_caller(self, error: DejaqError) -> None:
        if error.code is Code.UNAUTHENTICATED:
            headers = {"WWW-Authenticate": "Bearer", REASON_HEADER: error.message}
            self._finish(response(HTTPStatus.UNAUTHORIZED, f"{error.message}\n".encode(), headers=headers))
        else:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, error.message)

    def _refuse(self, status: HTTPStatus, text: str, **headers: str) -> None:
        self._finish(response(status, f"{text}\n".encode(), headers=headers))

    def _finish(self, answer: bytes) -> None:
        """Answer and close; the timer ends a connection whose client does not read."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(answer)
            self._transport.close()


def _credentials(head: HttpHead, transport: asyncio.Transport) -> Credentials:
    certificate = transport.get_extra_info("peercert") or {}
    return Credentials(
        bearer=bearer_of(head.headers.get("authorization", "")),
        certificate=names_of(certificate),
        certificate_expires_us=end_of(certificate),
        device=head.headers.get(DEVICE_HEADER, ""),
    )


def _host_of(header: str) -> str:
    """The host of a Host header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()
