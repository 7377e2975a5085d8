"""Concurrent changes of one message at the end of its lease: each answer is correct, whichever change comes first."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest, LeaseSet
from dejaq.domain.changes import Create, Delete, Edit, Edits, Extend
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import Unavailable
from dejaq.storage.base import apply_one
from dejaq.storage.postgres.connection import database
from dejaq.storage.postgres.store import PostgresStorage
from dejaq.testing.servers.postgres import shared_server
from dejaq.testing.waiting import eventually, patient

NOW = 1_700_000_000_000
END, LATER = NOW + 60_000, NOW + 120_000
IDS = ["m-0", "m-1"]
# The number of connections that wait, directly or not, for the connection of this pid.
BEHIND = """
WITH RECURSIVE behind (pid) AS (
    SELECT $1::integer
    UNION SELECT a.pid FROM pg_stat_activity AS a JOIN behind ON behind.pid = any(pg_blocking_pids(a.pid))
)
SELECT count(*) - 1 FROM behind
"""


class Scene:
    """Two messages under one lease of the broker `mine`, and the store of another broker."""

    def __init__(self, mine: PostgresStorage, other: PostgresStorage, topic: Topic, lease: LeaseSet) -> None:
        self.mine, self.other, self.topic, self.lease_id = mine, other, topic, lease.lease_id

    async def extend(self) -> dict[int, object]:
        """Extend both rows just before their lease ends; returns the failures."""
        outcomes = await apply_one(self.mine, Extend(self.topic, self.lease_id, "w", None, LATER), END - 1, DIRECT_CALL)
        return dict(outcomes.codes)

    async def delete(self, now: int) -> dict[int, object]:
        """Delete both rows through the other broker, which has to look the lease up; returns the failures."""
        return dict(
            (await apply_one(self.other, Delete(self.topic, self.lease_id, "w", [(0, 2)]), now, DIRECT_CALL)).codes
        )

    @asynccontextmanager
    async def last_row_locked(self) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
        """Block changes of both rows at the last row; yields a function that waits until so many are blocked."""
        connection, watching = await self.mine._database.connect(), await self.mine._database.connect()
        pid = connection.get_server_pid()

        async def wait_for(count: int) -> None:
            async def there() -> bool:
                return bool(await watching.fetchval(BEHIND, pid) >= count)

            await eventually(there, within=20, what=f"{count} changes wait")

        async with connection.transaction():
            await connection.execute("SELECT 1 FROM message WHERE id = $1 FOR UPDATE", IDS[-1])
            yield wait_for
        await connection.close()
        await watching.close()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    cluster = f"races_{secrets.token_hex(4)}"
    mine, other = (PostgresStorage(shared_server().dsn, cluster=cluster, connections=3) for _ in range(2))
    await mine.open(NOW)
    await other.open(NOW)
    topic = Topic("mail", await mine.next_topic_number(), TopicSettings(buckets=1))
    await mine.put_topic(topic, DIRECT_CALL)
    session = ProducerSession(NOW, 1)
    ids, times = [*IDS, "later"], [NOW, NOW, LATER]
    await apply_one(
        mine, Create(topic, CreateBatch("billing", session, 0, ts=times, bodies=[b"x"] * 3, ids=ids)), NOW, DIRECT_CALL
    )
    lease = await mine.lease(topic, LeaseRequest([0], "w", NOW, END, 10), NOW, DIRECT_CALL)
    assert lease is not None
    assert lease.ids() == IDS
    try:
        yield Scene(mine, other, topic, lease)
    finally:
        await mine.close()
        await other.close()


async def test_what_was_extended_at_the_last_moment_is_not_leased_again(scene: Scene) -> None:
    """G3: a lease call that saw the row expired, and waited for an extension of it, does not take the row."""
    async with scene.last_row_locked() as wait_for:
        extending = asyncio.create_task(scene.extend())
        await wait_for(1)
        request = LeaseRequest([0], "thief", END + 1, LATER, 10)
        leasing = asyncio.create_task(scene.other.lease(scene.topic, request, END + 1, DIRECT_CALL))
        await wait_for(2)
    assert await extending == {}
    assert await leasing is None
    assert await scene.delete(LATER - 1) == {}


async def test_a_lease_whose_rows_are_being_extended_is_not_forgotten(scene: Scene) -> None:
    """G3: a change that records expired leases meanwhile does not take this one from its holder, at any broker."""
    async with scene.last_row_locked() as wait_for:
        extending = asyncio.create_task(scene.extend())
        await wait_for(1)
        edit = Edit(scene.topic, "billing", Edits(["later"], ts=[LATER + 1]))
        assert not (await apply_one(scene.other, edit, END + 1, DIRECT_CALL)).codes
    assert await extending == {}
    assert await scene.delete(LATER - 1) == {}


async def test_an_expired_row_is_recorded_as_soon_as_it_is_unlocked(scene: Scene) -> None:
    """G4: a row that was locked when its lease ended is leased to the next caller."""
    async with scene.last_row_locked():
        edit = Edit(scene.topic, "billing", Edits(["later"], ts=[LATER + 1]))
        assert not (await apply_one(scene.other, edit, END + 1, DIRECT_CALL)).codes
    request = LeaseRequest([0], "next", END + 2, LATER, 10)
    lease = await scene.other.lease(scene.topic, request, END + 2, DIRECT_CALL)
    assert lease is not None
    assert lease.ids() == IDS
    assert set(await scene.delete(END + 2)) == {0, 1}


async def test_a_broker_that_freezes_with_a_lock_delays_others_for_its_idle_time_only(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C8: the row locks of a broker that was frozen in a transaction lasted longer than the other brokers wait."""
    monkeypatch.setattr(database, "IDLE_MS", 300)
    frozen = await scene.mine._database.connect()
    try:
        await frozen.execute("BEGIN")
        assert await frozen.fetch("SELECT 1 FROM message FOR UPDATE")
        assert await asyncio.wait_for(scene.delete(END - 1), patient(8)) == {}
    finally:
        frozen.terminate()


async def test_a_lock_that_lasts_longer_than_the_time_limit_is_no_failure_of_the_store(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C8: one lock caused the refusal of every topic."""
    monkeypatch.setattr(database, "LOCK_MS", 100)
    other = PostgresStorage(shared_server().dsn, cluster=scene.other._address.schema, patience_ms=300)
    await other.open(NOW)
    holder = await scene.mine._database.connect(idle_in_transaction_session_timeout="0")
    try:
        await holder.execute("BEGIN")
        await holder.execute("SELECT 1 FROM message FOR UPDATE")
        with pytest.raises(Unavailable, match="took too long"):
            await apply_one(other, Delete(scene.topic, scene.lease_id, "w", [(0, 2)]), END - 1, DIRECT_CALL)
        assert other.failure is None
    finally:
        holder.terminate()
        await other.close()
