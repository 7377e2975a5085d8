"""The shards of a running cluster, seen and changed from outside of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass

from dejaq.broker.shards.mover import MoveProgress, Mover
from dejaq.broker.shards.shards import MAP
from dejaq.errors import ClusterRefused, DejaqError
from dejaq.storage.base import Filter
from dejaq.storage.postgres.sharding import moving
from dejaq.storage.postgres.sharding.shard import PostgresShard
from dejaq.storage.sharded.placement import ShardInfo, ShardMap
from dejaq.storage.sharded.shards import MakeShard
from dejaq.synchronization.base import Synchronization
from dejaq.synchronization.embedded import client_of, parse_peers
from dejaq.synchronization.etcd.endpoints import Endpoints, parse_endpoints
from dejaq.synchronization.etcd.service import EtcdSynchronization
from dejaq.timekeeper.clock import SystemClock

_CONNECTIONS = 4


@dataclass(frozen=True, slots=True)
class ShardState:
    """One shard as `dejaq storage shards` shows it."""

    name: str
    address: str
    buckets: int
    messages: int
    size: int
    # Empty while nothing is the matter.
    state: str = ""

    def as_dict(self) -> dict[str, object]:
        """Plain values, for JSON."""
        return asdict(self)


@asynccontextmanager
async def _joined(synchronization: str, cluster: str) -> AsyncIterator[Synchronization]:
    if synchronization.startswith("embedded://"):
        endpoints = Endpoints(tuple(map(client_of, parse_peers(synchronization))))
    elif synchronization.startswith("etcd://"):
        endpoints = parse_endpoints(synchronization)
    else:
        raise ClusterRefused(
            "a storage has several shards only where brokers meet in etcd: etcd://... or embedded://..."
        )
    service = EtcdSynchronization(endpoints, cluster=cluster, clock=SystemClock())
    await service.open()
    try:
        yield service
    finally:
        await service.close()


def _make(cluster: str) -> MakeShard:
    def make(info: ShardInfo) -> PostgresShard:
        return PostgresShard(info.dsn, name=info.name, ordinal=info.ordinal, cluster=cluster, connections=_CONNECTIONS)

    return make


async def add(
    name: str,
    dsn: str,
    *,
    synchronization: str,
    cluster: str,
    grace: float,
    at_once: int,
    tell: Callable[[MoveProgress], None] = lambda progress: None,
) -> MoveProgress:
    """Add a shard to the storage of a running cluster."""
    async with _joined(synchronization, cluster) as service:
        mover = Mover(service, _make(cluster), SystemClock(), tell=tell, grace=grace, at_once=at_once)
        return await mover.add(name, dsn)


async def describe(*, synchronization: str, cluster: str) -> list[ShardState]:
    """Every shard of a running cluster."""
    async with _joined(synchronization, cluster) as service:
        record = await service.get(MAP)
        if record is None:
            raise ClusterRefused(f"cluster {cluster!r} has no shards: no broker on PostgreSQL has served it")
    shard_map = ShardMap.decode(record.value)
    make = _make(cluster)
    return list(
        await asyncio.gather(*(_state(shard_map, place, make(info)) for place, info in enumerate(shard_map.shards)))
    )


async def _state(shard_map: ShardMap, place: int, shard: PostgresShard) -> ShardState:
    info = shard_map.shards[place]
    state = "moving" if shard_map.changing == info.name else ""
    try:
        await shard.open(0)
    except DejaqError as error:
        return ShardState(info.name, shard.address, 0, 0, 0, error.message)
    try:
        topics = await shard.topics()
        buckets = sum(shard_map.owner(t, b) == place for t in topics for b in range(t.settings.buckets))
        messages = sum([await shard.count(topic, Filter(), 0) for topic in topics])
        return ShardState(info.name, shard.address, buckets, messages, await moving.size_of(shard), state)
    finally:
        await shard.close()
