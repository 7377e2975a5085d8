"""The page for signing in, the way over an OpenID provider and back, and signing out."""

from __future__ import annotations

import math
import time
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from dejaq.errors import Code, DejaqError, Unauthenticated
from dejaq.sdk.admin.access import AccessCalls
from dejaq.security.tokens import TOKEN_BYTES_MAX
from dejaq.web.login.openid import PENDING_SECONDS, OpenIdLogins
from dejaq.web.login.pool import GatewayPool
from dejaq.web.login.sessions import COOKIE, LIFE_SECONDS, WebSessions
from dejaq.web.pages.rendering import page
from dejaq.web.problem import refused, status_of_error
from dejaq.web.rates import RateLimiter

FORM_BYTES_MAX = 16 * 1024
# Tries to sign in per second of one address, and how many at once.
TRIES_RATE, TRIES_BURST = 0.2, 10
# Keeps the browser that was sent to a provider; it is Lax, as the provider's page leads back.
BINDING_COOKIE = "__Host-dejaq-login"


class LoginPages:
    """The pages around a session."""

    def __init__(self, pool: GatewayPool, sessions: WebSessions, logins: OpenIdLogins) -> None:
        self._pool = pool
        self._sessions = sessions
        self._logins = logins
        self._tries = RateLimiter(TRIES_RATE, TRIES_BURST)

    def routes(self) -> list[Route]:
        """Their addresses."""
        return [
            Route("/login", self.show, methods=["GET"]),
            Route("/login", self.sign_in, methods=["POST"]),
            Route("/login/to/{alias}", self.to_provider, methods=["GET"]),
            Route("/login/callback", self.back, methods=["GET"]),
            Route("/logout", self.sign_out, methods=["POST"]),
        ]

    async def show(self, request: Request) -> Response:
        """The form, with a link for each provider."""
        ended = "Your session has ended. Sign in again." if request.query_params.get("ended") else ""
        return self._form(request, _local(request.query_params.get("next", "")), ended)

    def _form(self, request: Request, then: str, problem: str, status: int = 200) -> Response:
        issuers = {alias: one.settings.issuer for alias, one in self._logins.providers.items()}
        return page(request, "login.html", status=status, then=then, problem=problem, issuers=issuers)

    async def sign_in(self, request: Request) -> Response:
        """Begin a session with the API key or the token in the form."""
        wait = self._tries.wait_seconds(request.client.host if request.client else "", time.monotonic())
        if wait:
            return refused(429, Code.OVERLOADED, "too many tries to sign in", Retry_After=str(math.ceil(wait)))
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > FORM_BYTES_MAX:
                return refused(413, Code.BODY_TOO_LARGE, f"a form has at most {FORM_BYTES_MAX} bytes")
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=10)
        then = _local(fields.get("next", [""])[0])
        credentials = fields.get("credentials", [""])[0].strip()
        try:
            return await self._begin(credentials, then)
        except DejaqError as error:
            return self._form(request, then, _explained(error), status_of_error(error))

    async def _begin(self, credentials: str, then: str) -> Response:
        if not credentials or len(credentials) > TOKEN_BYTES_MAX or not credentials.isascii():
            raise Unauthenticated("give an API key or a token")
        async with self._pool.use(credentials) as gateway:
            caller = await AccessCalls(gateway.client).who_am_i()
        session_id, session = self._sessions.begin(credentials, caller)
        answer = RedirectResponse(then, 303)
        life = max(1, min(LIFE_SECONDS, int(session.expires_s - time.time())))
        answer.set_cookie(COOKIE, session_id, max_age=life, path="/", secure=True, httponly=True, samesite="lax")
        return answer

    async def to_provider(self, request: Request) -> Response:
        """Send the browser to a provider."""
        alias = request.path_params["alias"]
        then = _local(request.query_params.get("next", ""))
        if alias not in self._logins.providers:
            return self._form(request, then, "This gateway does not know that provider.", 404)
        redirect = f"{request.url.scheme}://{request.url.netloc}/login/callback"
        try:
            address, pending = await self._logins.begin(alias, redirect=redirect, then=then)
        except DejaqError as error:
            return self._form(request, then, _explained(error), status_of_error(error))
        answer = RedirectResponse(address, 303)
        answer.set_cookie(
            BINDING_COOKIE, pending.binding, max_age=int(PENDING_SECONDS), path="/", secure=True, httponly=True,
            samesite="lax",
        )  # fmt: skip
        return answer

    async def back(self, request: Request) -> Response:
        """The provider has sent the browser back: begin a session with its token."""
        try:
            token, pending = await self._logins.finish(request.query_params, request.cookies.get(BINDING_COOKIE, ""))
            answer = await self._begin(token, pending.then)
        except DejaqError as error:
            answer = self._form(request, "/", _explained(error), status_of_error(error))
        answer.delete_cookie(BINDING_COOKIE, path="/", secure=True, httponly=True, samesite="lax")
        return answer

    async def sign_out(self, request: Request) -> Response:
        """End the session of this browser."""
        session = self._sessions.find(request.cookies.get(COOKIE, ""))
        if session is not None:
            self._sessions.end(session)
            if not self._sessions.uses(session.credentials):
                await self._pool.forget(session.credentials)
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="lax")
        return answer


def _local(path: str) -> str:
    """A path of this gateway; any other address would lead users to a page that looks like it."""
    good = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() and "\\" not in path
    return path if good else "/"


def _explained(error: DejaqError) -> str:
    return f"{error.message[:1].upper()}{error.message[1:]}."
