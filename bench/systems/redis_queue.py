"""A hand-written queue on Redis: a sorted set of due times, a hash of bodies, a Lua script that leases."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

import redis
import redis.asyncio
from redis.connection import Connection

from bench.harness.payload import BATCH, Batch
from bench.harness.server import ServerProcess
from bench.harness.tally import Tally
from bench.systems.base import ALL_BENCHES, OWN_IDS, System

# Server and client work at the same time only when the next batch is sent before the last is answered.
PIPELINED = 4
POLL_SECONDS = 0.001
LEASE_MS = 30_000
WHEN, BODIES = "when", "bodies"

# A repeat of an id changes nothing, as in every other system here; a batch without repeats needs two commands.
CREATE = """
local count = #ARGV / 3
local scores, fields = {}, {}
for i = 1, count do
  scores[2 * i - 1] = ARGV[3 * i - 1]
  scores[2 * i] = ARGV[3 * i - 2]
  fields[2 * i - 1] = ARGV[3 * i - 2]
  fields[2 * i] = ARGV[3 * i]
end
if redis.call('ZADD', KEYS[1], 'NX', unpack(scores)) == count then
  redis.call('HSET', KEYS[2], unpack(fields))
else
  for i = 1, count do
    redis.call('HSETNX', KEYS[2], fields[2 * i - 1], fields[2 * i])
  end
end
"""
LEASE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])
if #ids == 0 then return {} end
local expiry, held = now + ARGV[2], {}
for i, id in ipairs(ids) do
  held[2 * i - 1] = expiry
  held[2 * i] = id
end
redis.call('ZADD', KEYS[1], unpack(held))
return {ids, redis.call('HMGET', KEYS[2], unpack(ids))}
"""


class RedisServer(ServerProcess):
    """redis-server with an append-only file."""

    def __init__(self, folder: Path, appendfsync: str) -> None:
        super().__init__(folder)
        self._appendfsync = appendfsync

    def command(self) -> Sequence[str]:
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self.folder),
            "appendonly": "yes",
            "appendfsync": self._appendfsync,
            "auto-aof-rewrite-percentage": "0",
        }
        flags = [word for name, value in options.items() for word in (f"--{name}", value)]
        return [str(shutil.which("redis-server")), *flags, "--save", ""]

    def wait_ready(self) -> None:
        """Wait until the server has read its file: the port answers earlier, with an error."""
        super().wait_ready()
        deadline = time.monotonic() + 300
        with redis.Redis(port=self.port) as probe:
            while time.monotonic() < deadline:
                try:
                    probe.ping()
                except redis.BusyLoadingError:
                    time.sleep(0.01)
                    continue
                return


class RedisClient:
    """One connection that sends requests before earlier answers arrive; a pool of the asyncio
    client for single calls.
    """

    def __init__(self, address: str) -> None:
        self._port = int(address.rpartition(":")[2])
        self._wire = Connection(host="127.0.0.1", port=self._port)
        self._pool = redis.asyncio.Redis(port=self._port)
        self._sent = 0

    async def open(self, *, produces: bool) -> None:
        self._wire.connect()

    async def close(self) -> None:
        self._wire.disconnect()
        await self._pool.aclose()

    async def create(self, batches: Iterable[Batch]) -> int:
        self._wire.send_command("SCRIPT", "LOAD", CREATE)
        script = self._wire.read_response()
        created = waiting = 0
        for batch in batches:
            due = batch.due_ms or [now_ms()] * len(batch)
            rows = [part for row in zip(batch.ids, due, batch.bodies, strict=True) for part in row]
            self._wire.send_command("EVALSHA", script, 2, WHEN, BODIES, *rows)
            created += len(batch)
            waiting += 1
            if waiting == PIPELINED:
                self._wire.read_response()
                waiting -= 1
        for _ in range(waiting):
            self._wire.read_response()
        return created

    async def consume(self, tally: Tally) -> None:
        self._wire.send_command("SCRIPT", "LOAD", LEASE)
        script = self._wire.read_response()
        # The requests of the next answers: a lease (0), or the delete of so many messages.
        expected: deque[int] = deque()
        while not tally.done() or expected:
            if not expected:
                self._ask(script, expected)
            count = expected.popleft()
            if count:
                self._answer_of_transaction(2)
                tally.deleted(count)
                continue
            leased = self._wire.read_response()
            if leased:
                ids, bodies = leased
                tally.taken(bodies)
                self._transaction(("ZREM", WHEN, *ids), ("HDEL", BODIES, *ids))
                expected.append(len(ids))
                # A full batch means that more messages are due: with two leases in flight, client and server both work.
                while len(ids) == BATCH and expected.count(0) < 2:
                    self._ask(script, expected)
            elif not expected:
                await asyncio.sleep(POLL_SECONDS)

    def _ask(self, script: str, expected: deque[int]) -> None:
        self._wire.send_command("EVALSHA", script, 2, WHEN, BODIES, BATCH, LEASE_MS)
        expected.append(0)

    def _transaction(self, *commands: Sequence[object]) -> None:
        self._wire.send_packed_command(self._wire.pack_commands([("MULTI",), *commands, ("EXEC",)]))

    def _answer_of_transaction(self, commands: int) -> None:
        for _ in range(commands + 2):
            self._wire.read_response()

    async def send(self, body: bytes) -> None:
        self._sent += 1
        message_id = f"s-{self._sent:012d}"
        async with self._pool.pipeline(transaction=True) as pipe:
            pipe.zadd(WHEN, {message_id: now_ms()}, nx=True)
            pipe.hset(BODIES, message_id, body)
            await pipe.execute()

    async def create_known(self, batches: Iterable[Batch]) -> list[str]:
        known: list[str] = []
        for batch in batches:
            await self.create([batch])
            known.extend(batch.ids)
        return known

    async def cancel(self, ids: Sequence[str]) -> None:
        async with self._pool.pipeline(transaction=True) as pipe:
            pipe.zrem(WHEN, *ids)
            pipe.hdel(BODIES, *ids)
            await pipe.execute()

    async def move(self, ids: Sequence[str], due_ms: int) -> None:
        await self._pool.zadd(WHEN, dict.fromkeys(ids, due_ms), xx=True)

    async def edit(self, ids: Sequence[str], bodies: Sequence[bytes]) -> None:
        await self._pool.hset(BODIES, mapping=dict(zip(ids, bodies, strict=True)))


def now_ms() -> int:
    """The wall clock, which server and clients share."""
    return time.time_ns() // 1_000_000


def redis_version() -> str:
    """The server's version."""
    shown = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v=(\S+)", shown)
    return found.group(1) if found else shown.strip()


def redis_missing() -> str | None:
    """Why Redis cannot run here, or None."""
    return None if shutil.which("redis-server") else "redis-server is not installed"


def system(name: str, appendfsync: str) -> System:
    """Redis with one fsync policy."""
    return System(
        name=name,
        durable=appendfsync == "always",
        server=lambda folder: RedisServer(folder, appendfsync),
        client=RedisClient,
        version=redis_version,
        missing=redis_missing,
        benches=ALL_BENCHES | OWN_IDS | {"generated_ids", "large_backlog", "priority", "slow_work", "one_at_a_time"},
        settings={
            "server": f"appendonly yes, appendfsync {appendfsync}, no rewrite",
            "client": "redis-py with hiredis, 1000 per call, 4 creates and 2 leases in flight, polls every 1 ms; "
            "asyncio pool for single calls",
            "layout": "sorted set + hash, Lua to create and to lease, MULTI to delete",
        },
        changes=("cancel", "move", "edit"),
    )
