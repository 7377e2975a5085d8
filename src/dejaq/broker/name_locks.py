"""Locks by name: work on different names runs at the same time, work on one name or on all names does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class NameLocks:
    """Locks that exist while a task holds them or waits for them."""

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._all = False
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        """Hold one name."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._all and name not in self._held)
            self._held.add(name)
        try:
            yield
        finally:
            self._held.discard(name)
            await self._notify()

    @asynccontextmanager
    async def all(self) -> AsyncIterator[None]:
        """Hold every name."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._all)
            # From now on no other task gets a name.
            self._all = True
            try:
                await self._changed.wait_for(lambda: not self._held)
            except BaseException:
                self._all = False
                self._changed.notify_all()
                raise
        try:
            yield
        finally:
            self._all = False
            await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
