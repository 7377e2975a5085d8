"""The queries of the reference storage."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from dejaq.domain.message import Message
from dejaq.domain.topic import Topic
from dejaq.storage.base import Filter, Holder, Page, outermost
from dejaq.storage.memory.paging import check_cursor, matches, position_of
from dejaq.storage.memory.snapshot import MemorySnapshot
from dejaq.storage.memory.timeline import HeldMessage, Timeline


class MemoryQueries:
    """The queries of a `MemoryStorage`, which change nothing."""

    def _timeline(self, topic: Topic) -> Timeline:
        raise NotImplementedError

    async def get(self, topic: Topic, ids: Sequence[str], now: int) -> list[Message | None]:
        """The messages, in the order of `ids`; None for an id that no message has."""
        found = map(self._timeline(topic).find, ids)
        return [message.message(topic.name) if message else None for message in found]

    async def holders(self, topic: Topic, ids: Sequence[str], now: int) -> list[Holder | None]:
        """The holder of the live lease of each id; None for an id that no consumer holds."""
        found = map(self._timeline(topic).find, ids)
        return [message.holder(now) if message is not None else None for message in found]

    async def find_body(self, topic: Topic, digest: bytes) -> bytes | None:
        """A body of the topic by its digest, when the topic shares bodies."""
        return self._timeline(topic).find_body(digest)

    async def count(self, topic: Topic, where: Filter, now: int) -> int:
        """How many messages match, exactly."""
        return sum(1 for _ in self._matching(topic, where, now))

    async def histogram(self, topic: Topic, where: Filter, step: int, now: int) -> list[tuple[int, int]]:
        """(start of step, count) for each step of [start, end) that has messages, exactly."""
        counts: dict[int, int] = {}
        for message in self._matching(topic, where, now):
            start = message.ts - (message.ts - where.start) % step
            counts[start] = counts.get(start, 0) + 1
        return sorted(counts.items())

    async def browse(self, topic: Topic, where: Filter, cursor: bytes | None, limit: int, now: int) -> Page:
        """One page of the messages that match, in order of (ts, id), or of (priority, ts, id)."""
        by_priority = topic.by_priority
        matching = (
            (position_of(message, by_priority=by_priority), message) for message in self._matching(topic, where, now)
        )
        if cursor is not None:
            behind = check_cursor(cursor)
            matching = ((at, message) for at, message in matching if at > behind)
        page = heapq.nsmallest(limit + 1, matching, key=lambda item: item[0])
        more = len(page) > limit
        del page[limit:]
        return Page(
            messages=[message.message(topic.name) for _, message in page],
            cursor=page[-1][0] if more and page else None,
        )

    async def oldest(self, topic: Topic, now: int, count: int) -> list[tuple[int, int]]:
        """The oldest available message of each priority."""
        return outermost(self._timeline(topic).oldest(now), count)

    async def snapshot(self, topic: Topic, now: int) -> MemorySnapshot:
        """A copy of the topic."""
        return MemorySnapshot([m.message(topic.name) for m in self._matching(topic, Filter(), now)], now)

    def _matching(self, topic: Topic, where: Filter, now: int) -> Iterator[HeldMessage]:
        return (message for message in self._timeline(topic).all() if matches(message, where, now))
