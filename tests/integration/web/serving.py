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


@asynccontextmanager
async def serving(client: Client, **settings: Any) -> AsyncIterator[str]:
    """The address of a gateway in front of the brokers that the client reaches."""
    chosen = WebSettings(url="dejaq://127.0.0.1:7400", listen="127.0.0.1:0", **settings)
    listener = bind(chosen.listen)
    server = GatewayServer(uvicorn.Config(application(client, chosen), log_config=None, ws_per_message_deflate=False))
    task = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        await eventually(lambda: server.started or task.done(), within=10, what="the gateway serves")
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listener.close()
