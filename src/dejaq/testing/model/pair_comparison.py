"""Compares a storage with the model with every query that both can answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dejaq.domain.bodies.large import content_of
from dejaq.domain.message import Message, Status
from dejaq.storage.base import Filter, Storage
from dejaq.testing.model.pair_state import BUCKETS, PairState, rows_of
from dejaq.testing.model.replay import described, events_of, read_journal

_CONSUMERS = ("worker-1", "worker-2")
_OWNERS = ("billing", "mail")


class PairComparison(PairState):
    """The comparisons; they change no store, except that they read and trim a journal."""

    async def compare(self) -> None:
        """Check that every query has the same answer in both."""
        self.uploads.look(self._model, self.now)
        moved = await self._browse(self._model, Filter(), limit=1_000, topic=self._dead)
        assert _plain(await self._browse(self._real, Filter(), limit=4, topic=self._dead)) == _plain(moved)
        expected = await self._browse(self._model, Filter(), limit=1_000)
        found = await self._browse(self._real, Filter(), limit=4)
        assert _plain(found) == _plain(expected)
        for mine, theirs in zip(expected, found, strict=True):
            self._check_version(mine, theirs)
        ids = self.ids[-20:]
        by_id = {message.id: message for message in found}
        got = await self._real.get(self._topic, ids, self.now)
        assert got == [by_id.get(one) for one in ids]
        await self._compare_holders(ids)
        for consumer in _CONSUMERS:
            assert await self._held(self._real, consumer) == await self._held(self._model, consumer)
        await self._compare_next_ts()

    async def compare_journal(self) -> None:
        """Check that replaying the journal gives the messages of the storage."""
        if not self._journal:
            return
        for record in await read_journal(self._real, self._journalled):
            self._journalled += 1
            assert record.sequence == self._journalled, f"record {record.sequence} instead of {self._journalled}"
            assert record.at_ms == self.now, "a record has the time of another change"
            self._replay.follow(events_of(record))
        for topic in (self._topic, self._dead):
            found = await self._browse(self._real, Filter(), limit=1_000, topic=topic)
            assert self._replay.standing(topic.name, self.now) == described(found, self.now)

    async def trim_journal(self) -> None:
        """Remove the records that were read."""
        if self._journal:
            await self._real.trim_journal(self._journalled)
            assert await self._real.journal(0, 1) == [], "a trimmed record still exists"

    def _check_version(self, mine: Message, theirs: Message) -> None:
        """Check that each version of the model always belongs to one version of the storage, in the same order.

        A new version need not be the greatest: a recall shows a version that a back-off created and the lease of the
        same call hid.
        """
        known = self._versions.setdefault(mine.id, {})
        if mine.version not in known:
            in_order = all((mine.version > model) == (theirs.version > real) for model, real in known.items())
            assert in_order, f"{mine.id} changed, its version did not follow"
        else:
            assert known[mine.version] == theirs.version, f"{mine.id} did not change, its version did"
            # The order of the dictionary is the order in which versions were last read.
            del known[mine.version]
        known[mine.version] = theirs.version

    async def _compare_holders(self, ids: Sequence[str]) -> None:
        tokens = {pair.model.lease_id: pair.real.lease_id for pair in self.leases}
        expected = [
            replace(holder, lease_id=tokens[holder.lease_id]) if holder else None
            for holder in await self._model.holders(self._topic, ids, self.now)
        ]
        assert await self._real.holders(self._topic, ids, self.now) == expected

    async def _held(self, storage: Storage, consumer: str) -> dict[tuple[str, int], tuple[object, ...]]:
        """The rows that the consumer holds, by id and row number. Lease ids are left out, because they differ."""
        return {
            (row[0], number): (one.expires, *row[1:])
            for one in await storage.leases_of(self._topic, consumer, self.now)
            for number, row in rows_of(one).items()
        }

    async def _compare_next_ts(self) -> None:
        for buckets in ([0], range(BUCKETS)):
            first = await self._model.next_ts(self._topic, buckets, self.now)
            bound = await self._real.next_ts(self._topic, buckets, self.now)
            if first is not None:
                assert bound is not None, "next_ts is None, although the topic has messages"
                assert bound <= first, "next_ts is after the first message"

    async def compare_queries(self, delay: int, step: int) -> None:
        """Count, histogram and browse agree for each field of a filter and for a part of the timeline."""
        start = self.now + delay
        filters = [Filter(), Filter(start=start), Filter(end=start), Filter(start=start, end=start + 61_000)]
        filters += [Filter(status=status) for status in Status]
        filters += [Filter(status=status, start=start) for status in Status]
        filters += [Filter(owner=owner) for owner in _OWNERS]
        filters += [Filter(consumer=consumer, end=start) for consumer in _CONSUMERS]
        filters += [Filter(owner=_OWNERS[0], status=Status.AVAILABLE, consumer=_CONSUMERS[0])]
        filters += [Filter(priorities=(-1, 0)), Filter(headers=(("k", "v"),), start=start)]
        for where in filters:
            count = await self._real.count(self._topic, where, self.now)
            assert count == await self._model.count(self._topic, where, self.now), where
            drawn = await self._real.histogram(self._topic, where, step, self.now)
            assert drawn == await self._model.histogram(self._topic, where, step, self.now), where
            found = await self._browse(self._real, where, limit=3)
            assert _plain(found) == _plain(await self._browse(self._model, where, limit=1_000)), where


def _plain(messages: Sequence[Message]) -> list[Message]:
    """The message without its version and the reference of a large body, which differ between stores."""
    return [replace(message, version=0, body=content_of(message.body)) for message in messages]
