"""A log is read from the database at its first use after a start: in short steps, and only once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.topic import Topic, TopicKind, TopicSettings
from dejaq.errors import Code, DejaqError
from dejaq.storage.log.base import Append, Appended, OffsetCommit
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.testing.loop_steps import measured_steps

NOW = 1_800_000_000_000
BUCKETS, GROUPS = 1_024, 4
LOG = Topic("events", 1, TopicSettings(kind=TopicKind.LOG, buckets=BUCKETS))


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[RocksStorage]:
    """A store that was just opened, with a log of many buckets and some groups."""
    storage = RocksStorage(tmp_path)
    await storage.open(NOW)
    await storage.put_topic(LOG, DIRECT_CALL)
    await storage.logs.append(LOG, [Append(bucket, b"x", 1) for bucket in range(BUCKETS)], NOW, DIRECT_CALL)
    for group in range(GROUPS):
        claim, _ = await storage.logs.claim(LOG, str(group), range(BUCKETS), NOW, DIRECT_CALL)
        commits = [OffsetCommit(bucket, bucket % 2, claim) for bucket in range(BUCKETS)]
        assert set(await storage.logs.commit(LOG, str(group), commits, NOW, DIRECT_CALL)) == {Code.OK}
    await storage.close()
    storage = RocksStorage(tmp_path)
    await storage.open(NOW)
    yield storage
    await storage.close()


async def test_a_log_of_many_buckets_and_groups_is_loaded_in_short_steps(storage: RocksStorage) -> None:
    with measured_steps() as steps:
        offsets = await storage.logs.offsets(LOG, NOW)
        groups = await storage.logs.groups(LOG)
    assert [one.next for one in offsets] == [1] * BUCKETS
    assert {group: sum(one.offset for one in held.values()) for group, held in groups.items()} == {
        str(group): BUCKETS // 2 for group in range(GROUPS)
    }
    assert steps.longest_ms < max(4.0, steps.total_ms / 4), steps


async def test_calls_that_wait_for_a_log_go_on_in_their_order(storage: RocksStorage) -> None:
    """Calls that come while it is loaded, and when it has just been loaded, get offsets in the order of the calls."""

    async def append(place: int) -> int:
        (answer,) = await storage.logs.append(LOG, [Append(7, b"%d" % place, 1)], NOW, DIRECT_CALL)
        assert isinstance(answer, Appended)
        return answer.base

    # The first append of all raises the format of the directory in a thread, and others may overtake it.
    await storage.logs._raise_format()
    appending = []
    for place in range(200):
        appending.append(asyncio.create_task(append(place)))
        await asyncio.sleep(0)
    assert await asyncio.gather(*appending) == list(range(1, 201))
    assert (await storage.logs.offsets(LOG, NOW))[7].next == 201


async def test_a_log_that_is_dropped_while_it_is_loaded_is_not_found(storage: RocksStorage) -> None:
    reading = asyncio.create_task(storage.logs.offsets(LOG, NOW))
    await asyncio.sleep(0)
    await storage.drop_topic(LOG, NOW, DIRECT_CALL)
    with pytest.raises(DejaqError) as caught:
        await reading
    assert caught.value.code is Code.TOPIC_NOT_FOUND


async def test_a_log_that_a_transaction_uses_while_it_is_loaded_is_loaded_once(storage: RocksStorage) -> None:
    """A change that cannot wait reads the log at once; the other reading of it is dropped."""
    reading = asyncio.create_task(storage.logs.offsets(LOG, NOW))
    await asyncio.sleep(0)
    at_once = storage.logs._state(LOG)
    assert [one.next for one in await reading] == [1] * BUCKETS
    assert storage.logs._state(LOG) is at_once
