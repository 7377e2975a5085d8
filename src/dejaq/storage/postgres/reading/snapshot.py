"""A snapshot: a transaction that keeps its view, on its own connection, read with cursors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import groupby
from operator import itemgetter

import asyncpg

from dejaq.domain.batch import Portion, Stretch
from dejaq.domain.topic import Topic
from dejaq.errors import Code, error_of
from dejaq.storage.base import Filter
from dejaq.storage.postgres.connection.failures import DRIVER_ERRORS
from dejaq.storage.postgres.keys import spans_of
from dejaq.storage.postgres.operations.change import bucket_at, places_of
from dejaq.storage.postgres.queries import SQL
from dejaq.storage.postgres.reading.querying import bounds, matching

_PORTION_ROWS = 1_000
_SHARED = itemgetter("place", "owner", "version", "consumer")


class PostgresSnapshot:
    """A topic in the view of one transaction. Scans at the same time alternate."""

    def __init__(self, connection: asyncpg.Connection, topic: Topic, now: int, count: int) -> None:
        self.at = now
        self.count = count
        self._connection = connection
        self._topic = topic
        self._turn = asyncio.Lock()

    def close(self) -> None:
        """End the transaction by closing its connection."""
        self._connection.terminate()

    def scan_stored(self, buckets: Sequence[int], where: Filter, *, bodies: bool) -> AsyncIterator[Portion]:
        """The same as `scan`: this store has no runs."""
        return self.scan(buckets, where, bodies=bodies)

    async def scan(self, buckets: Sequence[int], where: Filter, *, bodies: bool) -> AsyncIterator[Portion]:
        """The matching messages, a thousand at a time."""
        start, end, held = bounds(where, self.at)
        if start >= end:
            return
        query = SQL["scan" if bodies else "scan_without_bodies"]
        arguments = (places_of(self._topic, buckets), start, end, *matching(where, held))
        try:
            async with self._turn:
                cursor = await self._connection.cursor(query, *arguments)
            while True:
                async with self._turn:
                    records = await cursor.fetch(_PORTION_ROWS)
                if not records:
                    return
                if where.headers:
                    records = [one for one in records if where.fits(one["priority"], one["headers"])]
                if records:
                    yield _portion(records, bodies=bodies)
        except DRIVER_ERRORS:
            raise error_of(Code.UNAVAILABLE, "the snapshot is closed, or its connection is lost") from None


def _portion(records: Sequence[asyncpg.Record], *, bodies: bool) -> Portion:
    stretches: list[Stretch] = []
    for (place, owner, version, consumer), group in groupby(records, key=_SHARED):
        for span in spans_of([record["id"] for record in group]):
            stretches.append(Stretch(span, bucket_at(place), owner, version, consumer))
    priorities = [record["priority"] for record in records]
    attempts = [record["attempts"] for record in records]
    headers = [record["headers"] for record in records]
    return Portion(
        stretches=stretches,
        ts=[record["ts"] for record in records],
        bodies=[record["body"] for record in records] if bodies else None,
        priorities=priorities if any(priorities) else None,
        attempts=attempts if any(attempts) else None,
        headers=headers if any(headers) else None,
    )
