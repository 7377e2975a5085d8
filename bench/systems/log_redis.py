"""A Redis stream as a log: Lua that adds 1,000 entries per call, a consumer group, XACK of every entry."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from contextlib import suppress

import redis
import redis.asyncio
from redis.connection import Connection

from bench.harness.payload import BATCH, Batch
from bench.harness.tally import Tally
from bench.systems.base import LOG_BENCHES, System
from bench.systems.redis_queue import PIPELINED, POLL_SECONDS, RedisServer, redis_missing, redis_version

STREAM, GROUP = "log", "bench"
APPEND = "for i = 1, #ARGV do redis.call('XADD', KEYS[1], '*', 'b', ARGV[i]) end"


class RedisStreamClient:
    """One connection that sends requests before earlier answers arrive; an asyncio pool for single calls."""

    def __init__(self, address: str) -> None:
        self._port = int(address.rpartition(":")[2])
        self._wire = Connection(host="127.0.0.1", port=self._port, protocol=2)
        self._pool = redis.asyncio.Redis(port=self._port)

    async def open(self, *, produces: bool) -> None:
        self._wire.connect()
        with suppress(redis.ResponseError):
            self._wire.send_command("XGROUP", "CREATE", STREAM, GROUP, "0", "MKSTREAM")
            self._wire.read_response()

    async def close(self) -> None:
        self._wire.disconnect()
        await self._pool.aclose()

    async def create(self, batches: Iterable[Batch]) -> int:
        self._wire.send_command("SCRIPT", "LOAD", APPEND)
        script = self._wire.read_response()
        created = waiting = 0
        for batch in batches:
            self._wire.send_command("EVALSHA", script, 1, STREAM, *batch.bodies)
            created += len(batch)
            waiting += 1
            if waiting == PIPELINED:
                self._wire.read_response()
                waiting -= 1
        for _ in range(waiting):
            self._wire.read_response()
        return created

    async def consume(self, tally: Tally) -> None:
        name = f"c{id(self)}"
        # The requests of the next answers: a read (0), or the acknowledgement of so many entries.
        expected: deque[int] = deque()
        while not tally.done() or expected:
            if not expected:
                self._ask(name, expected)
            count = expected.popleft()
            answer = self._wire.read_response()
            if count:
                tally.deleted(count)
            elif answer:
                entries = answer[0][1]
                tally.taken([fields[1] for _, fields in entries])
                self._wire.send_command("XACK", STREAM, GROUP, *(entry for entry, _ in entries))
                expected.append(len(entries))
                # A full batch means that there is more: with two reads in flight, client and server both work.
                while len(entries) == BATCH and expected.count(0) < 2:
                    self._ask(name, expected)
            elif not expected:
                await asyncio.sleep(POLL_SECONDS)
            await asyncio.sleep(0)

    def _ask(self, name: str, expected: deque[int]) -> None:
        self._wire.send_command("XREADGROUP", "GROUP", GROUP, name, "COUNT", BATCH, "STREAMS", STREAM, ">")
        expected.append(0)

    async def send(self, body: bytes) -> None:
        await self._pool.xadd(STREAM, {"b": body})


def system(name: str) -> System:
    """A stream that is synced before every answer."""
    return System(
        name=name,
        durable=True,
        server=lambda folder: RedisServer(folder, "always"),
        client=RedisStreamClient,
        version=redis_version,
        missing=redis_missing,
        benches=LOG_BENCHES,
        settings={
            "server": "stream, appendonly yes, appendfsync always, no rewrite",
            "client": "redis-py with hiredis, Lua with 1000 XADD, 4 in flight; XREADGROUP of 1000, XACK; "
            "asyncio pool for single XADD",
        },
    )
