"""The WebSocket of a page: it sends the views that it wants, and gets their newest answers."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from dejaq.errors import DejaqError
from dejaq.web.live.hub import LiveClient, LiveHub
from dejaq.web.live.views import LiveSubscription
from dejaq.web.problem import problem_of

SEND_SECONDS = 20.0
TEXT_CHARS_MAX = 64 * 1024
_POLICY = 1008


async def live(socket: WebSocket) -> None:
    """Serve one page until it leaves. The guard has checked its host and its origin before."""
    hub: LiveHub = socket.state.gateway.hub
    try:
        client = hub.join()
    except DejaqError as error:
        await socket.close(1013, error.message[:100])
        return
    try:
        await socket.accept()
        sending = asyncio.ensure_future(_send(socket, client))
        try:
            await _receive(socket, hub, client)
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError, WebSocketDisconnect, RuntimeError, TimeoutError):
                await sending
    finally:
        hub.leave(client)


async def _receive(socket: WebSocket, hub: LiveHub, client: LiveClient) -> None:
    with suppress(WebSocketDisconnect):
        while True:
            text = await socket.receive_text()
            try:
                if len(text) > TEXT_CHARS_MAX:
                    raise msgspec.DecodeError(f"a subscription has at most {TEXT_CHARS_MAX} characters")
                hub.choose(client, set(msgspec.json.decode(text, type=LiveSubscription).views))
            except msgspec.DecodeError as wrong:
                await socket.close(_POLICY, str(wrong)[:100])
                return
            except DejaqError as error:
                await socket.send_bytes(msgspec.json.encode({"error": problem_of(error)}))
            except KeyError:
                await socket.close(_POLICY, "text frames only")
                return


async def _send(socket: WebSocket, client: LiveClient) -> None:
    while True:
        for payload in await client.take():
            # A page that reads nothing for so long is disconnected.
            async with asyncio.timeout(SEND_SECONDS):
                await socket.send_text(payload)
