"""The deadlines of calls, in the time of the event loop: where a call arrives, and where it waits for something."""

from __future__ import annotations

import asyncio
import secrets

from dejaq.domain.context import CallContext, Endpoint


def begin_call(peer: str, seconds: float | None = None, *, endpoint: Endpoint = Endpoint.WEBSOCKET) -> CallContext:
    """The context of a call that has just arrived and may take `seconds`."""
    deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
    return CallContext(request_id=secrets.token_hex(6), peer=peer, deadline=deadline, endpoint=endpoint)


def bound(context: CallContext, seconds: float) -> float:
    """`seconds`, or the time until the deadline of the call where that is less; never below 0."""
    if context.deadline is None:
        return seconds
    return max(min(seconds, context.deadline - asyncio.get_running_loop().time()), 0.0)
