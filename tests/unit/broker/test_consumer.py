"""The messages that a consumer gets: on time, once, within its credit, and again after its lease expired."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dejaq import limits
from dejaq.broker import Broker
from dejaq.broker.assignment.assignment import Seat, assign_buckets
from dejaq.domain.batch import LeaseRequest, LeaseSet
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic
from dejaq.errors import Code
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.storage.memory.store import MemoryStorage
from dejaq.timekeeper.clock import VirtualClock
from tests.unit.broker.client import Batches, RawClient, create_topic, until
from tests.unit.broker.conftest import Connect


async def run_ready_tasks(broker: Broker) -> None:
    """Run every task that can run without advancing the clock."""
    for _ in range(200):
        await asyncio.sleep(0)


async def test_a_message_comes_at_its_time_and_not_before(
    connect: Connect, clock: VirtualClock, broker: Broker
) -> None:
    """G2: a message is never early."""
    consumer = await (await (await connect()).consume()).subscribe(prefetch_ms=0)
    producer = await (await connect()).produce()
    await producer.ask(create=Batches().natural(["a"], clock.now_ms() + 5_000))
    await clock.advance(4_999)
    await run_ready_tasks(broker)
    assert consumer.received() == []
    await clock.advance(1)
    await until(lambda: consumer.received() == ["a"])
    assert consumer.pushes[0].ts[0] == clock.now_ms()


async def test_with_a_window_a_message_is_sent_early_and_its_lease_begins_at_its_time(
    connect: Connect, clock: VirtualClock
) -> None:
    consumer = await (await (await connect()).consume()).subscribe(prefetch_ms=1_000, lease_ms=2_000)
    producer = await (await connect()).produce()
    due = clock.now_ms() + 5_000
    await producer.ask(create=Batches().natural(["a"], due))
    await clock.advance(4_500)
    await until(lambda: consumer.received() == ["a"])
    assert consumer.pushes[0].expires >= due + 2_000


async def test_a_new_message_that_is_due_before_the_next_one_is_delivered_on_time(
    connect: Connect, clock: VirtualClock
) -> None:
    consumer = await (await (await connect()).consume()).subscribe()
    producer = await (await connect()).produce()
    batches = Batches()
    await producer.ask(create=batches.natural(["late"], clock.now_ms() + 900))
    await producer.ask(create=batches.natural(["soon"], clock.now_ms() + 100))
    await producer.ask(create=batches.natural(["now"], clock.now_ms()))
    await until(lambda: consumer.received() == ["now"])
    await clock.advance(100)
    await until(lambda: consumer.received() == ["now", "soon"])
    await clock.advance(800)
    await until(lambda: consumer.received() == ["now", "soon", "late"])


async def test_an_expired_lease_is_delivered_again_with_one_more_attempt_and_its_holder_is_refused(
    connect: Connect, clock: VirtualClock
) -> None:
    """G3, G4: at most one live lease, and delivery at least once."""
    first = await (await (await connect()).consume("first")).subscribe(lease_ms=1_000)
    producer = await (await connect()).produce()
    await producer.ask(create=Batches().natural(["a"], clock.now_ms()))
    await until(lambda: first.received() == ["a"])
    await first.ask(unsubscribe=carrier.Unsubscribe())
    second = await (await (await connect()).consume("second")).subscribe(lease_ms=1_000)
    await clock.advance(999)
    assert second.received() == []
    await clock.advance(1)
    await until(lambda: second.received() == ["a"])
    assert list(second.pushes[0].attempts) == [2]
    lost = await first.settle(carrier.DELETE, first.pushes[0].lease)
    assert list(lost.outcomes.codes) == [Code.LEASE_LOST]
    done = await second.settle(carrier.DELETE, second.pushes[0].lease)
    assert not done.outcomes.codes


async def test_a_slow_consumer_never_has_more_rows_than_its_credit(
    connect: Connect, clock: VirtualClock, broker: Broker
) -> None:
    """G8: back-pressure."""
    consumer = await (await (await connect()).consume()).subscribe(rows=10)
    producer = await (await connect()).produce()
    await producer.ask(create=Batches().natural([f"m{n:02}" for n in range(35)], clock.now_ms()))
    for settled_so_far in (0, 10, 20, 30):
        expected = min(settled_so_far + 10, 35)
        await until(lambda expected=expected: len(consumer.received()) == expected)  # type: ignore[misc]
        await run_ready_tasks(broker)
        assert len(consumer.received()) == expected
        for push in consumer.pushes:
            await consumer.settle(carrier.DELETE, push.lease)
    assert sorted(consumer.received()) == [f"m{n:02}" for n in range(35)]


async def test_credit_is_freed_row_by_row(connect: Connect, clock: VirtualClock, broker: Broker) -> None:
    consumer = await (await (await connect()).consume()).subscribe(rows=4)
    producer = await (await connect()).produce()
    await producer.ask(create=Batches().natural([f"m{n}" for n in range(10)], clock.now_ms()))
    await until(lambda: len(consumer.received()) == 4)
    lease = consumer.pushes[0].lease
    for _ in range(2):
        await consumer.settle(carrier.DELETE, lease, ranges=[1, 2])
    await until(lambda: len(consumer.received()) == 5)
    await run_ready_tasks(broker)
    assert len(consumer.received()) == 5, "a row that is settled twice frees credit once"


async def test_credit_in_bytes_limits_unsettled_messages(connect: Connect, clock: VirtualClock, broker: Broker) -> None:
    consumer = await (await (await connect()).consume()).subscribe(size=3_000)
    producer = await (await connect()).produce()
    ids = [f"m{n}" for n in range(8)]
    await producer.ask(create=Batches().natural(ids, clock.now_ms(), bodies=[bytes(1_000)] * 8))
    await until(lambda: len(consumer.received()) >= 3)
    await run_ready_tasks(broker)
    assert len(consumer.received()) == 3
    for push in consumer.pushes:
        await consumer.settle(carrier.DELETE, push.lease)
    await until(lambda: len(consumer.received()) == 6)


async def test_more_credit_delivers_more_messages(connect: Connect, clock: VirtualClock, broker: Broker) -> None:
    consumer = await (await (await connect()).consume()).subscribe(rows=1)
    producer = await (await connect()).produce()
    await producer.ask(create=Batches().natural(["a", "b", "c"], clock.now_ms()))
    await until(lambda: len(consumer.received()) == 1)
    await consumer.subscribe(rows=2)
    await until(lambda: len(consumer.received()) == 2)
    await run_ready_tasks(broker)
    assert len(consumer.received()) == 2


async def test_credit_of_expired_leases_is_freed(connect: Connect, clock: VirtualClock) -> None:
    consumer = await (await (await connect()).consume()).subscribe(rows=1, lease_ms=500)
    producer = await (await connect()).produce()
    await producer.ask(create=Batches().natural(["a"], clock.now_ms()))
    await until(lambda: consumer.received() == ["a"])
    await clock.advance(500)
    await until(lambda: consumer.received() == ["a", "a"])
    assert consumer.pushes[1].lease != consumer.pushes[0].lease


@pytest.mark.parametrize(
    ("terms", "code"),
    [
        ({"credit_rows": 0, "lease_ms": 1_000}, Code.INVALID_ARGUMENT),
        ({"credit_rows": limits.CREDIT_ROWS_MAX + 1, "lease_ms": 1_000}, Code.INVALID_ARGUMENT),
        ({"credit_rows": limits.CREDIT_ROWS_MAX, "lease_ms": 1_000}, Code.OK),
        ({"credit_rows": 1, "lease_ms": limits.LEASE_MS_MIN - 1}, Code.INVALID_LEASE),
        ({"credit_rows": 1, "lease_ms": limits.LEASE_MS_MIN}, Code.OK),
        ({"credit_rows": 1, "lease_ms": limits.LEASE_MS_MAX}, Code.OK),
        ({"credit_rows": 1, "lease_ms": limits.LEASE_MS_MAX + 1}, Code.INVALID_LEASE),
        ({"credit_rows": 1, "lease_ms": 1_000, "prefetch_ms": limits.PREFETCH_MS_MAX}, Code.OK),
        (
            {"credit_rows": 1, "lease_ms": 1_000, "prefetch_ms": limits.PREFETCH_MS_MAX + 1},
            Code.INVALID_ARGUMENT,
        ),
    ],
)
async def test_the_terms_of_a_subscription_have_limits(connect: Connect, terms: dict[str, Any], code: Code) -> None:
    consumer = await (await connect()).consume()
    answer = await consumer.ask(subscribe=carrier.Subscribe(**terms))
    assert answer.error.code == code


async def test_buckets_are_assigned_to_all_and_again_when_one_leaves(
    connect: Connect, clock: VirtualClock, broker: Broker
) -> None:
    consumers = [await (await (await connect()).consume(name)).subscribe() for name in ("a", "b")]
    roster = broker.central.rosters.of(broker.central.catalog.live("mail"))
    assert {one.name: list(one.buckets) for one in roster} == assign_buckets(map(Seat, "ab"), 4)
    producer = await (await connect()).produce()
    names = [f"m{n}" for n in range(100)]
    batches = Batches()
    await producer.ask(create=batches.natural(names, clock.now_ms()))
    await until(lambda: len(consumers[0].received()) + len(consumers[1].received()) == 100)
    assert all(consumer.received() for consumer in consumers)
    await consumers[1].close()
    await until(lambda: {one.name: list(one.buckets) for one in roster} == {"a": [0, 1, 2, 3]})
    before = len(consumers[0].received())
    await producer.ask(create=batches.natural([f"n{n}" for n in range(100)], clock.now_ms()))
    await until(lambda: len(consumers[0].received()) == before + 100)


async def test_a_consumer_that_reconnects_under_its_name_gets_its_live_leases_again(
    connect: Connect, clock: VirtualClock
) -> None:
    consumer = await (await (await connect()).consume("worker")).subscribe()
    producer = await (await connect()).produce()
    await producer.ask(create=Batches().natural([f"m{n}" for n in range(5)], clock.now_ms()))
    await until(lambda: len(consumer.received()) == 5)
    lease = consumer.pushes[0].lease
    await consumer.settle(carrier.DELETE, lease, ranges=[0, 2])
    await consumer.close()
    again = await (await (await connect()).consume("worker")).subscribe()
    await until(lambda: again.pushes)
    assert (again.pushes[0].lease, list(again.pushes[0].rows)) == (lease, [2, 3, 4])
    done = await again.settle(carrier.DELETE, lease, ranges=[2, 5])
    assert not done.outcomes.codes


async def test_a_second_session_under_a_name_takes_over_and_the_first_is_notified(
    connect: Connect, clock: VirtualClock
) -> None:
    first = await (await (await connect()).consume("worker")).subscribe()
    producer = await (await connect()).produce()
    await producer.ask(create=Batches().natural(["a"], clock.now_ms()))
    await until(lambda: first.received() == ["a"])
    second = await (await (await connect()).consume("worker")).subscribe()
    await until(lambda: first.ended)
    assert first.errors[-1].error.code == Code.OUT_OF_STATE
    assert not first.errors[-1].error.retryable
    assert "worker" in first.errors[-1].error.message
    await until(lambda: second.received() == ["a"])
    assert not (await second.settle(carrier.DELETE, second.pushes[0].lease)).outcomes.codes


class GatedLeases(MemoryStorage):
    """A memory store whose leases wait at a gate once they are taken, as a commit does."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.taken: list[LeaseSet] = []

    async def lease(self, topic: Topic, request: LeaseRequest, now: int, context: CallContext) -> LeaseSet | None:
        lease = await super().lease(topic, request, now, context)
        if lease is not None:
            self.taken.append(lease)
            await self.gate.wait()
        return lease


async def gated(**keys: Any) -> tuple[Broker, GatedLeases, RawClient, RawClient]:
    storage = GatedLeases()
    broker = Broker(storage=storage, drain_ms=0, **keys)
    await broker.start()
    transport = broker.transport()
    await create_topic(transport, buckets=4)
    consumer = await (await RawClient(transport).open()).consume("worker")
    producer = await (await RawClient(transport).open()).produce()
    return broker, storage, consumer, producer


async def test_leases_are_taken_while_earlier_ones_are_being_committed_and_pushed_in_order() -> None:
    broker, storage, consumer, producer = await gated()
    try:
        await consumer.subscribe(rows=limits.CREDIT_ROWS_MAX)
        batches = Batches()
        for n in range(5):
            await producer.ask(create=batches.natural([f"m{n}"], n))
        await until(lambda: len(storage.taken) == 3)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(storage.taken) == 3, "at most three leases are in progress"
        assert consumer.received() == []
        storage.gate.set()
        await until(lambda: len(consumer.received()) == 5)
        assert consumer.received() == [f"m{n}" for n in range(5)]
    finally:
        await broker.stop()


async def test_credit_counts_leases_that_are_still_being_committed() -> None:
    broker, storage, consumer, producer = await gated()
    try:
        await consumer.subscribe(rows=2)
        await producer.ask(create=Batches().natural([f"m{n}" for n in range(6)], 0))
        await until(lambda: storage.taken)
        for _ in range(50):
            await asyncio.sleep(0)
        assert [len(lease) for lease in storage.taken] == [2]
    finally:
        storage.gate.set()
        await broker.stop()


async def test_messages_leased_but_not_sent_when_a_consumer_left_go_to_others_at_once() -> None:
    broker, storage, consumer, producer = await gated()
    try:
        await consumer.subscribe()
        await producer.ask(create=Batches().natural(["a"], 0))
        await until(lambda: storage.taken)
        await consumer.close()
        storage.gate.set()
        other = await (await (await RawClient(broker.transport()).open()).consume("other")).subscribe()
        await until(lambda: other.received() == ["a"])
        assert list(other.pushes[0].attempts) == [], "the first attempt was recalled, since user code did not see it"
    finally:
        await broker.stop()


async def test_a_session_that_takes_over_waits_for_running_leases_of_the_previous_one() -> None:
    broker, storage, consumer, producer = await gated()
    try:
        await consumer.subscribe()
        await producer.ask(create=Batches().natural(["a"], 0))
        await until(lambda: storage.taken)
        again = await (await (await RawClient(broker.transport()).open()).consume("worker")).subscribe()
        await run_ready_tasks(broker)
        assert again.received() == [], "a lease that is about to be recalled is not passed on"
        storage.gate.set()
        await until(lambda: again.received() == ["a"])
        assert not (await again.settle(carrier.DELETE, again.pushes[0].lease)).outcomes.codes
    finally:
        await broker.stop()
