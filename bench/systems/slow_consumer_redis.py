"""A consumer of Redis that keeps some messages, whose times it moves again and again, while many others pass."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from bench.harness.payload import BATCH, Batch
from bench.harness.window import Window
from bench.systems.redis_pipeline import PipelinedRedis
from bench.systems.redis_queue import BODIES, CREATE, LEASE, WHEN
from bench.systems.slow_consumer import Taken

POLL_SECONDS = 0.001
DELETES_IN_FLIGHT = 8
# Leases are extended this often within the time of a lease.
EXTENSIONS_PER_LEASE = 3


class _RedisTaken:
    def __init__(self, ids: Sequence[bytes], bodies: Sequence[bytes], owner: RedisSlowConsumer) -> None:
        self.bodies = bodies
        self._ids = ids
        self._owner = owner

    async def delete(self, positions: Sequence[int]) -> None:
        await self._owner.deletes.add(self._owner.delete([self._ids[position] for position in positions]))

    def keep(self, positions: Sequence[int]) -> None:
        self._owner.kept.extend(self._ids[position] for position in positions)


class RedisSlowConsumer:
    """The script that leases, and a task that gives kept messages a later time."""

    def __init__(self, address: str) -> None:
        self._connection = PipelinedRedis(int(address.rpartition(":")[2]))
        self.kept: list[bytes] = []
        self.deletes = Window(DELETES_IN_FLIGHT)

    async def open(self, *, lease_seconds: float, held: int) -> None:
        self._lease_ms = int(lease_seconds * 1_000)
        await self._connection.open()
        self._create: Any = await self._connection.call("SCRIPT", "LOAD", CREATE)
        self._lease: Any = await self._connection.call("SCRIPT", "LOAD", LEASE)
        self._extending = asyncio.create_task(self._extend())

    async def send(self, batch: Batch) -> None:
        assert batch.due_ms is not None
        rows = [part for row in zip(batch.ids, batch.due_ms, batch.bodies, strict=True) for part in row]
        await self._connection.call("EVALSHA", self._create, 2, WHEN, BODIES, *rows)

    async def taken(self) -> AsyncIterator[Taken]:
        while True:
            found: Any = await self._connection.call("EVALSHA", self._lease, 2, WHEN, BODIES, BATCH, self._lease_ms)
            if found:
                yield _RedisTaken(found[0], found[1], self)
            else:
                await asyncio.sleep(POLL_SECONDS)

    async def delete(self, ids: Sequence[bytes]) -> int:
        """Remove messages in one transaction; how many existed."""
        if not ids:
            return 0
        call = self._connection.call
        calls = [call("MULTI"), call("ZREM", WHEN, *ids), call("HDEL", BODIES, *ids), call("EXEC")]
        answers: Any = [await one for one in calls]
        return int(answers[-1][0])

    async def delete_kept(self) -> int:
        await self.deletes.drain()
        self._extending.cancel()
        return len(self.kept) - sum([await self.delete(self.kept[cut]) for cut in _cuts(len(self.kept))])

    async def close(self) -> None:
        self._extending.cancel()
        await self._connection.close()

    async def _extend(self) -> None:
        while True:
            await asyncio.sleep(self._lease_ms / 1_000 / EXTENSIONS_PER_LEASE)
            for cut in _cuts(len(self.kept)):
                expiry = time.time_ns() // 1_000_000 + self._lease_ms
                pairs = [part for kept in self.kept[cut] for part in (expiry, kept)]
                await self._connection.call("ZADD", WHEN, "XX", *pairs)


def _cuts(count: int) -> list[slice]:
    return [slice(first, first + BATCH) for first in range(0, count, BATCH)]
