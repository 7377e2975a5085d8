"""One PostgreSQL store among several that are one: what only the others need of it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg

from dejaq.domain.batch import LeaseRequest
from dejaq.domain.topic import Topic
from dejaq.errors import ClusterRefused
from dejaq.storage import ranges
from dejaq.storage.base import Filter
from dejaq.storage.postgres import leasing, querying
from dejaq.storage.postgres.change import Away, places_of
from dejaq.storage.postgres.creating import unpack
from dejaq.storage.postgres.database import Link, Result, Work
from dejaq.storage.postgres.failures import DRIVER_ERRORS, failure_of
from dejaq.storage.postgres.keys import LeaseKeys, candidates, id_of
from dejaq.storage.postgres.parcels import Parcel, receive
from dejaq.storage.postgres.store import PostgresStorage, told_of
from dejaq.storage.steps import Transaction

# Versions of the shard with ordinal n are n modulo this, so that no two shards give the same.
STRIDE = 256
# Its large bodies are numbered from here on, n times.
LARGE_STRIDE = 1 << 48
_PARCELS_MAX = 500


@dataclass(frozen=True, slots=True)
class Stretch:
    """Records of a shard, `count` from its `start` on, which are those from `first` on of the journal of all."""

    first: int
    start: int
    count: int
    shard: int

    @property
    def last(self) -> int:
        """The last number of the whole."""
        return self.first + self.count - 1


class PostgresShard(PostgresStorage):
    """A store that is one of several."""

    def __init__(self, dsn: str, *, name: str, ordinal: int, **options: Any) -> None:
        super().__init__(dsn, **options)
        self.name = name
        self.ordinal = ordinal
        self.bodies.first = ordinal * LARGE_STRIDE
        # What another process left is brought too.
        self._has_sent = True

    @property
    def address(self) -> str:
        """Where it is, without a password."""
        return str(self._address)

    @property
    def schema(self) -> str:
        """The schema that it has in its database."""
        return self._address.schema

    async def connect(self) -> asyncpg.Connection:
        """A connection of one's own, to be closed; raises as the other calls do."""
        try:
            return await self._database.connect()
        except DRIVER_ERRORS as error:
            raise failure_of(error, self._address) from None

    async def look(self, work: Work[Result]) -> Result:
        """Read something in one view."""
        return await self._database.look(work)

    def forget(self) -> None:
        """Know nothing of leases and sessions but what the tables say: buckets came or went."""
        self._forget()

    def set_away(self, away: Away | None) -> None:
        """Say which buckets are on another shard; None where there is no other."""
        self._away = away

    # Being one of several

    async def _check_place(self) -> None:
        """See to it that it is this shard and no other."""
        try:
            await self._database.change(self._enlist)
        except ClusterRefused:
            await self._database.close()
            raise

    async def _enlist(self, link: Link) -> None:
        mine = {"name": self.name, "ordinal": self.ordinal, "of": []}
        told = await told_of(link)
        if told is None:
            # One broker after the other: the sequence cannot be read while another gives it a new step.
            await link.execute("lock_identity")
            told = await told_of(link)
        if told is not None and told == mine | {"of": told["of"]}:
            return
        if told is not None:
            raise ClusterRefused(
                f"the store at {self._address} is shard {told['name']!r} of its cluster, not {self.name!r}; "
                "give each shard the address it had"
            )
        # Whatever was numbered before is below what is numbered from now on.
        last: int = await link.value("last_version")
        await link.connection.execute(f"ALTER SEQUENCE version INCREMENT BY {STRIDE}")
        await link.connection.execute("SELECT setval('version', $1)", (last // STRIDE + 1) * STRIDE + self.ordinal)
        await link.execute("put_shard", json.dumps(mine))

    async def note(self, names: Sequence[str]) -> None:
        """Keep which shards it is one of."""
        mine = {"name": self.name, "ordinal": self.ordinal, "of": list(names)}
        await self._database.step(lambda link: link.execute("put_shard", json.dumps(mine)))

    async def noted(self) -> list[str]:
        """The shards that it was told to be one of."""
        told = await self._database.read(told_of)
        return list(told["of"]) if told is not None else []

    # Looking

    async def peek(self, topic: Topic, request: LeaseRequest, now: int) -> tuple[int, list[tuple[int, int, int]]]:
        """How far its versions are; and (ts, priority, size) of what a lease would take, in its order."""
        until = now if topic.by_priority else max(request.until, now)
        query = leasing.over("peek", len(request.buckets), topic.by_priority)
        places = places_of(topic, request.buckets)

        async def look(link: Link) -> tuple[int, list[tuple[int, int, int]]]:
            found = await link.connection.fetch(query, topic.number, places, until, now, request.rows_max)
            last: int = await link.value("last_version") if found else 0
            return last, [(ts, priority, size) for ts, priority, size in found]

        return await self._database.step(look)

    async def put_back(self, topic: Topic, now: int) -> None:
        """Put what was lost where its topic's back-off says."""
        await self._change(topic, now, leasing.lapse)

    async def keep_up(self, version: int) -> None:
        """Give only versions above this one from now on."""

        async def leap(link: Link) -> None:
            # One after the other: who looked before another leapt would set the sequence back.
            await link.execute("lock_identity")
            await link.execute("keep_up", version, STRIDE, self.ordinal)

        if await self._database.read(lambda link: link.value("last_version")) < version:
            await self._database.change(leap)

    async def ticket(self) -> int:
        """The last ticket that a record took."""
        last: int = await self._database.read(lambda link: link.value("last_ticket"))
        return last

    async def keep_up_ticket(self, ticket: int) -> None:
        """Give only tickets above this one from now on."""

        async def leap(link: Link) -> None:
            await link.execute("lock_identity")
            await link.execute("keep_up_ticket", ticket)

        if await self.ticket() < ticket:
            await self._database.change(leap)

    async def rows_behind(
        self, topic: Topic, where: Filter, cursor: bytes | None, limit: int, now: int
    ) -> list[asyncpg.Record]:
        """The rows of a page, in order, and one more where there are more."""
        return await self._database.look(lambda link: querying.rows_behind(link, topic, where, cursor, limit, now))

    async def there(self, topic: Topic, ids: Sequence[str], *, listed: bool = False) -> set[str]:
        """Which of the ids the topic has here; with `listed` only as natural ones."""
        keys = list(ids) if listed else candidates(ids)
        found = await self._database.read(lambda link: link.fetch("get_keys", topic.number, keys))
        return {id_of(record["id"]) for record in found}

    async def lease_keys(self, topic: Topic, lease_id: int) -> list[str] | None:
        """The keys of a lease by row number, empty where a row is not here; None where it is not known."""
        text: str | None = await self._database.read(lambda link: link.value("lease_keys", topic.number, lease_id))
        return None if text is None else LeaseKeys.unpack(text).listed()

    async def has_done(self, transaction: Transaction) -> bool:
        """Whether a transaction was done here."""
        name = transaction.session.pack()
        packed: bytes | None = await self._database.read(lambda link: link.value("seen", 0, name))
        return packed is not None and bool(ranges.within(unpack(packed), transaction.sequence, 1))

    # Parcels

    async def parcels(self) -> list[Parcel]:
        """Messages that have left and are not known to have arrived, the oldest first."""
        records = await self._database.read(lambda link: link.fetch("parcels", _PARCELS_MAX))
        self._has_sent = len(records) == _PARCELS_MAX
        return [Parcel(**dict(record)) for record in records]

    @property
    def has_sent(self) -> bool:
        """Whether there may be parcels."""
        return self._has_sent

    async def forget_parcels(self, parcels: Sequence[Parcel]) -> None:
        """They have arrived."""
        numbers = [parcel.number for parcel in parcels]
        await self._database.step(lambda link: link.execute("drop_parcels", numbers))

    async def receive(self, topic: Topic, parcels: Sequence[Parcel], now: int, lost: Collection[bytes] = ()) -> None:
        """Take messages in, each once; one whose id is taken gets another. A topic that is gone takes nothing.

        Raises UNAVAILABLE where a large body is not here that one refers to, unless that is `lost` everywhere.
        """
        await self._change(topic, now, lambda change: receive(change, parcels, lost))

    async def drop_topic(
        self, topic: Topic, now: int, *, before_telling: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Remove everything of a topic, and what is on its way to it."""
        await super().drop_topic(topic, now, before_telling=before_telling)
        await self._database.step(lambda link: link.execute("drop_parcels_to", topic.number))

    # The journal

    async def told(self) -> int:
        """The number of the last record of this shard."""
        return await self._journal.last() if self._journal is not None else 0

    async def merge(self, told: Mapping[int, int]) -> list[Stretch]:
        """The stretches of the journal of all shards, with one for what each has told since."""
        origin = self._journal.origin if self._journal is not None else None
        if origin is None:
            return []

        async def merge(link: Link) -> list[Stretch]:
            await link.value("lock_origin", origin)
            stretches = [Stretch(**dict(record)) for record in await link.fetch("merges", origin)]
            known = {stretch.shard: stretch.start + stretch.count - 1 for stretch in stretches}
            for shard, last in sorted(told.items()):
                fresh = last - known.get(shard, 0)
                if fresh > 0:
                    first = stretches[-1].last + 1 if stretches else 1
                    stretches.append(Stretch(first, known.get(shard, 0) + 1, fresh, shard))
                    await link.execute("put_merge", origin, first, stretches[-1].start, fresh, shard)
            return stretches

        return await self._database.change(merge)

    async def forget_stretches(self, first: Sequence[int]) -> None:
        """Nobody reads these any more."""
        origin = self._journal.origin if self._journal is not None else None
        await self._database.step(lambda link: link.execute("drop_merges", origin, first))
