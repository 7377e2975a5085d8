"""Work that outlives who asked for it: kept from the garbage collector, waited for at the end, its faults logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

log = logging.getLogger(__name__)


class Background:
    """The tasks of one broker that nobody awaits."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        # Whether the broker stops: work that would try again gives up instead.
        self.closing = False

    def spawn(self, work: Coroutine[None, None, None], *, name: str) -> asyncio.Task[None]:
        """Run `work` on its own."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finish)
        return task

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed", task.get_name(), exc_info=error)

    async def finish(self, seconds: float) -> None:
        """Wait for what runs, at most this long, and cancel the rest."""
        self.closing = True
        if not self._tasks:
            return
        _, late = await asyncio.wait(set(self._tasks), timeout=seconds)
        for task in late:
            log.warning("%s did not finish in time and is cut", task.get_name())
            task.cancel()
        if late:
            await asyncio.wait(late)
