"""Get on PostgreSQL: messages as columns are the same as messages one by one."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence

import pytest

from dejaq import limits
from dejaq.domain.batch import CreateBatch, LeaseRequest
from dejaq.domain.changes import Create, Release
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.headers import encode_headers
from dejaq.domain.ids import ProducerSession
from dejaq.domain.message import Message
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import Code, DejaqError
from dejaq.protocol.columns import add_unleased, messages_from_proto
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.storage.base import ReadsColumns, apply_one
from dejaq.storage.postgres.reading import querying
from dejaq.storage.postgres.store import PostgresStorage
from dejaq.testing.servers.postgres import shared_server

NOW = 1_700_000_000_000


class Scene:
    """A store and a topic."""

    def __init__(self, storage: PostgresStorage, topic: Topic) -> None:
        self.storage, self.topic, self._sent = storage, topic, 0
        self.session = ProducerSession(NOW, 7)

    async def create(
        self, ids: Sequence[str] | None, bodies: Sequence[bytes], *, ts: int = NOW + 1_000, with_more: bool = False
    ) -> None:
        """Some messages, with priorities and headers if asked."""
        count = len(bodies)
        batch = CreateBatch(
            "billing",
            self.session,
            self._sent,
            [ts + row for row in range(count)],
            list(bodies),
            ids=None if ids is None else list(ids),
            bucket=3,
            priorities=list(range(-1, count - 1)) if with_more else None,
            headers=[encode_headers({"k": f"v{row}"} if row % 2 else {}) for row in range(count)]
            if with_more
            else None,
        )
        self._sent += count
        assert not (await apply_one(self.storage, Create(self.topic, batch), NOW, DIRECT_CALL)).codes

    async def columns(self, ids: Sequence[str]) -> tuple[list[Message | None], int]:
        """The messages as the broker sends them, by the positions of their ids, and how many came as columns."""
        unleased, others = await self.storage.get_columns(self.topic, ids, NOW)
        proto = carrier.MessageColumns()
        add_unleased(proto, unleased, ids=ids, places=range(len(ids)), now=NOW)
        found: list[Message | None] = [None] * len(ids)
        for item, message in [*zip(proto.asked, messages_from_proto(proto, topic="mail"), strict=True), *others]:
            assert found[item] is None
            found[item] = message
        return found, len(unleased)

    async def check(self, ids: Sequence[str], *, as_columns: int) -> None:
        """Columns have the same messages as `get`, and so many of them."""
        found, count = await self.columns(ids)
        assert found == await self.storage.get(self.topic, ids, NOW)
        assert count == as_columns


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    storage = PostgresStorage(shared_server().dsn, cluster=f"get_{secrets.token_hex(4)}")
    await storage.open(NOW)
    topic = Topic("mail", await storage.next_topic_number(), TopicSettings(buckets=4))
    await storage.put_topic(topic, DIRECT_CALL)
    yield Scene(storage, topic)
    await storage.close()


async def test_messages_that_nobody_had_come_as_columns(scene: Scene) -> None:
    assert isinstance(scene.storage, ReadsColumns)
    await scene.create(["c", "a", "b"], [b"3", b"", b"2"], with_more=True)
    await scene.create(None, [b"x", b"y"])
    generated = [f"{scene.session.prefix(3)}{counter:08x}" for counter in (3, 4)]
    await scene.check(["a", "missing", generated[1], "b", "c", generated[0]], as_columns=5)
    await scene.check(["missing"], as_columns=0)


async def test_messages_that_somebody_has_or_had_and_large_ones_come_one_by_one(scene: Scene) -> None:
    await scene.create(["held", "released"], [b"1", b"2"], ts=NOW - 10)
    lease = await scene.storage.lease(
        scene.topic, LeaseRequest(range(4), "w", until=NOW, expires=NOW + 30_000), NOW, DIRECT_CALL
    )
    assert lease is not None
    (row,) = [row for row, message_id in enumerate(lease.ids()) if message_id == "released"]
    release = Release(scene.topic, lease.lease_id, "w", [(row, row + 1)], ts=NOW + 5)
    assert not (await apply_one(scene.storage, release, NOW, DIRECT_CALL)).codes
    await scene.create(["limit", "large"], [bytes(querying.SMALL_BYTES), bytes(querying.SMALL_BYTES + 1)])
    ids = ["large", "held", "limit", "released"]
    await scene.check(ids, as_columns=1)
    found, _ = await scene.columns(ids)
    held, released = found[1], found[3]
    assert held is not None
    assert held.lock_consumer == "w"
    assert released is not None
    assert released.attempts == 1


async def test_an_id_that_is_named_twice_or_is_that_of_two_messages_is_answered_each_time(scene: Scene) -> None:
    await scene.create(["a"], [b"natural"])
    await scene.check(["a", "b", "a"], as_columns=0)
    await scene.create(None, [b"generated"])
    twin = f"{scene.session.prefix(3)}{1:08x}"

    # A natural id with the text of a generated one, as a client of another session may choose it before.
    async def insert(link: object) -> None:
        await link.connection.execute(  # type: ignore[attr-defined]
            "INSERT INTO message (topic, id, place, ts, asked_ts, version, priority, size, owner, headers, body) "
            "SELECT topic, $1, place, ts, asked_ts, version, 0, 3, owner, '', 'own' FROM message WHERE id = $2",
            twin,
            twin + "!",
        )

    await scene.storage._database.change(insert)
    await scene.check(["a", twin], as_columns=0)
    found, _ = await scene.columns([twin])
    assert found[0] is not None
    assert found[0].body == b"own"


async def test_large_messages_that_exceed_a_frame_are_refused_before_they_are_read(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.create(["a", "b"], [bytes(5_000), bytes(5_000)])
    monkeypatch.setattr(limits, "BATCH_BYTES_MAX", 9_999)
    with pytest.raises(DejaqError) as caught:
        await scene.columns(["a", "b"])
    assert caught.value.code is Code.BATCH_TOO_LARGE
    await scene.check(["a"], as_columns=0)
