"""Runs a gateway in the test's own event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from dejaq.sdk.client import Client
from dejaq.security.tls import ServerTls
from dejaq.testing.waiting import eventually
from dejaq.web.application import application
from dejaq.web.login.pool import Connect
from dejaq.web.serve import STOP_SECONDS, GatewayServer, bind, reloading_context, renew
from dejaq.web.settings import WebSettings


class QuickServer(GatewayServer):
    """A gateway that ends when it shall, where uvicorn looks ten times per second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ending = asyncio.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self._ending.wait()

    def end(self) -> None:
        """Stop serving."""
        self.should_exit = True
        self._ending.set()


@asynccontextmanager
async def serving(
    client: Client | Connect, providers: Any = None, history: Any = None, **settings: Any
) -> AsyncIterator[str]:
    """The address of a gateway in front of the brokers that the client reaches, or the client of each caller."""
    chosen = WebSettings(url="dejaq://127.0.0.1:7400", listen="127.0.0.1:0", **settings)
    connect: Connect = (lambda _: client) if isinstance(client, Client) else client
    listener = bind(chosen.listen)
    config = uvicorn.Config(
        application(connect, chosen, providers, history),
        log_config=None,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    tls = ServerTls(chosen.tls, now_s=time.time) if chosen.tls is not None else None
    if tls is not None:
        config.load()
        config.ssl = reloading_context(tls)
    server = QuickServer(config)
    renewing = asyncio.ensure_future(renew(tls)) if tls is not None else None
    task = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        await eventually(lambda: server.started or task.done(), within=10, what="the gateway serves")
        yield f"http{'s' if tls is not None else ''}://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        if renewing is not None:
            renewing.cancel()
        server.end()
        await task
        listener.close()
