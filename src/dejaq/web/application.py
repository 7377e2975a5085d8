"""The ASGI application of the gateway: the API, the pages, live data, and the guard in front of them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from dejaq.errors import Code
from dejaq.sdk.client import Client
from dejaq.web.api.dispatch import api_routes
from dejaq.web.api.table import BASE, operations
from dejaq.web.gateway import Gateway
from dejaq.web.guard import WebGuard
from dejaq.web.live.hub import LiveHub
from dejaq.web.live.socket import live
from dejaq.web.pages.rendering import FOLDER
from dejaq.web.pages.views import page_routes
from dejaq.web.problem import refused
from dejaq.web.rates import RateLimiter
from dejaq.web.settings import BURST_SECONDS, WebSettings


def application(client: Client, settings: WebSettings) -> ASGIApp:
    """The gateway in front of the brokers that `client` reaches; it opens and closes the client."""
    gateway = Gateway(client, settings)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with gateway:
            try:
                yield
            finally:
                await app.state.hub.close()

    app = Starlette(
        routes=[
            *api_routes(operations()),
            *page_routes(),
            WebSocketRoute("/live", live),
            Mount("/static", StaticFiles(directory=FOLDER / "static")),
        ],
        lifespan=lifespan,
        exception_handlers={HTTPException: _http_problem},
    )
    app.state.gateway = gateway
    app.state.hub = LiveHub(client)
    limiter = RateLimiter(settings.rate, settings.rate * BURST_SECONDS)
    return WebGuard(app, hosts=settings.hosts, limiter=limiter, monotonic=time.monotonic)


async def _http_problem(request: Request, error: Exception) -> Response:
    """An address or a method that the gateway does not know, as a problem."""
    assert isinstance(error, HTTPException)
    code = Code.NOT_FOUND if error.status_code == 404 else Code.INVALID_ARGUMENT
    detail = f"{request.method} {request.url.path[:200]}: {error.detail}"
    if request.url.path.startswith(BASE):
        detail += f"; {BASE}/openapi.json describes the API"
    headers = {name.replace("-", "_"): value for name, value in (error.headers or {}).items()}
    return refused(error.status_code, code, detail, **headers)
