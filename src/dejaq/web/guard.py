"""What every request must pass: the host it names, the site it comes from, and the rate of its client.

A page of another site can send requests to a gateway on loopback, and can make its own name point there (DNS
rebinding). So a request must name a host of the gateway, and one that changes something, or opens a WebSocket, must
come from a page of the gateway or from no page at all. Neither needs a token in a form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dejaq.config import is_loopback, split_address
from dejaq.errors import Code
from dejaq.web.problem import refused
from dejaq.web.rates import RateLimiter
from dejaq.web.settings import WebSettings

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
# Pages of other origins, which the operator names, may use this one.
CLIENT_PATH = "/api/v1/socket"
HTTPS_ONLY = {"Strict-Transport-Security": "max-age=31536000"}
SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class WebGuard:
    """An ASGI application in front of another one."""

    def __init__(
        self, app: ASGIApp, settings: WebSettings, *, limiter: RateLimiter, monotonic: Callable[[], float]
    ) -> None:
        self._app = app
        self._hosts = frozenset((*settings.hosts, split_address(settings.listen)[0].lower()))
        self._origins = frozenset(settings.origins)
        self._security = SECURITY | (HTTPS_ONLY if settings.tls is not None else {})
        self._limiter = limiter
        self._monotonic = monotonic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass it on and add the security headers to the answer."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        problem = self._problem(scope, headers)
        if problem is None:
            await self._app(scope, receive, _with_headers(send, self._security))
        elif scope["type"] == "websocket":
            # Before the handshake is accepted, so no page of another site ever has an open socket.
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": problem[2][:100]})
        else:
            status, code, detail, retry = problem
            more = {"Retry_After": str(retry)} if retry else {}
            await refused(status, code, detail, **more)(scope, receive, _with_headers(send, self._security))

    def _problem(self, scope: Scope, headers: Headers) -> tuple[int, Code, str, int] | None:
        host = headers.get("host", "")
        if not self._knows(host):
            return 421, Code.INVALID_ARGUMENT, f"this gateway does not serve the host {host[:100]!r}", 0
        changes = scope["type"] == "websocket" or scope["method"] not in SAFE
        if changes and not same_site(headers, host) and not self._is_program(scope, headers):
            return 403, Code.PERMISSION_DENIED, "the request comes from a page of another site", 0
        client = scope.get("client")
        wait = self._limiter.wait_seconds(client[0] if client else "", self._monotonic())
        if wait:
            return 429, Code.OVERLOADED, "this client sends too many requests per second", math.ceil(wait)
        return None

    def _is_program(self, scope: Scope, headers: Headers) -> bool:
        """Whether this is the socket of a web program from an origin that the operator has named."""
        return scope["path"] == CLIENT_PATH and headers.get("origin") in self._origins

    def _knows(self, host: str) -> bool:
        name = _name_of(host)
        return is_loopback(name) or name in self._hosts


def _name_of(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def same_site(headers: Headers, host: str) -> bool:
    """Whether a request comes from a page of this gateway, or from a program."""
    origin = headers.get("origin")
    if origin is not None:
        return urlsplit(origin).netloc.lower() == host.lower() if origin != "null" else False
    # Browsers say where a request without an origin comes from; programs say nothing.
    return headers.get("sec-fetch-site", "none") in ("same-origin", "none")


def _with_headers(send: Send, security: Mapping[str, str]) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in security.items():
                headers.setdefault(name, value)
            headers.setdefault("Cache-Control", "no-store")
        await send(message)

    return sending
