"""Calls in flight: so many at one time, the first failure raised."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable


class Window:
    """Starts calls and holds back the next one while `limit` are unanswered."""

    def __init__(self, limit: int) -> None:
        self._room = asyncio.Semaphore(limit)
        self._calls: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None

    async def add(self, call: Awaitable[object]) -> None:
        """Start a call as soon as there is room; raises what an earlier one raised."""
        await self._room.acquire()
        if self._failure is not None:
            raise self._failure
        task = asyncio.ensure_future(self._run(call))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def drain(self) -> None:
        """Wait for all; raises what one of them raised."""
        while self._calls:
            await asyncio.wait(self._calls)
        if self._failure is not None:
            raise self._failure

    async def _run(self, call: Awaitable[object]) -> None:
        try:
            await call
        except Exception as failure:  # noqa: BLE001 - kept for who drains
            self._failure = failure
        finally:
            self._room.release()
