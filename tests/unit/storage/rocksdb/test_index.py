"""Ids are found wherever their index entries are, and the ids of a young run need no entry."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest, Outcomes
from dejaq.domain.changes import Create, Delete
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings, TopicStage
from dejaq.errors import Code
from dejaq.storage.base import apply_one
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.rocksdb.timeline import index

NOW = 1_800_000_000_000
TOPIC = Topic(name="t", number=1, settings=TopicSettings(buckets=4), state=TopicStage.LIVE)
SESSIONS = count(1)


async def opened(path: Path, *, young_ids: int) -> RocksStorage:
    storage = RocksStorage(path, young_ids=young_ids)
    await storage.open(NOW)
    if not await storage.topics():
        await storage.put_topic(TOPIC, DIRECT_CALL)
    return storage


async def create(storage: RocksStorage, ids: list[str], *, delay: int = 0) -> Outcomes:
    """Create a batch in a session of its own, so that only its ids can identify a repeat."""
    batch = CreateBatch(
        owner="o",
        session=ProducerSession(NOW, next(SESSIONS)),
        sequence=0,
        ts=[NOW + delay] * len(ids),
        bodies=[b"x"] * len(ids),
        ids=ids,
    )
    return await apply_one(storage, Create(TOPIC, batch), NOW, DIRECT_CALL)


def on_disk(storage: RocksStorage, table: bytes) -> int:
    return len(list(storage._database.scan_keys(table, keys.after(table))))


def entered(storage: RocksStorage, ids: list[str]) -> int:
    """How many of the ids have entries on disk."""
    return len(storage._states[TOPIC.number].index.arrivals(ids))


async def drained(storage: RocksStorage) -> int:
    request = LeaseRequest(
        buckets=range(4), consumer="c", until=NOW, expires=NOW + 60_000, rows_max=1_000, bytes_max=1 << 20
    )
    lease = await storage.lease(TOPIC, request, NOW, DIRECT_CALL)
    assert lease is not None
    await apply_one(storage, Delete(TOPIC, lease.lease_id, "c", None), NOW, DIRECT_CALL)
    return len(lease)


async def test_young_ids_need_one_mark_per_run_and_leave_nothing_behind(tmp_path: Path) -> None:
    storage = await opened(tmp_path / "s", young_ids=1_000)
    await create(storage, [f"m{n}" for n in range(200)])
    assert (on_disk(storage, keys.ID_CHANGES), on_disk(storage, keys.YOUNG)) == (0, 1)
    assert await drained(storage) == 200
    assert (on_disk(storage, keys.ID_CHANGES), on_disk(storage, keys.YOUNG)) == (0, 0)
    assert (await create(storage, ["m7"]))[0] is Code.OK
    await storage.close()


async def test_messages_of_the_far_future_get_index_entries_at_once(tmp_path: Path) -> None:
    storage = await opened(tmp_path / "s", young_ids=1_000)
    await create(storage, ["near"], delay=index.YOUNG_MS)
    await create(storage, ["far"], delay=index.YOUNG_MS + 1)
    assert (on_disk(storage, keys.PLACE), on_disk(storage, keys.YOUNG)) == (1, 1)
    assert entered(storage, ["near", "far"]) == 1
    await storage.close()


@pytest.mark.parametrize("young_ids", [0, 50, 1_000])
async def test_an_existing_id_is_refused_whether_young_or_old_and_after_a_restart(
    tmp_path: Path, young_ids: int
) -> None:
    """G5: create is idempotent by id."""
    ids = [f"m{n}" for n in range(300)]
    storage = await opened(tmp_path / "s", young_ids=young_ids)
    for first in range(0, 300, 10):
        await create(storage, ids[first : first + 10])
    assert entered(storage, ids) >= 300 - young_ids
    for _ in range(2):
        outcomes = await create(storage, ids)
        assert set(outcomes.codes.values()) == {Code.ALREADY_EXISTS}
        assert len(outcomes.codes) == 300
        await storage.close()
        storage = await opened(tmp_path / "s", young_ids=young_ids)
    assert await drained(storage) == 300
    assert [on_disk(storage, table) for table in (keys.ID_CHANGES, keys.PLACE, keys.YOUNG)] == [0, 0, 0]
    await storage.close()


async def test_generations_are_removed_and_do_not_accumulate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "GENERATION_IDS", 8)
    monkeypatch.setattr(index, "GENERATIONS_MAX", 5)
    storage = await opened(tmp_path / "s", young_ids=1_000)
    ids = [f"m{n}" for n in range(400)]
    for first in range(0, 400, 4):
        await create(storage, ids[first : first + 4])
    found = storage._states[TOPIC.number].index
    assert len(found._generations) <= 5
    # Ids without a young run are on disk, and each id is in exactly one of the two places.
    assert entered(storage, ids) + storage._budget.ids == 400
    assert set((await create(storage, ids)).codes.values()) == {Code.ALREADY_EXISTS}
    assert await drained(storage) == 400
    assert (found._generations, storage._budget.ids) == ([], 0)
    await storage.close()
