"""A common simple queue on PostgreSQL: a table with FOR UPDATE SKIP LOCKED, and a thousand rows per statement."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

import asyncpg

from bench.harness.payload import BATCH, Batch
from bench.harness.tally import Tally
from bench.harness.window import Window
from bench.systems.base import ALL_BENCHES, OWN_IDS, System
from bench.systems.postgres_server import PostgresServer, postgres_missing, postgres_version

CONNECTIONS = 4
POLL_SECONDS = 0.001
LEASE_MS = 30_000

TABLE = """
CREATE TABLE IF NOT EXISTS queue (id text PRIMARY KEY, due bigint NOT NULL, body bytea NOT NULL)
WITH (autovacuum_vacuum_scale_factor = 0.02, fillfactor = 80);
CREATE INDEX IF NOT EXISTS queue_due ON queue (due);
"""
CREATE = """
INSERT INTO queue SELECT * FROM unnest($1::text[], $2::bigint[], $3::bytea[]) ON CONFLICT DO NOTHING
"""
LEASE = """
UPDATE queue SET due = $1::bigint + $2 WHERE id IN (
  SELECT id FROM queue WHERE due <= $1 ORDER BY due LIMIT $3 FOR UPDATE SKIP LOCKED
) RETURNING id, body
"""
DELETE = "DELETE FROM queue WHERE id = ANY($1::text[])"
MOVE = "UPDATE queue SET due = $2 WHERE id = ANY($1::text[])"
EDIT = "UPDATE queue SET body = n.body FROM unnest($1::text[], $2::bytea[]) AS n (id, body) WHERE queue.id = n.id"


class SkipLockedClient:
    """A small pool, so that several statements run at the same time."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._sent = 0

    async def open(self, *, produces: bool) -> None:
        self._pool = await asyncpg.create_pool(self._address, min_size=CONNECTIONS, max_size=CONNECTIONS)
        async with self._pool.acquire() as connection, connection.transaction():
            # Two clients that create the table at once would collide in the catalog.
            await connection.execute("SELECT pg_advisory_xact_lock(1)")
            await connection.execute(TABLE)

    async def close(self) -> None:
        await self._pool.close()

    async def create(self, batches: Iterable[Batch]) -> int:
        window, created = Window(CONNECTIONS), 0
        for batch in batches:
            due = batch.due_ms or [now_ms()] * len(batch)
            await window.add(self._pool.execute(CREATE, batch.ids, due, batch.bodies))
            created += len(batch)
        await window.drain()
        return created

    async def create_known(self, batches: Iterable[Batch]) -> list[str]:
        known: list[str] = []
        for batch in batches:
            await self.create([batch])
            known.extend(batch.ids)
        return known

    async def consume(self, tally: Tally) -> None:
        window = Window(CONNECTIONS - 1)
        while not tally.done():
            rows = await self._pool.fetch(LEASE, now_ms(), LEASE_MS, BATCH)
            if not rows:
                await asyncio.sleep(POLL_SECONDS)
                continue
            tally.taken([row["body"] for row in rows])
            await window.add(self._delete([row["id"] for row in rows], tally))
        await window.drain()

    async def _delete(self, ids: list[str], tally: Tally) -> None:
        await self._pool.execute(DELETE, ids)
        tally.deleted(len(ids))

    async def send(self, body: bytes) -> None:
        self._sent += 1
        await self._pool.execute(CREATE, [f"s-{self._sent:012d}"], [now_ms()], [body])

    async def cancel(self, ids: Sequence[str]) -> None:
        await self._pool.execute(DELETE, ids)

    async def move(self, ids: Sequence[str], due_ms: int) -> None:
        await self._pool.execute(MOVE, ids, due_ms)

    async def edit(self, ids: Sequence[str], bodies: Sequence[bytes]) -> None:
        await self._pool.execute(EDIT, ids, bodies)


def now_ms() -> int:
    """The wall clock, which server and clients share."""
    return time.time_ns() // 1_000_000


SKIP_LOCKED = System(
    name="skip-locked",
    durable=True,
    server=PostgresServer,
    client=SkipLockedClient,
    version=lambda: f"PostgreSQL {postgres_version()}",
    missing=postgres_missing,
    benches=ALL_BENCHES | OWN_IDS | {"generated_ids"},
    settings={
        "server": "fsync on, synchronous_commit on, shared_buffers 512MB",
        "client": "asyncpg, 1000 rows per statement, 4 connections per client, polls every 1 ms",
    },
    changes=("cancel", "move", "edit"),
)
