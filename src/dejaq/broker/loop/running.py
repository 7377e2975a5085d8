"""The event loop of a broker in a process of its own: uvloop's if it is installed, otherwise that of asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the loop; None for asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a broker until it ends."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main)
