"""A store that several brokers of one process share, as they would share a server."""

from __future__ import annotations

import secrets

from dejaq.storage.base import Capabilities
from dejaq.storage.memory import MemoryStorage


class SharedMemoryStorage(MemoryStorage):
    """A memory store that stays open until the last broker has closed it."""

    def __init__(self, *, journal: bool = False) -> None:
        super().__init__(journal=journal)
        self.identity = secrets.token_hex(8)
        self._users = 0

    @property
    def capabilities(self) -> Capabilities:
        """Not durable, but shared."""
        return Capabilities(name="memory", durable=False, shared=True)

    async def open(self, now: int) -> None:
        """One broker more uses it."""
        self._users += 1
        await super().open(now)

    async def close(self) -> None:
        """One broker less uses it."""
        self._users -= 1
        if not self._users:
            await super().close()
