"""Stores of several shards for tests: schemas of one server, which are empty at first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dejaq.storage.postgres.sharding.shard import PostgresShard
from dejaq.storage.sharded.placement import ShardInfo, first_map
from dejaq.storage.sharded.store import ShardedStorage
from dejaq.testing.servers.postgres import empty, shared_server


class FreshShard(PostgresShard):
    """A shard that is empty when it is first opened; shards over the same contents share `place`."""

    def __init__(self, place: dict[str, bool], dsn: str, **options: Any) -> None:
        super().__init__(dsn, **options)
        self._place = place

    async def open(self, now: int) -> None:
        """Open the shard; the first time for its place, remove the contents that others left."""
        if not self._place.get(self.name):
            self._place[self.name] = True
            await empty(self._database, self._address)
        await super().open(now)


def two_shards(*, cluster: str, **options: Any) -> Callable[[], ShardedStorage]:
    """A factory of stores over the same two shards."""
    server, place = shared_server(), dict[str, bool]()
    first = first_map({"a": server.dsn, "b": server.dsn})

    def make(info: ShardInfo) -> PostgresShard:
        schema = f"{cluster}_{info.name}"
        return FreshShard(place, info.dsn, name=info.name, ordinal=info.ordinal, cluster=schema, **options)

    return lambda: ShardedStorage(first, make)
