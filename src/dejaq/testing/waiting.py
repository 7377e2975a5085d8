"""Waits for a condition with a deadline, instead of for a length of time.

The environment variable `DEJAQ_PATIENCE` multiplies every deadline, for a machine that is slow or has other work.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Awaitable, Callable

from dejaq.trial import waiting
from dejaq.trial.waiting import POLL_SECONDS

__all__ = ["PATIENCE", "POLL_SECONDS", "eventually", "patient", "wait_until"]

PATIENCE = "DEJAQ_PATIENCE"


def patient(seconds: float) -> float:
    """A time limit on this machine: `seconds` times the value of `DEJAQ_PATIENCE`, which is 1 by default."""
    return seconds * float(os.environ.get(PATIENCE) or 1)


async def eventually(
    condition: Callable[[], object | Awaitable[object]],
    *,
    within: float,
    what: str = "",
    poll: float = POLL_SECONDS,
) -> None:
    """Return once `condition` is true; raises TimeoutError with the text `what` when that takes too long."""
    within = patient(within)
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
    """The same for a test without asyncio."""
    waiting.wait_until(condition, within=patient(within), what=what, poll=poll)
