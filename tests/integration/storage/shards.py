"""The shards of a test, on one server, and a simulated crash at a named point."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from dejaq.broker.shards.shards import MAP
from dejaq.storage.postgres.sharding.shard import PostgresShard
from dejaq.storage.sharded.placement import ShardInfo, ShardMap, first_map
from dejaq.storage.sharded.shards import MakeShard
from dejaq.storage.sharded.store import ShardedStorage
from dejaq.synchronization.local import LocalSynchronization
from dejaq.testing.servers.postgres import shared_server

NOW = 1_700_000_000_000


def shards_of(name: str) -> MakeShard:
    """Returns a function that creates the shards of a new cluster, each in a schema of its own."""
    cluster = f"{name}_{secrets.token_hex(4)}"

    def shard(info: ShardInfo) -> PostgresShard:
        return PostgresShard(info.dsn, name=info.name, ordinal=info.ordinal, cluster=f"{cluster}_{info.name}")

    return shard


@asynccontextmanager
async def opened(make: MakeShard, *names: str) -> AsyncIterator[ShardedStorage]:
    storage = ShardedStorage(first_map(dict.fromkeys(names, shared_server().dsn)), make)
    await storage.open(NOW)
    try:
        yield storage
    finally:
        await storage.close()


@asynccontextmanager
async def synchronized(first: ShardMap) -> AsyncIterator[LocalSynchronization]:
    synchronization = LocalSynchronization()
    await synchronization.open()
    await synchronization.put(MAP, first.encode())
    try:
        yield synchronization
    finally:
        await synchronization.close()


class Killed(Exception):
    """The process is killed at this point."""


def killing(point: str, hit: int) -> Callable[[str], None]:
    left = hit

    def crash_at(name: str) -> None:
        nonlocal left
        left -= name == point
        if name == point and left == 0:
            raise Killed(point)

    return crash_at
