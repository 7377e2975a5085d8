"""A store without memory for rows knows when the first of them is due, also when one change writes several runs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dejaq.domain.batch import CreateBatch
from dejaq.domain.changes import Create
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.storage.base import apply_one
from dejaq.storage.rocksdb.store import RocksStorage

NOW = 1_700_000_000_000
DELAYS_MS = (-86_400_000, -40_000, -20_000, -1, 0, 1, 50)


@pytest.mark.parametrize("seed", [107, 140, 260, 296, 332, 355, 370, *range(10)])
async def test_the_first_message_is_never_before_next_ts(seed: int, tmp_path: Path) -> None:
    """G4: a consumer that sleeps until `next_ts` must not sleep past a message."""
    chance = random.Random(seed)
    storage = RocksStorage(tmp_path / "store", window_bytes=1, young_ids=3)
    await storage.open(NOW)
    topic = Topic("mail", 1, TopicSettings(buckets=chance.choice([1, 3, 4])))
    await storage.put_topic(topic, DIRECT_CALL)
    times: list[int] = []
    for _ in range(6):
        ts = [NOW + chance.choice(DELAYS_MS) for _ in range(chance.randint(1, 6))]
        ids = [f"n{len(times) + row}" for row in range(len(ts))]
        batch = CreateBatch("billing", ProducerSession(NOW, 5), len(times), ts, [b""] * len(ts), ids=ids)
        assert not (await apply_one(storage, Create(topic, batch), NOW, DIRECT_CALL)).codes
        times += ts
        found = await storage.next_ts(topic, range(topic.settings.buckets), NOW)
        assert found is not None
        assert found <= min(times)
    await storage.close()
