"""Leases and deletes of several consumers that wait at the same time share a change; each has the answer it would have
alone.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest, LeaseSet, Outcomes
from dejaq.domain.changes import Create, Delete, Recall
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession, bucket_of
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import Code, Refused
from dejaq.storage.base import apply_one
from dejaq.storage.postgres.connection.database import PostgresDatabase, PostgresLink
from dejaq.storage.postgres.store import PostgresStorage
from dejaq.testing.servers.postgres import shared_server

NOW = 1_700_000_000_000
BUCKETS = 40
ENDS = NOW + 30_000


class Scene:
    """A store with a journal, and a topic with a consumer for each bucket."""

    def __init__(self, storage: PostgresStorage, topic: Topic, cluster: str) -> None:
        self.storage, self.topic, self.cluster = storage, topic, cluster

    async def create(self, ids: list[str], ts: int = NOW, topic: Topic | None = None) -> None:
        """Messages that are due at `ts`."""
        batch = CreateBatch(
            "billing", ProducerSession(NOW, secrets.randbits(31)), 0, [ts] * len(ids), [b"x" * 10] * len(ids), ids=ids
        )
        assert not (await apply_one(self.storage, Create(topic or self.topic, batch), NOW, DIRECT_CALL)).codes

    async def lease(self, bucket: int, *, now: int = NOW, dead_letter: Topic | None = None) -> LeaseSet | None:
        """Lease for the bucket's consumer."""
        request = LeaseRequest([bucket], f"c{bucket}", now, now + 30_000, rows_max=100, dead_letter=dead_letter)
        return await self.storage.lease(self.topic, request, now, DIRECT_CALL)

    async def lease_all(self, *, now: int = NOW, dead_letter: Topic | None = None) -> list[LeaseSet | None]:
        """Lease for all consumers at the same time."""
        calls = [self.lease(bucket, now=now, dead_letter=dead_letter) for bucket in range(BUCKETS)]
        return list(await asyncio.gather(*calls))

    async def records(self) -> int:
        """How many changes have been made: each has one record."""
        return len(await self.storage.journal(0, 1 << 24))


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    cluster = f"joint_{secrets.token_hex(4)}"
    storage = PostgresStorage(shared_server().dsn, cluster=cluster, journal="x")
    await storage.open(NOW)
    topic = Topic("mail", await storage.next_topic_number(), TopicSettings(buckets=BUCKETS, max_attempts=2))
    await storage.put_topic(topic, DIRECT_CALL)
    yield Scene(storage, topic, cluster)
    await storage.close()


async def test_consumers_that_wait_at_the_same_time_share_a_change(scene: Scene) -> None:
    ids = [f"m{number}" for number in range(400)]
    await scene.create(ids)
    await scene.create(["later"], NOW + 60_000)
    before = await scene.records()
    leases = [lease for lease in await scene.lease_all() if lease is not None]
    # Two begin at once, and the others wait for the first of them.
    assert await scene.records() - before <= 4
    assert sorted(one for lease in leases for one in lease.ids()) == sorted(ids)
    assert len({lease.lease_id for lease in leases}) == len(leases)
    for lease in leases:
        assert {bucket_of(one, BUCKETS) for one in lease.ids()} == {int(lease.consumer[1:])}
        assert lease.expires == ENDS
        assert lease.complete
    assert [await scene.lease(bucket) for bucket in range(3)] == [None] * 3
    times = await asyncio.gather(*(scene.storage.next_ts(scene.topic, [bucket], NOW) for bucket in range(BUCKETS)))
    held = {int(lease.consumer[1:]) for lease in leases}
    assert [ts for bucket, ts in enumerate(times) if bucket in held] == [ENDS] * len(held)
    before = await scene.records()
    answers = await asyncio.gather(
        *(
            scene.storage.apply([Delete(scene.topic, lease.lease_id, lease.consumer, None)], NOW, DIRECT_CALL)
            for lease in leases
        )
    )
    assert await scene.records() - before <= 4
    assert all(isinstance(answer, Outcomes) and not answer.codes for (answer,) in answers)
    assert await scene.storage.get(scene.topic, ids, NOW) == [None] * len(ids)
    (later,) = await scene.storage.get(scene.topic, ["later"], NOW)
    assert later is not None


async def test_a_lease_that_is_lost_refuses_its_own_delete_only(scene: Scene) -> None:
    ids = [f"m{number}" for number in range(400)]
    await scene.create(ids)
    leases = [lease for lease in await scene.lease_all() if lease is not None]

    async def delete(lease: LeaseSet, consumer: str) -> Outcomes | Refused:
        (answer,) = await scene.storage.apply([Delete(scene.topic, lease.lease_id, consumer, None)], NOW, DIRECT_CALL)
        return answer

    wrong = leases[5]
    answers = await asyncio.gather(*(delete(one, "another" if one is wrong else one.consumer) for one in leases))
    for lease, answer in zip(leases, answers, strict=True):
        assert isinstance(answer, Outcomes)
        assert set(answer.codes.values()) == ({Code.LEASE_LOST} if lease is wrong else set())
    found = await scene.storage.get(scene.topic, ids, NOW)
    assert {view.id for view in found if view is not None} == set(wrong.ids())


async def test_exhausted_messages_go_to_the_dead_letters_while_other_consumers_lease(scene: Scene) -> None:
    dead = Topic("mail.dead", await scene.storage.next_topic_number(), TopicSettings(buckets=4))
    await scene.storage.put_topic(dead, DIRECT_CALL)
    ids = [f"m{number}" for number in range(100)]
    await scene.create(ids)
    for attempt in range(2):
        leases = await scene.lease_all(now=NOW + attempt * 40_000, dead_letter=dead)
        assert sum(len(lease) for lease in leases if lease is not None) == len(ids)
    fresh = [f"n{number}" for number in range(100)]
    await scene.create(fresh, NOW + 1)
    now = NOW + 80_000
    moved, leased = 0, list[str]()
    for _ in range(2):
        for lease in await scene.lease_all(now=now, dead_letter=dead):
            if lease is not None:
                moved += lease.dead_lettered
                leased += lease.ids()
    assert moved == len(ids)
    assert sorted(leased) == sorted(fresh)
    assert await scene.storage.get(scene.topic, ids, now) == [None] * len(ids)


async def test_a_lease_that_leaves_something_is_not_complete(scene: Scene) -> None:
    await scene.create([f"m{number}" for number in range(1_000)])
    for bytes_max, rows_max in ((1 << 20, 3), (35, 100)):
        requests = [
            LeaseRequest([bucket], f"c{bucket}", NOW, ENDS, rows_max=rows_max, bytes_max=bytes_max)
            for bucket in range(10)
        ]
        leases = await asyncio.gather(*(scene.storage.lease(scene.topic, one, NOW, DIRECT_CALL) for one in requests))
        assert [(len(lease), lease.complete) for lease in leases if lease is not None] == [(3, False)] * 10


async def test_calls_for_the_same_buckets_run_one_after_the_other(scene: Scene) -> None:
    ids = [f"m{number}" for number in range(200)]
    await scene.create(ids)
    requests = [
        LeaseRequest([7, bucket], f"c{number}", NOW, ENDS, rows_max=100)
        for number, bucket in enumerate((1, 2, 3, 1, 2, 3))
    ]
    leases = await asyncio.gather(*(scene.storage.lease(scene.topic, one, NOW, DIRECT_CALL) for one in requests))
    got = [one for lease in leases if lease is not None for one in lease.ids()]
    assert sorted(got) == sorted(one for one in ids if bucket_of(one, BUCKETS) in (7, 1, 2, 3))
    first = leases[0]
    assert first is not None
    assert {one for one in ids if bucket_of(one, BUCKETS) == 7} <= set(first.ids())


async def test_deletes_of_rows_of_one_lease_run_one_after_the_other(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two statements would wait for the row of the lease, and two of two leases would deadlock, for a second."""
    await scene.create([f"m{number}" for number in range(1_000)])
    lease = await scene.lease(3)
    assert lease is not None
    assert len(lease) > 4
    running = most = 0
    once = PostgresDatabase.once

    async def watched(self: PostgresDatabase, work: Callable[[PostgresLink], Awaitable[None]]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await once(self, work)
        running -= 1

    monkeypatch.setattr(PostgresDatabase, "once", watched)
    answers = await asyncio.gather(
        *(
            scene.storage.apply([Delete(scene.topic, lease.lease_id, "c3", [(row, row + 1)])], NOW, DIRECT_CALL)
            for row in range(len(lease))
        )
    )
    assert all(isinstance(answer, Outcomes) and not answer.codes for (answer,) in answers)
    assert most == 1


async def test_messages_that_another_change_has_locked_are_skipped(scene: Scene) -> None:
    """Another broker leases them at this moment, and its commit may take long."""
    ids = [f"m{number}" for number in range(400)]
    await scene.create(ids)
    connection = await asyncpg.connect(shared_server().dsn)
    try:
        async with asyncio.timeout(20), connection.transaction():
            locked = await connection.fetch(
                f'SELECT id FROM "{scene.cluster}".message WHERE place & 1023 = 7 FOR UPDATE'
            )
            leases = [lease for lease in await scene.lease_all() if lease is not None]
            got = {one for lease in leases for one in lease.ids()}
    finally:
        await connection.close()
    missing = {record["id"] for record in locked}
    assert missing
    assert got == set(ids) - missing


async def test_recalls_of_several_consumers_share_a_change(scene: Scene) -> None:
    """L7: 200 consumers that leave at once return a lease each; each recall was a change of five statements."""
    ids = [f"m{number}" for number in range(400)]
    await scene.create(ids, NOW + 1_000)
    leases = [lease for lease in await scene.lease_all(now=NOW + 1_000) if lease is not None]
    wrong, part = leases[5], leases[6]
    assert len(part) > 1
    before = await scene.records()

    async def recall(lease: LeaseSet) -> Outcomes | Refused:
        consumer = "another" if lease is wrong else lease.consumer
        rows = [(0, 1)] if lease is part else None
        (answer,) = await scene.storage.apply(
            [Recall(scene.topic, lease.lease_id, consumer, rows)], NOW + 1_000, DIRECT_CALL
        )
        return answer

    answers = await asyncio.gather(*map(recall, leases))
    assert await scene.records() - before <= 4
    for lease, answer in zip(leases, answers, strict=True):
        assert isinstance(answer, Outcomes)
        assert set(answer.codes.values()) == ({Code.LEASE_LOST} if lease is wrong else set())
    again = [one for lease in await scene.lease_all(now=NOW + 1_001) if lease is not None for one in lease.ids()]
    assert sorted(again) == sorted({*ids} - {*wrong.ids()} - {*part.ids()[1:]})
    left = await scene.storage.leases_of(scene.topic, part.consumer, NOW + 1_001)
    assert sorted(one for lease in left for one in lease.ids()) == sorted(part.ids())
    assert {attempt for lease in left for attempt in lease.attempts or [1]} == {1}


async def test_a_lease_of_another_broker_is_deleted_in_one_statement_once_its_consumer_has_moved(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that moved deleted each of its messages in a change of five statements."""
    await scene.create([f"m{number}" for number in range(200)])
    lease = await scene.lease(3)
    assert lease is not None
    assert len(lease) > 1
    other = PostgresStorage(shared_server().dsn, cluster=scene.cluster, journal="y")
    await other.open(NOW)
    try:
        (found,) = await other.leases_of(scene.topic, "c3", NOW)
        assert found.ids() == lease.ids()

        async def change(*_: object, **__: object) -> None:
            raise AssertionError("more than one statement")

        monkeypatch.setattr(PostgresDatabase, "change", change)
        (answer,) = await other.apply([Delete(scene.topic, lease.lease_id, "c3", [(0, 1)])], NOW, DIRECT_CALL)
        assert isinstance(answer, Outcomes)
        assert not answer.codes
        monkeypatch.undo()
        assert [view is None for view in await other.get(scene.topic, lease.ids()[:2], NOW)] == [True, False]
    finally:
        await other.close()
