"""Finds the caller of each request, and gives the request that caller's gateway; refuses callers without a session."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dejaq.errors import Code, DejaqError, error_of
from dejaq.security.base import bearer_of
from dejaq.web.api.table import BASE
from dejaq.web.guard import CLIENT_PATH, SAFE, same_site
from dejaq.web.login.pool import GatewayPool
from dejaq.web.login.sessions import COOKIE, WebSession, WebSessions
from dejaq.web.problem import problem_response, refused

# What everyone may read: the page for signing in, and what it needs.
OPEN = ("/login", "/logout")
CSRF_HEADER = "x-csrf-token"
# How a WebSocket is closed whose session has ended.
ENDED = 4401


class CallerFinder:
    """An ASGI application in front of another one. Behind it `request.state.gateway` is the caller's."""

    def __init__(self, app: ASGIApp, pool: GatewayPool, sessions: WebSessions, *, login: bool) -> None:
        self._app = app
        self._pool = pool
        self._sessions = sessions
        self._login = login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request as its caller, or refuse it."""
        if scope["type"] not in ("http", "websocket") or _is_open(scope["path"]):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        credentials, session = self._caller(scope, headers)
        if scope["path"] == CLIENT_PATH:
            # The program shows its credentials in its first frame; a page of another site has no session here.
            own = credentials if same_site(headers, headers.get("host", "")) else None
            scope.setdefault("state", {}).update(pool=self._pool, session=session, credentials=own)
            await self._app(scope, receive if session is None else _until_ended(session, receive, send), send)
            return
        if credentials is None:
            await self._ask_to_sign_in(scope, receive, send)
        elif session is not None and _changes(scope) and not session.accepts(headers.get(CSRF_HEADER, "")):
            answer = refused(
                403, Code.PERMISSION_DENIED, "the request lacks the token of the page; load the page again"
            )
            await answer(scope, receive, send)
        else:
            await self._serve(credentials, session, scope, receive, send)

    def _caller(self, scope: Scope, headers: Headers) -> tuple[str | None, WebSession | None]:
        """The credentials of the request, and its session if they are those of one; None for an unknown caller."""
        shown = bearer_of(headers.get("authorization", "")) or headers.get("x-api-key", "").strip()
        if shown:
            return shown, None
        if not self._login:
            return "", None
        session = self._sessions.find(HTTPConnection(scope).cookies.get(COOKIE, ""))
        return (session.credentials, session) if session is not None else (None, None)

    async def _serve(
        self, credentials: str, session: WebSession | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            async with self._pool.use(credentials) as gateway:
                scope.setdefault("state", {}).update(gateway=gateway, session=session)
                if session is None:
                    await self._app(scope, receive, send)
                elif scope["type"] == "websocket":
                    watching = asyncio.ensure_future(self._end_when(gateway.hub.refused, session))
                    try:
                        await self._app(scope, _until_ended(session, receive, send), send)
                    finally:
                        watching.cancel()
                else:
                    await self._app(scope, receive, self._watched(session, send))
        except DejaqError as error:
            if "gateway" in scope.get("state", ()):
                raise
            await self._refuse(error, session, scope, receive, send)

    async def _end_when(self, refused: asyncio.Event, session: WebSession) -> None:
        await refused.wait()
        self._sessions.end(session)

    async def _refuse(
        self, error: DejaqError, session: WebSession | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if error.code is Code.UNAUTHENTICATED and session is not None:
            self._sessions.end(session)
            await self._ask_to_sign_in(scope, receive, send)
        elif scope["type"] == "websocket":
            await _close(receive, send, ENDED if error.code is Code.UNAUTHENTICATED else 1013, error.message)
        else:
            await problem_response(error)(scope, receive, send)

    def _watched(self, session: WebSession, send: Send) -> Send:
        async def sending(message: Message) -> None:
            # The brokers no longer accept the credentials: a key was revoked, or a token has expired.
            if message["type"] == "http.response.start" and message["status"] == 401:
                self._sessions.end(session)
            await send(message)

        return sending

    async def _ask_to_sign_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await _close(receive, send, ENDED, "sign in first")
        elif scope["path"].startswith(f"{BASE}/") or scope["method"] not in SAFE:
            error = error_of(Code.UNAUTHENTICATED, "sign in, or send an API key or a token as Authorization: Bearer")
            await problem_response(error)(scope, receive, send)
        else:
            await sign_in_again(HTTPConnection(scope))(scope, receive, send)


def sign_in_again(request: HTTPConnection) -> Response:
    """Lead to the page for signing in, and back afterwards."""
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    ended = "&ended=1" if COOKIE in request.cookies else ""
    return RedirectResponse(f"/login?next={quote(path, safe='')}{ended}", 303)


def _is_open(path: str) -> bool:
    return path.startswith(("/static/", *(f"{one}/" for one in OPEN))) or path in OPEN


def _changes(scope: Scope) -> bool:
    return scope["type"] == "http" and scope["method"] not in SAFE


async def _close(receive: Receive, send: Send, code: int, reason: str) -> None:
    # Accepted first: a browser does not learn why a handshake was refused.
    await receive()
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.close", "code": code, "reason": reason[:100]})


def _until_ended(session: WebSession, receive: Receive, send: Send) -> Receive:
    """Messages of a WebSocket until its session ends, which closes it."""

    async def receiving() -> Message:
        message = asyncio.ensure_future(receive())
        ended = asyncio.ensure_future(session.ended.wait())
        try:
            await asyncio.wait((message, ended), return_when=asyncio.FIRST_COMPLETED)
            if message.done():
                return await message
        finally:
            ended.cancel()
            if not message.done():
                message.cancel()
                with suppress(asyncio.CancelledError):
                    await message
        await send({"type": "websocket.close", "code": ENDED, "reason": "the session has ended"})
        return {"type": "websocket.disconnect", "code": ENDED}

    return receiving
