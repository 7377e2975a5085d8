"""One PostgreSQL store as a shard of a storage: the functions that only other shards need."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg

from dejaq.domain.batch import LeaseRequest
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic
from dejaq.errors import ClusterRefused, DejaqError
from dejaq.storage.base import Filter
from dejaq.storage.postgres.connection.database import PostgresLink, Result, Work
from dejaq.storage.postgres.connection.failures import DRIVER_ERRORS, failure_of
from dejaq.storage.postgres.connection.identity import shard_record
from dejaq.storage.postgres.keys import LeaseKeys, candidates, id_of
from dejaq.storage.postgres.operations import leasing
from dejaq.storage.postgres.operations.change import Away, places_of
from dejaq.storage.postgres.reading import querying
from dejaq.storage.postgres.sharding.transfers import Transfer, receive
from dejaq.storage.postgres.store import PostgresStorage
from dejaq.storage.transactions import Transaction
from dejaq.storage.used_sequences import UsedSequences

# The versions of the shard with ordinal n are n modulo this number, so that no two shards create the same version.
STRIDE = 256
# Large bodies of the shard with ordinal n are numbered from n times this number on.
LARGE_STRIDE = 1 << 48
_TRANSFERS_MAX = 500


@dataclass(frozen=True, slots=True)
class PostgresStretch:
    """`count` records of a shard from its `start` on; in the merged journal they are numbered from `first` on."""

    first: int
    start: int
    count: int
    shard: int

    @property
    def last(self) -> int:
        """The last number in the merged journal."""
        return self.first + self.count - 1


class PostgresShard(PostgresStorage):
    """A store that is one of several shards."""

    def __init__(self, dsn: str, *, name: str, ordinal: int, **options: Any) -> None:
        super().__init__(dsn, **options)
        self.name = name
        self.ordinal = ordinal
        self.bodies.first = ordinal * LARGE_STRIDE
        # Transfers that another process has left are completed too.
        self._has_sent = True

    @property
    def address(self) -> str:
        """Its address without a password."""
        return str(self._address)

    @property
    def schema(self) -> str:
        """Its schema in its database."""
        return self._address.schema

    async def connect(self) -> asyncpg.Connection:
        """A separate connection, which the caller closes; raises the same errors as the other calls."""
        try:
            return await self._database.connect()
        except DRIVER_ERRORS as error:
            raise failure_of(error, self._address) from None

    def failure_of(self, error: BaseException) -> DejaqError:
        """The error of the storage contract for an error of the driver."""
        return failure_of(error, self._address)

    async def look(self, work: Work[Result]) -> Result:
        """Read in one view."""
        return await self._database.look(work)

    def forget(self) -> None:
        """Forget all cached leases and sessions, because buckets moved."""
        self._forget()

    def set_away(self, away: Away | None) -> None:
        """Set the buckets that are on another shard; None when there is no other shard."""
        self._away = away

    # Being one of several shards

    async def _check_place(self) -> None:
        """Ensure that the store is this shard and no other."""
        try:
            await self._database.change(self._enlist)
        except ClusterRefused:
            await self._database.close()
            raise

    async def _enlist(self, link: PostgresLink) -> None:
        mine = {"name": self.name, "ordinal": self.ordinal, "of": []}
        stored = await shard_record(link)
        if stored is None:
            # One broker after the other: the sequence cannot be read while another broker changes its step.
            await link.execute("lock_identity")
            stored = await shard_record(link)
        if stored is not None and stored == mine | {"of": stored["of"]}:
            return
        if stored is not None:
            raise ClusterRefused(
                f"the store at {self._address} is shard {stored['name']!r} of its cluster, not {self.name!r}; "
                "give each shard the address it had"
            )
        # All earlier numbers are below the numbers from now on.
        last: int = await link.value("last_version")
        await link.connection.execute(f"ALTER SEQUENCE version INCREMENT BY {STRIDE}")
        await link.connection.execute("SELECT setval('version', $1)", (last // STRIDE + 1) * STRIDE + self.ordinal)
        await link.execute("put_shard", json.dumps(mine))

    async def note(self, names: Sequence[str]) -> None:
        """Record the shards of the storage."""
        mine = {"name": self.name, "ordinal": self.ordinal, "of": list(names)}
        await self._database.step(lambda link: link.execute("put_shard", json.dumps(mine)))

    async def noted(self) -> list[str]:
        """The recorded shards of the storage."""
        stored = await self._database.read(shard_record)
        return list(stored["of"]) if stored is not None else []

    # Reading

    async def peek(self, topic: Topic, request: LeaseRequest, now: int) -> tuple[int, list[tuple[int, int, int]]]:
        """Its highest version; and (ts, priority, size) of the rows that a lease would take, in order."""
        until = now if topic.by_priority else max(request.until, now)
        query = leasing.over("peek", len(request.buckets), topic.by_priority)
        places = places_of(topic, request.buckets)

        async def look(link: PostgresLink) -> tuple[int, list[tuple[int, int, int]]]:
            found = await link.connection.fetch(query, topic.number, places, until, now, request.rows_max)
            last: int = await link.value("last_version") if found else 0
            return last, [(ts, priority, size) for ts, priority, size in found]

        return await self._database.step(look)

    async def expire_leases(self, topic: Topic, now: int, context: CallContext) -> None:
        """Put messages of expired leases at the times that the topic's back-off computes."""
        await self._change(topic, now, context, leasing.expire_leases)

    async def keep_up(self, version: int) -> None:
        """Use only versions above this one from now on."""

        async def leap(link: PostgresLink) -> None:
            # One process at a time: a process with an older value would set the sequence back.
            await link.execute("lock_identity")
            await link.execute("keep_up", version, STRIDE, self.ordinal)

        if await self._database.read(lambda link: link.value("last_version")) < version:
            await self._database.change(leap)

    async def ticket(self) -> int:
        """The last ticket that a record used."""
        last: int = await self._database.read(lambda link: link.value("last_ticket"))
        return last

    async def keep_up_ticket(self, ticket: int) -> None:
        """Use only tickets above this one from now on."""

        async def leap(link: PostgresLink) -> None:
            await link.execute("lock_identity")
            await link.execute("keep_up_ticket", ticket)

        if await self.ticket() < ticket:
            await self._database.change(leap)

    async def rows_behind(
        self, topic: Topic, where: Filter, cursor: bytes | None, limit: int, now: int
    ) -> list[asyncpg.Record]:
        """The rows of a page, in order, and one more row when there are more."""
        return await self._database.look(lambda link: querying.rows_behind(link, topic, where, cursor, limit, now))

    async def there(self, topic: Topic, ids: Sequence[str], *, listed: bool = False) -> set[str]:
        """The ids that exist in the topic on this shard; with `listed` only as natural ids."""
        keys = list(ids) if listed else candidates(ids)
        found = await self._database.read(lambda link: link.fetch("get_keys", topic.number, keys))
        return {id_of(record["id"]) for record in found}

    async def lease_keys(self, topic: Topic, lease_id: int) -> list[str] | None:
        """The keys of a lease by row number, empty when a row is on another shard; None when the lease is not known."""
        text: str | None = await self._database.read(lambda link: link.value("lease_keys", topic.number, lease_id))
        return None if text is None else LeaseKeys.unpack(text).listed()

    async def has_done(self, transaction: Transaction) -> bool:
        """Whether a transaction was committed here."""
        name = transaction.session.pack()
        packed: bytes | None = await self._database.read(lambda link: link.value("seen", 0, name))
        if packed is None:
            return False
        return bool(UsedSequences.unpack(packed).rows(transaction.sequence, 1, transaction.check))

    # Transfers

    async def transfers(self) -> list[Transfer]:
        """Messages that have left and are not known to have arrived, the oldest first."""
        records = await self._database.read(lambda link: link.fetch("transfers", _TRANSFERS_MAX))
        self._has_sent = len(records) == _TRANSFERS_MAX
        return [Transfer(**dict(record)) for record in records]

    @property
    def has_sent(self) -> bool:
        """Whether there may be transfers."""
        return self._has_sent

    async def forget_transfers(self, transfers: Sequence[Transfer]) -> None:
        """Remove the records of transfers that have arrived."""
        numbers = [transfer.number for transfer in transfers]
        await self._database.step(lambda link: link.execute("drop_transfers", numbers))

    async def receive(
        self, topic: Topic, transfers: Sequence[Transfer], now: int, context: CallContext, lost: Collection[bytes] = ()
    ) -> None:
        """Add messages, each once; a message whose id is taken gets another id. A topic that is gone accepts nothing.

        Raises UNAVAILABLE when a large body that a message refers to is not here, unless it is `lost` everywhere.
        """
        await self._change(topic, now, context, lambda change: receive(change, transfers, lost))

    async def drop_topic(
        self,
        topic: Topic,
        now: int,
        context: CallContext,
        *,
        before_telling: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Remove everything of a topic, and the transfers to it."""
        await super().drop_topic(topic, now, context, before_telling=before_telling)
        await self._database.step(lambda link: link.execute("drop_transfers_to", topic.number))

    # The journal

    async def last_record(self) -> int:
        """The number of the last record of this shard."""
        return await self._journal.last() if self._journal is not None else 0

    async def merge(self, stored: Mapping[int, int]) -> list[PostgresStretch]:
        """The ranges of the merged journal, with a new range for the records that each shard has stored since."""
        origin = self._journal.origin if self._journal is not None else None
        if origin is None:
            return []

        async def merge(link: PostgresLink) -> list[PostgresStretch]:
            await link.value("lock_origin", origin)
            stretches = [PostgresStretch(**dict(record)) for record in await link.fetch("merges", origin)]
            known = {stretch.shard: stretch.start + stretch.count - 1 for stretch in stretches}
            for shard, last in sorted(stored.items()):
                fresh = last - known.get(shard, 0)
                if fresh > 0:
                    first = stretches[-1].last + 1 if stretches else 1
                    stretches.append(PostgresStretch(first, known.get(shard, 0) + 1, fresh, shard))
                    await link.execute("put_merge", origin, first, stretches[-1].start, fresh, shard)
            return stretches

        return await self._database.change(merge)

    async def forget_stretches(self, first: Sequence[int]) -> None:
        """Forget ranges that are no longer needed."""
        origin = self._journal.origin if self._journal is not None else None
        await self._database.step(lambda link: link.execute("drop_merges", origin, first))
