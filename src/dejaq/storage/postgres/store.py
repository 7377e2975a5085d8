"""The shared store: the storage contract on PostgreSQL."""

from __future__ import annotations

import json
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from weakref import WeakSet

import asyncpg

from dejaq import limits
from dejaq.domain.batch import CreateBatch, Deletion, LeaseRequest, LeaseSet, Outcomes, RowRange, whole
from dejaq.domain.message import Message
from dejaq.domain.topic import Durability, Topic
from dejaq.domain.topic_record import topic_of
from dejaq.errors import ClusterRefused, Code, error_of
from dejaq.storage.base import Capabilities, Edits, Filter, Holder, Page, outermost
from dejaq.storage.postgres import burying, creating, leasing, owning, querying, schema, settling, transacting
from dejaq.storage.postgres.address import Address
from dejaq.storage.postgres.change import Away, Change, places_of
from dejaq.storage.postgres.database import Database, Link
from dejaq.storage.postgres.failures import DRIVER_ERRORS, failure_of
from dejaq.storage.postgres.journal import PostgresJournal
from dejaq.storage.postgres.keys import LeaseKeys
from dejaq.storage.postgres.queries import SQL
from dejaq.storage.postgres.snapshot import PostgresSnapshot
from dejaq.storage.postgres.turns import Turns
from dejaq.storage.postgres.upkeep import Upkeep
from dejaq.storage.postgres.uploading import PostgresBodies
from dejaq.storage.steps import CreateStep, Transaction, Verdict

Result = TypeVar("Result")

CONNECTIONS_DEFAULT = 8
# A failover takes a cluster some seconds; what lasts longer is told to the clients.
PATIENCE_MS_DEFAULT = 10_000
# A larger body is worth a call of its own when it may be there already.
CAPABILITIES = Capabilities(
    name="postgres", durable=True, shared=True, shares_bodies=True, shared_inline_bytes_max=32 * 1024
)
_LEASES_KNOWN_MAX = 10_000
_SESSIONS_KNOWN_MAX = 10_000


class PostgresStorage:
    """Topics and messages in one schema of a database, which any number of brokers may use at once."""

    def __init__(
        self,
        dsn: str,
        *,
        cluster: str = "dejaq",
        journal: str | None = None,
        connections: int = CONNECTIONS_DEFAULT,
        patience_ms: int = PATIENCE_MS_DEFAULT,
    ) -> None:
        """With `journal`, the name of this broker's own, every change is recorded there."""
        self._address = Address(dsn, cluster)
        self._database = Database(self._address, connections=connections, patience_ms=patience_ms)
        self._journal = PostgresJournal(self._database, journal) if journal is not None else None
        self._upkeep = Upkeep(self._database)
        self.bodies = PostgresBodies(self._database)
        # Caches: what this process gave and got last. The statements check what they say.
        self._leases: OrderedDict[int, tuple[int, LeaseKeys]] = OrderedDict()
        self._sessions: OrderedDict[tuple[int, bytes], creating.Ranges] = OrderedDict()
        self._turns = Turns()
        # Set by a shard: which buckets are on another one.
        self._away: Away | None = None
        self._has_sent = False
        self._snapshots: WeakSet[PostgresSnapshot] = WeakSet()
        self._identity = ""

    @property
    def capabilities(self) -> Capabilities:
        """Durable, and for several brokers."""
        return CAPABILITIES

    @property
    def identity(self) -> str:
        """What this store is called, once and for all; known when it is open."""
        return self._identity

    # Life

    async def open(self, now: int) -> None:
        """Reach the server and check its schema, which an empty database is given."""
        try:
            await self._database.open(lambda connection: schema.check(connection, self._address))
        except DRIVER_ERRORS as error:
            raise failure_of(error, self._address) from None
        self._identity = await self._database.change(_identify)
        await self._check_place()
        if self._journal is not None:
            await self._journal.open()

    async def _check_place(self) -> None:
        """See to it that this is all of the storage, and not one of its shards."""
        told = await self._database.read(told_of)
        names = told["of"] if told is not None else []
        if len(names) > 1:
            await self._database.close()
            raise ClusterRefused(
                f"the store at {self._address} is one of the shards {', '.join(names)}; name all of them as the storage"
            )

    async def close(self) -> None:
        """Finish what is under way and leave the server."""
        for snapshot in self._snapshots:
            snapshot.close()
        self._snapshots.clear()
        await self._upkeep.close()
        await self._database.close()
        self._forget()

    @property
    def failure(self) -> str | None:
        """Why nothing is taken, or None."""
        return self._database.failure

    async def recover(self, now: int) -> None:
        """Reach the server anew; raises while it does not take writes."""
        if self._database.failure is not None:
            self._forget()
            await self.open(now)

    def _forget(self) -> None:
        self._leases.clear()
        self._sessions.clear()

    def stats(self) -> dict[str, float]:
        """Numbers for the metrics."""
        figures: dict[str, float] = {"retries": self._database.retries, "vacuums": self._upkeep.vacuums}
        return figures | (self._journal.stats() if self._journal is not None else {})

    async def _change(
        self, topic: Topic, now: int, work: Callable[[Change], Awaitable[Result]], *, rows: int = 0
    ) -> Result:
        """Do `work` as one change; `rows` are left behind by it."""
        origin = self._journal.origin if self._journal is not None else None
        size = 0

        async def make(link: Link) -> Result:
            nonlocal size
            change = Change.begin(link, topic, now, origin, self._away)
            result = await work(change)
            size = await change.finish()
            self._has_sent |= change.gathered.sent
            return result

        result = await self._database.change(make, relaxed=topic.settings.durability is Durability.RELAXED)
        if size and self._journal is not None:
            self._journal.written(size)
        self._upkeep.changed(rows, now)
        return result

    # Topics

    async def topics(self) -> list[Topic]:
        """Every topic, by number."""
        return list(map(_topic, await self._database.read(lambda link: link.fetch("topics"))))

    async def put_topic(self, topic: Topic) -> None:
        """Write a topic's record."""
        settings = json.dumps(topic.settings_record(), sort_keys=True)
        row = (topic.number, topic.name, str(topic.state), topic.created_ms, settings)

        async def put(link: Link) -> None:
            try:
                await link.execute("put_topic", *row)
            except asyncpg.UniqueViolationError:
                raise error_of(Code.TOPIC_EXISTS, f"another topic is named {topic.name!r}") from None

        await self._database.step(put)

    async def next_topic_number(self) -> int:
        """Count one up."""
        number: int = await self._database.read(lambda link: link.value("next_topic_number"))
        return number

    async def drop_topic(
        self, topic: Topic, now: int, *, before_telling: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Remove everything of a topic, its record last, so that a drop that was cut is done again."""

        async def drop(link: Link) -> bool:
            places = places_of(topic, range(limits.BUCKETS_MAX))
            answer: str = await link.connection.execute(SQL["drop_messages"], places)
            return answer != "DELETE 0"

        while await self._database.read(drop):
            pass

        if before_telling is not None:
            await before_telling()

        async def end(change: Change) -> None:
            if await change.link.value("drop_topic", topic.number) is not None and change.outbox is not None:
                change.outbox.dropped(topic.name)

        await self._change(topic, now, end)
        # What was created while the record still stood.
        while await self._database.read(drop):
            pass
        self._sessions = OrderedDict((key, seen) for key, seen in self._sessions.items() if key[0] != topic.number)

    # The producer's side

    async def create(
        self, topic: Topic, batch: CreateBatch, now: int, counters: creating.Counters | None = None
    ) -> Outcomes:
        """Create the admitted rows. The batches of one producer session take turns."""
        session = (topic.number, batch.session.pack())
        counters = counters or creating.Counters.of(batch)
        async with self._turns.of([session]):
            seen = self._sessions.pop(session, [])
            if creating.is_plain(batch, counters, seen):
                used = await self._create_all(topic, batch, now, counters, seen)
                if used is not None:
                    self._know_session(session, used)
                    self._upkeep.changed(0, now)
                    return Outcomes(len(batch))
            outcomes, after = await self._change(topic, now, lambda change: creating.create(change, batch, counters))
            self._know_session(session, after)
            return outcomes

    async def _create_all(
        self, topic: Topic, batch: CreateBatch, now: int, counters: creating.Counters, seen: creating.Ranges
    ) -> creating.Ranges | None:
        origin = self._journal.origin if self._journal is not None else None

        async def make(link: Link) -> tuple[creating.Ranges, int] | None:
            return await creating.create_all(link, topic, batch, now, counters=counters, seen=seen, origin=origin)

        try:
            if topic.settings.durability is Durability.RELAXED:
                done = await self._database.change(make, relaxed=True)
            else:
                done = await self._database.step(make)
        except creating.Taken:
            return None
        if done is None:
            return None
        used, size = done
        if size and self._journal is not None:
            self._journal.written(size)
        return used

    def _know_session(self, session: tuple[int, bytes], seen: creating.Ranges) -> None:
        self._sessions[session] = seen
        if len(self._sessions) > _SESSIONS_KNOWN_MAX:
            self._sessions.popitem(last=False)

    async def edit(self, topic: Topic, owner: str, edits: Edits, now: int) -> Outcomes:
        """Change messages of an owner."""
        return await self._change(topic, now, lambda change: owning.edit(change, owner, edits), rows=len(edits.ids))

    async def cancel(
        self, topic: Topic, owner: str, ids: Sequence[str], now: int, versions: Sequence[int | None] | None = None
    ) -> Outcomes:
        """Remove messages of an owner."""
        return await self._change(topic, now, lambda change: owning.cancel(change, owner, ids, versions), rows=len(ids))

    # The consumer's side

    async def lease(
        self, topic: Topic, request: LeaseRequest, now: int, joined: leasing.Joined | None = None
    ) -> LeaseSet | None:
        """Lease what is due. Calls for the same buckets take turns, so that none takes what another just skips."""
        self._database.check_working()
        if topic.by_priority:
            request = replace(request, until=now)
        if not leasing.allowed(request, now):
            return None
        async with self._turns.of([(topic.number, bucket) for bucket in request.buckets]):
            granted = await self._change(topic, now, lambda change: leasing.lease(change, request, joined))
        if granted is None:
            return None
        lease, keys = granted
        if len(keys):
            self._leases[lease.lease_id] = (topic.number, keys)
        if len(self._leases) > _LEASES_KNOWN_MAX:
            self._leases.popitem(last=False)
        self._upkeep.changed(len(lease), now)
        return lease

    async def next_ts(self, topic: Topic, buckets: Sequence[int], now: int) -> int | None:
        """When something may become due."""
        return await self._database.read(lambda link: leasing.next_ts(link, topic, buckets))

    async def load(self, topic: Topic, buckets: Sequence[int], until: int) -> None:
        """Nothing to do: the server keeps near what it is asked for."""

    async def leases_of(self, topic: Topic, consumer: str, now: int) -> list[LeaseSet]:
        """What is left of a consumer's live leases."""
        return await self._database.look(lambda link: leasing.leases_of(link, topic, consumer, now))

    async def _keys_of(self, change: Change, topic: Topic, lease_id: int) -> Sequence[str] | None:
        """The keys of a lease by row number: those we gave ourselves are at hand."""
        known = self._leases.get(lease_id)
        if known is not None:
            return known[1].listed() if known[0] == topic.number else None
        text: str | None = await change.link.value("lease_keys", topic.number, lease_id)
        return LeaseKeys.unpack(text).listed() if text is not None else None

    async def _settle(
        self,
        topic: Topic,
        lease_id: int,
        consumer: str,
        rows: Sequence[RowRange] | None,
        now: int,
        work: Callable[[Change, settling.Settlement], Awaitable[None]],
    ) -> Outcomes:
        async def settle(change: Change) -> settling.Settlement:
            keys = await self._keys_of(change, topic, lease_id)
            settlement = settling.Settlement.of(lease_id, consumer, rows, keys)
            await work(change, settlement)
            return settlement

        settlement = await self._change(topic, now, settle)
        self._upkeep.changed(len(settlement.held), now)
        return settlement.outcomes

    async def delete(
        self,
        topic: Topic,
        lease_id: int,
        consumer: str,
        rows: Sequence[RowRange] | None,
        now: int,
        handed_us: Sequence[int] = (),
    ) -> Outcomes:
        """Remove leased rows."""
        return (await self.delete_many(topic, consumer, [Deletion(lease_id, rows, handed_us)], now))[0]

    async def delete_many(self, topic: Topic, consumer: str, deletions: Sequence[Deletion], now: int) -> list[Outcomes]:
        """Remove rows of several leases: in one statement where all are held, else looked at one by one."""
        answers = await self._delete_all(topic, consumer, deletions, now)
        if answers is None:

            async def remove(change: Change) -> list[Outcomes]:
                outcomes: list[Outcomes] = []
                for one in deletions:
                    keys = await self._keys_of(change, topic, one.lease_id)
                    settlement = settling.Settlement.of(one.lease_id, consumer, one.rows, keys)
                    await settling.delete(change, settlement, one.handed_us)
                    outcomes.append(settlement.outcomes)
                return outcomes

            answers = await self._change(topic, now, remove, rows=sum(map(_asked, deletions)))
        for one, outcomes in zip(deletions, answers, strict=True):
            if one.rows is None and not outcomes.codes:
                self._leases.pop(one.lease_id, None)
        return answers

    async def _delete_all(
        self, topic: Topic, consumer: str, deletions: Sequence[Deletion], now: int
    ) -> list[Outcomes] | None:
        """Remove rows of leases that we gave, if each of them is held; None when the rows must be looked at."""
        if topic.settings.durability is Durability.RELAXED:
            return None
        removals: list[settling.Removal] = []
        answers: list[Outcomes] = []
        for one in deletions:
            number, keys = self._leases.get(one.lease_id, (0, None))
            if keys is None or number != topic.number:
                return None
            removal = settling.Removal(one.lease_id, keys.cut(whole(one.rows, len(keys))), one.handed_us)
            if len(one.handed_us) not in (0, 1, removal.count):
                return None
            removals.append(removal)
            answers.append(Outcomes(len(keys)))
        origin = self._journal.origin if self._journal is not None else None
        size = 0

        async def remove(link: Link) -> None:
            nonlocal size
            size = await settling.delete_all(Change.begin(link, topic, now, origin), consumer, removals)

        try:
            await self._database.once(remove)
        except settling.NotHeld:
            return None
        if size and self._journal is not None:
            self._journal.written(size)
        self._upkeep.changed(sum(removal.count for removal in removals), now)
        return answers

    async def extend(
        self,
        topic: Topic,
        lease_id: int,
        consumer: str,
        rows: Sequence[RowRange] | None,
        expires: int,
        now: int,
    ) -> Outcomes:
        """Move the end of leased rows."""
        return await self._settle(
            topic, lease_id, consumer, rows, now, lambda change, one: settling.extend(change, one, expires)
        )

    async def release(
        self,
        topic: Topic,
        lease_id: int,
        consumer: str,
        rows: Sequence[RowRange] | None,
        ts: int | Sequence[int],
        now: int,
        handed_us: Sequence[int] = (),
    ) -> Outcomes:
        """Put leased rows back on the timeline."""
        return await self._settle(
            topic, lease_id, consumer, rows, now, lambda change, one: settling.release(change, one, ts, handed_us)
        )

    async def recall(
        self, topic: Topic, lease_id: int, consumer: str, rows: Sequence[RowRange] | None, now: int
    ) -> Outcomes:
        """Undo the lease of rows that user code never saw."""
        return await self._settle(topic, lease_id, consumer, rows, now, settling.recall)

    # Both sides at once

    async def transact(self, transaction: Transaction, now: int) -> Verdict:
        """Do all steps, or none."""
        steps = transaction.steps
        if not steps:
            return Verdict()
        # Acknowledged when the strictest of its topics is.
        topic = next((one.topic for one in steps if one.topic.settings.durability is Durability.FSYNC), steps[0].topic)
        try:
            verdict = await self._change(
                topic, now, lambda change: transacting.transact(change, transaction, self._keys_of)
            )
        except transacting.RefusedTransaction as refused:
            # The leases that had ended were told with what is undone now.
            for topic in transacting.lapsing(transaction):
                await self._change(topic, now, leasing.lapse)
            return refused.verdict
        for step in steps:
            if isinstance(step, CreateStep):
                self._sessions.pop((step.topic.number, step.batch.session.pack()), None)
        self._upkeep.changed(len(steps), now)
        return verdict

    async def reject(
        self,
        topic: Topic,
        lease_id: int,
        consumer: str,
        rows: Sequence[RowRange] | None,
        dead_letter: Topic,
        reason: str,
        now: int,
        handed_us: Sequence[int] = (),
    ) -> Outcomes:
        """Move leased rows to the dead-letter topic."""

        async def move(change: Change, settlement: settling.Settlement) -> None:
            await burying.check_live(change, dead_letter)
            await burying.reject(change, settlement, dead_letter, reason, handed_us)

        return await self._settle(topic, lease_id, consumer, rows, now, move)

    async def redrive(self, topic: Topic, target: Topic, ids: Sequence[str], now: int) -> Outcomes:
        """Move dead letters to where they may live again."""

        async def move(change: Change) -> Outcomes:
            await burying.check_live(change, target)
            await leasing.lapse(change)
            return await burying.redrive(change, target, ids)

        return await self._change(topic, now, move, rows=len(ids))

    # The journal

    async def journal(self, after: int, bytes_max: int) -> list[bytes]:
        """The records of this broker behind a sequence."""
        return await self._journal.read(after, bytes_max) if self._journal is not None else []

    async def trim_journal(self, up_to: int) -> None:
        """Remove the records of this broker up to a sequence."""
        if self._journal is not None:
            await self._journal.trim(up_to)

    # Queries

    async def get(self, topic: Topic, ids: Sequence[str], now: int) -> list[Message | None]:
        """The messages of the ids."""
        return await self._database.read(lambda link: querying.get(link, topic, ids))

    async def holders(self, topic: Topic, ids: Sequence[str], now: int) -> list[Holder | None]:
        """Who holds the ids."""
        return await self._database.look(lambda link: owning.holders(link, topic, ids, now))

    async def count(self, topic: Topic, where: Filter, now: int) -> int:
        """How many messages match."""
        counts = await self.histogram(topic, where, 2**63, now)
        return sum(rows for _, rows in counts)

    async def histogram(self, topic: Topic, where: Filter, step: int, now: int) -> list[tuple[int, int]]:
        """Counts by step of time."""
        return await self._database.look(lambda link: querying.histogram(link, topic, where, step, now))

    async def browse(self, topic: Topic, where: Filter, cursor: bytes | None, limit: int, now: int) -> Page:
        """One page of messages."""
        return await self._database.look(lambda link: querying.browse(link, topic, where, cursor, limit, now))

    async def oldest(self, topic: Topic, now: int, count: int) -> list[tuple[int, int]]:
        """The oldest available message of each priority."""
        if topic.by_priority:
            asked = (places_of(topic), now, (count + 1) // 2)
            rows = await self._database.read(lambda link: link.fetch("outermost", *asked))
        else:
            rows = await self._database.read(lambda link: link.fetch("oldest", places_of(topic), now))
        return outermost({row["priority"]: row["ts"] for row in rows}, count)

    async def snapshot(self, topic: Topic, now: int) -> PostgresSnapshot:
        """A view of a topic, which holds a connection until it is closed or the store is."""
        self._database.check_working()
        connection = await self._database.connect()
        try:
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            counts = await querying.histogram(Link(connection, 0), topic, Filter(), 2**63, now)
        except BaseException as error:
            connection.terminate()
            if isinstance(error, DRIVER_ERRORS):
                raise failure_of(error, self._address) from None
            raise
        snapshot = PostgresSnapshot(connection, topic, now, sum(rows for _, rows in counts))
        self._snapshots.add(snapshot)
        return snapshot


def _asked(deletion: Deletion) -> int:
    """How many rows a deletion names; all of a lease count as none."""
    return sum(end - start for start, end in deletion.rows or ())


async def _identify(link: Link) -> str:
    """The store's name, which its first user gives it."""
    await link.execute("make_identity", secrets.token_hex(16))
    name: str = await link.value("identity")
    return name


async def told_of(link: Link) -> dict[str, Any] | None:
    """Which shard of which the store was told to be, if it was."""
    there = await link.value("shard")
    told: dict[str, Any] | None = json.loads(there) if there is not None else None
    return told


def _topic(record: asyncpg.Record) -> Topic:
    return topic_of({**record, "settings": json.loads(record["settings"])})
