"""Divides the work of a query into short steps, between which other tasks run."""

from __future__ import annotations

import asyncio
import time

# A step ends when it took so long.
STEP_S = 0.001


class QueryPace:
    """The steps of one query."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    async def rest(self) -> None:
        """Let others run if this step took long enough."""
        if time.perf_counter() - self._began >= STEP_S:
            await asyncio.sleep(0)
            self._began = time.perf_counter()
