"""Listed ids are found wherever their entries are, and a young run's ids cost no entry."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest, Outcomes
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings, TopicState
from dejaq.errors import Code
from dejaq.storage.rocksdb import index, keys
from dejaq.storage.rocksdb.store import RocksStorage

NOW = 1_800_000_000_000
TOPIC = Topic(name="t", number=1, settings=TopicSettings(buckets=4), state=TopicState.LIVE)
SESSIONS = count(1)


async def opened(path: Path, *, young_ids: int) -> RocksStorage:
    storage = RocksStorage(path, young_ids=young_ids)
    await storage.open(NOW)
    if not await storage.topics():
        await storage.put_topic(TOPIC)
    return storage


async def create(storage: RocksStorage, ids: list[str], *, delay: int = 0) -> Outcomes:
    """A batch of a session of its own, so that only its ids can be known."""
    batch = CreateBatch(
        owner="o",
        session=ProducerSession(NOW, next(SESSIONS)),
        sequence=0,
        ts=[NOW + delay] * len(ids),
        bodies=[b"x"] * len(ids),
        ids=ids,
    )
    return await storage.create(TOPIC, batch, NOW)


def on_disk(storage: RocksStorage, table: bytes) -> int:
    return len(list(storage._database.scan_keys(table, keys.after(table))))


async def drained(storage: RocksStorage) -> int:
    request = LeaseRequest(
        buckets=range(4), consumer="c", until=NOW, expires=NOW + 60_000, rows_max=1_000, bytes_max=1 << 20
    )
    lease = await storage.lease(TOPIC, request, NOW)
    assert lease is not None
    await storage.delete(TOPIC, lease.lease_id, "c", None, NOW)
    return len(lease)


async def test_young_ids_need_a_mark_a_run_and_leave_nothing_behind(tmp_path: Path) -> None:
    storage = await opened(tmp_path / "s", young_ids=1_000)
    await create(storage, [f"m{n}" for n in range(200)])
    assert (on_disk(storage, keys.INDEX), on_disk(storage, keys.YOUNG)) == (0, 1)
    assert await drained(storage) == 200
    assert (on_disk(storage, keys.INDEX), on_disk(storage, keys.YOUNG)) == (0, 0)
    assert (await create(storage, ["m7"]))[0] is Code.OK
    await storage.close()


async def test_what_is_far_ahead_has_its_entries_at_once(tmp_path: Path) -> None:
    storage = await opened(tmp_path / "s", young_ids=1_000)
    await create(storage, ["near"], delay=index.YOUNG_MS)
    await create(storage, ["far"], delay=index.YOUNG_MS + 1)
    assert (on_disk(storage, keys.INDEX), on_disk(storage, keys.YOUNG)) == (1, 1)
    await storage.close()


@pytest.mark.parametrize("young_ids", [0, 50, 1_000])
async def test_an_id_is_taken_whether_young_or_old_and_after_a_restart(tmp_path: Path, young_ids: int) -> None:
    """G5: create is idempotent by id."""
    ids = [f"m{n}" for n in range(300)]
    storage = await opened(tmp_path / "s", young_ids=young_ids)
    for first in range(0, 300, 10):
        await create(storage, ids[first : first + 10])
    assert on_disk(storage, keys.INDEX) >= 300 - young_ids
    for _ in range(2):
        outcomes = await create(storage, ids)
        assert set(outcomes.codes.values()) == {Code.ALREADY_EXISTS}
        assert len(outcomes.codes) == 300
        await storage.close()
        storage = await opened(tmp_path / "s", young_ids=young_ids)
    assert await drained(storage) == 300
    assert (on_disk(storage, keys.INDEX), on_disk(storage, keys.YOUNG)) == (0, 0)
    await storage.close()


async def test_generations_are_forgotten_and_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "GENERATION_IDS", 8)
    monkeypatch.setattr(index, "GENERATIONS_MAX", 5)
    storage = await opened(tmp_path / "s", young_ids=1_000)
    ids = [f"m{n}" for n in range(400)]
    for first in range(0, 400, 4):
        await create(storage, ids[first : first + 4])
    found = storage._images[TOPIC.number].index
    assert len(found._generations) <= 5
    # What has no young run any more is on disk, and each id is in one of the two.
    assert on_disk(storage, keys.INDEX) + storage._budget.ids == 400
    assert set((await create(storage, ids)).codes.values()) == {Code.ALREADY_EXISTS}
    assert await drained(storage) == 400
    assert (found._generations, storage._budget.ids) == ([], 0)
    await storage.close()
