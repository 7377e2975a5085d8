"""Waiting for a condition with a deadline, without an event loop."""

from __future__ import annotations

import time
from collections.abc import Callable

POLL_SECONDS = 0.01


def wait_until(condition: Callable[[], object], *, within: float, what: str = "", poll: float = POLL_SECONDS) -> None:
    """Return once `condition` gives a true value; TimeoutError, saying `what`, when it does not in time."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within:g} s: {what or condition}")
        time.sleep(poll)
