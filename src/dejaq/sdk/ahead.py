"""Large bodies of rows that are held until they are due, fetched meanwhile, so that they are there on time."""

from __future__ import annotations

import asyncio

from dejaq.sdk.holder import Holder, LargeRow
from dejaq.sdk.large import LargeBodies

# So many are chosen at a time, so that what comes later and is due earlier does not wait for all.
ROWS_AT_ONCE = 16


class Ahead:
    """Fetches bodies one after the other, those that are due first, and keeps at most `bytes_max` of them.

    They lie with their delivery (`Delivery.ahead`), and go with it when its rows are recalled or lost.
    """

    def __init__(self, bodies: LargeBodies, topic: str, holder: Holder, bytes_max: int) -> None:
        self._bodies = bodies
        self._topic = topic
        self._holder = holder
        self._bytes_max = bytes_max
        self._running: asyncio.Task[None] | None = None
        self._fetching: asyncio.Future[bytes] | None = None

    def look(self) -> None:
        """Rows came or went: see whether there is something to fetch."""
        if self.idle:
            self._running = asyncio.ensure_future(self._run())

    @property
    def idle(self) -> bool:
        """Whether nothing is being fetched."""
        return self._running is None or self._running.done()

    async def stop(self) -> None:
        """Fetch no more until the next look."""
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
                    # One that failed is fetched again when it is handed over, and that tells why.
                    await asyncio.gather(fetching, return_exceptions=True)

    def _chosen(self) -> list[LargeRow]:
        """The first bodies that are not here and have room; what has none any more is let go."""
        size = 0
        chosen: list[LargeRow] = []
        for row in self._holder.large():
            size += row.reference.size
            if size > self._bytes_max:
                row.delivery.ahead.pop(row.place, None)
            elif row.place not in row.delivery.ahead:
                chosen.append(row)
        return chosen[:ROWS_AT_ONCE]
