"""Turns: a caller waits for the earlier callers that need the same resource."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Iterable
from contextlib import asynccontextmanager


class Turns:
    """Locks on any number of named resources at once, granted in the order of the requests."""

    def __init__(self) -> None:
        self._last: dict[Hashable, asyncio.Future[None]] = {}

    @asynccontextmanager
    async def of(self, things: Iterable[Hashable]) -> AsyncIterator[None]:
        """Lock all the resources, after the earlier callers have released them."""
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        names = list(things)
        before = {last for name in names if (last := self._last.get(name)) is not None}
        for name in names:
            self._last[name] = mine
        try:
            if before:
                await asyncio.wait(before)
            yield
        finally:
            # A caller that stopped waiting passes its turn on only when the turn would have come.
            if all(one.done() for one in before):
                self._end(names, mine)
            else:
                task = asyncio.gather(*before)
                task.add_done_callback(lambda _: self._end(names, mine))

    def _end(self, names: list[Hashable], mine: asyncio.Future[None]) -> None:
        mine.set_result(None)
        for name in names:
            if self._last.get(name) is mine:
                del self._last[name]
