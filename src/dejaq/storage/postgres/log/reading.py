"""Reading a log: the bounds of its buckets, which concurrent readers share, and its batches, the newest from memory."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from dejaq import limits
from dejaq.domain.topic import Topic
from dejaq.storage.log.base import BucketOffsets, LogSlice, StoredBatch
from dejaq.storage.postgres.connection.database import PostgresDatabase, PostgresLink
from dejaq.storage.postgres.log.appending import missing_log
from dejaq.storage.postgres.operations.change import bucket_at, places_of

# What one statement reads at most.
_BATCHES_MAX = 200
# What the objects of a batch in memory take besides its bytes.
_OVERHEAD_BYTES = 300


@dataclass(frozen=True, slots=True)
class Bounds:
    """The offsets of a bucket, and the first batch at which committed readers stop."""

    start: int = 0
    next: int = 0
    size: int = 0
    open: int | None = None
    until: int = 0
    length: int = 0

    def unsettled(self, now: int) -> bool:
        """Whether the first window has passed, or is longer than it may be, because the clock was set back."""
        if self.open is None or self.length < 0:
            return False
        return self.until <= now or self.until > now + self.length

    @property
    def stable(self) -> int:
        """The last stable offset. It never moves back: windows are closed once, and new ones begin behind it."""
        return self.next if self.open is None else self.open

    def offsets(self) -> BucketOffsets:
        """The same for users."""
        return BucketOffsets(self.start, self.stable, self.next, self.size)


async def settle(link: PostgresLink, places: Sequence[int], now: int) -> None:
    """Close the windows that have passed, in a transaction that has locked nothing else of these buckets."""
    await link.execute("shorten_log_windows", places, now)
    await link.execute("close_log_windows", places, now)


class LogBounds:
    """Reads the bounds of buckets. A caller shares a read that began after its call."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        # The read of each topic that waits to begin.
        self._next: dict[int, asyncio.Task[list[Bounds]]] = {}
        self._running: dict[int, asyncio.Task[list[Bounds]]] = {}

    async def of(self, topic: Topic, now: int) -> list[Bounds]:
        """The bounds of every bucket, after the windows that have passed were closed; raises TOPIC_NOT_FOUND."""
        bounds = await self._shared(topic)
        late = [bucket for bucket, one in enumerate(bounds) if one.unsettled(now)]
        if late:
            await self._database.change(lambda link: settle(link, places_of(topic, late), now))
            bounds = await self._shared(topic)
        return bounds

    async def _shared(self, topic: Topic) -> list[Bounds]:
        waiting = self._next.get(topic.number)
        if waiting is None:
            before = self._running.get(topic.number)
            waiting = asyncio.get_running_loop().create_task(self._read(topic, before))
            # A caller that is gone does not look at its error.
            waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._next[topic.number] = waiting
        return await asyncio.shield(waiting)

    async def _read(self, topic: Topic, before: asyncio.Task[list[Bounds]] | None) -> list[Bounds]:
        if before is not None:
            await asyncio.wait((before,))
        own = self._next.pop(topic.number)
        self._running[topic.number] = own
        try:
            rows = await self._database.read(lambda link: link.fetch("log_bounds", topic.number, places_of(topic)))
        finally:
            if self._running.get(topic.number) is own:
                del self._running[topic.number]
        if not rows or rows[0]["state"] == "deleting":
            raise missing_log(topic)
        found = [Bounds()] * topic.settings.buckets
        for row in rows:
            if row["place"] is not None:
                found[bucket_at(row["place"])] = Bounds(
                    row["start"], row["next"], row["size"], row["stable"], row["until_ms"] or 0, row["length_ms"] or 0
                )
        return found


class BatchCache:
    """The batches that were read last, of all logs. A batch that can still be rolled back is not kept."""

    def __init__(self, bytes_max: int = limits.LOG_TAIL_BYTES) -> None:
        self._bytes_max = bytes_max
        self._batches: OrderedDict[tuple[int, int], StoredBatch] = OrderedDict()
        self.used = 0

    def keep(self, place: int, batch: StoredBatch) -> None:
        """Keep a batch, and drop those that were read longest ago."""
        if (place, batch.base) in self._batches:
            return
        self._batches[place, batch.base] = batch
        self.used += len(batch.records) + _OVERHEAD_BYTES
        while self.used > self._bytes_max:
            _, old = self._batches.popitem(last=False)
            self.used -= len(old.records) + _OVERHEAD_BYTES

    def read(self, place: int, start: int, stop: int, bytes_max: int, *, committed: bool) -> LogSlice | None:
        """The batches from an offset on that follow each other; None when the first is not here."""
        found: list[StoredBatch] = []
        size, at = 0, start
        while at < stop and (batch := self._batches.get((place, at))) is not None:
            if found and size + len(batch.records) > bytes_max:
                break
            self._batches.move_to_end((place, at))
            at = batch.end
            if not (committed and batch.aborted):
                found.append(batch)
                size += len(batch.records)
        return LogSlice(tuple(found), at) if at > start else None

    def forget(self) -> None:
        """Drop everything."""
        self._batches.clear()
        self.used = 0


async def read(
    look: Callable[[Callable[[PostgresLink], Awaitable[LogSlice]]], Awaitable[LogSlice]],
    cache: BatchCache,
    place: int,
    start: int,
    stop: int,
    bytes_max: int,
    *,
    committed: bool,
    stable: int,
) -> LogSlice:
    """The batches from an offset on, before `stop`; `look` runs a statement."""
    known = cache.read(place, start, stop, bytes_max, committed=committed)
    if known is not None:
        return known

    async def fetch(link: PostgresLink) -> LogSlice:
        rows = await link.fetch("read_log", place, start, stop, bytes_max, committed, _BATCHES_MAX)
        batches = [
            StoredBatch(row["base"], row["count"], row["ts"], row["records"], row["aborted"])
            for row in rows
            if not row["skipped"]
        ]
        return LogSlice(tuple(batches), rows[-1]["base"] + rows[-1]["count"] if rows else start)

    found = await look(fetch)
    for batch in found.batches:
        if batch.end <= stable:
            cache.keep(place, batch)
    return found
