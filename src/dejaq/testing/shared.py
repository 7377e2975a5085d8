"""A store that several brokers of one process share, as they would share a server."""

from __future__ import annotations

import secrets

from dejaq.storage.base import Capabilities
from dejaq.storage.memory.store import MemoryStorage


class SharedMemoryStorage(MemoryStorage):
    """A memory store that stays open until the last broker has closed it."""

    def __init__(self, *, journal: bool = False) -> None:
        super().__init__(journal=journal)
        self._identity = secrets.token_hex(8)
        self._users = 0

    @property
    def capabilities(self) -> Capabilities:
        """Not durable, but shared."""
        return Capabilities(name="memory", durable=False, shared=True)

    @property
    def identity(self) -> str:
        """A name that no other store has."""
        return self._identity

    async def open(self, now: int) -> None:
        """Open the store for one more broker."""
        self._users += 1
        await super().open(now)

    async def close(self) -> None:
        """Close the store for one broker."""
        self._users -= 1
        if not self._users:
            await super().close()
