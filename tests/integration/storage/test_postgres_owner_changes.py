"""An owner's change of many messages is one statement when all may be changed, and exact when some may not."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import asyncpg
import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest
from dejaq.domain.changes import Cancel, Create, Edit, Edits
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Durability, Topic, TopicSettings
from dejaq.errors import Code
from dejaq.protocol.v1.journal_pb2 import EventKind, JournalRecord
from dejaq.storage.base import Filter, apply_one
from dejaq.storage.postgres.connection.database import PostgresLink
from dejaq.storage.postgres.queries import SQL
from dejaq.storage.postgres.store import PostgresStorage
from dejaq.testing.servers.postgres import shared_server

NOW = 1_700_000_000_000
HOUR_MS = 3_600_000
IDS = [f"n{number}" for number in range(40)]
# What is read before a change is decided row by row.
ROW_BY_ROW = ("take_owned", "take_owned_without_bodies")


class Scene:
    """A store with a journal, and messages that are due in an hour."""

    def __init__(self, storage: PostgresStorage, topic: Topic) -> None:
        self.storage, self.topic = storage, topic

    async def create(self, session: int, ids: list[str] | None, *, count: int, ts: int) -> list[str]:
        """A batch of messages; returns their ids."""
        batch = CreateBatch("billing", ProducerSession(NOW, session), 0, [ts] * count, [b"x"] * count, ids=ids)
        assert not (await apply_one(self.storage, Create(self.topic, batch), NOW, DIRECT_CALL)).codes
        return [batch.id_of(row) for row in range(count)]

    async def change(self, change: Edit | Cancel, *, now: int = NOW) -> dict[int, Code]:
        """Make a change; returns the refusals."""
        return dict((await apply_one(self.storage, change, now, DIRECT_CALL)).codes)

    async def recorded(self) -> JournalRecord:
        """The last record of the journal."""
        record = JournalRecord()
        record.ParseFromString((await self.storage.journal(0, 1 << 24))[-1])
        return record


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    storage = PostgresStorage(shared_server().dsn, cluster=f"owners_{secrets.token_hex(4)}", journal="x")
    await storage.open(NOW)
    topic = Topic("mail", await storage.next_topic_number(), TopicSettings(buckets=4))
    await storage.put_topic(topic, DIRECT_CALL)
    scene = Scene(storage, topic)
    await scene.create(1, IDS, count=len(IDS), ts=NOW + HOUR_MS)
    yield scene
    await storage.close()


@pytest.fixture
def only_in_one_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statements that read messages before they are changed fail."""
    for name in ROW_BY_ROW:
        monkeypatch.setitem(SQL, name, "SELECT 1 / 0, $1::integer, $2::text []")


@pytest.mark.usefixtures("only_in_one_statement")
async def test_messages_are_moved_edited_and_cancelled_without_being_read(scene: Scene) -> None:
    times = [NOW + HOUR_MS + row * 60_000 for row in range(len(IDS))]
    backwards = IDS[::-1]
    assert await scene.change(Edit(scene.topic, "billing", Edits(backwards, ts=times))) == {}
    events = (await scene.recorded()).events[0]
    assert (events.kind, list(events.ts)) == (EventKind.EVENT_MOVED, times)
    assert await scene.change(Edit(scene.topic, "billing", Edits(IDS, bodies=[b"new"] * 40, priorities=[3] * 40))) == {}
    events = (await scene.recorded()).events[0]
    assert (events.kind, list(events.ts)) == (EventKind.EVENT_EDITED, times[::-1])
    found = await scene.storage.get(scene.topic, IDS, NOW)
    assert {(one.body, one.priority) for one in found if one is not None} == {(b"new", 3)}
    assert await scene.change(Cancel(scene.topic, "billing", IDS[:30])) == {}
    assert await scene.storage.count(scene.topic, Filter(), NOW) == 10
    assert await scene.storage.histogram(scene.topic, Filter(), 60_000, NOW) == sorted(
        (ts // 60_000 * 60_000, 1) for ts in times[:10]
    )


async def test_a_natural_id_with_the_text_of_a_generated_id_is_changed_first(scene: Scene) -> None:
    generated = CreateBatch("billing", ProducerSession(NOW, 2), 0, [NOW] * 2, [b"generated"] * 2)
    ids = [generated.id_of(row) for row in range(2)]
    await scene.create(3, ids[:1], count=1, ts=NOW + HOUR_MS)
    assert not (await apply_one(scene.storage, Create(scene.topic, generated), NOW, DIRECT_CALL)).codes
    assert await scene.change(Edit(scene.topic, "billing", Edits(ids, bodies=[b"edited"] * 2))) == {}
    assert await scene.change(Cancel(scene.topic, "billing", ids)) == {}
    left, gone = await scene.storage.get(scene.topic, ids, NOW)
    assert (left is not None and left.body, gone) == (b"generated", None)


async def test_one_message_that_may_not_be_changed_refuses_only_itself(scene: Scene) -> None:
    (later,) = await scene.storage.get(scene.topic, [IDS[5]], NOW)
    assert later is not None
    versions = [later.version + (row == 5) for row in range(len(IDS))]
    edits = Edits([*IDS, "unknown"], ts=[NOW + 2 * HOUR_MS] * 41, versions=[*versions, None])
    expected = {5: Code.VERSION_CONFLICT, 40: Code.NOT_FOUND}
    assert await scene.change(Edit(scene.topic, "billing", edits)) == expected
    assert await scene.change(Cancel(scene.topic, "billing", [*IDS, "unknown"])) == {40: Code.NOT_FOUND}
    assert await scene.storage.count(scene.topic, Filter(), NOW) == 0


async def test_a_message_of_an_expired_lease_is_counted_where_it_was(scene: Scene) -> None:
    """G1: the place of the lease's end is given up, and counts stay exact."""
    due, end = NOW + HOUR_MS, NOW + HOUR_MS + 30_000
    request = LeaseRequest(range(4), "w", until=due, expires=end, rows_max=4)
    lease = await scene.storage.lease(scene.topic, request, due, DIRECT_CALL)
    assert lease is not None
    later = NOW + 3 * HOUR_MS
    edits = Edits(IDS, ts=[later] * len(IDS))
    assert await scene.change(Edit(scene.topic, "billing", edits), now=end) == {}
    assert await scene.storage.histogram(scene.topic, Filter(), HOUR_MS, NOW) == [(later // HOUR_MS * HOUR_MS, 40)]
    assert await scene.storage.count(scene.topic, Filter(end=later), NOW) == 0
    assert await scene.change(Cancel(scene.topic, "billing", IDS), now=end) == {}
    assert await scene.storage.count(scene.topic, Filter(), NOW) == 0


@pytest.mark.usefixtures("only_in_one_statement")
async def test_a_move_and_a_cancellation_write_their_record_and_counts_in_the_same_statement(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("finish", "edit_all"):
        monkeypatch.setitem(SQL, name, "SELECT 1 / 0")
    soon = NOW + 2 * HOUR_MS
    assert await scene.change(Edit(scene.topic, "billing", Edits(IDS, ts=[soon] * 40))) == {}
    # Few minutes: counted one by one; many: as a list.
    assert await scene.storage.histogram(scene.topic, Filter(), 60_000, NOW) == [(soon // 60_000 * 60_000, 40)]
    apart = [soon + row * 60_000 for row in range(40)]
    assert await scene.change(Edit(scene.topic, "billing", Edits(IDS, ts=apart))) == {}
    steps = [(ts // 60_000 * 60_000, 1) for ts in apart]
    assert await scene.storage.histogram(scene.topic, Filter(), 60_000, NOW) == steps
    assert list((await scene.recorded()).events[0].ts) == apart
    assert await scene.change(Cancel(scene.topic, "billing", IDS[:38])) == {}
    assert await scene.storage.histogram(scene.topic, Filter(), 60_000, NOW) == steps[38:]
    assert (await scene.recorded()).events[0].kind == EventKind.EVENT_CANCELLED
    assert await scene.change(Cancel(scene.topic, "billing", IDS[38:])) == {}
    assert await scene.storage.count(scene.topic, Filter(), NOW) == 0


async def test_a_move_of_an_owner_that_may_not_move_one_message_writes_nothing(scene: Scene) -> None:
    """G1: neither the record nor the counts of the statement that failed."""
    before = await scene.recorded()
    edits = Edits(IDS, ts=[NOW + 2 * HOUR_MS] * 40)
    assert set((await scene.change(Edit(scene.topic, "sales", edits))).values()) == {Code.NOT_OWNER}
    assert set((await scene.change(Cancel(scene.topic, "sales", IDS))).values()) == {Code.NOT_OWNER}
    assert await scene.recorded() == before
    assert await scene.storage.histogram(scene.topic, Filter(), HOUR_MS, NOW) == [
        ((NOW + HOUR_MS) // HOUR_MS * HOUR_MS, 40)
    ]


async def test_a_move_whose_commit_was_interrupted_is_made_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """G2: the counter of the connection says that the statement was done."""
    lost: list[str] = []
    value = PostgresLink.value

    async def losing(link: PostgresLink, name: str, *arguments: object) -> object:
        answer = await value(link, name, *arguments)
        if name in ("move_all", "cancel_all") and name not in lost:
            lost.append(name)
            raise asyncpg.ConnectionDoesNotExistError("lost after the statement")
        return answer

    monkeypatch.setattr(PostgresLink, "value", losing)
    apart = [NOW + 3 * HOUR_MS + row * 60_000 for row in range(40)]
    assert await scene.change(Edit(scene.topic, "billing", Edits(IDS, ts=apart))) == {}
    assert await scene.storage.count(scene.topic, Filter(start=apart[0]), NOW) == 40
    assert await scene.change(Cancel(scene.topic, "billing", IDS)) == {}
    assert await scene.storage.count(scene.topic, Filter(), NOW) == 0
    records = [JournalRecord.FromString(one) for one in await scene.storage.journal(0, 1 << 24)]
    kinds = [events.kind for record in records for events in record.events]
    assert kinds == [EventKind.EVENT_CREATED, EventKind.EVENT_MOVED, EventKind.EVENT_CANCELLED]
    assert lost == ["move_all", "cancel_all"]


async def test_messages_of_a_topic_with_relaxed_durability_are_moved_and_cancelled(scene: Scene) -> None:
    topic = Topic("fast", await scene.storage.next_topic_number(), TopicSettings(durability=Durability.RELAXED))
    await scene.storage.put_topic(topic, DIRECT_CALL)
    relaxed = Scene(scene.storage, topic)
    await relaxed.create(5, IDS, count=len(IDS), ts=NOW + HOUR_MS)
    assert await relaxed.change(Edit(topic, "billing", Edits(IDS, ts=[NOW + 2 * HOUR_MS] * 40))) == {}
    assert await relaxed.change(Cancel(topic, "billing", IDS[1:])) == {}
    assert await scene.storage.count(topic, Filter(), NOW) == 1
