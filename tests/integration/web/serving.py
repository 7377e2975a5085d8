"""Runs a gateway in the test's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from dejaq.sdk.client import Client
from dejaq.testing.waiting import eventually
from dejaq.web.application import application
from dejaq.web.serve import GatewayServer, bind
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
async def serving(client: Client, **settings: Any) -> AsyncIterator[str]:
    """The address of a gateway in front of the brokers that the client reaches."""
    chosen = WebSettings(url="dejaq://127.0.0.1:7400", listen="127.0.0.1:0", **settings)
    listener = bind(chosen.listen)
    server = QuickServer(uvicorn.Config(application(client, chosen), log_config=None, ws_per_message_deflate=False))
    task = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        await eventually(lambda: server.started or task.done(), within=10, what="the gateway serves")
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.end()
        await task
        listener.close()
