"""Small transactions that arrive together share a write, a journal record and runs, and each has its own verdict."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest, LeaseSet
from dejaq.domain.changes import Cancel, Create, Delete
from dejaq.domain.context import DIRECT_CALL, CallContext, Principal
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic
from dejaq.errors import Code, Refused, StoreError
from dejaq.protocol.v1 import journal_pb2 as journal
from dejaq.storage.base import Filter, Storage
from dejaq.storage.memory.store import MemoryStorage
from dejaq.storage.rocksdb.engine import keys
from dejaq.storage.rocksdb.operations.transacting_together import waits_for_others
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.storage.transactions import Step, Transaction, Verdict
from tests.unit.storage.rocksdb.test_pending_creates import (
    BUCKETS,
    NOW,
    OTHER,
    REMEMBERING,
    TOPIC,
    URGENT,
    HeldSync,
    begin,
    keys_of,
    send,
    single,
    stored,
)

LEASE_MS = 10_000
SESSION = ProducerSession(NOW, 99)


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[RocksStorage]:
    made = RocksStorage(tmp_path / "store", journal=True)
    await begin(made)
    yield made
    await made.close()


async def leased(storage: Storage, rows: int) -> LeaseSet:
    """A lease on new messages that are due."""
    await send(storage, [single(number, f"m-{number}", ts=NOW - rows + number) for number in range(rows)])
    lease = await storage.lease(TOPIC, LeaseRequest(list(range(BUCKETS)), "c", NOW, NOW + LEASE_MS), NOW, DIRECT_CALL)
    assert lease is not None
    assert len(lease) == rows
    return lease


def deleting(lease: LeaseSet, row: int, handed_us: int = 0) -> Delete:
    return Delete(TOPIC, lease.lease_id, "c", [(row, row + 1)], [handed_us] if handed_us else [])


def creating(number: int, message_id: str, topic: Topic = URGENT, body: bytes = b"x") -> Create:
    return Create(topic, CreateBatch("billing", ProducerSession(NOW, 500 + number), 0, [NOW], [body], ids=[message_id]))


def transaction(sequence: int, *steps: Step) -> Transaction:
    return Transaction(SESSION, sequence, steps, check=sequence + 1)


async def verdicts_of(storage: Storage, every: Sequence[Transaction]) -> list[Verdict | Code]:
    """The verdict on each of some transactions that begin at once, or the code of its refusal."""
    if isinstance(storage, RocksStorage):
        begun = storage.begin_transactions(every, NOW, DIRECT_CALL)
        assert begun is not None
        return [one.code if isinstance(one, Refused) else one for one in await begun]
    found: list[Verdict | Code] = []
    for one in every:
        try:
            found.append(await storage.transact(one, NOW, DIRECT_CALL))
        except Refused as refusal:
            found.append(refusal.code)
    return found


async def test_transactions_of_one_moment_share_a_run_a_record_and_a_sync(storage: RocksStorage) -> None:
    lease = await leased(storage, 16)
    records, syncs = len(await storage.journal(0, 1 << 20)), storage._committer.syncs
    runs = len(keys_of(storage, keys.RUN))
    every = [transaction(n, deleting(lease, n, n + 1), creating(n, f"out-{n}")) for n in range(15)]
    assert await verdicts_of(storage, every) == [Verdict()] * 15
    assert storage._committer.syncs == syncs + 1
    # The runs of an urgent topic have one bucket each.
    assert len(keys_of(storage, keys.RUN)) <= runs + 2
    (record,) = (await storage.journal(0, 1 << 20))[records:]
    gone, made = journal.JournalRecord.FromString(record).events
    names = [lease.ids()[row] for row in range(15)]
    assert (gone.joined.split("\n"), list(gone.handed_us)) == (names, list(range(1, 16)))
    assert sorted(made.joined.split("\n")) == sorted(f"out-{n}" for n in range(15))
    assert sorted(await stored(storage)) == [lease.ids()[15]]
    assert sorted(await stored(storage, URGENT)) == sorted(f"out-{n}" for n in range(15))


async def test_transactions_that_arrive_during_a_sync_wait_for_its_end(
    storage: RocksStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await leased(storage, 8)
    records = len(await storage.journal(0, 1 << 20))
    held = HeldSync(storage, monkeypatch)
    first = asyncio.ensure_future(verdicts_of(storage, [transaction(0, deleting(lease, 0))]))
    await held.begun()
    calls = [
        asyncio.ensure_future(storage.transact(transaction(n, creating(n, f"out-{n}")), NOW, DIRECT_CALL))
        for n in range(1, 6)
    ]
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(storage._pending._calls) == 5
    held.release()
    assert await asyncio.gather(first, *calls) == [[Verdict()], *[Verdict()] * 5]
    assert len(await storage.journal(0, 1 << 20)) == records + 2


async def test_each_transaction_has_its_own_verdict(storage: RocksStorage) -> None:
    lease = await leased(storage, 8)
    unknown = Topic("nowhere", 77, TOPIC.settings)
    every = [
        transaction(0, deleting(lease, 0), creating(0, "a")),
        transaction(1, Delete(TOPIC, lease.lease_id, "thief", [(1, 2)], []), creating(1, "b")),
        transaction(2, deleting(lease, 0), creating(2, "c")),
        transaction(3, deleting(lease, 3), creating(3, "a", body=b"other")),
        transaction(4, deleting(lease, 4), creating(4, "d", unknown)),
        transaction(0, deleting(lease, 0), creating(0, "a")),
        transaction(5, creating(5, lease.ids()[0], TOPIC)),
        transaction(6, deleting(lease, 6), creating(6, "e"), creating(7, "e")),
        transaction(7, deleting(lease, 7), creating(8, "f")),
    ]
    assert await verdicts_of(storage, every) == [
        Verdict(),
        Verdict(Code.LEASE_LOST, 0, 1),
        Verdict(Code.LEASE_LOST, 0, 0),
        Verdict(Code.ID_TAKEN, 1, 0),
        Code.TOPIC_NOT_FOUND,
        Verdict(Code.ALREADY_EXISTS),
        Verdict(),
        Verdict(Code.DUPLICATE_IN_BATCH, 2, 0),
        Verdict(),
    ]
    assert sorted(await stored(storage)) == sorted([*lease.ids()[:7]])
    assert sorted(await stored(storage, URGENT)) == ["a", "f"]


@pytest.mark.parametrize("seed", range(8))
async def test_transactions_together_have_the_verdicts_of_one_after_the_other(
    storage: RocksStorage, seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    model = MemoryStorage()
    await begin(model)
    leases = {one: await leased(one, 40) for one in (storage, model)}
    assert leases[storage].ids() == leases[model].ids()
    for turn in range(6):
        numbers = [chance.randrange(60) for _ in range(chance.choice([1, 4, 15]))]
        plans = {number: random.Random(seed * 1_000 + number) for number in numbers}
        states = {number: plan.getstate() for number, plan in plans.items()}
        found = []
        for one, lease in leases.items():
            every = []
            for number in numbers:
                plans[number].setstate(states[number])
                every.append(_random_transaction(plans[number], number, lease))
            found.append(await verdicts_of(one, every))
        assert found[0] == found[1], turn
    for topic in (TOPIC, URGENT, REMEMBERING):
        assert sorted(await stored(storage, topic)) == sorted(await stored(model, topic))
    await storage.close()
    again = RocksStorage(tmp_path / "store", journal=True)
    await again.open(NOW)
    for topic in (TOPIC, URGENT, REMEMBERING):
        assert sorted(await stored(again, topic)) == sorted(await stored(model, topic))
    await again.close()


def _random_transaction(chance: random.Random, number: int, lease: LeaseSet) -> Transaction:
    steps: list[Step] = []
    for place in range(chance.choice([1, 1, 2, 3])):
        if chance.random() < 0.5:
            start = chance.randrange(38)
            rows = [(start, start + chance.choice([1, 1, 2]))]
            consumer = chance.choice(["c", "c", "c", "c", "thief"])
            steps.append(Delete(TOPIC, lease.lease_id, consumer, rows, [NOW * 1_000]))
        else:
            topic = chance.choice([TOPIC, URGENT, REMEMBERING])
            message_id = chance.choice([f"m-{chance.randrange(40)}", f"n-{chance.randrange(30)}", f"own-{number}"])
            ts = [NOW + chance.randrange(5_000)]
            session = ProducerSession(NOW, 1_000 + 3 * number + place)
            steps.append(Create(topic, CreateBatch("billing", session, 0, ts, [b"x"], ids=[message_id])))
    return transaction(number, *steps)


async def test_what_follows_a_transaction_sees_it(storage: RocksStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = await leased(storage, 4)
    held = HeldSync(storage, monkeypatch)
    first = storage.begin_transactions([transaction(0, deleting(lease, 0))], NOW, DIRECT_CALL)
    await held.begun()
    second = storage.begin_transactions([transaction(1, deleting(lease, 1), creating(1, "a"))], NOW, DIRECT_CALL)
    assert len(storage._pending._calls) == 1
    assert await storage.next_ts(URGENT, [0, 1], NOW) == NOW
    counting = asyncio.ensure_future(storage.count(URGENT, Filter(), NOW))
    await asyncio.sleep(0)
    assert storage._pending._calls == []
    held.release()
    assert await counting == 1
    assert first is not None
    assert second is not None
    assert (await first, await second) == ([Verdict()], [Verdict()])
    assert await storage.count(TOPIC, Filter(), NOW) == 2


async def test_a_lease_finds_what_a_waiting_transaction_creates(
    storage: RocksStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldSync(storage, monkeypatch)
    first = asyncio.ensure_future(verdicts_of(storage, [transaction(0, creating(0, "a"))]))
    await held.begun()
    second = asyncio.ensure_future(verdicts_of(storage, [transaction(1, creating(1, "b"))]))
    await asyncio.sleep(0)
    request = LeaseRequest([0, 1], "c", NOW, NOW + LEASE_MS)
    leasing = asyncio.ensure_future(storage.lease(URGENT, request, NOW, DIRECT_CALL))
    for _ in range(3):
        await asyncio.sleep(0)
    held.release()
    found = await leasing
    assert found is not None
    assert sorted(found.ids()) == ["a", "b"]
    assert [*await first, *await second] == [Verdict()] * 2


async def test_callers_share_no_journal_record(storage: RocksStorage) -> None:
    contexts = [CallContext(str(n), "there", Principal(f"caller-{n % 2}")) for n in range(6)]
    await asyncio.gather(
        *(storage.transact(transaction(n, creating(n, f"m-{n}")), NOW, one) for n, one in enumerate(contexts))
    )
    found = [journal.JournalRecord.FromString(one) for one in await storage.journal(0, 1 << 20)]
    named = {
        record.principal: sorted(name for one in record.events for name in one.joined.split("\n")) for record in found
    }
    assert named == {f"caller-{n}": [f"m-{number}" for number in range(n, 6, 2)] for n in range(2)}


async def test_a_failure_reaches_every_caller_and_nothing_is_done(storage: RocksStorage) -> None:
    lease = await leased(storage, 2)
    calls = [
        asyncio.ensure_future(storage.transact(transaction(n, deleting(lease, n)), NOW, DIRECT_CALL)) for n in range(2)
    ]
    await asyncio.sleep(0)
    storage._fail("tried by a test")
    await asyncio.wait(calls)
    for call in calls:
        with pytest.raises(StoreError, match="tried by a test"):
            call.result()
    await storage.recover(NOW)
    assert len(await stored(storage)) == 2


def test_other_transactions_do_not_wait() -> None:
    assert waits_for_others(transaction(0, creating(0, "a")))
    assert not waits_for_others(transaction(0, creating(0, "a", OTHER)))  # its callers wait for no sync
    assert not waits_for_others(transaction(0, creating(0, "a"), Cancel(TOPIC, "billing", ["m"])))
    assert not waits_for_others(transaction(0, Delete(TOPIC, 1, "c", None, [])))
    assert not waits_for_others(transaction(0, Delete(TOPIC, 1, "c", [(0, 65)], [])))
