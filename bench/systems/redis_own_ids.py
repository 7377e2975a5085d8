"""Redis with ids that the client chooses: single sends from many producers, and changes by id, all pipelined."""

from __future__ import annotations

from collections.abc import Sequence

from bench.systems.redis_pipeline import PipelinedRedis
from bench.systems.redis_queue import BODIES, CREATE, WHEN


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


class RedisSender:
    """Connections that the producers share; a send is one call of the script that creates."""

    def __init__(self, address: str) -> None:
        self._port = _port(address)
        self._connections: list[PipelinedRedis] = []

    async def open(self, *, connections: int, producers: int) -> None:
        """Connect and load the script."""
        for _ in range(connections):
            connection = PipelinedRedis(self._port)
            await connection.open()
            self._connections.append(connection)
        script = await self._connections[0].call("SCRIPT", "LOAD", CREATE)
        assert isinstance(script, bytes)
        self._script = script

    async def send(self, producer: int, message_id: str, body: bytes, due_ms: int) -> None:
        """Create one message."""
        connection = self._connections[producer % len(self._connections)]
        await connection.call("EVALSHA", self._script, 2, WHEN, BODIES, message_id, due_ms, body)

    async def close(self) -> None:
        """Disconnect."""
        for connection in self._connections:
            await connection.close()


class RedisById:
    """One pipelined connection; every change is one command or one transaction."""

    def __init__(self, address: str) -> None:
        self._connection = PipelinedRedis(_port(address))

    async def open(self) -> None:
        """Connect."""
        await self._connection.open()

    async def get(self, ids: Sequence[str]) -> int:
        """Read times and bodies; how many were found."""
        call = self._connection.call
        times, bodies = call("ZMSCORE", WHEN, *ids), call("HMGET", BODIES, *ids)
        found = [await times, await bodies]
        assert isinstance(found[1], list)
        return sum(body is not None for body in found[1])

    async def move(self, ids: Sequence[str], due_ms: Sequence[int]) -> None:
        """Give each its time, if it exists."""
        pairs = [part for pair in zip(due_ms, ids, strict=True) for part in pair]
        await self._connection.call("ZADD", WHEN, "XX", *pairs)

    async def edit(self, ids: Sequence[str], bodies: Sequence[bytes]) -> None:
        """Write the bodies. A queue that edits only existing messages needs a script and is slower."""
        pairs = [part for pair in zip(ids, bodies, strict=True) for part in pair]
        await self._connection.call("HSET", BODIES, *pairs)

    async def cancel(self, ids: Sequence[str]) -> None:
        """Remove both parts in one transaction."""
        call = self._connection.call
        commands = [call("MULTI"), call("ZREM", WHEN, *ids), call("HDEL", BODIES, *ids), call("EXEC")]
        for command in commands:
            await command

    async def close(self) -> None:
        """Disconnect."""
        await self._connection.close()
