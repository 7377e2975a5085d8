"""D23, D24: the memory that the embedded store uses for a topic is limited by the messages that the topic has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dejaq import limits
from dejaq.domain.batch import CreateBatch, LeaseRequest
from dejaq.domain.changes import Create, Delete
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import LimitExceeded
from dejaq.storage.base import Filter, apply_one
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.rocksdb.timeline import lease
from dejaq.storage.rocksdb.timeline.topic_state import TopicState

NOW = 1_800_000_000_000
HOUR_MS = 3_600_000


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[RocksStorage]:
    made = RocksStorage(tmp_path / "data")
    await made.open(NOW)
    yield made
    await made.close()


@pytest.fixture
async def topic(storage: RocksStorage) -> Topic:
    made = Topic("mail", await storage.next_topic_number(), TopicSettings(buckets=1), created_ms=NOW)
    await storage.put_topic(made, DIRECT_CALL)
    return made


def state_of(storage: RocksStorage, topic: Topic) -> TopicState:
    return storage._states[topic.number]


async def create(storage: RocksStorage, topic: Topic, ids: list[str], sequence: int, owner: str = "billing") -> None:
    count = len(ids)
    session = ProducerSession(NOW, sequence + 1)
    batch = CreateBatch(owner=owner, session=session, sequence=0, ts=[NOW] * count, bodies=[b"x"] * count, ids=ids)
    assert not (await apply_one(storage, Create(topic, batch), NOW, DIRECT_CALL)).codes


async def consume(storage: RocksStorage, topic: Topic, rows_max: int = 100) -> None:
    granted = await storage.lease(
        topic, LeaseRequest([0], "worker", NOW, NOW + HOUR_MS, rows_max=rows_max), NOW, DIRECT_CALL
    )
    assert granted is not None
    assert not (await apply_one(storage, Delete(topic, granted.lease_id, "worker", None), NOW, DIRECT_CALL)).codes


async def test_the_end_times_of_settled_leases_are_removed(
    storage: RocksStorage, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D23: a lease of several hours that was settled at once leaves nothing in memory for hours."""
    monkeypatch.setattr(lease, "_ENDS_MIN", 10)
    await create(storage, topic, ["stays"], 0)
    assert await storage.lease(topic, LeaseRequest([0], "other", NOW, NOW + 1), NOW, DIRECT_CALL) is not None
    for number in range(50):
        await create(storage, topic, [f"m-{number}"], number + 1)
        await consume(storage, topic)
    ends = state_of(storage, topic).leases._ends
    assert len(ends) < 20
    assert await storage.next_ts(topic, [0], NOW) == NOW + 1


async def test_producer_groups_of_an_empty_topic_are_removed_and_others_are_limited(
    storage: RocksStorage, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D24: one group per message does not fill the memory; groups that have messages are kept."""
    monkeypatch.setattr("dejaq.storage.rocksdb.timeline.owners._KEPT", 5)
    monkeypatch.setattr(limits, "PRODUCER_GROUPS_MAX", 10)
    for number in range(30):
        await create(storage, topic, [f"m-{number}"], number, owner=f"group-{number}")
        await consume(storage, topic)
    assert len(state_of(storage, topic).owners) <= 6
    await create(storage, topic, ["kept"], 100, owner="the one")
    known = len(state_of(storage, topic).owners)
    for number in range(10 - known):
        await create(storage, topic, [f"n-{number}"], 200 + number, owner=f"more-{number}")
    with pytest.raises(LimitExceeded):
        await create(storage, topic, ["too many"], 300, owner="one too many")
    assert storage.failure is None
    await storage.close()
    await storage.open(NOW)
    assert await storage.count(topic, Filter(owner="the one"), NOW) == 1
    (kept,) = await storage.get(topic, ["kept"], NOW)
    assert kept is not None
    assert kept.producer_group == "the one"


async def test_a_few_runs_that_stay_do_not_keep_all_ids_of_their_generation(
    storage: RocksStorage, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D24: 128 messages that stay keep hundreds of bytes each in memory, not hundreds of megabytes."""
    monkeypatch.setattr("dejaq.storage.rocksdb.timeline.index._SPARSE_MIN", 20)
    index = state_of(storage, topic).index
    await create(storage, topic, ["stays"], 0)
    assert await storage.lease(topic, LeaseRequest([0], "slow", NOW, NOW + HOUR_MS), NOW, DIRECT_CALL) is not None
    for number in range(40):
        await create(storage, topic, [f"m-{number}-{row}" for row in range(10)], number + 1)
        await consume(storage, topic)
    assert sum(len(generation.places) for generation in index._generations) < 50
    (found,) = await storage.get(topic, ["stays"], NOW)
    assert found is not None
