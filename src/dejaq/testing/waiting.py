"""Waiting for a condition with a deadline, instead of for a length of time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

POLL_SECONDS = 0.01


async def eventually(
    condition: Callable[[], object | Awaitable[object]],
    *,
    within: float,
    what: str = "",
    poll: float = POLL_SECONDS,
) -> None:
    """Return once `condition` gives a true value; TimeoutError, saying `what`, when it does not in time."""
    deadline = time.monotonic() + within
    while True:
        answer = condition()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within:g} s: {what or condition}")
        await asyncio.sleep(poll)


def wait_until(condition: Callable[[], object], *, within: float, what: str = "", poll: float = POLL_SECONDS) -> None:
    """The same without an event loop."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within:g} s: {what or condition}")
        time.sleep(poll)
