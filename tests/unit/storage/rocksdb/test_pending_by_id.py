"""Changes by id that arrive together share a write, a journal record and a sync, and each has the answer that it had
alone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dejaq.domain.batch import LeaseRequest, Outcomes
from dejaq.domain.changes import Cancel, Change, Create, Edit, Edits
from dejaq.domain.context import DIRECT_CALL
from dejaq.errors import Code, Refused
from dejaq.protocol.v1 import journal_pb2 as journal
from dejaq.storage.base import Storage
from dejaq.storage.memory.store import MemoryStorage
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.rocksdb.timeline.far import pending_by_id
from tests.unit.storage.rocksdb.test_pending_creates import (
    BUCKETS,
    HOUR_MS,
    NOW,
    TOPIC,
    TOPICS,
    HeldSync,
    answer_of,
    begin,
    keys_of,
    send,
    single,
    stored,
)

OWNER = "billing"
LATER = NOW + 30 * 24 * HOUR_MS


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[RocksStorage]:
    made = RocksStorage(tmp_path / "store", journal=True)
    await begin(made)
    yield made
    await made.close()


async def filled(storage: Storage, count: int) -> list[str]:
    """The ids of new messages."""
    ids = [f"m-{number}" for number in range(count)]
    await send(storage, [single(number, one, ts=LATER + number * HOUR_MS) for number, one in enumerate(ids)])
    return ids


def move(message_id: str, ts: int, *, owner: str = OWNER, version: int | None = None) -> Edit:
    versions = None if version is None else [version]
    return Edit(TOPIC, owner, Edits([message_id], ts=[ts], versions=versions))


def codes(answer: Outcomes | Refused) -> list[Code]:
    return [answer.code] if isinstance(answer, Refused) else [code for _, code in sorted(answer.codes.items())]


async def together(storage: Storage, *changes: Change) -> list[list[Code]]:
    """Make changes of one moment; what was refused of each."""
    return [codes(answer) for answer in await asyncio.gather(*(answer_of(storage, change) for change in changes))]


async def test_changes_of_one_kind_and_moment_share_a_write_a_record_and_a_run(storage: RocksStorage) -> None:
    ids = await filled(storage, 60)
    records, writes, syncs = len(await storage.journal(0, 1 << 20)), storage._committer.writes, storage._committer.syncs
    runs = len(keys_of(storage, keys.RUN))
    moves = [move(one, LATER + HOUR_MS) for one in ids[:30]]
    cancels = [Cancel(TOPIC, OWNER, [one]) for one in ids[30:50]]
    assert await together(storage, *moves, *cancels) == [[]] * 50
    assert (storage._committer.writes, storage._committer.syncs) == (writes + 2, syncs + 1)
    new = (await storage.journal(0, 1 << 20))[records:]
    kinds = [events.kind for record in new for events in journal.JournalRecord.FromString(record).events]
    assert kinds == [journal.EVENT_MOVED, journal.EVENT_CANCELLED]
    assert len(keys_of(storage, keys.RUN)) <= runs + BUCKETS
    messages = await stored(storage)
    assert sorted(messages) == sorted(ids[:30] + ids[50:])
    assert {messages[one].ts for one in ids[:30]} == {LATER + HOUR_MS}


async def test_each_change_has_its_own_answer(storage: RocksStorage) -> None:
    ids = await filled(storage, 5)
    version = (await stored(storage))[ids[3]].version
    answers = await together(
        storage,
        move(ids[0], LATER),
        move("unknown", LATER),
        move(ids[1], LATER, owner="another"),
        move(ids[2], LATER, version=1),
        move(ids[3], LATER, version=version),
        Edit(TOPIC, OWNER, Edits([ids[4], "unknown-too"], bodies=[b"new", b"new"])),
    )
    wrong = [[], [Code.NOT_FOUND], [Code.NOT_OWNER], [Code.VERSION_CONFLICT], [], [Code.NOT_FOUND]]
    assert answers == wrong
    assert (await stored(storage))[ids[4]].body == b"new"


async def test_a_change_of_the_same_message_comes_behind_the_first(storage: RocksStorage) -> None:
    ids = await filled(storage, 2)
    answers = await together(
        storage,
        Cancel(TOPIC, OWNER, [ids[0]]),
        move(ids[0], LATER),
        Create(TOPIC, single(7, ids[0], ts=LATER + 7)),
        move(ids[1], LATER + 1),
        move(ids[1], LATER + 2),
    )
    assert answers == [[], [Code.NOT_FOUND], [], [], []]
    assert {one.id: one.ts for one in (await stored(storage)).values()} == {ids[0]: LATER + 7, ids[1]: LATER + 2}


async def test_what_waits_during_a_sync_is_seen_by_what_follows(
    storage: RocksStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await filled(storage, 3)
    held = HeldSync(storage, monkeypatch)
    first = asyncio.ensure_future(answer_of(storage, Cancel(TOPIC, OWNER, [ids[0]])))
    await held.begun()
    second = asyncio.ensure_future(answer_of(storage, move(ids[1], NOW)))
    await asyncio.sleep(0)
    assert await storage.next_ts(TOPIC, range(BUCKETS), NOW) == NOW
    request = LeaseRequest(list(range(BUCKETS)), "worker", NOW, NOW + HOUR_MS)
    leasing = asyncio.ensure_future(storage.lease(TOPIC, request, NOW, DIRECT_CALL))
    await asyncio.sleep(0)
    assert not first.done()
    assert not second.done()
    held.release()
    assert codes(await first) == codes(await second) == []
    lease = await leasing
    assert lease is not None
    assert lease.ids() == [ids[1]]


async def test_many_ids_are_not_changed_in_one_step(storage: RocksStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = await filled(storage, 2 * pending_by_id.IDS_MAX)
    held = HeldSync(storage, monkeypatch)
    calls = [asyncio.ensure_future(answer_of(storage, Cancel(TOPIC, OWNER, ids[:1])))]
    await held.begun()
    calls += [asyncio.ensure_future(answer_of(storage, Cancel(TOPIC, OWNER, [one]))) for one in ids[1:]]
    await asyncio.sleep(0)
    assert sum(map(len, storage._pending._by_id._ids.values())) < pending_by_id.IDS_MAX
    held.release()
    assert [codes(answer) for answer in await asyncio.gather(*calls)] == [[]] * len(ids)
    assert not await stored(storage)


async def test_a_topic_that_was_dropped_meanwhile_has_no_message(
    storage: RocksStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await filled(storage, 2)
    held = HeldSync(storage, monkeypatch)
    first = asyncio.ensure_future(answer_of(storage, Cancel(TOPIC, OWNER, ids[:1])))
    await held.begun()
    # A change that arrives before the topic is dropped is made before.
    second = asyncio.ensure_future(answer_of(storage, Cancel(TOPIC, OWNER, ids[1:])))
    await asyncio.sleep(0)
    dropping = asyncio.ensure_future(storage.drop_topic(TOPIC, NOW, DIRECT_CALL))
    await asyncio.sleep(0)
    third = asyncio.ensure_future(answer_of(storage, Cancel(TOPIC, OWNER, ids[1:])))
    held.release()
    assert codes(await first) == codes(await second) == []
    assert codes(await third) == [Code.NOT_FOUND]
    await dropping


async def test_changes_have_the_answers_of_the_memory_store(storage: RocksStorage) -> None:
    """Random changes of one moment, many of them of the same few messages."""
    memory = MemoryStorage()
    await begin(memory)
    assert TOPIC in TOPICS
    chance = random.Random(5)
    for at in range(40):
        changes = [_random_change(chance, 100 * at + number) for number in range(30)]
        one_by_one = [codes(await answer_of(memory, change)) for change in changes]
        assert await together(storage, *changes) == one_by_one
        seen = [
            {one.id: (one.ts, one.body, one.priority) for one in (await stored(each)).values()}
            for each in (storage, memory)
        ]
        assert seen[0] == seen[1]


def _random_change(chance: random.Random, number: int) -> Change:
    ids = [f"m-{one}" for one in chance.sample(range(60), chance.randrange(1, 4))]
    ts, owner = LATER + chance.randrange(1_000) * HOUR_MS, chance.choice([OWNER, OWNER, OWNER, "another"])
    match chance.randrange(4):
        case 0:
            return Create(TOPIC, single(number, ids[0], ts=ts))
        case 1:
            return Edit(TOPIC, owner, Edits(ids, ts=[ts] * len(ids)))
        case 2:
            return Edit(TOPIC, owner, Edits(ids, bodies=[b"%d" % number] * len(ids), priorities=[2] * len(ids)))
        case _:
            return Cancel(TOPIC, owner, ids)
