"""A snapshot over several shards: one view per shard, opened together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from dejaq.domain.batch import Portion
from dejaq.storage.base import Filter, Snapshot


class ShardedSnapshot:
    """The views of the shards. They have the same `now`, but are not from exactly the same instant."""

    def __init__(self, now: int, views: Mapping[int, Snapshot], owners: Mapping[int, int]) -> None:
        self.at = now
        self._views = views
        # The map of buckets when the views were opened.
        self._owners = owners

    @property
    def count(self) -> int:
        """How many messages there were."""
        return sum(view.count for view in self._views.values())

    async def scan(self, buckets: Sequence[int], where: Filter, *, bodies: bool) -> AsyncIterator[Portion]:
        """The matching messages, shard by shard."""
        for place, view in self._views.items():
            own = [bucket for bucket in buckets if self._owners.get(bucket) == place]
            if own:
                async for portion in view.scan(own, where, bodies=bodies):
                    yield portion

    def scan_stored(self, buckets: Sequence[int], where: Filter, *, bodies: bool) -> AsyncIterator[Portion]:
        """The same as `scan`: this storage has no runs."""
        return self.scan(buckets, where, bodies=bodies)

    def close(self) -> None:
        """Close every view."""
        for view in self._views.values():
            view.close()
