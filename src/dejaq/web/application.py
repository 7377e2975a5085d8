"""The ASGI application of the gateway: the API, the pages, live data, signing in, and the guards in front of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from dejaq.errors import Code
from dejaq.security.openid import OpenIdClient
from dejaq.web.api.dispatch import api_routes
from dejaq.web.api.table import BASE, operations
from dejaq.web.guard import CLIENT_PATH, WebGuard
from dejaq.web.live.socket import live
from dejaq.web.login.gate import CallerFinder
from dejaq.web.login.openid import OpenIdLogins
from dejaq.web.login.pages import LoginPages
from dejaq.web.login.pool import Connect, GatewayPool
from dejaq.web.login.sessions import WebSessions
from dejaq.web.metrics.history import MetricsHistory
from dejaq.web.metrics.recorder import MetricsRecorder
from dejaq.web.pages.rendering import FOLDER
from dejaq.web.pages.views import page_routes
from dejaq.web.problem import refused
from dejaq.web.programs.socket import program_socket
from dejaq.web.rates import RateLimiter
from dejaq.web.settings import BURST_SECONDS, WebSettings

SESSION_SWEEP_SECONDS = 1.0


def application(
    connect: Connect,
    settings: WebSettings,
    providers: Mapping[str, OpenIdClient] | None = None,
    history: MetricsHistory | None = None,
) -> ASGIApp:
    """The gateway in front of the brokers that the clients of `connect` reach; it opens and closes them.

    `providers` are the OpenID providers where users may sign in, by alias; `history` is what is known of the metrics.
    """
    history = history if history is not None else MetricsHistory()
    pool, sessions = GatewayPool(connect, settings, history), WebSessions()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if not settings.login:
            async with pool.use(""):
                pass
        recorder = MetricsRecorder(settings.url, pool, history)
        tasks = [asyncio.ensure_future(one) for one in (pool.run(), _sweep(sessions), recorder.run())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await pool.close()

    app = Starlette(
        routes=[
            *api_routes(operations()),
            *page_routes(),
            *(LoginPages(pool, sessions, OpenIdLogins(providers or {})).routes() if settings.login else ()),
            WebSocketRoute("/live", live),
            WebSocketRoute(CLIENT_PATH, program_socket),
            Mount("/static", StaticFiles(directory=FOLDER / "static")),
        ],
        lifespan=lifespan,
        exception_handlers={HTTPException: _http_problem},
    )
    app.state.settings = settings
    limiter = RateLimiter(settings.rate, settings.rate * BURST_SECONDS)
    gate = CallerFinder(app, pool, sessions, login=settings.login)
    return WebGuard(gate, settings, limiter=limiter, monotonic=time.monotonic)


async def _sweep(sessions: WebSessions) -> None:
    while True:
        await asyncio.sleep(SESSION_SWEEP_SECONDS)
        sessions.sweep()


async def _http_problem(request: Request, error: Exception) -> Response:
    """An address or a method that the gateway does not know, as a problem."""
    assert isinstance(error, HTTPException)
    code = Code.NOT_FOUND if error.status_code == 404 else Code.INVALID_ARGUMENT
    detail = f"{request.method} {request.url.path[:200]}: {error.detail}"
    if request.url.path.startswith(BASE):
        detail += f"; {BASE}/openapi.json describes the API"
    headers = {name.replace("-", "_"): value for name, value in (error.headers or {}).items()}
    return refused(error.status_code, code, detail, **headers)
