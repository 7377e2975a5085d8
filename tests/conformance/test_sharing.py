"""A store that shares every body, with digests of which most collide, behaves like any other store."""

from __future__ import annotations

import asyncio
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import settings

from dejaq.domain.batch import CreateBatch
from dejaq.domain.bodies.packing import digest_of
from dejaq.domain.changes import Cancel, Create, Edit, Edits
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.topic import Topic
from dejaq.errors import Code
from dejaq.storage.base import apply_one
from dejaq.storage.memory.bodies import MemorySharedBodies as MemoryShared
from dejaq.storage.memory.state import MemoryState
from dejaq.storage.memory.store import MemoryStorage
from dejaq.storage.memory.timeline import Timeline
from dejaq.storage.rocksdb.bodies.shared import RocksSharedBodies
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.rocksdb.timeline.topic_state import TopicState
from dejaq.testing.conformance import CHECKS, Check
from dejaq.testing.conformance.scene import OWNER, Scene
from dejaq.testing.model.machine import run_model
from tests.conformance.test_model import SIZE

# The checks that create, replace or remove bodies.
GROUPS = {"create", "dead_letters", "journal", "leases", "owner", "restart", "settle", "snapshots", "steps"}


def colliding(body: bytes) -> bytes:
    """A digest with so few values that most bodies collide."""
    return bytes([zlib.crc32(body) % 20]) * 32


class Sharing(RocksStorage):
    """A store that shares the bodies of every topic, whatever the topic's settings say."""

    def _new_state(self, topic: Topic) -> TopicState:
        state = super()._new_state(topic)
        state.body_store.shared = RocksSharedBodies(
            state.database, topic.number, number=state.next_number, digest=colliding
        )
        state.body_store.inline_bytes_max = 0
        return state


@pytest.mark.parametrize(
    "check", [c for c in CHECKS if c.name.partition(".")[0] in GROUPS], ids=lambda check: check.name
)
async def test_storage(check: Check, tmp_path: Path) -> None:
    """G12: the checks of the suite, with every body shared and most digests colliding."""
    await check.run(lambda: Sharing(tmp_path / "store", journal=True))


@pytest.mark.timeout(0)
def test_the_model() -> None:
    """G12, R8: the model test as for the other backends, with a fifth of the histories."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:

        def fresh() -> object:
            place = Path(tempfile.mkdtemp(dir=folder))
            return lambda: Sharing(place, journal=True)

        run_model(fresh, settings(SIZE, max_examples=max(1, SIZE.max_examples // 5)), journal=True)  # type: ignore[arg-type]


class SharingMemory(MemoryState):
    """The same for the memory store."""

    def timeline(self, topic: Topic) -> Timeline:
        new = topic.number not in self.timelines
        timeline = super().timeline(topic)
        if new:
            timeline._shared = MemoryShared(colliding, bytes_min=0)
        return timeline


@pytest.mark.parametrize(
    "check",
    [c for c in CHECKS if c.name.partition(".")[0] in GROUPS and not c.restarts],
    ids=lambda check: check.name,
)
async def test_memory(check: Check) -> None:
    """G12: the same checks for the memory store."""
    storage = MemoryStorage(SharingMemory(journal=True))
    await check.run(lambda: storage)


async def test_a_body_is_stored_once_in_memory() -> None:
    """G12: all messages with the same body share one object, which is removed with the last of them."""
    storage = MemoryStorage(journal=True)
    scene = await Scene.begin(lambda: storage)
    scene.topic = await scene.new_topic("shared", share_bodies=True)
    for number in range(5):
        await scene.put(f"m{number}", body=bytes(bytearray(BODY)))
    await scene.put("small", body=b"small")
    found = [message.body for message in await scene.browse() if message.id != "small"]
    assert found == [BODY] * 5
    assert len(set(map(id, found))) == 1
    assert await storage.find_body(scene.topic, digest_of(BODY)) == BODY
    assert await scene.edit(Edits(["m0"], bodies=[OTHER])) == [Code.OK]
    assert await scene.cancel("m1", "m2", "m3") == [Code.OK] * 3
    assert await storage.find_body(scene.topic, digest_of(BODY)) == BODY
    assert await scene.cancel("m4") == [Code.OK]
    assert await storage.find_body(scene.topic, digest_of(BODY)) is None
    assert await storage.find_body(scene.topic, digest_of(OTHER)) == OTHER


BODY, OTHER = b"b" * 1_000, b"o" * 1_000


class Stage:
    """A store with a topic that shares bodies, and queries of what is on disk."""

    def __init__(self, path: Path, store: type[RocksStorage] = RocksStorage) -> None:
        self.path = path
        self.store = store

    async def __aenter__(self) -> Stage:
        self.scene = await Scene.begin(lambda: self.store(self.path, journal=True))
        self.scene.topic = await self.scene.new_topic("shared", share_bodies=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.scene.end()

    async def create(self, bodies: Sequence[bytes]) -> list[str]:
        scene = self.scene
        ids = [f"m-{scene.now}-{n}" for n in range(len(bodies))]
        batch = CreateBatch(
            session=scene.session(), sequence=0, owner=OWNER, ts=[scene.now] * len(ids), bodies=list(bodies), ids=ids
        )
        assert not (await apply_one(scene.storage, Create(scene.topic, batch), scene.now, DIRECT_CALL)).codes
        scene.now += 1
        return ids

    def rows(self, table: bytes) -> list[bytes]:
        prefix = keys.of_topic(table, self.scene.topic.number)
        database = self.scene.storage._database  # type: ignore[attr-defined]
        return [value for _, value in database.scan(prefix, keys.after(prefix))]

    def counts(self) -> tuple[int, int, int]:
        """The number of stored bodies, reference counts and digests."""
        return len(self.rows(keys.BODY)), len(self.rows(keys.USES)), len(self.rows(keys.DIGEST))


async def test_a_body_is_stored_once_and_removed_with_its_last_message(tmp_path: Path) -> None:
    """G12: this also holds after a restart."""
    async with Stage(tmp_path / "store") as stage:
        scene = stage.scene
        ids = await stage.create([BODY, OTHER, BODY, b"small"]) + await stage.create([BODY] * 50)
        assert stage.counts() == (2, 2, 2)
        found = await scene.storage.get(scene.topic, ids, scene.now)
        assert [m.body for m in found if m] == [BODY, OTHER, BODY, b"small", *[BODY] * 50]
        await apply_one(scene.storage, Cancel(scene.topic, OWNER, ids[:2]), scene.now, DIRECT_CALL)
        assert stage.counts() == (1, 1, 1)
        await scene.restart()
        await apply_one(scene.storage, Cancel(scene.topic, OWNER, ids[2:-1]), scene.now, DIRECT_CALL)
        assert stage.counts() == (1, 1, 1)
        found = await scene.storage.get(scene.topic, ids[-1:], scene.now)
        assert [m.body for m in found if m] == [BODY]
        await apply_one(scene.storage, Cancel(scene.topic, OWNER, ids[-1:]), scene.now, DIRECT_CALL)
        assert stage.counts() == (0, 0, 0)


async def test_an_edit_adds_a_reference_to_one_body_and_removes_one_from_another(tmp_path: Path) -> None:
    async with Stage(tmp_path / "store") as stage:
        scene = stage.scene
        first, second = await stage.create([BODY, BODY])
        for body, counts in ((OTHER, (2, 2, 2)), (BODY, (1, 1, 1)), (BODY, (1, 1, 1)), (b"small", (1, 1, 1))):
            done = await apply_one(
                scene.storage, Edit(scene.topic, OWNER, Edits(ids=[first], bodies=[body])), scene.now, DIRECT_CALL
            )
            assert not done.codes
            assert stage.counts() == counts
        found = await scene.storage.get(scene.topic, [first, second], scene.now)
        assert [m.body for m in found if m] == [b"small", BODY]


async def test_bodies_with_one_digest_are_two(tmp_path: Path) -> None:
    """G12: with a planted collision of digests, the bytes decide, and no body is lost."""

    class Colliding(RocksStorage):
        def _new_state(self, topic: Topic) -> TopicState:
            state = super()._new_state(topic)
            if state.body_store.shared is not None:
                state.body_store.shared = RocksSharedBodies(
                    state.database, topic.number, number=state.next_number, digest=lambda _: bytes(32)
                )
            return state

    bodies = [b"%d" % n * 500 for n in range(1, 6)]
    async with Stage(tmp_path / "store", Colliding) as stage:
        scene = stage.scene
        ids = await stage.create(bodies) + await stage.create(bodies)
        assert stage.counts() == (5, 5, 1)
        await scene.restart()
        found = await scene.storage.get(scene.topic, ids, scene.now)
        assert [m.body for m in found if m] == bodies * 2
        await apply_one(scene.storage, Cancel(scene.topic, OWNER, ids[:5]), scene.now, DIRECT_CALL)
        await apply_one(scene.storage, Cancel(scene.topic, OWNER, ids[7:8]), scene.now, DIRECT_CALL)
        assert stage.counts() == (4, 4, 1)
        left = [*ids[5:7], *ids[8:]]
        found = await scene.storage.get(scene.topic, left, scene.now)
        assert [m.body for m in found if m] == [bodies[0], bodies[1], bodies[3], bodies[4]]


async def test_a_body_is_found_by_its_whole_digest(tmp_path: Path) -> None:
    """G12: a body whose digest agrees in the first 128 bits only is another body."""
    async with Stage(tmp_path / "store") as stage:
        storage, topic = stage.scene.storage, stage.scene.topic
        await stage.create([BODY])
        assert isinstance(storage, RocksStorage)
        assert await storage.find_body(topic, digest_of(BODY)) == BODY
        assert await storage.find_body(topic, digest_of(BODY)[:16] + bytes(16)) is None
        assert await storage.find_body(topic, digest_of(OTHER)) is None
        assert await storage.find_body(topic, b"short") is None


async def test_deletes_releases_and_the_end_of_the_topic_leave_nothing_behind(tmp_path: Path) -> None:
    async with Stage(tmp_path / "store") as stage:
        scene = stage.scene
        await stage.create([BODY] * 20 + [OTHER] * 20)
        lease = await scene.lease()
        assert sorted(lease.bodies) == [BODY] * 20 + [OTHER] * 20
        await scene.release(lease, [(0, 2)], delay=5)
        await scene.delete(lease, [(2, 40)])
        assert stage.counts()[0] >= 1
        await scene.storage.drop_topic(scene.topic, scene.now, DIRECT_CALL)
        await asyncio.sleep(0)
        assert stage.counts() == (0, 0, 0)
