"""The shared store: the storage contract on PostgreSQL."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from weakref import WeakSet

import asyncpg

from dejaq import limits
from dejaq.domain.batch import CreateBatch, LeaseRequest, LeaseSet, Outcomes
from dejaq.domain.changes import Cancel, Change, Create, Delete, Edit, Recall
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Durability, Topic
from dejaq.domain.topic_record import topic_of
from dejaq.errors import ClusterRefused, Code, Refused, error_of
from dejaq.storage.base import Capabilities
from dejaq.storage.grouping import attempt, grouped
from dejaq.storage.postgres.connection import schema
from dejaq.storage.postgres.connection.address import Address
from dejaq.storage.postgres.connection.database import PostgresDatabase, PostgresLink
from dejaq.storage.postgres.connection.failures import DRIVER_ERRORS, failure_of
from dejaq.storage.postgres.connection.identity import identify, shard_record
from dejaq.storage.postgres.create_queue import CreateQueue
from dejaq.storage.postgres.journal import PostgresJournal
from dejaq.storage.postgres.leases import PostgresLeases
from dejaq.storage.postgres.log.store import PostgresLogs
from dejaq.storage.postgres.operations import applying, creating, leasing, plain_owning, transacting
from dejaq.storage.postgres.operations.change import Away, places_of
from dejaq.storage.postgres.operations.change import TopicTransaction as Changing
from dejaq.storage.postgres.operations.counting import WrittenSizes
from dejaq.storage.postgres.operations.creating import BatchCounters
from dejaq.storage.postgres.operations.joint_creating import CreateGroup, PlannedCreate, create_all
from dejaq.storage.postgres.operations.uploading import PostgresBodies
from dejaq.storage.postgres.queries import SQL
from dejaq.storage.postgres.reading.answering import PostgresQueries
from dejaq.storage.postgres.upkeep import SCATTERED_ROWS, Upkeep
from dejaq.storage.transactions import Transaction, Verdict
from dejaq.storage.used_sequences import UsedSequences

Result = TypeVar("Result")

CONNECTIONS_DEFAULT = 8
# A failover takes some seconds; after this time, clients receive an error.
PATIENCE_MS_DEFAULT = 10_000
# A larger body gets a separate call first when it may exist already.
CAPABILITIES = Capabilities(
    name="postgres", durable=True, shared=True, shares_bodies=True, shared_inline_bytes_max=32 * 1024
)
# A topic's number and a bucket's number share one integer of the server.
_TOPIC_NUMBER_MAX = 2**31 // limits.BUCKETS_MAX - 1
_SESSIONS_KNOWN_MAX = 10_000


class PostgresStorage(PostgresQueries):
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
        """With `journal`, the name of this broker's journal, every change is recorded there."""
        self._address = Address(dsn, cluster)
        self._database = PostgresDatabase(self._address, connections=connections, patience_ms=patience_ms)
        self._journal = PostgresJournal(self._database, journal) if journal is not None else None
        self._upkeep = Upkeep(self._database)
        self.bodies = PostgresBodies(self._database, self._upkeep.removed_large)
        self.logs = PostgresLogs(self._database)
        # A cache of the values that this process wrote and read last. The statements check it.
        self._sessions: OrderedDict[tuple[int, bytes], UsedSequences] = OrderedDict()
        self._leases = PostgresLeases(self._database, self._change, self._begin, self._written)
        self._creates = CreateQueue(
            self._known_session,
            self._create_all,
            self._create_one,
            statements_max=max(1, connections // 2),
        )
        # Set by a shard: the buckets that are on another shard.
        self._away: Away | None = None
        self._has_sent = False
        self._snapshots = WeakSet()
        self._identity = ""

    @property
    def capabilities(self) -> Capabilities:
        """Durable, and for several brokers."""
        return CAPABILITIES

    @property
    def identity(self) -> str:
        """The permanent name of this store; known while it is open."""
        return self._identity

    # Lifecycle

    def announce(self, name: str) -> None:
        """Use this name for the connections."""
        self._database.name = name

    async def users(self, prefix: str) -> list[tuple[str, str]]:
        """The names of the connections to this database, and the addresses of their clients."""
        rows = await self._database.read(lambda link: link.fetch("users", prefix))
        return [(row["name"], row["place"]) for row in rows]

    async def open(self, now: int) -> None:
        """Connect to the server and check its schema; an empty database gets a schema."""
        try:
            await self._database.open(lambda connection: schema.check(connection, self._address))
        except DRIVER_ERRORS as error:
            raise failure_of(error, self._address) from None
        self._identity = await self._database.change(identify)
        await self._check_place()
        if self._journal is not None:
            await self._journal.open()

    async def _check_place(self) -> None:
        """Ensure that this store is the whole storage, and not one of its shards."""
        record = await self._database.read(shard_record)
        names = record["of"] if record is not None else []
        if len(names) > 1:
            await self._database.close()
            raise ClusterRefused(
                f"the store at {self._address} is one of the shards {', '.join(names)}; name all of them as the storage"
            )

    async def close(self) -> None:
        """Finish the calls in progress and close the connections."""
        for snapshot in self._snapshots:
            snapshot.close()
        self._snapshots.clear()
        await self._upkeep.close()
        await self._database.close()
        self._forget()

    @property
    def failure(self) -> str | None:
        """The reason why no requests are accepted, or None."""
        return self._database.failure

    @property
    def corrupt(self) -> bool:
        """Whether the server has reported damage since it was connected; it may be repaired while the broker waits."""
        return self._database.corrupt

    async def recover(self, now: int) -> None:
        """Connect to the server again; raises while it does not accept writes."""
        if self._database.failure is not None:
            self._forget()
            await self.open(now)

    def _forget(self) -> None:
        self._leases.forget()
        self._sessions.clear()
        self.logs.forget()

    def stats(self) -> dict[str, float]:
        """Numbers for the metrics."""
        return self._upkeep.stats() | self.logs.stats() | self.journal_stats()

    def journal_stats(self) -> dict[str, float]:
        """Those of the journal."""
        return self._journal.stats() if self._journal is not None else {}

    async def _change(
        self,
        topic: Topic,
        now: int,
        context: CallContext,
        work: Callable[[Changing], Awaitable[Result]],
        *,
        rows: int = 0,
    ) -> Result:
        """Run `work` as one change; it leaves `rows` dead rows in the tables."""
        size = listed = 0

        async def make(link: PostgresLink) -> Result:
            nonlocal size, listed
            change = self._begin(link, topic, now, context)
            result = await work(change)
            size = await change.finish()
            listed = change.gathered.listed
            self._has_sent |= change.gathered.sent
            return result

        result = await self._database.change(make, relaxed=topic.settings.durability is Durability.RELAXED)
        self._written(size, rows, now, listed)
        return result

    def _begin(self, link: PostgresLink, topic: Topic, now: int, context: CallContext) -> Changing:
        origin = self._journal.origin if self._journal is not None else None
        return Changing.begin(link, topic, now, context, origin, self._away)

    def _written(self, size: int, rows: int, now: int, listed: int = 0) -> None:
        """A change wrote a record of this size, and left so many dead rows."""
        if size and self._journal is not None:
            self._journal.written(size)
        self._upkeep.changed(rows, now, listed=listed)

    # Topics

    async def topics(self) -> list[Topic]:
        """Every topic, by number."""
        return list(map(_topic, await self._database.read(lambda link: link.fetch("topics"))))

    async def put_topic(self, topic: Topic, context: CallContext) -> None:
        """Write a topic's record."""
        settings = json.dumps(topic.settings_record(), sort_keys=True)
        row = (topic.number, topic.name, str(topic.state), topic.created_ms, settings)

        async def put(link: PostgresLink) -> None:
            try:
                await link.execute("put_topic", *row)
            except asyncpg.UniqueViolationError:
                raise error_of(Code.TOPIC_EXISTS, f"another topic is named {topic.name!r}") from None

        await self._database.step(put)

    async def next_topic_number(self) -> int:
        """The next number."""
        number: int = await self._database.read(lambda link: link.value("next_topic_number"))
        if number > _TOPIC_NUMBER_MAX:
            raise error_of(
                Code.LIMIT_EXCEEDED,
                f"the store at {self._address} has had {_TOPIC_NUMBER_MAX:,} topics, which is all it can number; "
                "use another schema for new ones",
            )
        return number

    async def drop_topic(
        self,
        topic: Topic,
        now: int,
        context: CallContext,
        *,
        before_telling: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Remove everything of a topic, its record last, so that an interrupted drop is repeated."""

        async def drop(link: PostgresLink) -> bool:
            places = places_of(topic, range(limits.BUCKETS_MAX))
            answer: str = await link.connection.execute(SQL["drop_messages"], places)
            if answer == "DELETE 0" and topic.settings.dedup_ms:
                answer = await link.connection.execute(SQL["drop_created"], places)
            return answer != "DELETE 0"

        while await self._database.read(drop):
            pass
        if topic.is_log:
            await self.logs.drop(topic)

        if before_telling is not None:
            await before_telling()

        async def end(change: Changing) -> None:
            if await change.link.value("drop_topic", topic.number) is not None and change.outbox is not None:
                change.outbox.dropped(topic.name)

        await self._change(topic, now, context, end)
        # Rows that were created before the record was removed.
        while await self._database.read(drop):
            pass
        if topic.is_log:
            await self.logs.drop(topic)
        self._sessions = OrderedDict((key, seen) for key, seen in self._sessions.items() if key[0] != topic.number)

    # Changes

    async def apply(self, changes: Sequence[Change], now: int, context: CallContext) -> list[Outcomes | Refused]:
        """Apply each change separately; consecutive deletes of one consumer share a commit."""
        answers: list[Outcomes | Refused] = []
        for group in grouped(changes):
            if isinstance(group[0], Delete):
                deletes = [one for one in group if isinstance(one, Delete)]
                answers += await self._leases.delete(deletes, now, context)
            elif isinstance(change := group[0], Recall):
                answers.append(answer := await self._leases.recall(change, now, context))
                if isinstance(answer, Outcomes):
                    self._upkeep.changed(applying.rows_changed(change, answer), now)
            else:
                answers += [await attempt(self._apply(change, now, context)) for change in group]
        return answers

    async def _apply(self, change: Change, now: int, context: CallContext) -> Outcomes:
        if isinstance(change, Create):
            return await self.create(change.topic, change.batch, now, context)
        if isinstance(change, Edit | Cancel) and plain_owning.is_plain(change):
            try:
                return await self._change_all(change, now, context)
            except plain_owning.NotAll:
                # Each row is decided by itself.
                pass
        outcomes = await self._change(
            change.topic, now, context, lambda changing: applying.apply(changing, change, self._leases.keys_of)
        )
        self._upkeep.changed(applying.rows_changed(change, outcomes), now)
        return outcomes

    async def _change_all(self, change: Edit | Cancel, now: int, context: CallContext) -> Outcomes:
        """Change all messages of an owner's change in one statement; raises `NotAll`."""
        if isinstance(change, Edit) and not plain_owning.is_one_statement(change):
            owner, edits = change.owner, change.edits
            outcomes = await self._change(
                change.topic, now, context, lambda changing: plain_owning.edit_all(changing, owner, edits)
            )
            self._upkeep.changed(outcomes.count // SCATTERED_ROWS, now)
            return outcomes
        written = WrittenSizes(0, 0)

        async def work(link: PostgresLink) -> None:
            nonlocal written
            changing = self._begin(link, change.topic, now, context)
            if isinstance(change, Edit):
                written = await plain_owning.move_all(changing, change.owner, change.edits)
            else:
                written = await plain_owning.cancel_all(changing, change.owner, change.ids, change.versions)

        if change.topic.settings.durability is Durability.RELAXED:
            await self._database.change(work, relaxed=True)
        else:
            await self._database.once(work)
        count = len(change.edits.ids if isinstance(change, Edit) else change.ids)
        self._written(written.record_bytes, count // SCATTERED_ROWS, now, written.listed)
        return Outcomes(count)

    async def create(
        self,
        topic: Topic,
        batch: CreateBatch,
        now: int,
        context: CallContext,
        counters: BatchCounters | None = None,
    ) -> Outcomes:
        """Create the admitted rows. The batches of one producer session are created one after the other."""
        self._database.check_working()
        return await self._creates.create(
            PlannedCreate(topic, batch, counters or BatchCounters.of(batch), now, context)
        )

    async def _create_all(self, group: CreateGroup, until_ready: Callable[[], Awaitable[None]] | None) -> None:
        plan = group.plans[0]
        origin = self._journal.origin if self._journal is not None else None

        async def make(link: PostgresLink) -> WrittenSizes:
            return await create_all(link, group, origin, until_ready)

        relaxed = plan.topic.settings.durability is Durability.RELAXED
        if relaxed or until_ready is not None:
            written = await self._database.change(make, relaxed=relaxed)
        else:
            written = await self._database.step(make)
        for session, (_, after) in group.sessions.items():
            self._know_session(session, after)
        if written.record_bytes and self._journal is not None:
            self._journal.written(written.record_bytes)
        self._upkeep.changed(0, plan.now, listed=written.listed)

    async def _create_one(self, plan: PlannedCreate) -> Outcomes:
        """Create a batch row by row."""
        outcomes, after = await self._change(
            plan.topic, plan.now, plan.context, lambda change: creating.create(change, plan.batch, plan.counters)
        )
        self._know_session(plan.session, after)
        return outcomes

    def _known_session(self, session: tuple[int, bytes]) -> UsedSequences | None:
        return self._sessions.get(session)

    def _know_session(self, session: tuple[int, bytes], used: UsedSequences) -> None:
        self._sessions.pop(session, None)
        self._sessions[session] = used
        if len(self._sessions) > _SESSIONS_KNOWN_MAX:
            self._sessions.popitem(last=False)

    # Consumer

    async def lease(
        self, topic: Topic, request: LeaseRequest, now: int, context: CallContext, joined: leasing.Joined | None = None
    ) -> LeaseSet | None:
        """Lease the due messages; requests that wait at the same time share a statement."""
        return await self._leases.lease(topic, request, now, context, joined)

    async def next_ts(self, topic: Topic, buckets: Sequence[int], now: int) -> int | None:
        """The time at which something may become due."""
        return await self._leases.next_ts(topic, buckets)

    async def load(self, topic: Topic, buckets: Sequence[int], until: int) -> None:
        """Does nothing: the server caches the data that it reads."""

    async def leases_of(self, topic: Topic, consumer: str, now: int) -> list[LeaseSet]:
        """The remaining rows of a consumer's live leases."""
        return await self._leases.leases_of(topic, consumer, now)

    # Transactions

    async def transact(self, transaction: Transaction, now: int, context: CallContext) -> Verdict:
        """Apply all steps, or none."""
        steps = transaction.steps
        topics = [one.topic for one in (*steps, *transaction.log_steps)]
        if not topics:
            return Verdict()
        # Acknowledged with the durability of the strictest of its topics.
        topic = next((one for one in topics if one.settings.durability is Durability.FSYNC), topics[0])
        try:
            verdict = await self._change(
                topic, now, context, lambda change: transacting.transact(change, transaction, self._leases.keys_of)
            )
        except transacting.RefusedTransaction as refused:
            # The rollback also removed the records of the leases that expired.
            for topic in transacting.topics_to_expire(transaction):
                await self._change(topic, now, context, leasing.expire_leases)
            return refused.verdict
        for step in steps:
            if isinstance(step, Create):
                self._sessions.pop((step.topic.number, step.batch.session.pack()), None)
        self._upkeep.changed(len(steps), now)
        return verdict

    # The journal

    async def journal(self, after: int, bytes_max: int) -> list[bytes]:
        """The records of this broker after a sequence."""
        return await self._journal.read(after, bytes_max) if self._journal is not None else []

    async def trim_journal(self, up_to: int) -> None:
        """Remove the records of this broker up to a sequence."""
        if self._journal is not None:
            await self._journal.trim(up_to)


def _topic(record: asyncpg.Record) -> Topic:
    return topic_of({**record, "settings": json.loads(record["settings"])})
