"""Priority queues: the same work with a DejaQ priority topic and with a sorted set of Redis."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Protocol

from redis.connection import Connection

import dejaq
from bench.harness.payload import BATCH
from bench.harness.window import Window
from bench.systems.redis_queue import LEASE_MS, PIPELINED
from dejaq.sdk.consuming.lease import Batch as Leases

IN_FLIGHT = 8
BUCKETS = 16
TOPIC = "urgent"
READY, HELD, BODIES = "ready", "held", "bodies"

CREATE = """
local scores, fields = {}, {}
for i = 1, #ARGV / 3 do
  scores[2 * i - 1] = ARGV[3 * i - 1]
  scores[2 * i] = ARGV[3 * i - 2]
  fields[2 * i - 1] = ARGV[3 * i - 2]
  fields[2 * i] = ARGV[3 * i]
end
redis.call('ZADD', KEYS[1], 'NX', unpack(scores))
redis.call('HSET', KEYS[2], unpack(fields))
"""
LEASE = """
local found = redis.call('ZPOPMIN', KEYS[1], ARGV[1])
if #found == 0 then return {} end
local time = redis.call('TIME')
local expiry = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2]
local ids, held = {}, {}
for i = 1, #found / 2 do
  ids[i] = found[2 * i - 1]
  held[2 * i - 1] = expiry
  held[2 * i] = found[2 * i - 1]
end
redis.call('ZADD', KEYS[2], unpack(held))
return {ids, redis.call('HMGET', KEYS[3], unpack(ids))}
"""


class ByPriority(Protocol):
    """A queue that delivers the lowest priority first."""

    async def create(self, batches: Iterable[tuple[Sequence[int], Sequence[bytes]]]) -> None:
        """Create all messages, given as priorities and bodies, pipelined and acknowledged."""

    def drain(self, count: int) -> AsyncIterator[Sequence[bytes]]:
        """Lease and delete so many messages; returns the bodies in order."""


class DejaqByPriority:
    """A topic of kind priority."""

    def __init__(self, address: str) -> None:
        self._url = f"dejaq://{address}"

    async def create(self, batches: Iterable[tuple[Sequence[int], Sequence[bytes]]]) -> None:
        async with dejaq.connect(self._url) as client:
            await client.create_topic(TOPIC, kind="priority", buckets=BUCKETS)
            async with client.producer(TOPIC) as producer:
                window = Window(IN_FLIGHT)

                async def send(priorities: Sequence[int], bodies: Sequence[bytes]) -> None:
                    await producer.send_batch(bodies, priorities=priorities)

                for priorities, bodies in batches:
                    await window.add(send(priorities, bodies))
                await window.drain()

    async def drain(self, count: int) -> AsyncIterator[Sequence[bytes]]:
        window = Window(IN_FLIGHT)

        async def delete(leases: Leases) -> None:
            await leases.delete()

        async with dejaq.connect(self._url) as client, client.consumer(TOPIC, lease=60.0) as consumer:
            async for leases in consumer.batches(BATCH):
                yield leases.bodies
                await window.add(delete(leases))
                count -= len(leases)
                if count <= 0:
                    break
            await window.drain()


class RedisByPriority:
    """A sorted set by priority, a hash of bodies, and a second set of the leased messages."""

    def __init__(self, address: str) -> None:
        self._port = int(address.rpartition(":")[2])

    def _open(self, script: str) -> tuple[Connection, str]:
        wire = Connection(host="127.0.0.1", port=self._port)
        wire.connect()
        wire.send_command("SCRIPT", "LOAD", script)
        return wire, wire.read_response()

    async def create(self, batches: Iterable[tuple[Sequence[int], Sequence[bytes]]]) -> None:
        wire, script = self._open(CREATE)
        waiting = sent = 0
        for priorities, bodies in batches:
            ids = [f"m-{number:012d}" for number in range(sent, sent + len(bodies))]
            sent += len(bodies)
            rows = [part for row in zip(ids, priorities, bodies, strict=True) for part in row]
            wire.send_command("EVALSHA", script, 2, READY, BODIES, *rows)
            waiting += 1
            if waiting == PIPELINED:
                wire.read_response()
                waiting -= 1
        for _ in range(waiting):
            wire.read_response()
        wire.disconnect()

    async def drain(self, count: int) -> AsyncIterator[Sequence[bytes]]:
        wire, script = self._open(LEASE)
        # The requests of the next answers: a lease, or a delete of four answers.
        expected: deque[bool] = deque()

        def ask() -> None:
            wire.send_command("EVALSHA", script, 3, READY, HELD, BODIES, BATCH, LEASE_MS)
            expected.append(True)

        while count > 0 or expected:
            while count > 0 and expected.count(True) < 2:
                ask()
            if not expected.popleft():
                for _ in range(4):
                    wire.read_response()
                continue
            leased = wire.read_response()
            if leased:
                ids, bodies = leased
                yield bodies
                commands = [("MULTI",), ("ZREM", HELD, *ids), ("HDEL", BODIES, *ids), ("EXEC",)]
                wire.send_packed_command(wire.pack_commands(commands))
                expected.append(False)
                count -= len(ids)
            elif count <= 0:
                continue
            else:
                await asyncio.sleep(0)
        wire.disconnect()


CLIENTS: dict[str, type[DejaqByPriority] | type[RedisByPriority]] = {
    "dejaq": DejaqByPriority,
    "redis-always": RedisByPriority,
    "redis-everysec": RedisByPriority,
}
