"""A broker cleans the tables in time: after many dead rows, and after large bodies were removed."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator

import pytest

from dejaq import limits
from dejaq.domain.batch import CreateBatch
from dejaq.domain.bodies.large import declare, sealed_parts
from dejaq.domain.changes import Cancel, Create
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.storage.base import apply_one
from dejaq.storage.postgres import upkeep
from dejaq.storage.postgres.connection.database import PostgresLink
from dejaq.storage.postgres.store import PostgresStorage
from dejaq.testing.conformance.uploads import each
from dejaq.testing.servers.postgres import shared_server
from dejaq.testing.waiting import eventually

NOW = 1_700_000_000_000
ROWS = 100
LARGE_BYTES = 3_000_000


@pytest.fixture
async def storage() -> AsyncIterator[PostgresStorage]:
    # A database of its own: VACUUM keeps what an open transaction of another test in the same database may still read.
    name = f"cleaning_{secrets.token_hex(4)}"
    opened = PostgresStorage(shared_server().new_database(name), cluster=name)
    await opened.open(NOW)
    yield opened
    await opened.close()


async def new_topic(storage: PostgresStorage) -> Topic:
    topic = Topic("mail", await storage.next_topic_number(), TopicSettings(buckets=4))
    await storage.put_topic(topic, DIRECT_CALL)
    return topic


async def create(storage: PostgresStorage, topic: Topic, number: int) -> list[str]:
    """A batch of messages; returns their ids."""
    ids = [f"n{number}-{row}" for row in range(ROWS)]
    batch = CreateBatch("billing", ProducerSession(NOW, number), 0, [NOW] * ROWS, [b"x"] * ROWS, ids=ids)
    assert not (await apply_one(storage, Create(topic, batch), NOW, DIRECT_CALL)).codes
    return ids


async def cancel(storage: PostgresStorage, topic: Topic, ids: list[str]) -> None:
    assert not (await apply_one(storage, Cancel(topic, "billing", ids), NOW, DIRECT_CALL)).codes


async def cleaned(storage: PostgresStorage, times: int) -> None:
    """Wait until the tables were cleaned so often."""
    await eventually(lambda: storage.stats()["vacuums"] == times, within=30, what=f"cleaning {times}")
    task = storage._upkeep._task
    assert task is not None
    await task


async def test_tables_are_cleaned_when_a_part_of_the_messages_is_dead(
    storage: PostgresStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "VACUUM_SHARE", 0.5)
    monkeypatch.setattr(storage._upkeep, "_dead_max", ROWS)
    monkeypatch.setattr(upkeep, "VACUUM_ROWS", ROWS)
    topic = await new_topic(storage)
    batches = [await create(storage, topic, number) for number in range(16)]
    # Two messages that their owner cancelled count as one that was leased and deleted.
    for ids in batches[:2]:
        await cancel(storage, topic, ids)
    await cleaned(storage, 1)
    # Of the 1,400 messages that are left, 700 may be dead.
    for ids in batches[2:15]:
        await cancel(storage, topic, ids)
    assert storage.stats()["vacuums"] == 1
    await cancel(storage, topic, batches[15])
    await cleaned(storage, 2)


async def test_the_space_of_removed_large_bodies_is_used_again(storage: PostgresStorage) -> None:
    topic = await new_topic(storage)

    async def size(link: PostgresLink) -> int:
        found: int = await link.connection.fetchval("SELECT pg_total_relation_size('large_part')")
        return found

    sizes = []
    for number in range(4):
        parts = list(sealed_parts(os.urandom(LARGE_BYTES)))
        await storage.bodies.upload(topic, 0, declare(parts, LARGE_BYTES), each(parts), NOW)
        assert await storage.bodies.reclaim(NOW + 2 * limits.UPLOAD_KEEP_MS) == 1
        await cleaned(storage, number + 1)
        sizes.append(await storage._database.read(size))
    assert sizes[-1] < 2 * LARGE_BYTES
