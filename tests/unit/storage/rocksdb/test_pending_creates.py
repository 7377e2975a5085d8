"""Creates that arrive together share a run, a journal record and a sync, and each has the answer that it had alone."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest, Outcomes
from dejaq.domain.changes import Cancel, Change, Create, Delete
from dejaq.domain.context import DIRECT_CALL, CallContext, Principal
from dejaq.domain.ids import ProducerSession
from dejaq.domain.message import Message
from dejaq.domain.topic import Durability, Topic, TopicKind, TopicSettings
from dejaq.errors import Code, DejaqError, Refused, StoreError
from dejaq.protocol.v1 import journal_pb2 as journal
from dejaq.storage.base import Filter, Storage
from dejaq.storage.memory.store import MemoryStorage
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.operations import pending_changes
from dejaq.storage.rocksdb.operations.pending_changes import Applied, PendingDeletes, PendingGroup
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.testing.waiting import eventually

NOW = 1_800_000_000_000
HOUR_MS = 3_600_000
BUCKETS = 4
TOPIC = Topic(name="mail", number=1, settings=TopicSettings(buckets=BUCKETS))
OTHER = Topic(name="news", number=2, settings=TopicSettings(buckets=1, durability=Durability.RELAXED))
URGENT = Topic(name="urgent", number=3, settings=TopicSettings(buckets=2, kind=TopicKind.PRIORITY))
REMEMBERING = Topic(name="once", number=4, settings=TopicSettings(buckets=2, dedup_ms=HOUR_MS, max_dedup_ids=20))
TOPICS = (TOPIC, OTHER, URGENT, REMEMBERING)


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[RocksStorage]:
    made = RocksStorage(tmp_path / "store", journal=True)
    await begin(made)
    yield made
    await made.close()


async def begin(storage: Storage) -> None:
    await storage.open(NOW)
    for topic in TOPICS:
        await storage.put_topic(topic, DIRECT_CALL)


def single(number: int, message_id: str | None = None, *, ts: int | None = None, body: bytes = b"x") -> CreateBatch:
    """A batch of one message; `number` names its producer."""
    at = NOW + HOUR_MS * (number % 50) // 50 + 1 if ts is None else ts
    return CreateBatch(
        "billing", ProducerSession(NOW, number), 0, [at], [body], ids=[message_id] if message_id else None
    )


async def answer_of(storage: Storage, change: Change, context: CallContext = DIRECT_CALL) -> Outcomes | Refused:
    (answer,) = await storage.apply((change,), NOW, context)
    return answer


async def send(storage: Storage, batches: Sequence[CreateBatch], topic: Topic = TOPIC) -> list[Code]:
    """The code of each message, all sent in the same moment."""
    answers = await asyncio.gather(*(answer_of(storage, Create(topic, batch)) for batch in batches))
    return [answer.code if isinstance(answer, Refused) else answer[0] for answer in answers]


def keys_of(storage: RocksStorage, table: bytes) -> list[bytes]:
    return list(storage._database.scan_keys(table, keys.after(table)))


class HeldSync:
    """Holds the sync in progress until it is released."""

    def __init__(self, storage: RocksStorage, monkeypatch: pytest.MonkeyPatch) -> None:
        self._released = threading.Event()
        self._committer, sync = storage._committer, storage._committer._sync

        def slow() -> StoreError | None:
            self._released.wait(10)
            return sync()

        monkeypatch.setattr(self._committer, "_sync", slow)

    async def begun(self) -> None:
        """Wait until a sync is in progress, and nothing waits for the one behind it."""
        await eventually(lambda: self._committer.syncing, within=10)

    def release(self) -> None:
        self._released.set()


async def stored(storage: Storage, topic: Topic = TOPIC) -> dict[str, Message]:
    return {message.id: message for message in await every(storage, topic)}


async def every(storage: Storage, topic: Topic) -> Sequence[Message]:
    return (await storage.browse(topic, Filter(), None, 10_000, NOW)).messages


async def test_creates_of_one_moment_share_a_run_a_record_and_a_sync(storage: RocksStorage) -> None:
    records = len(await storage.journal(0, 1 << 20))
    syncs = storage._committer.syncs
    assert await send(storage, [single(number, f"m-{number}") for number in range(100)]) == [Code.OK] * 100
    assert len(keys_of(storage, keys.RUN)) == 2  # what is due soon, and the rest
    assert storage._committer.syncs == syncs + 1
    (record,) = (await storage.journal(0, 1 << 20))[records:]
    events = journal.JournalRecord.FromString(record).events
    assert [len(one.joined.split("\n")) for one in events] == [100]
    assert sorted(await stored(storage)) == sorted(f"m-{number}" for number in range(100))


async def test_generated_ids_share_the_run_of_their_bucket(storage: RocksStorage) -> None:
    batches = [single(number) for number in range(40)]
    for number, batch in enumerate(batches):
        batch.bucket = number % BUCKETS
    assert await send(storage, batches) == [Code.OK] * 40
    assert len(keys_of(storage, keys.RUN)) <= 2 * BUCKETS
    ids = [batch.id_of(0) for batch in batches]
    assert [message and message.id for message in await storage.get(TOPIC, ids, NOW)] == ids
    for bucket in range(BUCKETS):
        request = LeaseRequest([bucket], "worker", NOW + HOUR_MS, NOW + 2 * HOUR_MS)
        leased = await storage.lease(TOPIC, request, NOW + HOUR_MS, DIRECT_CALL)
        assert leased is not None
        assert sorted(leased.ids()) == sorted(batch.id_of(0) for batch in batches if batch.bucket == bucket)


async def test_each_create_has_its_own_answer(storage: RocksStorage) -> None:
    assert await send(storage, [single(1, "there", body=b"first")]) == [Code.OK]
    refused = single(5, "refused")
    refused.refused[0] = Code.TOO_FAR
    batches = [
        single(1, "there", body=b"first"),
        single(2, "there", body=b"first", ts=single(1).ts[0]),
        single(3, "there", body=b"other"),
        single(4, "new"),
        refused,
        single(6),
    ]
    assert await send(storage, batches) == [
        Code.ALREADY_EXISTS,
        Code.ALREADY_EXISTS,
        Code.ID_TAKEN,
        Code.OK,
        Code.TOO_FAR,
        Code.OK,
    ]


async def test_the_first_of_two_creates_with_one_id_wins(storage: RocksStorage) -> None:
    same = single(1).ts[0]
    batches = [
        single(1, "one", body=b"first", ts=same),
        single(2, "one", body=b"second", ts=same),
        single(3, "one", body=b"first", ts=same),
    ]
    assert await send(storage, batches) == [Code.OK, Code.ID_TAKEN, Code.ALREADY_EXISTS]
    assert (await stored(storage))["one"].body == b"first"


async def test_a_repeat_in_the_same_moment_and_after_a_restart_changes_nothing(storage: RocksStorage) -> None:
    assert await send(storage, [single(1), single(1), single(2, "own"), single(2, "own")]) == [
        Code.OK,
        Code.ALREADY_EXISTS,
        Code.OK,
        Code.ALREADY_EXISTS,
    ]
    await storage.close()
    await storage.open(NOW)
    assert await send(storage, [single(1), single(2, "own")]) == [Code.ALREADY_EXISTS] * 2
    assert len(await stored(storage)) == 2


async def test_what_follows_a_create_sees_it(storage: RocksStorage) -> None:
    """The requests of a client take effect in their order, although none of them was answered yet."""
    due = single(1, "due", ts=NOW)
    cancel = Cancel(TOPIC, "billing", ["cancelled"])
    request = LeaseRequest(range(BUCKETS), "worker", NOW, NOW + HOUR_MS)
    _, cancelled, _, leased = await asyncio.gather(
        answer_of(storage, Create(TOPIC, single(2, "cancelled"))),
        answer_of(storage, cancel),
        answer_of(storage, Create(TOPIC, due)),
        storage.lease(TOPIC, request, NOW, DIRECT_CALL),
    )
    assert isinstance(cancelled, Outcomes)
    assert not cancelled.codes
    assert leased is not None
    assert leased.ids() == ["due"]
    assert sorted(await stored(storage)) == ["due"]


async def test_creates_that_arrive_during_a_sync_wait_for_its_end(
    storage: RocksStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each turn of the event loop would have a run of its own."""
    disk = HeldSync(storage, monkeypatch)
    calls = [asyncio.ensure_future(answer_of(storage, Create(TOPIC, single(0, "first"))))]
    await disk.begun()
    runs = len(keys_of(storage, keys.RUN))
    for number in range(1, 30):
        create = Create(TOPIC, single(number, f"m-{number}", ts=NOW + number * HOUR_MS))
        calls.append(asyncio.ensure_future(answer_of(storage, create)))
        await asyncio.sleep(0)
    disk.release()
    await asyncio.gather(*calls)
    assert len(keys_of(storage, keys.RUN)) == runs + 1


async def test_creates_do_not_miss_the_sync_that_another_change_waits_for(
    storage: RocksStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = HeldSync(storage, monkeypatch)
    syncs = storage._committer.syncs
    calls = [asyncio.ensure_future(answer_of(storage, Create(TOPIC, single(0, "first"))))]
    await disk.begun()
    calls.append(asyncio.ensure_future(answer_of(storage, Create(TOPIC, single(1, "second")))))
    await asyncio.sleep(0)
    numbered = asyncio.ensure_future(storage.next_topic_number())
    await asyncio.sleep(0)
    large = [f"row-{row}" for row in range(pending_changes.SMALL_ROWS + 1)]
    batch = CreateBatch("billing", ProducerSession(NOW, 9), 0, [NOW] * len(large), [b"x"] * len(large), ids=large)
    calls.append(asyncio.ensure_future(answer_of(storage, Create(TOPIC, batch))))
    await asyncio.sleep(0)
    disk.release()
    await asyncio.gather(numbered, *calls)
    assert storage._committer.syncs == syncs + 2


async def test_a_relaxed_topic_does_not_wait_for_a_sync(storage: RocksStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = HeldSync(storage, monkeypatch)
    call = asyncio.ensure_future(answer_of(storage, Create(TOPIC, single(0, "first"))))
    await disk.begun()
    async with asyncio.timeout(5):
        assert await send(storage, [single(1, "quick")], OTHER) == [Code.OK]
    disk.release()
    await call


async def test_a_lot_that_waits_is_stored_before_the_end_of_the_turn(
    storage: RocksStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_changes, "ROWS_MAX", 10)
    calls = [storage._pending.add(Create(TOPIC, single(n, f"m-{n}")), NOW, DIRECT_CALL) for n in range(25)]
    assert [group.rows for group in storage._pending._groups.values()] == [5]
    assert [(await call)[0][0] for call in calls] == [Code.OK] * 25  # type: ignore[index]


async def test_creates_in_many_topics_are_applied_in_several_steps(
    storage: RocksStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic costs ten times what a create does: 250 of them took 20 ms in one step of the event loop."""
    topics = [Topic(name=f"t-{n}", number=100 + n, settings=TopicSettings(buckets=2)) for n in range(60)]
    for topic in topics:
        await storage.put_topic(topic, DIRECT_CALL)
    turn, costs = 0, dict[int, int]()
    apply = storage._pending._apply

    def applied(deletes: Sequence[PendingDeletes], groups: Sequence[PendingGroup]) -> Applied:
        costs[turn] = costs.get(turn, 0) + sum(group.cost_us for group in groups)
        return apply(deletes, groups)

    monkeypatch.setattr(storage._pending, "_apply", applied)
    disk = HeldSync(storage, monkeypatch)
    calls = [storage._pending.add(Create(TOPIC, single(1, "first")), NOW, DIRECT_CALL)]
    await disk.begun()
    for n in range(2):
        calls += [
            storage._pending.add(Create(topic, single(n + 2, f"m-{n}")), NOW, DIRECT_CALL) for topic in (TOPIC, *topics)
        ]
    disk.release()
    while not all(call.done() for call in calls):
        await asyncio.sleep(0)
        turn += 1
    assert [(await call)[0][0] for call in calls] == [Code.OK] * len(calls)  # type: ignore[index]
    assert max(costs.values()) <= pending_changes.STEP_US
    # The creates of a topic were still applied together.
    assert 6 <= len(costs) <= 9


async def test_so_many_creates_do_not_wait_for_the_end_of_a_sync(
    storage: RocksStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = HeldSync(storage, monkeypatch)
    calls = [storage._pending.add(Create(TOPIC, single(1, "first")), NOW, DIRECT_CALL)]
    await disk.begun()
    for n in range(pending_changes.ALL_CREATES_MAX // 3):
        calls += [
            storage._pending.add(Create(topic, single(n + 2, f"m-{n}")), NOW, DIRECT_CALL)
            for topic in (TOPIC, URGENT, REMEMBERING)
        ]
    calls.append(storage._pending.add(Create(TOPIC, single(300, "last")), NOW, DIRECT_CALL))
    await eventually(lambda: not storage._pending._groups, within=10)
    assert storage._committer.syncing
    disk.release()
    codes = [answer[0] if isinstance(answer, Outcomes) else answer.code for (answer,) in await asyncio.gather(*calls)]
    # A topic that remembers ids has room for a few.
    assert codes.count(Code.OK) >= len(calls) - pending_changes.ALL_CREATES_MAX // 3


async def test_callers_share_no_journal_record(storage: RocksStorage) -> None:
    contexts = [CallContext(str(n), "there", Principal(f"caller-{n % 2}")) for n in range(10)]
    await asyncio.gather(
        *(answer_of(storage, Create(TOPIC, single(n, f"m-{n}")), context) for n, context in enumerate(contexts))
    )
    found = [journal.JournalRecord.FromString(one) for one in await storage.journal(0, 1 << 20)]
    named = {record.principal: sorted(record.events[0].joined.split("\n")) for record in found}
    assert named == {f"caller-{n}": [f"m-{number}" for number in range(n, 10, 2)] for n in range(2)}


async def test_a_create_whose_caller_left_is_stored(storage: RocksStorage) -> None:
    calls = [asyncio.ensure_future(answer_of(storage, Create(TOPIC, single(n, f"m-{n}")))) for n in range(3)]
    await asyncio.sleep(0)
    calls[1].cancel()
    await asyncio.wait(calls)
    assert sorted(await stored(storage)) == ["m-0", "m-1", "m-2"]


async def test_a_create_that_waits_while_its_topic_is_dropped_is_answered(storage: RocksStorage) -> None:
    dropped = Create(TOPIC, single(1, "m"))
    answer, _ = await asyncio.gather(answer_of(storage, dropped), storage.drop_topic(TOPIC, NOW, DIRECT_CALL))
    assert isinstance(answer, Outcomes)
    refused = await answer_of(storage, dropped)
    assert isinstance(refused, Refused)
    assert refused.code is Code.TOPIC_NOT_FOUND


async def test_a_failure_reaches_every_caller(storage: RocksStorage) -> None:
    calls = [asyncio.ensure_future(answer_of(storage, Create(TOPIC, single(n, f"m-{n}")))) for n in range(3)]
    await asyncio.sleep(0)
    storage._fail("tried by a test")
    await asyncio.wait(calls)
    for call in calls:
        with pytest.raises(StoreError, match="tried by a test"):
            call.result()
    await storage.recover(NOW)
    assert await stored(storage) == {}


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
@pytest.mark.parametrize("seed", range(6))
async def test_creates_together_are_answered_like_creates_one_after_the_other(
    storage: RocksStorage, topic: Topic, seed: int
) -> None:
    chance = random.Random(seed)
    model = MemoryStorage()
    await begin(model)
    sequences: dict[int, int] = {}
    for _ in range(12):
        batches = [_random_batch(chance, topic, sequences) for _ in range(chance.choice([1, 3, 30]))]
        expected = [await _full_answer(model, topic, batch) for batch in batches]
        assert await asyncio.gather(*(_full_answer(storage, topic, batch) for batch in batches)) == expected
        assert _plain(await every(storage, topic)) == _plain(await every(model, topic))
        for now in (NOW, NOW + HOUR_MS):
            await _consume(storage, model, topic, now if chance.random() < 0.3 else NOW)
        if chance.random() < 0.3:
            await storage.close()
            await storage.open(NOW)


def _random_batch(chance: random.Random, topic: Topic, sequences: dict[int, int]) -> CreateBatch:
    """Few ids, times, bodies, sessions and groups, so that everything meets everything."""
    session, count = chance.randrange(5), chance.choice([1, 1, 1, 3])
    own = chance.random() < 0.6
    sequence = sequences.get(session, 0)
    if sequence and chance.random() < 0.1:
        sequence -= 1
    sequences[session] = sequence + count
    prefix = ProducerSession(NOW, chance.randrange(5)).prefix(chance.randrange(topic.settings.buckets))
    # Short ones, long ones, and ones that may also be generated.
    forms = [f"m-{chance.randrange(40)}", f"{chance.randrange(40):032x}", f"{prefix}{chance.randrange(20):08x}"]
    ids = [f"{chance.choice(forms)}" for _ in range(count)]
    refused = {chance.randrange(count): Code.TOO_FAR} if chance.random() < 0.1 else {}
    return CreateBatch(
        f"group-{chance.randrange(2)}",
        ProducerSession(NOW, session),
        sequence,
        sorted(NOW + chance.choice([0, 1, 5_000, 200_000, 3_000_000]) for _ in range(count)),
        [chance.choice([b"", b"a", b"bb"]) for _ in range(count)],
        ids=list(dict.fromkeys(ids)) if own and len(set(ids)) == count else None,
        bucket=chance.randrange(topic.settings.buckets),
        priorities=[chance.randrange(2)] * count if chance.random() < 0.3 else None,
        headers=None,
        refused=refused,
    )


async def _full_answer(storage: Storage, topic: Topic, batch: CreateBatch) -> object:
    copy = CreateBatch(
        batch.owner,
        batch.session,
        batch.sequence,
        batch.ts,
        batch.bodies,
        ids=batch.ids,
        bucket=batch.bucket,
        priorities=batch.priorities,
        refused=dict(batch.refused),
    )
    try:
        answer = await answer_of(storage, Create(topic, copy))
    except DejaqError as error:
        return error.code
    return answer.code if isinstance(answer, Refused) else sorted(answer.codes.items())


def _plain(messages: Sequence[Message]) -> list[tuple[object, ...]]:
    return sorted((m.id, m.ts, m.body, m.priority, m.producer_group, m.attempts) for m in messages)


async def _consume(storage: RocksStorage, model: MemoryStorage, topic: Topic, now: int) -> None:
    """Delete what is due in both; the same messages leave."""
    left: list[list[str]] = []
    for one in (storage, model):
        ids: list[str] = []
        request = LeaseRequest(range(topic.settings.buckets), "worker", now, now + HOUR_MS)
        while (leased := await one.lease(topic, request, now, DIRECT_CALL)) is not None:
            ids += leased.ids()
            assert isinstance(
                await one.apply((Delete(topic, leased.lease_id, "worker", None),), now, DIRECT_CALL), list
            )
        left.append(sorted(ids))
    assert left[0] == left[1]
