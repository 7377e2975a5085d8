"""The cost of a page of messages depends on its size, not on the number of matching messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from dejaq.domain.batch import CreateBatch
from dejaq.domain.changes import Create
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings, TopicStage
from dejaq.storage.base import Filter, apply_one
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.rocksdb.timeline.run import Run

NOW = 1_700_000_000_000
BATCHES, ROWS = 4, 2_000


async def test_a_page_reads_few_ids_of_many_that_are_due_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = RocksStorage(tmp_path)
    await storage.open(NOW)
    try:
        settings = TopicSettings(buckets=2)
        topic = Topic(name="t", number=1, settings=settings, state=TopicStage.LIVE, created_ms=NOW)
        await storage.put_topic(topic, DIRECT_CALL)
        for number in range(BATCHES):
            batch = CreateBatch(
                owner="g",
                session=ProducerSession(NOW, number),
                sequence=0,
                bucket=number % 2,
                ts=[NOW + 5_000] * ROWS,
                bodies=[b""] * ROWS,
            )
            assert not (await apply_one(storage, Create(topic, batch), NOW, DIRECT_CALL)).failed
        asked: list[int] = []
        id_at = Run.id_at

        def counting(run: Run, row: int) -> str:
            asked.append(row)
            return id_at(run, row)

        monkeypatch.setattr(Run, "id_at", counting)
        seen: list[str] = []
        cursor: bytes | None = None
        while True:
            asked.clear()
            page = await storage.browse(topic, Filter(), cursor, 1_000, NOW)
            seen += [message.id for message in page.messages]
            # Each id is read once to find its position and once to be shown; the other reads are the search in each
            # run.
            assert len(asked) < 2 * 1_000 + 200
            cursor = page.cursor
            if cursor is None:
                break
        assert len(seen) == BATCHES * ROWS
        assert seen == sorted(seen)
    finally:
        await storage.close()
