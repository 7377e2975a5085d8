"""One run may have ids of several buckets, and each bucket's consumer still gets exactly its own messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest, LeaseSet
from dejaq.domain.changes import Cancel, Create, Delete, Recall
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession, bucket_of
from dejaq.domain.topic import Topic, TopicSettings, TopicStage
from dejaq.protocol.v1 import records_pb2 as records
from dejaq.storage.base import Filter, apply_one
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.store import RocksStorage

NOW = 1_800_000_005_000
BUCKETS = 4
TOPIC = Topic(name="t", number=1, settings=TopicSettings(buckets=BUCKETS), state=TopicStage.LIVE)
IDS = [f"m{number:03d}" for number in range(200)]
MINE, THEIRS = (0, 2), (1, 3)


async def opened(path: Path, *, window_bytes: int = 1 << 20) -> RocksStorage:
    storage = RocksStorage(path, window_bytes=window_bytes)
    await storage.open(NOW)
    if not await storage.topics():
        await storage.put_topic(TOPIC, DIRECT_CALL)
    return storage


async def served(storage: RocksStorage) -> None:
    """One consumer leases from all buckets, so that the store does not split a run."""
    assert await lease(storage, (0, 1, 2, 3)) is None


async def create(storage: RocksStorage, ids: list[str], *, sequence: int = 0, step: int = 0) -> None:
    """Create one batch whose messages are due `step` ms after each other, up to now."""
    ts = [NOW - step * (len(ids) - 1 - row) for row in range(len(ids))]
    session = ProducerSession(NOW, 1)
    await apply_one(
        storage, Create(TOPIC, CreateBatch("o", session, sequence, ts, [b"x"] * len(ids), ids=ids)), NOW, DIRECT_CALL
    )


async def lease(
    storage: RocksStorage, buckets: tuple[int, ...], *, now: int = NOW, rows_max: int = 1_000, consumer: str = "c"
) -> LeaseSet | None:
    request = LeaseRequest(buckets=buckets, consumer=consumer, until=now, expires=now + 1_000, rows_max=rows_max)
    return await storage.lease(TOPIC, request, now, DIRECT_CALL)


def of_buckets(buckets: tuple[int, ...]) -> list[str]:
    return [one for one in IDS if bucket_of(one, BUCKETS) in buckets]


def runs(storage: RocksStorage) -> int:
    return len(list(storage._database.scan_keys(keys.RUN, keys.after(keys.RUN))))


async def test_a_batch_is_one_run_until_consumers_share_the_buckets(tmp_path: Path) -> None:
    storage = await opened(tmp_path / "s")
    await create(storage, IDS[:60])
    assert runs(storage) == 1
    # Before a consumer leases them, the rows of a bucket are consecutive, so that several consumers get slices.
    assert len((await lease(storage, (0,)) or LeaseSet(0, "", 0, [], [], [])).spans) == 1
    await create(storage, IDS[60:100], sequence=60)
    assert runs(storage) == 1 + BUCKETS
    assert await lease(storage, (0, 1, 2, 3)) is not None
    await create(storage, IDS[100:], sequence=100, step=1)
    assert runs(storage) == 2 + BUCKETS
    await storage.close()


@pytest.mark.parametrize("step", [0, 1, 100])
@pytest.mark.parametrize("window_bytes", [1, 1 << 20])
async def test_consumers_of_some_buckets_get_these_and_in_order(tmp_path: Path, step: int, window_bytes: int) -> None:
    """G3: at most one live lease per message."""
    storage = await opened(tmp_path / "s", window_bytes=window_bytes)
    await served(storage)
    await create(storage, IDS, step=step)
    assert runs(storage) in (1, 2, 3)
    got: dict[tuple[int, ...], list[str]] = {MINE: [], THEIRS: []}
    waiting = [MINE, THEIRS]
    while waiting:
        buckets = waiting.pop(0)
        held = await lease(storage, buckets, rows_max=7)
        if held is not None:
            assert held.ts == sorted(held.ts)
            got[buckets] += held.ids()
            waiting.append(buckets)
            if len(got[buckets]) % 3 == 0:
                await apply_one(storage, Delete(TOPIC, held.lease_id, "c", None), NOW, DIRECT_CALL)
    assert {name: sorted(ids) for name, ids in got.items()} == {one: of_buckets(one) for one in (MINE, THEIRS)}
    if step >= 100:
        assert got == {one: of_buckets(one) for one in (MINE, THEIRS)}
    await storage.close()


async def test_expired_rows_go_to_the_consumer_of_their_bucket_also_after_a_restart(tmp_path: Path) -> None:
    """G4: an expired lease makes the message available again."""
    storage = await opened(tmp_path / "s")
    await served(storage)
    await create(storage, IDS)
    assert len(await lease(storage, (0, 1, 2, 3)) or ()) == len(IDS)
    await storage.close()
    storage = await opened(tmp_path / "s")
    for buckets in (MINE, THEIRS):
        held = await lease(storage, buckets, now=NOW + 2_000)
        assert held is not None
        assert (sorted(held.ids()), held.attempts) == (of_buckets(buckets), [2] * len(held))
    await storage.close()


async def test_recalled_rows_are_available_to_every_consumer(tmp_path: Path) -> None:
    storage = await opened(tmp_path / "s")
    await served(storage)
    await create(storage, IDS)
    held = await lease(storage, (0, 1, 2, 3))
    assert held is not None
    await apply_one(storage, Recall(TOPIC, held.lease_id, "c", None), NOW, DIRECT_CALL)
    mine = await lease(storage, MINE)
    assert mine is not None
    await apply_one(storage, Recall(TOPIC, mine.lease_id, "c", None), NOW, DIRECT_CALL)
    assert sorted((await lease(storage, (0, 1, 2, 3)) or mine).ids()) == IDS
    await storage.close()


async def test_a_scan_and_a_query_know_the_bucket_of_each_message(tmp_path: Path) -> None:
    storage = await opened(tmp_path / "s")
    await served(storage)
    await create(storage, IDS)
    held = await lease(storage, (0, 1, 2, 3), rows_max=60)
    assert held is not None
    for stored in (False, True):
        snapshot = await storage.snapshot(TOPIC, NOW)
        seen: list[str] = []
        scan = snapshot.scan_stored if stored else snapshot.scan
        async for portion in scan(MINE, Filter(), bodies=False):
            for stretch in getattr(portion, "stretches", ()):
                ids = list(stretch.span.expand())
                assert {bucket_of(one, BUCKETS) for one in ids} == {stretch.bucket}
                seen += ids
            for run, bucket in zip(getattr(portion, "runs", ()), getattr(portion, "buckets", ()), strict=True):
                ids = list(records.Run.FromString(run).ids)
                assert {bucket_of(one, BUCKETS) for one in ids} == {bucket}
                seen += ids
        assert sorted(seen) == of_buckets(MINE)
        snapshot.close()
    found = await storage.get(TOPIC, IDS, NOW)
    assert [one.bucket if one is not None else None for one in found] == [bucket_of(one, BUCKETS) for one in IDS]
    await storage.close()


async def test_old_ids_of_a_mixed_run_are_found_and_free_after_their_deletion(tmp_path: Path) -> None:
    """G5: create is idempotent by id."""
    storage = RocksStorage(tmp_path / "s", young_ids=0)
    await storage.open(NOW)
    await storage.put_topic(TOPIC, DIRECT_CALL)
    await create(storage, IDS)
    index = storage._states[TOPIC.number].index
    assert len(index.arrivals(IDS)) == len(IDS)
    assert all(await storage.get(TOPIC, IDS, NOW))
    outcomes = await apply_one(storage, Cancel(TOPIC, "o", IDS[:150]), NOW, DIRECT_CALL)
    assert not outcomes.codes
    assert [one.id for one in await storage.get(TOPIC, IDS, NOW) if one is not None] == IDS[150:]
    assert len(index.arrivals(IDS)) == 50
    await storage.close()
