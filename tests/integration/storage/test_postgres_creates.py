"""Creates that wait at the same time share a statement, and each of them has the answer that it would have alone."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import asyncpg
import pytest

from dejaq.domain.batch import CreateBatch
from dejaq.domain.changes import Create
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.headers import encode_headers
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings, TopicStage
from dejaq.errors import Code, DejaqError
from dejaq.storage.base import Filter, apply_one
from dejaq.storage.postgres.store import PostgresStorage
from dejaq.testing.servers.postgres import shared_server
from dejaq.testing.waiting import eventually

NOW = 1_700_000_000_000
PRODUCERS = 60
# As many statements of creates run at the same time.
STATEMENTS = [f"held-{number}" for number in range(4)]
HOLD = """
INSERT INTO message (topic, id, place, ts, asked_ts, version, priority, size, owner, headers, body)
SELECT $1, id, 0, 0, 0, 0, 0, 0, '', '', '' FROM unnest($2::text []) AS id
"""
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'"


class Scene:
    """A store with a journal, and a topic."""

    def __init__(self, storage: PostgresStorage, topic: Topic) -> None:
        self.storage, self.topic = storage, topic

    def batch(self, session: int, *ids: str, sequence: int = 0, owner: str = "billing") -> Create:
        """A batch of one session."""
        rows = len(ids)
        batch = CreateBatch(owner, ProducerSession(NOW, session), sequence, [NOW] * rows, [b"x"] * rows, ids=ids)
        return Create(self.topic, batch)

    async def create(self, change: Create) -> dict[int, Code] | DejaqError:
        """Create one batch; returns the refusals of its rows, or that of all."""
        try:
            return dict((await apply_one(self.storage, change, NOW, DIRECT_CALL)).codes)
        except DejaqError as error:
            return error

    async def statements(self) -> int:
        """How many statements and transactions have created messages: each has one record."""
        return len(await self.storage.journal(0, 1 << 24))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[list[asyncio.Task[object]]]:
        """As many creates as run at one time; they are held back until the block ends, and later creates wait."""
        connection = await self.storage._database.connect(idle_in_transaction_session_timeout="0")
        await connection.execute("BEGIN")
        await connection.execute(HOLD, self.topic.number, STATEMENTS)
        tasks = [asyncio.ensure_future(self.create(self.batch(900 + one, key))) for one, key in enumerate(STATEMENTS)]
        watching = await self.storage._database.connect()

        async def all_wait() -> bool:
            return bool(await watching.fetchval(WAITING, self.storage._database.name) == len(STATEMENTS))

        try:
            await eventually(all_wait, within=10, what="the statements that are held back")
            yield list(tasks)
        finally:
            await connection.execute("ROLLBACK")
            await asyncio.gather(*tasks)
            await connection.close()
            await watching.close()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    storage = PostgresStorage(shared_server().dsn, cluster=f"creates_{secrets.token_hex(4)}", journal="x")
    storage.announce(f"creates-{secrets.token_hex(4)}")
    await storage.open(NOW)
    topic = Topic("mail", await storage.next_topic_number(), TopicSettings(buckets=4))
    await storage.put_topic(topic, DIRECT_CALL)
    yield Scene(storage, topic)
    await storage.close()


async def test_sends_of_many_producers_that_wait_share_a_statement(scene: Scene) -> None:
    sends = [scene.batch(one, f"n{one}", owner=f"group-{one % 2}") for one in range(PRODUCERS)]
    sends[3] = replace(sends[3], batch=replace(sends[3].batch, priorities=[7]))
    sends[5] = replace(sends[5], batch=replace(sends[5].batch, headers=[encode_headers({"a": "b"})]))
    async with scene.running():
        waiting = [asyncio.ensure_future(scene.create(send)) for send in sends]
        await asyncio.sleep(0)
    assert await asyncio.gather(*waiting) == [{}] * PRODUCERS
    assert await scene.statements() == len(STATEMENTS) + 1
    found = await scene.storage.get(scene.topic, [f"n{one}" for one in range(PRODUCERS)], NOW)
    assert [one.producer_group for one in found if one is not None] == [f"group-{one % 2}" for one in range(PRODUCERS)]
    assert [(one.priority, dict(one.headers)) for one in found[3:6] if one is not None] == [
        (7, {}),
        (0, {}),
        (0, {"a": "b"}),
    ]
    assert await scene.storage.count(scene.topic, Filter(owner="group-1"), NOW) == PRODUCERS // 2


async def test_an_id_that_is_taken_refuses_only_its_own_batch(scene: Scene) -> None:
    assert await scene.create(scene.batch(800, "n7", owner="somebody else")) == {}
    async with scene.running():
        waiting = [asyncio.ensure_future(scene.create(scene.batch(one, f"n{one}"))) for one in range(PRODUCERS)]
        await asyncio.sleep(0)
    answers = await asyncio.gather(*waiting)
    assert [number for number, answer in enumerate(answers) if answer] == [7]
    assert answers[7] == {0: Code.ID_TAKEN}
    assert await scene.storage.count(scene.topic, Filter(owner="billing"), NOW) == PRODUCERS - 1 + len(STATEMENTS)


async def test_the_batches_of_one_session_are_created_in_order_and_a_repeat_is_recognised(scene: Scene) -> None:
    batches = [scene.batch(1, f"a{one}", f"b{one}", sequence=2 * one) for one in range(8)]
    async with scene.running():
        waiting = [asyncio.ensure_future(scene.create(one)) for one in (*batches, batches[2])]
        await asyncio.sleep(0)
    repeated = {0: Code.ALREADY_EXISTS, 1: Code.ALREADY_EXISTS}
    assert await asyncio.gather(*waiting) == [{}] * 8 + [repeated]
    assert await scene.statements() == len(STATEMENTS) + 1
    assert await scene.create(batches[7]) == repeated


async def test_a_batch_whose_caller_gives_up_is_created(scene: Scene) -> None:
    async with scene.running():
        waiting = asyncio.ensure_future(scene.create(scene.batch(1, "n1")))
        await asyncio.sleep(0)
        waiting.cancel()
    (found,) = await scene.storage.get(scene.topic, ["n1"], NOW)
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    if found is None:

        async def created() -> bool:
            return await scene.storage.get(scene.topic, ["n1"], NOW) != [None]

        await eventually(created, within=10, what="the batch of the caller that gave up")


async def test_a_topic_that_is_being_deleted_refuses_every_batch_that_waits(scene: Scene) -> None:
    async with scene.running() as running:
        waiting = [asyncio.ensure_future(scene.create(scene.batch(one, f"n{one}"))) for one in range(3)]
        await asyncio.sleep(0)
        deleting = replace(scene.topic, state=TopicStage.DELETING)
        await scene.storage.put_topic(deleting, DIRECT_CALL)
    answers = await asyncio.gather(*waiting)
    assert {one.code for one in answers if isinstance(one, DejaqError)} == {Code.TOPIC_DELETING}
    assert len(answers) == 3
    await asyncio.gather(*running)


@pytest.fixture
def _small_groups_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dejaq.storage.postgres.create_queue.FOLLOWING_ROWS_MIN", 2)


@asynccontextmanager
async def held(scene: Scene, *ids: str) -> AsyncIterator[asyncpg.Connection]:
    """Ids that an outside transaction has inserted, until it is rolled back at the end; yields another connection."""
    holding, watching = [await scene.storage._database.connect() for _ in range(2)]
    await holding.execute("BEGIN")
    await holding.execute(HOLD, scene.topic.number, list(ids))
    try:
        yield watching
    finally:
        await holding.execute("ROLLBACK")
        await holding.close()
        await watching.close()


async def follows(scene: Scene, watching: asyncpg.Connection, *states: str) -> None:
    """Wait until the connections that create have these states: active, or idle in transaction."""

    async def there() -> bool:
        rows = await watching.fetch(
            "SELECT state FROM pg_stat_activity WHERE application_name = $1 AND pid <> pg_backend_pid() "
            "AND query NOT LIKE 'INSERT INTO message%' AND state <> 'idle' ORDER BY state",
            scene.storage._database.name,
        )
        return [row["state"] for row in rows] == sorted(states)

    await eventually(there, within=10, what=f"connections that are {states}")


@pytest.mark.usefixtures("_small_groups_follow")
async def test_rows_of_a_session_are_written_beside_those_of_its_batch_before(scene: Scene) -> None:
    first, second = scene.batch(5, "a", "b"), scene.batch(5, "c", "d", sequence=2)
    third = scene.batch(5, "e", "f", sequence=4)
    async with held(scene, "a") as watching:
        waiting = [asyncio.ensure_future(scene.create(one)) for one in (first, second, third)]
        # The first waits for the id; the second has written its rows and waits for the first; the third waits here.
        await follows(scene, watching, "active", "idle in transaction")
        assert await scene.storage.count(scene.topic, Filter(), NOW) == 0
    assert await asyncio.gather(*waiting) == [{}] * 3
    assert await scene.statements() == 3
    assert [await scene.create(one) for one in (second, third)] == [dict.fromkeys(range(2), Code.ALREADY_EXISTS)] * 2
    assert await scene.storage.count(scene.topic, Filter(), NOW) == 6


@pytest.mark.usefixtures("_small_groups_follow")
async def test_a_batch_that_follows_a_refused_one_is_created_after_it(scene: Scene) -> None:
    assert await scene.create(scene.batch(800, "b", owner="somebody else")) == {}
    first, second = scene.batch(5, "a", "b"), scene.batch(5, "c", "d", sequence=2)
    async with held(scene, "a") as watching:
        waiting = [asyncio.ensure_future(scene.create(one)) for one in (first, second)]
        await follows(scene, watching, "active", "idle in transaction")
    assert await asyncio.gather(*waiting) == [{1: Code.ID_TAKEN}, {}]
    assert await scene.create(second) == dict.fromkeys(range(2), Code.ALREADY_EXISTS)
    assert await scene.storage.count(scene.topic, Filter(), NOW) == 4


@pytest.mark.usefixtures("_small_groups_follow")
async def test_a_batch_that_follows_is_not_created_in_a_topic_that_is_deleted_meanwhile(scene: Scene) -> None:
    first, second = scene.batch(5, "a", "b"), scene.batch(5, "c", "d", sequence=2)
    async with held(scene, "a") as watching:
        waiting = [asyncio.ensure_future(scene.create(one)) for one in (first, second)]
        await follows(scene, watching, "active", "idle in transaction")
        await scene.storage.put_topic(replace(scene.topic, state=TopicStage.DELETING), DIRECT_CALL)
    _, refused = await asyncio.gather(*waiting)
    assert isinstance(refused, DejaqError)
    assert refused.code is Code.TOPIC_DELETING
    assert await scene.storage.get(scene.topic, ["c", "d"], NOW) == [None, None]


@pytest.mark.usefixtures("_small_groups_follow")
async def test_a_batch_that_follows_gives_way_to_the_one_before_when_both_have_an_id(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the server nor the broker alone sees that each waits for the other."""
    monkeypatch.setattr("dejaq.storage.postgres.create_queue.FOLLOWING_SECONDS", 0.3)
    first, second = scene.batch(5, "a", "b"), scene.batch(5, "b", "c", sequence=2)
    async with held(scene, "a") as watching:
        waiting = [asyncio.ensure_future(scene.create(one)) for one in (first, second)]
        await follows(scene, watching, "active", "idle in transaction")
    assert await asyncio.gather(*waiting) == [{}, {0: Code.ALREADY_EXISTS}]
    assert await scene.storage.count(scene.topic, Filter(), NOW) == 3
