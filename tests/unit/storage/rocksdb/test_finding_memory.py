"""What finds messages that are not in memory counts in the budget of the store, and has a limit."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dejaq.domain.batch import CreateBatch
from dejaq.domain.changes import Cancel, Create
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.storage.base import apply_one
from dejaq.storage.rocksdb.engine.inspecting import inspect
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.rocksdb.timeline.memory import budget as budgets
from dejaq.storage.rocksdb.timeline.memory.budget import Budget

NOW = 1_800_000_000_000
HOUR_MS = 3_600_000
TOPIC = Topic("mail", 1, TopicSettings(buckets=4))
ROWS, RUNS = 100, 200
MB = 1 << 20


async def filled(path: Path) -> tuple[RocksStorage, list[str]]:
    """A store whose messages are due within a month, and their ids."""
    storage = RocksStorage(path, window_bytes=64 * MB)
    await storage.open(NOW)
    await storage.put_topic(TOPIC, DIRECT_CALL)
    chance, every = random.Random(4), list[str]()
    for number in range(RUNS):
        ids = [f"m-{number}-{row}" for row in range(ROWS)]
        ts = [NOW + HOUR_MS * chance.randrange(1, 720) for _ in ids]
        batch = CreateBatch("billing", ProducerSession(NOW, 1), number * ROWS, ts, [b"x" * 100] * ROWS, ids=ids)
        assert not (await apply_one(storage, Create(TOPIC, batch), NOW, DIRECT_CALL)).codes
        every += ids
    return storage, every


async def test_what_a_topic_needs_is_counted_until_it_is_gone(tmp_path: Path) -> None:
    storage, ids = await filled(tmp_path / "data")
    assert storage.stats()["id_index_bytes"] > 8 * len(ids)
    await storage.get(TOPIC, ids[::ROWS], NOW)
    assert storage.stats()["known_runs_bytes"] > 30_000
    state = storage._states[TOPIC.number]
    while len(state.moved) == 0:
        await storage.merger.settle()
    counted = storage.stats()["id_index_bytes"]
    await storage.close()
    await storage.open(NOW)
    # The same as after a start.
    assert storage.stats()["id_index_bytes"] == pytest.approx(counted, rel=0.3)
    assert not (await apply_one(storage, Cancel(TOPIC, "billing", ids), NOW, DIRECT_CALL)).codes
    await storage.get(TOPIC, ids[:1], NOW)
    await storage.drop_topic(TOPIC, NOW, DIRECT_CALL)
    assert (storage.stats()["id_index_bytes"], storage.stats()["known_runs_bytes"]) == (0, 0)
    await storage.close()


async def test_what_is_known_of_runs_keeps_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, ids = await filled(tmp_path / "data")
    monkeypatch.setattr(budgets, "_KNOWN_BYTES_MIN", 50_000)
    storage._budget.bytes_max = 8 * 50_000
    for _ in range(2):
        messages = await storage.get(TOPIC, ids[::10], NOW)
        assert [one.id for one in messages if one is not None] == ids[::10]
        # Merges that run meanwhile remove some of them.
        assert 10_000 < storage.stats()["known_runs_bytes"] < 52_000
    assert not (await apply_one(storage, Cancel(TOPIC, "billing", ids[:1_000]), NOW, DIRECT_CALL)).codes
    assert storage.stats()["known_runs_bytes"] < 52_000
    await storage.close()


def test_what_finds_rows_takes_at_most_half_of_the_budget() -> None:
    budget = Budget(80 * MB)
    budget.used = 70 * MB
    budget.index = 10 * MB
    assert not budget.spent
    budget.known = 11 * MB
    assert budget.spent
    budget.used, budget.index = 39 * MB, 1 << 40
    assert not budget.spent
    budget.used = 40 * MB
    assert budget.spent
    assert not budget.exhausted


async def test_inspect_shows_the_entries_of_ids(tmp_path: Path) -> None:
    storage, ids = await filled(tmp_path / "data")
    for message_id in ids[:200]:
        # Each commit merges a part of the entries of the last ones.
        assert not (await apply_one(storage, Cancel(TOPIC, "billing", [message_id]), NOW, DIRECT_CALL)).codes
    await storage.close()
    found = inspect(tmp_path / "data")["ids"]
    assert 10_000 < found["entries"] <= len(ids)
    assert found["memory_bytes"] == 9 * found["entries"]
