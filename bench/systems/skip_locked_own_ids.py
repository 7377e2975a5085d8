"""The plain PostgreSQL table with ids that the client chooses: single sends, and changes by id."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from bench.systems.skip_locked import CREATE, DELETE, EDIT, SkipLockedClient

GET = "SELECT due, body FROM queue WHERE id = ANY($1::text[])"
MOVE_EACH = "UPDATE queue SET due = n.due FROM unnest($1::text[], $2::bigint[]) AS n (id, due) WHERE queue.id = n.id"
CONNECTIONS = 16


class _Pooled:
    def __init__(self, address: str) -> None:
        self._address = address

    async def _connect(self, connections: int) -> None:
        table = SkipLockedClient(self._address)
        await table.open(produces=True)
        await table.close()
        self._pool = await asyncpg.create_pool(self._address, min_size=connections, max_size=connections)

    async def close(self) -> None:
        """Disconnect."""
        await self._pool.close()


class SkipLockedSender(_Pooled):
    """A pool of connections that the producers share; a send is one statement."""

    async def open(self, *, connections: int, producers: int) -> None:
        """Create the table and connect."""
        await self._connect(connections)

    async def send(self, producer: int, message_id: str, body: bytes, due_ms: int) -> None:
        """Insert one row."""
        await self._pool.execute(CREATE, [message_id], [due_ms], [body])


class SkipLockedById(_Pooled):
    """A pool of connections; every change is one statement."""

    async def open(self) -> None:
        """Connect."""
        await self._connect(CONNECTIONS)

    async def get(self, ids: Sequence[str]) -> int:
        """Read the rows; how many were found."""
        return len(await self._pool.fetch(GET, ids))

    async def move(self, ids: Sequence[str], due_ms: Sequence[int]) -> None:
        """Give each its time."""
        await self._pool.execute(MOVE_EACH, ids, due_ms)

    async def edit(self, ids: Sequence[str], bodies: Sequence[bytes]) -> None:
        """Give each its body."""
        await self._pool.execute(EDIT, ids, bodies)

    async def cancel(self, ids: Sequence[str]) -> None:
        """Delete the rows."""
        await self._pool.execute(DELETE, ids)
