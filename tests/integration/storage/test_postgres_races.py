"""Changes that meet at one message at the end of its lease: each answer holds, whoever comes first."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest, LeaseSet
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.storage.base import Edits
from dejaq.storage.postgres.store import PostgresStorage
from dejaq.testing.postgres import shared_server
from dejaq.testing.waiting import eventually

NOW = 1_700_000_000_000
END, LATER = NOW + 60_000, NOW + 120_000
IDS = ["m-0", "m-1"]
# Who waits, directly or not, for the connection of this pid.
BEHIND = """
WITH RECURSIVE behind (pid) AS (
    SELECT $1::integer
    UNION SELECT a.pid FROM pg_stat_activity AS a JOIN behind ON behind.pid = any(pg_blocking_pids(a.pid))
)
SELECT count(*) - 1 FROM behind
"""


class Scene:
    """Two messages under one lease that `mine` gave, and another broker's store."""

    def __init__(self, mine: PostgresStorage, other: PostgresStorage, topic: Topic, lease: LeaseSet) -> None:
        self.mine, self.other, self.topic, self.lease_id = mine, other, topic, lease.lease_id

    async def extend(self) -> dict[int, object]:
        """Extend both rows just before their end; what failed."""
        outcomes = await self.mine.extend(self.topic, self.lease_id, "w", None, LATER, END - 1)
        return dict(outcomes.codes)

    async def delete(self, now: int) -> dict[int, object]:
        """Delete both rows through the broker that has to look the lease up; what failed."""
        return dict((await self.other.delete(self.topic, self.lease_id, "w", [(0, 2)], now)).codes)

    @asynccontextmanager
    async def last_row_locked(self) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
        """Let whoever wants both rows have the first and wait for the last; gives a wait for so many who wait."""
        connection, watching = await self.mine._database.connect(), await self.mine._database.connect()
        pid = connection.get_server_pid()

        async def wait_for(count: int) -> None:
            async def there() -> bool:
                return bool(await watching.fetchval(BEHIND, pid) >= count)

            await eventually(there, within=20, what=f"{count} wait")

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
    await mine.put_topic(topic)
    session = ProducerSession(NOW, 1)
    ids, times = [*IDS, "later"], [NOW, NOW, LATER]
    await mine.create(topic, CreateBatch("billing", session, 0, ts=times, bodies=[b"x"] * 3, ids=ids), NOW)
    lease = await mine.lease(topic, LeaseRequest([0], "w", NOW, END, 10), NOW)
    assert lease is not None
    assert lease.ids() == IDS
    try:
        yield Scene(mine, other, topic, lease)
    finally:
        await mine.close()
        await other.close()


async def test_what_was_extended_at_the_last_moment_is_not_leased_again(scene: Scene) -> None:
    """G3: a lease that saw the row lost, and waited for an extension of it, does not take it."""
    async with scene.last_row_locked() as wait_for:
        extending = asyncio.create_task(scene.extend())
        await wait_for(1)
        request = LeaseRequest([0], "thief", END + 1, LATER, 10)
        leasing = asyncio.create_task(scene.other.lease(scene.topic, request, END + 1))
        await wait_for(2)
    assert await extending == {}
    assert await leasing is None
    assert await scene.delete(LATER - 1) == {}


async def test_a_lease_whose_rows_are_being_extended_is_not_forgotten(scene: Scene) -> None:
    """G3: who tells of ended leases meanwhile leaves it to its holder, whichever broker that one comes to."""
    async with scene.last_row_locked() as wait_for:
        extending = asyncio.create_task(scene.extend())
        await wait_for(1)
        assert not (await scene.other.edit(scene.topic, "billing", Edits(["later"], ts=[LATER + 1]), END + 1)).codes
    assert await extending == {}
    assert await scene.delete(LATER - 1) == {}


async def test_what_has_ended_is_told_as_soon_as_nobody_is_at_it(scene: Scene) -> None:
    """G4: a row that was busy when its lease ended is given to the next who asks."""
    async with scene.last_row_locked():
        assert not (await scene.other.edit(scene.topic, "billing", Edits(["later"], ts=[LATER + 1]), END + 1)).codes
    request = LeaseRequest([0], "next", END + 2, LATER, 10)
    lease = await scene.other.lease(scene.topic, request, END + 2)
    assert lease is not None
    assert lease.ids() == IDS
    assert set(await scene.delete(END + 2)) == {0, 1}
