"""Snapshots of encrypted topics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from dejaq.domain.batch import Portion, StoredRuns
from dejaq.domain.topic import Topic
from dejaq.storage.base import Filter, Snapshot
from dejaq.storage.encrypted.keyring import Keyring


class OpeningSnapshot:
    """Implements `storage.base.Snapshot`: opens the bodies of another snapshot."""

    def __init__(
        self,
        inner: Snapshot,
        topic: Topic,
        keyring: Keyring,
        stored_filter: Callable[[Topic, Filter], Awaitable[Filter]],
    ) -> None:
        """`stored_filter` is the filter for what is stored, in place of a caller's."""
        self._stored_filter = stored_filter
        self._inner = inner
        self._topic = topic
        self._keyring = keyring

    @property
    def at(self) -> int:
        """The instant of the inner snapshot."""
        return self._inner.at

    @property
    def count(self) -> int:
        """How many messages there were."""
        return self._inner.count

    async def scan(self, buckets: Sequence[int], where: Filter, *, bodies: bool) -> AsyncIterator[Portion]:
        """The messages, with opened bodies."""
        stored = await self._stored_filter(self._topic, where)
        async for portion in self._inner.scan(buckets, stored, bodies=bodies):
            if portion.bodies is not None:
                ids = [message_id for stretch in portion.stretches for message_id in stretch.span.expand()]
                portion.bodies = await self._keyring.opened(self._topic, ids, portion.bodies, portion.headers)
            portion.headers = await self._keyring.opened_rows(self._topic, portion.headers)
            yield portion

    def scan_stored(
        self, buckets: Sequence[int], where: Filter, *, bodies: bool
    ) -> AsyncIterator[Portion | StoredRuns]:
        """The same; stored runs have sealed bodies and headers, so only a scan that returns neither has them."""
        if bodies or self._keyring.seals_headers(self._topic):
            return self.scan(buckets, where, bodies=bodies)
        return self._inner.scan_stored(buckets, where, bodies=False)

    def close(self) -> None:
        """Close the inner snapshot."""
        self._inner.close()
