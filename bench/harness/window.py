"""Calls in flight: a limited number at one time; the first failure is raised."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable


class Window:
    """Starts calls; delays the next one while `limit` calls are unanswered."""

    def __init__(self, limit: int) -> None:
        self._room = asyncio.Semaphore(limit)
        self._calls: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None

    async def add(self, call: Awaitable[object]) -> None:
        """Start a call as soon as the limit allows; raises the error of an earlier call."""
        try:
            await self._room.acquire()
            if self._failure is not None:
                raise self._failure
        except BaseException:
            # A coroutine that will not run must be closed.
            if asyncio.iscoroutine(call):
                call.close()
            raise
        task = asyncio.ensure_future(self._run(call))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def drain(self) -> None:
        """Wait for all calls; raises the error of one of them."""
        while self._calls:
            await asyncio.wait(self._calls)
        if self._failure is not None:
            raise self._failure

    async def _run(self, call: Awaitable[object]) -> None:
        try:
            await call
        except Exception as failure:  # noqa: BLE001 - kept for the caller of drain
            self._failure = failure
        finally:
            self._room.release()
