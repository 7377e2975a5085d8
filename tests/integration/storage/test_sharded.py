"""A store of two shards: what stays on one, what goes between them, and what goes on when one is down."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import ClusterRefused, Code, Conflict, DejaqError, Unavailable
from dejaq.storage.base import Edits, Filter
from dejaq.storage.postgres import moving
from dejaq.storage.postgres.queries import SQL
from dejaq.storage.postgres.shard import PostgresShard
from dejaq.storage.postgres.store import PostgresStorage
from dejaq.storage.sharded.placement import ShardInfo, ShardMap, first_map
from dejaq.storage.sharded.store import ShardedStorage
from dejaq.storage.steps import CancelStep, CreateStep, Transaction
from dejaq.testing.postgres import PostgresServer, shared_server
from dejaq.testing.replay import events_of, read_journal
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
    await storage.put_topic(topic)
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
        apart = [CreateStep(first, batch([here])), CreateStep(second, batch([there], 1))]
        with pytest.raises(Conflict, match=r"first.*shard 'a'.*second.*shard 'b'") as caught:
            await storage.transact(Transaction(SESSION, 0, apart), NOW)
        assert caught.value.code is Code.DIFFERENT_STORES
        assert [await storage.count(topic, Filter(), NOW) for topic in (first, second)] == [0, 0]
        whole = [await new_topic(storage, name, buckets=1) for name in ("x", "y")]
        together = [CreateStep(topic, batch([name], 5)) for topic, name in zip(whole, (here, there), strict=True)]
        assert (await storage.transact(Transaction(SESSION, 0, together), NOW)).code is Code.OK
        again = [CancelStep(whole[0], "billing", [here]), CreateStep(whole[1], batch(["new"], 9))]
        assert (await storage.transact(Transaction(SESSION, 1, again), NOW)).code is Code.OK
        assert [await storage.count(topic, Filter(), NOW) for topic in whole] == [0, 2]


async def test_parcels_arrive_once_whoever_dies(
    dsns: dict[str, str], cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was on its way when a broker died is brought by the next; what was brought twice is there once."""
    async with opened(storage_on(dsns, cluster)) as storage:
        topic = await new_topic(storage, "limited")
        dead = await new_topic(storage, "limited.dead", buckets=7)
        await storage.create(topic, batch(IDS), NOW)
        lease = await storage.lease(topic, LeaseRequest(range(16), "w", NOW, NOW + 1_000), NOW)
        assert lease is not None
        assert len(lease) == 40
        real = PostgresShard.forget_parcels

        async def cut(shard: PostgresShard, parcels: object) -> None:
            raise Unavailable("cut between the arrival and the note of it")

        monkeypatch.setattr(PostgresShard, "forget_parcels", cut)
        outcomes = await storage.reject(topic, lease.lease_id, "w", None, dead, "no use", NOW)
        assert not outcomes.codes
        assert sum([len(await shard.parcels()) for shard in storage.shards]) > 0
        monkeypatch.setattr(PostgresShard, "forget_parcels", real)
    async with opened(storage_on(dsns, cluster)) as storage:
        assert sum([len(await shard.parcels()) for shard in storage.shards]) == 0
        page = await storage.browse(dead, Filter(), None, 100, NOW)
        assert sorted(message.id for message in page.messages) == sorted(IDS)
        assert await storage.count(dead, Filter(), NOW) == 40
        assert await storage.count(topic, Filter(), NOW) == 0
        assert set((await storage.redrive(dead, topic, IDS, NOW)).codes) == set()
        assert await storage.count(topic, Filter(), NOW) == 40


async def test_what_two_brokers_tell_on_two_shards_has_one_order(dsns: dict[str, str], cluster: str) -> None:
    """G9: each broker numbers its own records; tickets say what came behind what, over shards and ends of topics."""
    async with (
        opened(storage_on(dsns, cluster, journal="one")) as one,
        opened(storage_on(dsns, cluster, journal="two")) as two,
    ):
        assert one.identity == two.identity
        for turn in range(2):
            topic = await new_topic(one)
            await one.create(topic, batch(IDS, 100 * turn), NOW)
            lease = await two.lease(topic, LeaseRequest(range(16), "w", NOW, NOW + 1_000), NOW)
            assert lease is not None
            await two.release(topic, lease.lease_id, "w", None, NOW + 5, NOW)
            await one.cancel(topic, "billing", IDS[::2], NOW)
            await two.drop_topic(topic, NOW)
        told: list[tuple[int, str, str]] = []
        for storage in (one, two):
            for record in await read_journal(storage):
                told += [(record.ticket, event.kind, event.id) for event in events_of(record)]
    for number, name in enumerate(IDS):
        kinds = [kind for _, kind, of in sorted(told) if of in (name, "")]
        life = ["created", "leased", "released", *["cancelled"] * (number % 2 == 0), "topic_dropped"]
        assert kinds == life * 2


async def test_a_bucket_that_moves_leaves_its_tickets_behind(dsns: dict[str, str], cluster: str) -> None:
    async with opened(storage_on(dsns, cluster, journal="one")) as storage:
        source, target = storage.shards.at(0), storage.shards.at(1)
        await source.keep_up_ticket(10**7)
        await moving.copy(source, target, [], [], SystemClock())
        assert await target.ticket() > await source.ticket() > 10**7


async def test_a_shard_is_no_store_by_itself(dsns: dict[str, str], cluster: str) -> None:
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


async def test_the_others_go_on_when_a_shard_is_down(cluster: str, second_server: PostgresServer) -> None:
    dsns = {"a": shared_server().dsn, "b": second_server.dsn}
    async with opened(storage_on(dsns, cluster, patience_ms=300)) as storage:
        topic = await new_topic(storage)
        await storage.create(topic, batch(IDS), NOW)
        here, there = by_shard(storage, topic, IDS)
        second_server.stop()
        fresh = [f"n-{number}" for number in range(40)]
        new_here, new_there = by_shard(storage, topic, fresh)
        assert not (await storage.create(topic, batch(new_here, 100), NOW)).codes
        with pytest.raises(DejaqError) as caught:
            await storage.create(topic, batch(new_there, 200), NOW)
        assert caught.value.retryable
        with pytest.raises(DejaqError) as caught:
            await storage.create(topic, batch([*new_there, "x", "y", "z"], 300), NOW)
        assert caught.value.indefinite, "a part of it may have been done"
        lease = await storage.lease(topic, LeaseRequest(range(16), "w", NOW, NOW + 60_000), NOW)
        assert lease is not None
        assert set(here) <= set(lease.ids())
        assert not set(there) & set(lease.ids())
        assert not (await storage.delete(topic, lease.lease_id, "w", None, NOW)).codes
        codes = (await storage.cancel(topic, "billing", [*there[:1], *here[:1]], NOW)).codes
        assert codes == {0: Code.UNAVAILABLE, 1: Code.NOT_FOUND}
        assert storage.failure is None
        second_server.start()
        await eventually(lambda: all(shard.failure is None for shard in storage.shards), within=20)
        assert (await storage.create(topic, batch([*new_there, "x", "y", "z"], 300), NOW)).failed == {}
        rest = await storage.lease(topic, LeaseRequest(range(16), "w", NOW, NOW + 60_000), NOW)
        assert rest is not None
        assert set(there) <= set(rest.ids())
        assert set(rest.ids()) >= set(new_there)
        assert len(set(rest.ids())) == len(rest.ids())


async def test_a_repeat_of_a_half_done_batch_creates_the_rest(
    dsns: dict[str, str], cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G5, G6: the part that was done is known even when its messages are gone."""
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
            await storage.create(topic, batch(IDS), NOW)
        assert caught.value.indefinite
        assert not (await storage.cancel(topic, "billing", here, NOW)).codes
        monkeypatch.setattr(PostgresShard, "create", real)
        outcomes = await storage.create(topic, batch(IDS), NOW)
        assert {IDS[row] for row, code in outcomes.codes.items() if code is Code.ALREADY_EXISTS} == set(here)
        page = await storage.browse(topic, Filter(), None, 100, NOW)
        assert sorted(message.id for message in page.messages) == sorted(there)


async def test_gaps_are_closed(dsns: dict[str, str], cluster: str) -> None:
    """A session of natural ids over both shards is kept in a few ranges, however long it is."""
    async with opened(storage_on(dsns, cluster)) as storage:
        topic = await new_topic(storage)
        for number in range(30):
            ids = [f"{number}-{row}" for row in range(100)]
            assert not (await storage.create(topic, batch(ids, 100 * number), NOW)).codes
        for shard in storage.shards:
            seen = await shard._database.read(lambda link: link.value("seen", topic.number, SESSION.pack()))
            assert len(seen) < 16 * 101


async def test_two_brokers_share_the_shards(dsns: dict[str, str], cluster: str) -> None:
    """A lease given through one is settled through the other, wherever its rows are."""
    async with opened(storage_on(dsns, cluster)) as one, opened(storage_on(dsns, cluster)) as other:
        topic = await new_topic(one)
        await one.create(topic, batch(IDS), NOW)
        leases = await asyncio.gather(
            *(store.lease(topic, LeaseRequest(range(16), "w", NOW, NOW + 60_000, 15), NOW) for store in (one, other))
        )
        given = [lease for lease in leases if lease is not None]
        ids = [one_id for lease in given for one_id in lease.ids()]
        assert len(set(ids)) == len(ids)
        for lease in given:
            numbers = lease.rows or range(len(lease))
            rows = [(number, number + 1) for number in numbers]
            assert not (await other.delete(topic, lease.lease_id, "w", rows, NOW)).codes
            assert len((await one.delete(topic, lease.lease_id, "w", rows, NOW)).codes) == len(rows)
        assert await one.count(topic, Filter(), NOW) == 40 - len(ids)


async def test_versions_never_go_back(dsns: dict[str, str], cluster: str) -> None:
    """G3: who saw a shard behind, and leaps after another has leapt further, does not set it back."""
    async with opened(storage_on(dsns, cluster)) as storage:
        shard = storage.shards.at(1)
        other = await shard.connect()
        async with other.transaction():
            await other.execute("SELECT number FROM identity WHERE number = 0 FOR UPDATE")
            leap = asyncio.create_task(shard.keep_up(1 << 30))
            await asyncio.wait({leap}, timeout=0.3)
            assert not leap.done(), "it waits for its turn"
            await other.execute("SELECT setval('version', $1)", (1 << 40) + shard.ordinal)
        await leap
        assert await other.fetchval("SELECT last_value FROM version") == (1 << 40) + shard.ordinal
        await shard.keep_up(1 << 41)
        last = await other.fetchval("SELECT last_value FROM version")
        await other.close()
        assert last > 1 << 41
        assert last % 256 == shard.ordinal


async def test_brokers_that_start_at_once_become_a_shard_one_after_the_other(
    dsns: dict[str, str], cluster: str
) -> None:
    """It changes the step of a sequence, which another that read it meanwhile found empty."""
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
    """A shard where, once, somebody counts further right after a lease has looked at it."""

    topic: Topic | None = None

    async def peek(self, topic: Topic, request: LeaseRequest, now: int) -> tuple[int, list[tuple[int, int, int]]]:
        found = await super().peek(topic, request, now)
        if self.topic is not None:
            self.topic = None
            await self.keep_up(1 << 40)
            page = await self.browse(topic, Filter(), None, 100, now)
            ids = [message.id for message in page.messages]
            assert not (await self.edit(topic, "billing", Edits(ids, priorities=[1] * len(ids)), now)).codes
        return found


async def test_a_lease_over_shards_gives_no_row_an_earlier_version(dsns: dict[str, str], cluster: str) -> None:
    """G3: what one shard counted after it was looked at is above the number that another gives."""

    def make(info: ShardInfo) -> PostgresShard:
        kind = Overtaken if info.name == "b" else PostgresShard
        return kind(info.dsn, name=info.name, ordinal=info.ordinal, cluster=cluster)

    async with opened(ShardedStorage(first_map(dsns), make)) as storage:
        topic = await new_topic(storage)
        await storage.create(topic, batch(IDS), NOW)
        ahead, behind = storage.shards.at(0), storage.shards.at(1)
        assert isinstance(behind, Overtaken)
        await ahead.keep_up(1 << 30)
        behind.topic = topic
        request = LeaseRequest(range(16), "w", NOW, NOW + 60_000, 100)
        leases = [await storage.lease(topic, request, NOW) for _ in range(2)]
        assert [sorted(lease.ids()) for lease in leases if lease is not None] == [
            sorted(ids) for ids in by_shard(storage, topic, IDS)
        ]
        assert leases[0].lease_id < 1 << 40 < leases[1].lease_id  # type: ignore[union-attr]
