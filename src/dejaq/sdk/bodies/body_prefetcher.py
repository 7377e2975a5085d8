"""Fetches the large bodies of rows that are held before they are due, so that the bodies are
present when they are due.
"""

from __future__ import annotations

import asyncio

from dejaq.sdk.bodies.large import LargeBodyClient
from dejaq.sdk.consuming.prefetch_buffer import LargeRow, PrefetchBuffer

# So few are chosen at a time that a row that arrives later and is due earlier does not wait for long.
ROWS_AT_ONCE = 16


class Ahead:
    """Fetches bodies one after the other in the order in which they are due, and keeps at most `bytes_max` bytes of
    them.

    The bodies are kept in their delivery (`Delivery.ahead`), and are dropped when its rows are recalled or lost.
    """

    def __init__(self, bodies: LargeBodyClient, topic: str, holder: PrefetchBuffer, bytes_max: int) -> None:
        self._bodies = bodies
        self._topic = topic
        self._holder = holder
        self._bytes_max = bytes_max
        self._running: asyncio.Task[None] | None = None
        self._fetching: asyncio.Future[bytes] | None = None

    def look(self) -> None:
        """Start to fetch if there is a body to fetch; called when rows arrived or left."""
        if self.idle:
            self._running = asyncio.ensure_future(self._run())

    @property
    def idle(self) -> bool:
        """Whether nothing is being fetched."""
        return self._running is None or self._running.done()

    async def stop(self) -> None:
        """Fetch no more until the next call of `look`."""
        tasks = [task for task in (self._running, self._fetching) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while chosen := self._chosen():
            for row in chosen:
                if row.held:
                    fetching = asyncio.ensure_future(self._bodies.fetch(self._topic, row.id, row.reference))
                    self._fetching = row.delivery.ahead[row.place] = fetching
                    # A body that failed is fetched again when its row is handed over; that call reports the reason.
                    await asyncio.gather(fetching, return_exceptions=True)

    def _chosen(self) -> list[LargeRow]:
        """The first bodies that are not fetched yet and fit into the limit; bodies that no longer fit are dropped."""
        size = 0
        chosen: list[LargeRow] = []
        for row in self._holder.large():
            size += row.reference.size
            if size > self._bytes_max:
                row.delivery.ahead.pop(row.place, None)
            elif row.place not in row.delivery.ahead:
                chosen.append(row)
        return chosen[:ROWS_AT_ONCE]
