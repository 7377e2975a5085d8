"""When live views ask the brokers: at once for a view that is new, otherwise in turn and with pauses.

The pages must not hurt the brokers. However many views there are, refreshing them takes at most a small share of the
time; when a broker is busy, its answers take longer, and so it is asked less often.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

# Refreshes take at most this share of the time: those of one view, and all together.
SHARE_MAX = 0.05
TOTAL_SHARE_MAX = 0.1
# The longest pause of all views because of one answer, and of one view because of its own.
GAP_SECONDS_MAX = 2.0
PAUSE_SECONDS_MAX = 30.0
# A view is refreshed at most this often.
POLL_SECONDS = 1.0
# Questions that a broker answers at one time, whatever pages show. One of them may be a refresh.
QUERIES_MAX = 4


class LivePace:
    """Shared by the views of all callers."""

    def __init__(
        self,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sleep = sleep
        self._monotonic = monotonic
        self._turns = asyncio.Semaphore(QUERIES_MAX)
        # Its waiters are served in their order, so every view has its turn.
        self._refreshing = asyncio.Lock()
        self._free_at = 0.0

    @asynccontextmanager
    async def first(self) -> AsyncIterator[None]:
        """A view that a page just asked for: a person waits for it."""
        async with self._turns:
            yield

    @asynccontextmanager
    async def refresh(self) -> AsyncIterator[None]:
        """The next answer of a view: one at a time, and after a pause that depends on the answer before."""
        async with self._refreshing:
            if (wait := self._free_at - self._monotonic()) > 0:
                await self._sleep(wait)
            async with self._turns:
                began = self._monotonic()
                try:
                    yield
                finally:
                    now = self._monotonic()
                    self._free_at = now + min((now - began) / TOTAL_SHARE_MAX, GAP_SECONDS_MAX)

    async def rest(self, took: float, *, answered: bool) -> None:
        """The pause of one view after an answer that took so long."""
        # A broker that does not answer is not busy with the question: look again soon.
        await self._sleep(max(POLL_SECONDS, min(took / SHARE_MAX, PAUSE_SECONDS_MAX)) if answered else POLL_SECONDS)
