"""The queries of the embedded store: each answer contains only durable changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar
from weakref import WeakSet

from dejaq.domain.batch import LeaseSet
from dejaq.domain.headers import encode_headers
from dejaq.domain.message import Message, UnleasedMessages
from dejaq.domain.topic import Durability, Topic
from dejaq.storage.base import Filter, Holder, Page, outermost
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.engine.committer import Committer
from dejaq.storage.rocksdb.engine.database import RocksDatabase
from dejaq.storage.rocksdb.operations import leasing, owning
from dejaq.storage.rocksdb.reading import querying
from dejaq.storage.rocksdb.reading.browsing import Browsing, pack_cursor
from dejaq.storage.rocksdb.reading.histograms import Histogram
from dejaq.storage.rocksdb.reading.leased import LeaseReading
from dejaq.storage.rocksdb.reading.pace import QueryPace
from dejaq.storage.rocksdb.reading.priority_browsing import PriorityBrowsing, pack_priority_cursor
from dejaq.storage.rocksdb.reading.snapshot import RocksSnapshot
from dejaq.storage.rocksdb.timeline import prioritising
from dejaq.storage.rocksdb.timeline.topic_state import TopicState

Result = TypeVar("Result")

# How many messages are read at once while the sizes of their bodies are not known.
_ROWS_FIRST = 64
# How many messages are read in one step when only few of them match.
_NARROW_STEP = 250


class RocksQueries:
    """The queries of a `RocksStorage`, which change nothing."""

    _database: RocksDatabase
    _committer: Committer
    # A snapshot that is no longer referenced is removed, with its view.
    _snapshots: WeakSet[RocksSnapshot]

    def _state(self, topic: Topic) -> TopicState:
        raise NotImplementedError

    async def _look(self, topic: Topic, query: Callable[[TopicState], Result]) -> Result:
        """Answer a query from the durable state."""
        result = query(self._state(topic))
        durable = self._committer.pending()
        if durable is not None and topic.settings.durability is Durability.FSYNC:
            await asyncio.shield(durable)
        return result

    async def get(self, topic: Topic, ids: Sequence[str], now: int) -> list[Message | None]:
        """The messages with the ids; other tasks run between the steps of a large call."""
        messages: list[Message | None] = []
        while len(messages) < len(ids):
            if messages:
                await asyncio.sleep(0)
            messages += self._find(topic, ids[len(messages) :], querying.get)
        return await self._look(topic, lambda _: messages)

    def columns_rows(self, topic: Topic) -> tuple[int, int]:
        """How many ids a call of `get_columns` may name."""
        rows = self._state(topic).runs.stored.finding.ids
        return min(_ROWS_FIRST, rows), rows

    async def get_columns(
        self, topic: Topic, ids: Sequence[str], now: int
    ) -> tuple[UnleasedMessages, list[tuple[int, Message]]]:
        """The same in one step, mostly as columns."""
        return await self._look(topic, lambda _: self._find(topic, ids, querying.get_columns, all_of=True))

    def _find(
        self,
        topic: Topic,
        ids: Sequence[str],
        find: Callable[[TopicState, Sequence[str]], Result],
        *,
        all_of: bool = False,
    ) -> Result:
        """What is found of the first ids, as many as one step should have, or of all of them."""
        state = self._state(topic)
        finding = state.runs.stored.finding
        some = ids if all_of else ids[: finding.ids]
        began = time.thread_time()
        found = find(state, some)
        finding.took(len(some), time.thread_time() - began)
        return found

    async def find_body(self, topic: Topic, digest: bytes) -> bytes | None:
        """A shared body by its digest."""
        state = self._state(topic)
        return None if state.body_store.shared is None else state.body_store.shared.find(digest)

    async def leases_of(self, topic: Topic, consumer: str, now: int) -> list[LeaseSet]:
        """What is left of a consumer's live leases."""
        return await self._look(topic, lambda state: leasing.leases_of(state, consumer, now))

    async def holders(self, topic: Topic, ids: Sequence[str], now: int) -> list[Holder | None]:
        """The holder of the live lease of each id."""
        return await self._look(topic, lambda state: owning.holders(state, ids, now))

    async def count(self, topic: Topic, where: Filter, now: int) -> int:
        """How many messages match."""
        if where == Filter():
            return await self._look(topic, lambda state: state.total)
        counts = await self.histogram(topic, where, 2**63, now)
        return sum(count for _, count in counts)

    async def histogram(self, topic: Topic, where: Filter, step: int, now: int) -> list[tuple[int, int]]:
        """Counts by step of time."""
        if where.needs_row_scan:
            return await self._tally(topic, where, step, now)
        waits = topic.settings.durability is Durability.FSYNC
        pending = self._committer.pending if waits else lambda: None
        return await Histogram(self._state(topic), where, step, now, pending).answer()

    async def browse(self, topic: Topic, where: Filter, cursor: bytes | None, limit: int, now: int) -> Page:
        """One page of messages."""
        if where.needs_row_scan:
            return await self._browse_rows(topic, where, cursor, limit, now)
        state = self._state(topic)
        make = PriorityBrowsing if topic.by_priority else Browsing
        page = await make(state, where, cursor, limit, now).page()
        return await self._look(topic, lambda _: page)

    async def _tally(self, topic: Topic, where: Filter, step: int, now: int) -> list[tuple[int, int]]:
        """Counts by step for a filter that needs the rows themselves; other tasks run during the reading."""
        snapshot = await self.snapshot(topic, now)
        try:
            return await snapshot.tally(where, step)
        finally:
            snapshot.close()

    async def _browse_rows(self, topic: Topic, where: Filter, cursor: bytes | None, limit: int, now: int) -> Page:
        """Reads pages of all messages until enough of them match; other tasks run between the pages."""
        wide = replace(where, priorities=None, headers=())
        found: list[Message] = []
        while True:
            page = await self.browse(topic, wide, cursor, _NARROW_STEP, now)
            found += [m for m in page.messages if where.fits(m.priority, encode_headers(m.headers))]
            if len(found) > limit:
                del found[limit:]
                pack = pack_priority_cursor if topic.by_priority else pack_cursor
                return Page(found, pack(found[-1]))
            if page.cursor is None:
                return Page(found, None)
            cursor = page.cursor
            await asyncio.sleep(0)

    async def oldest(self, topic: Topic, now: int, count: int) -> list[tuple[int, int]]:
        """The oldest available message of each priority, bucket by bucket; other tasks run between the buckets."""
        oldest: dict[int, int] = {}
        for bucket in (*range(topic.settings.buckets), keys.SPREAD):
            state = self._state(topic)
            for priority, ts in prioritising.oldest(state, bucket, now, count):
                oldest[priority] = min(ts, oldest.get(priority, ts))
            await asyncio.sleep(0)
        return outermost(oldest, count)

    async def snapshot(self, topic: Topic, now: int) -> RocksSnapshot:
        """A view of a topic, kept until the view or the store is closed."""
        pace = QueryPace()
        with LeaseReading(self._state(topic)) as copying:
            await copying.read(pace)
            snapshot = await self._look(topic, lambda state: self._snapshot_of(state, copying, now))
        await snapshot.begin(pace)
        return snapshot

    def _snapshot_of(self, state: TopicState, leases: LeaseReading, now: int) -> RocksSnapshot:
        snapshot = RocksSnapshot(state, self._database.view(), leases.taken(), now)
        self._snapshots.add(snapshot)
        return snapshot
