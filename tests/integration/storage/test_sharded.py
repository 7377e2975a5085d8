"""A store of two shards: changes within one shard, changes that cross shards, and service while one shard is down."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest
from dejaq.domain.changes import Cancel, Create, Delete, Edit, Edits, Redrive, Reject, Release
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.dead_letter import Cause
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import ClusterRefused, Code, Conflict, DejaqError, Unavailable
from dejaq.storage.base import Filter, apply_one
from dejaq.storage.postgres.queries import SQL
from dejaq.storage.postgres.sharding import moving
from dejaq.storage.postgres.sharding.shard import PostgresShard
from dejaq.storage.postgres.store import PostgresStorage
from dejaq.storage.sharded.placement import ShardInfo, ShardMap, first_map
from dejaq.storage.sharded.store import ShardedStorage
from dejaq.storage.transactions import Step, Transaction
from dejaq.testing.model.replay import events_of, read_journal
from dejaq.testing.servers.postgres import PostgresServer, shared_server
from dejaq.testing.waiting import eventually
from dejaq.timekeeper.clock import SystemClock

NOW = 1_700_000_000_000
SESSION = ProducerSession(NOW, 1)
IDS = [f"m-{number}" for number in range(40)]


def storage_on(dsns: dict[str, str], cluster: str, **options: Any) -> ShardedStorage:
    def make(info: ShardInfo) -> PostgresShard:
        return PostgresShard(info.dsn, name=info.name, ordinal=info.ordinal, cluster=cluster, **options)

    return ShardedStorage(first_map(dsns), make)


@asynccontextmanager
async def opened(storage: ShardedStorage) -> AsyncIterator[ShardedStorage]:
    await storage.open(NOW)
    try:
        yield storage
    finally:
        await storage.close()


@pytest.fixture
def dsns() -> dict[str, str]:
    name = f"second_{secrets.token_hex(4)}"
    return {"a": shared_server().dsn, "b": shared_server().new_database(name)}


@pytest.fixture
def cluster() -> str:
    return f"sharded_{secrets.token_hex(4)}"


async def new_topic(storage: ShardedStorage, name: str = "mail", buckets: int = 16, **settings: object) -> Topic:
    topic = Topic(name, await storage.next_topic_number(), TopicSettings(buckets=buckets, **settings))  # type: ignore[arg-type]
    await storage.put_topic(topic, DIRECT_CALL)
    return topic


def batch(ids: list[str], sequence: int = 0) -> CreateBatch:
    bodies = [one.encode() for one in ids]
    return CreateBatch("billing", SESSION, sequence, ts=[NOW] * len(ids), bodies=bodies, ids=ids)


def by_shard(storage: ShardedStorage, topic: Topic, ids: list[str]) -> list[list[str]]:
    found: list[list[str]] = [[], []]
    for one in ids:
        found[storage.map.owner(topic, batch([one]).bucket_of(0, topic.settings.buckets))].append(one)
    return found


async def test_a_transaction_stays_on_one_shard(dsns: dict[str, str], cluster: str) -> None:
    async with opened(storage_on(dsns, cluster)) as storage:
        first, second = await new_topic(storage, "first"), await new_topic(storage, "second")
        here, there = by_shard(storage, first, IDS)[0][0], by_shard(storage, second, IDS)[1][0]
        apart = [Create(first, batch([here])), Create(second, batch([there], 1))]
        with pytest.raises(Conflict, match=r"first.*shard 'a'.*second.*shard 'b'") as caught:
            await storage.transact(Transaction(SESSION, 0, apart), NOW, DIRECT_CALL)
        assert caught.value.code is Code.DIFFERENT_STORES
        assert [await storage.count(topic, Filter(), NOW) for topic in (first, second)] == [0, 0]
        whole = [await new_topic(storage, name, buckets=1) for name in ("x", "y")]
        together = [Create(topic, batch([name], 5)) for topic, name in zip(whole, (here, there), strict=True)]
        assert (await storage.transact(Transaction(SESSION, 0, together), NOW, DIRECT_CALL)).code is Code.OK
        again: list[Step] = [Cancel(whole[0], "billing", [here]), Create(whole[1], batch(["new"], 9))]
        assert (await storage.transact(Transaction(SESSION, 1, again), NOW, DIRECT_CALL)).code is Code.OK
        assert [await storage.count(topic, Filter(), NOW) for topic in whole] == [0, 2]


async def test_transferred_messages_arrive_once_though_a_broker_is_killed(
    dsns: dict[str, str], cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next broker completes the transfers of a killed broker; a message that is transferred twice exists once."""
    async with opened(storage_on(dsns, cluster)) as storage:
        topic = await new_topic(storage, "limited")
        dead = await new_topic(storage, "limited.dead", buckets=7)
        await apply_one(storage, Create(topic, batch(IDS)), NOW, DIRECT_CALL)
        lease = await storage.lease(topic, LeaseRequest(range(16), "w", NOW, NOW + 1_000), NOW, DIRECT_CALL)
        assert lease is not None
        assert len(lease) == 40
        real = PostgresShard.forget_transfers

        async def cut(shard: PostgresShard, transfers: object) -> None:
            raise Unavailable("cut between the arrival and its record")

        monkeypatch.setattr(PostgresShard, "forget_transfers", cut)
        outcomes = await apply_one(
            storage, Reject(topic, lease.lease_id, "w", None, dead, Cause("no use")), NOW, DIRECT_CALL
        )
        assert not outcomes.codes
        assert sum([len(await shard.transfers()) for shard in storage.shards]) > 0
        monkeypatch.setattr(PostgresShard, "forget_transfers", real)
    async with opened(storage_on(dsns, cluster)) as storage:
        assert sum([len(await shard.transfers()) for shard in storage.shards]) == 0
        page = await storage.browse(dead, Filter(), None, 100, NOW)
        assert sorted(message.id for message in page.messages) == sorted(IDS)
        assert await storage.count(dead, Filter(), NOW) == 40
        assert await storage.count(topic, Filter(), NOW) == 0
        assert set((await apply_one(storage, Redrive(dead, topic, IDS), NOW, DIRECT_CALL)).codes) == set()
        assert await storage.count(topic, Filter(), NOW) == 40


async def test_the_records_of_two_brokers_on_two_shards_have_one_order(dsns: dict[str, str], cluster: str) -> None:
    """G9: each broker numbers its own records; tickets order all records, over brokers, shards and deleted topics."""
    async with (
        opened(storage_on(dsns, cluster, journal="one")) as one,
        opened(storage_on(dsns, cluster, journal="two")) as two,
    ):
        assert one.identity == two.identity
        for turn in range(2):
            topic = await new_topic(one)
            await apply_one(one, Create(topic, batch(IDS, 100 * turn)), NOW, DIRECT_CALL)
            lease = await two.lease(topic, LeaseRequest(range(16), "w", NOW, NOW + 1_000), NOW, DIRECT_CALL)
            assert lease is not None
            await apply_one(two, Release(topic, lease.lease_id, "w", None, NOW + 5), NOW, DIRECT_CALL)
            await apply_one(one, Cancel(topic, "billing", IDS[::2]), NOW, DIRECT_CALL)
            await two.drop_topic(topic, NOW, DIRECT_CALL)
        recorded: list[tuple[int, str, str]] = []
        for storage in (one, two):
            for record in await read_journal(storage):
                recorded += [(record.ticket, event.kind, event.id) for event in events_of(record)]
    for number, name in enumerate(IDS):
        kinds = [kind for _, kind, of in sorted(recorded) if of in (name, "")]
        life = ["created", "leased", "released", *["cancelled"] * (number % 2 == 0), "topic_dropped"]
        assert kinds == life * 2


async def test_a_bucket_that_moves_does_not_take_its_tickets_along(dsns: dict[str, str], cluster: str) -> None:
    async with opened(storage_on(dsns, cluster, journal="one")) as storage:
        source, target = storage.shards.at(0), storage.shards.at(1)
        await source.keep_up_ticket(10**7)
        await moving.copy(source, target, [], [], SystemClock(), check=_always)
        assert await target.ticket() > await source.ticket() > 10**7


async def test_a_shard_cannot_be_opened_as_a_store_by_itself(dsns: dict[str, str], cluster: str) -> None:
    async with opened(storage_on(dsns, cluster)) as storage:
        await storage.follow(ShardMap(storage.map.shards, version=2))
    with pytest.raises(ClusterRefused, match="one of the shards a, b"):
        await PostgresStorage(dsns["b"], cluster=cluster).open(NOW)
    exchanged = {"a": dsns["b"], "b": dsns["a"]}
    with pytest.raises(ClusterRefused, match="is shard 'b' of its cluster, not 'a'"):
        await storage_on(exchanged, cluster).open(NOW)


@pytest.fixture
def second_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


async def test_other_shards_continue_when_a_shard_is_down(cluster: str, second_server: PostgresServer) -> None:
    dsns = {"a": shared_server().dsn, "b": second_server.dsn}
    async with opened(storage_on(dsns, cluster, patience_ms=300)) as storage:
        topic = await new_topic(storage)
        await apply_one(storage, Create(topic, batch(IDS)), NOW, DIRECT_CALL)
        here, there = by_shard(storage, topic, IDS)
        second_server.stop()
        fresh = [f"n-{number}" for number in range(40)]
        new_here, new_there = by_shard(storage, topic, fresh)
        assert not (await apply_one(storage, Create(topic, batch(new_here, 100)), NOW, DIRECT_CALL)).codes
        with pytest.raises(DejaqError) as caught:
            await apply_one(storage, Create(topic, batch(new_there, 200)), NOW, DIRECT_CALL)
        assert caught.value.retryable
        with pytest.raises(DejaqError) as caught:
            await apply_one(storage, Create(topic, batch([*new_there, "x", "y", "z"], 300)), NOW, DIRECT_CALL)
        assert caught.value.indefinite, "a part of it may have been done"
        lease = await storage.lease(topic, LeaseRequest(range(16), "w", NOW, NOW + 60_000), NOW, DIRECT_CALL)
        assert lease is not None
        assert set(here) <= set(lease.ids())
        assert not set(there) & set(lease.ids())
        assert not (await apply_one(storage, Delete(topic, lease.lease_id, "w", None), NOW, DIRECT_CALL)).codes
        codes = (await apply_one(storage, Cancel(topic, "billing", [*there[:1], *here[:1]]), NOW, DIRECT_CALL)).codes
        assert codes == {0: Code.UNAVAILABLE, 1: Code.NOT_FOUND}
        assert storage.failure is None
        second_server.start()
        await eventually(lambda: all(shard.failure is None for shard in storage.shards), within=20)
        assert (
            await apply_one(storage, Create(topic, batch([*new_there, "x", "y", "z"], 300)), NOW, DIRECT_CALL)
        ).failed == {}
        rest = await storage.lease(topic, LeaseRequest(range(16), "w", NOW, NOW + 60_000), NOW, DIRECT_CALL)
        assert rest is not None
        assert set(there) <= set(rest.ids())
        assert set(rest.ids()) >= set(new_there)
        assert len(set(rest.ids())) == len(rest.ids())


async def test_a_repeat_of_a_half_done_batch_creates_the_rest(
    dsns: dict[str, str], cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G5, G6: the part that was done is recognised even when its messages are deleted."""
    real = PostgresShard.create

    async def fail_on_b(shard: PostgresShard, *arguments: object, **options: object) -> object:
        if shard.name == "b":
            raise Unavailable("down")
        return await real(shard, *arguments, **options)  # type: ignore[arg-type]

    async with opened(storage_on(dsns, cluster)) as storage:
        topic = await new_topic(storage)
        here, there = by_shard(storage, topic, IDS)
        monkeypatch.setattr(PostgresShard, "create", fail_on_b)
        with pytest.raises(DejaqError) as caught:
            await apply_one(storage, Create(topic, batch(IDS)), NOW, DIRECT_CALL)
        assert caught.value.indefinite
        assert not (await apply_one(storage, Cancel(topic, "billing", here), NOW, DIRECT_CALL)).codes
        monkeypatch.setattr(PostgresShard, "create", real)
        outcomes = await apply_one(storage, Create(topic, batch(IDS)), NOW, DIRECT_CALL)
        assert {IDS[row] for row, code in outcomes.codes.items() if code is Code.ALREADY_EXISTS} == set(here)
        page = await storage.browse(topic, Filter(), None, 100, NOW)
        assert sorted(message.id for message in page.messages) == sorted(there)


async def test_gaps_of_a_session_are_closed(dsns: dict[str, str], cluster: str) -> None:
    """A session of natural ids over both shards is stored in a few ranges, however long it is."""
    async with opened(storage_on(dsns, cluster)) as storage:
        topic = await new_topic(storage)
        for number in range(30):
            ids = [f"{number}-{row}" for row in range(100)]
            assert not (await apply_one(storage, Create(topic, batch(ids, 100 * number)), NOW, DIRECT_CALL)).codes
        for shard in storage.shards:
            seen = await shard._database.read(lambda link: link.value("seen", topic.number, SESSION.pack()))
            assert len(seen) < 16 * 101


async def test_two_brokers_share_the_shards(dsns: dict[str, str], cluster: str) -> None:
    """A lease that one broker made can be settled through the other, on whichever shard its rows are."""
    async with opened(storage_on(dsns, cluster)) as one, opened(storage_on(dsns, cluster)) as other:
        topic = await new_topic(one)
        await apply_one(one, Create(topic, batch(IDS)), NOW, DIRECT_CALL)
        leases = await asyncio.gather(
            *(
                store.lease(topic, LeaseRequest(range(16), "w", NOW, NOW + 60_000, 15), NOW, DIRECT_CALL)
                for store in (one, other)
            )
        )
        given = [lease for lease in leases if lease is not None]
        ids = [one_id for lease in given for one_id in lease.ids()]
        assert len(set(ids)) == len(ids)
        for lease in given:
            numbers = lease.rows or range(len(lease))
            rows = [(number, number + 1) for number in numbers]
            assert not (await apply_one(other, Delete(topic, lease.lease_id, "w", rows), NOW, DIRECT_CALL)).codes
            assert len((await apply_one(one, Delete(topic, lease.lease_id, "w", rows), NOW, DIRECT_CALL)).codes) == len(
                rows
            )
        assert await one.count(topic, Filter(), NOW) == 40 - len(ids)


async def test_versions_never_go_back(dsns: dict[str, str], cluster: str) -> None:
    """G3: a broker that raises a shard's version late does not lower a version that another has raised further."""
    async with opened(storage_on(dsns, cluster)) as storage:
        shard = storage.shards.at(1)
        other = await shard.connect()
        async with other.transaction():
            await other.execute("SELECT number FROM identity WHERE number = 0 FOR UPDATE")
            leap = asyncio.create_task(shard.keep_up(1 << 30))
            await asyncio.wait({leap}, timeout=0.3)
            assert not leap.done(), "the call waits for the lock"
            await other.execute("SELECT setval('version', $1)", (1 << 40) + shard.ordinal)
        await leap
        assert await other.fetchval("SELECT last_value FROM version") == (1 << 40) + shard.ordinal
        await shard.keep_up(1 << 41)
        last = await other.fetchval("SELECT last_value FROM version")
        await other.close()
        assert last > 1 << 41
        assert last % 256 == shard.ordinal


async def test_brokers_that_start_at_once_open_a_shard_one_after_the_other(dsns: dict[str, str], cluster: str) -> None:
    """Opening a shard changes the step of a sequence, and a broker that read the sequence meanwhile found it empty."""
    store = PostgresStorage(dsns["a"], cluster=cluster)
    await store.open(NOW)
    await store.close()
    shard = PostgresShard(dsns["a"], name="a", ordinal=0, cluster=cluster)
    another = await asyncpg.connect(dsns["a"], server_settings={"search_path": cluster})

    async def waits() -> bool:
        return bool(await another.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))

    async with another.transaction():
        await another.execute(SQL["lock_identity"])
        opening = asyncio.create_task(shard.open(NOW))
        await eventually(waits, within=20, what="the shard waits for the other broker")
    await opening
    await shard.close()
    await another.close()


class Overtaken(PostgresShard):
    """A shard whose version another caller raises, once, right after a lease has read it."""

    topic: Topic | None = None

    async def peek(self, topic: Topic, request: LeaseRequest, now: int) -> tuple[int, list[tuple[int, int, int]]]:
        found = await super().peek(topic, request, now)
        if self.topic is not None:
            self.topic = None
            await self.keep_up(1 << 40)
            page = await self.browse(topic, Filter(), None, 100, now)
            ids = [message.id for message in page.messages]
            assert not (
                await apply_one(self, Edit(topic, "billing", Edits(ids, priorities=[1] * len(ids))), now, DIRECT_CALL)
            ).codes
        return found


async def test_a_lease_over_shards_gives_no_row_an_earlier_version(dsns: dict[str, str], cluster: str) -> None:
    """G3: a version that one shard issued after the lease read it is above the number that another shard issues."""

    def make(info: ShardInfo) -> PostgresShard:
        kind = Overtaken if info.name == "b" else PostgresShard
        return kind(info.dsn, name=info.name, ordinal=info.ordinal, cluster=cluster)

    async with opened(ShardedStorage(first_map(dsns), make)) as storage:
        topic = await new_topic(storage)
        await apply_one(storage, Create(topic, batch(IDS)), NOW, DIRECT_CALL)
        ahead, behind = storage.shards.at(0), storage.shards.at(1)
        assert isinstance(behind, Overtaken)
        await ahead.keep_up(1 << 30)
        behind.topic = topic
        request = LeaseRequest(range(16), "w", NOW, NOW + 60_000, 100)
        leases = [await storage.lease(topic, request, NOW, DIRECT_CALL) for _ in range(2)]
        assert [sorted(lease.ids()) for lease in leases if lease is not None] == [
            sorted(ids) for ids in by_shard(storage, topic, IDS)
        ]
        assert leases[0].lease_id < 1 << 40 < leases[1].lease_id  # type: ignore[union-attr]


async def _always() -> None:
    """No other process moves buckets."""
