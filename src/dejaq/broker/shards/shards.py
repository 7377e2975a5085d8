"""The map of the storage's shards: kept in synchronization, and followed by every broker, which says how far it is."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dejaq.errors import ClusterRefused
from dejaq.storage.sharded.placement import ShardMap
from dejaq.synchronization.base import RecordChange, Synchronization
from dejaq.timekeeper.clock import Clock

if TYPE_CHECKING:
    from dejaq.storage.sharded.store import ShardedStorage

log = logging.getLogger(__name__)

MAP = "shards/map"
SEEN = "shards/seen/"
# The process that moves buckets holds this record, which ends with it.
CLAIM = "work/shards"


class ShardWatch:
    """This broker's view of the map."""

    def __init__(self, *, broker: str, storage: ShardedStorage, synchronization: Synchronization) -> None:
        self._broker = broker
        self._storage = storage
        self._synchronization = synchronization

    async def begin(self) -> None:
        """Use the published map, or publish the map of this broker's configuration."""
        own = self._storage.map
        record = await self._synchronization.get(MAP)
        if record is None:
            await self._check_kept(own)
            record = await self._synchronization.put(MAP, own.encode(), expected=0)
            record = record or await self._synchronization.get(MAP)
        if record is not None:
            kept = ShardMap.decode(record.value)
            strange = [shard.name for shard in own.shards if kept.named(shard.name) is None]
            if strange:
                raise ClusterRefused(
                    f"the storage has the shards {_names(kept)}, and not {strange[0]!r}; "
                    f"add it with: dejaq storage add-shard {strange[0]} DSN"
                )
            await self._storage.follow(kept)
        await self._confirm()

    async def _check_kept(self, own: ShardMap) -> None:
        """Without a published map, the shards themselves have the names of all shards."""
        names = [shard.name for shard in own.shards]
        for shard, others in (await self._storage.kept()).items():
            if sorted(others) != sorted(names):
                raise ClusterRefused(
                    f"shard {shard!r} of the storage is one of {', '.join(others)}, and this broker is set up with "
                    f"{', '.join(names)}; name all of them, and add one with: dejaq storage add-shard"
                )

    @property
    def left(self) -> bool:
        """Whether buckets are moving; their mover should be running."""
        return self._storage.map.moving > self._storage.map.done

    async def rescue(self, clock: Clock) -> None:
        """Finish the move of a few buckets whose mover has ended, so that they are served again."""
        if await self._synchronization.get(CLAIM) is not None:
            return
        from dejaq.broker.shards.mover import Mover

        log.warning("buckets are moving to another shard and their mover has ended; this broker finishes the move")
        await Mover(synchronization=self._synchronization, make=self._storage.shards.make, clock=clock).rescue()

    def failures(self) -> str | None:
        """Which shards do not work, for people; None where all do."""
        failed = {shard.name: shard.failure for shard in self._storage.shards if shard.failure is not None}
        if not failed or len(failed) == len(self._storage.map.shards):
            return None
        return f"buckets wait for the shards of the storage that do not work: {'; '.join(map(str, failed.values()))}"

    async def records_changed(self, changes: list[RecordChange]) -> None:
        """Follow the changed map, and publish that it is followed."""
        for change in changes:
            if change.key == MAP and change.record is not None:
                await self._storage.follow(ShardMap.decode(change.record.value))
                await self._confirm()

    async def _confirm(self) -> None:
        value = str(self._storage.map.version).encode()
        await self._synchronization.put(SEEN + self._broker, value, bound=True)


def _names(kept: ShardMap) -> str:
    return ", ".join(shard.name for shard in kept.shards)
