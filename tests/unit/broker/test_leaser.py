"""How often the leaser and the loader ask the store: as seldom as possible, as early as necessary."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from dejaq.broker import Broker
from dejaq.broker.assignment.assignment import Seat, assign_buckets
from dejaq.broker.delivery.continuing import continued_leases, recall_known
from dejaq.broker.delivery.flow import Flow
from dejaq.broker.delivery.inflight import Inflight
from dejaq.broker.delivery.leaser import GATHER_MS, LEASERS_PER_SECOND, URGENT_MS, Leaser
from dejaq.broker.inprocess import InProcessTransport
from dejaq.broker.metrics import Metrics
from dejaq.domain.batch import CreateBatch, LeaseRequest, LeaseSet, Outcomes
from dejaq.domain.changes import Change, Create, Extend, Recall
from dejaq.domain.context import DIRECT_CALL, CallContext
from dejaq.domain.ids import ProducerSession
from dejaq.domain.message import Status
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import Code, Refused
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.storage.base import Filter, apply_one
from dejaq.storage.memory.store import MemoryStorage
from dejaq.timekeeper.alarms import Alarms
from dejaq.timekeeper.clock import VirtualClock
from tests.unit.broker.client import Batches, create_topic, until
from tests.unit.broker.conftest import Connect


class CountingStorage(MemoryStorage):
    """A memory store that records the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.leases: list[LeaseRequest] = []
        self.loads: list[tuple[str, int]] = []
        self.checks = 0

    async def next_ts(self, topic: Topic, buckets: Sequence[int], now: int) -> int | None:
        self.checks += 1
        return await super().next_ts(topic, buckets, now)

    async def lease(self, topic: Topic, request: LeaseRequest, now: int, context: CallContext) -> LeaseSet | None:
        self.leases.append(request)
        return await super().lease(topic, request, now, context)

    async def load(self, topic: Topic, buckets: Sequence[int], until: int) -> None:
        self.loads.append((topic.name, until))


@pytest.fixture
def storage() -> CountingStorage:
    return CountingStorage()


async def test_while_nothing_is_due_the_store_is_asked_once_per_second(
    connect: Connect, clock: VirtualClock, storage: CountingStorage
) -> None:
    consumer = await (await (await connect()).consume()).subscribe()
    producer = await (await connect()).produce()
    await producer.ask(create=Batches().natural(["far"], clock.now_ms() + 30_500))
    await clock.advance(100)
    storage.leases.clear()
    storage.checks = 0
    await clock.advance(30_000)
    assert 25 <= storage.checks <= 32
    assert len(storage.leases) <= 1, "the check only asks for the time of the next message"
    assert consumer.received() == []
    await clock.advance(400)
    await until(lambda: consumer.received() == ["far"])


class SharedStorage(CountingStorage):
    """A store that other brokers use too, and whose calls take a while."""

    capabilities = replace(MemoryStorage().capabilities, shared=True)

    def __init__(self) -> None:
        super().__init__()
        self.running = self.most = 0

    async def lease(self, topic: Topic, request: LeaseRequest, now: int, context: CallContext) -> LeaseSet | None:
        self.running += 1
        self.most = max(self.most, self.running)
        for _ in range(5):
            await asyncio.sleep(0)
        self.running -= 1
        lease = await super().lease(topic, request, now, context)
        if lease is not None:
            lease.complete = len(lease) < request.rows_max
        return lease


@pytest.mark.parametrize(("count", "calls", "most"), [(5, 1, 1), (4_000, 7, 2)])
async def test_calls_to_a_server_overlap_only_while_there_is_more(count: int, calls: int, most: int) -> None:
    """Each call is a commit at the server; with a thousand consumers, two of three found nothing."""
    clock, storage = VirtualClock(), SharedStorage()
    topic = Topic("t", 1, TopicSettings(buckets=1))
    await storage.open(clock.now_ms())
    await storage.put_topic(topic, DIRECT_CALL)
    batch = CreateBatch("g", ProducerSession(1, 1), 0, [clock.now_ms()] * count, [b"x"] * count, bucket=0)
    await apply_one(storage, Create(topic, batch), clock.now_ms(), DIRECT_CALL)
    got: list[int] = []

    async def push(lease: LeaseSet) -> None:
        got.append(len(lease))

    leaser = Leaser(
        context=DIRECT_CALL, storage=storage, clock=clock, metrics=Metrics(), topic=topic, consumer="c",
        inflight=Inflight(), push=push,
    )  # fmt: skip
    leaser.set_flow(Flow(10_000, 1 << 24, lease_ms=30_000, prefetch_ms=100, prefetch_ms_max=5_000))
    leaser.assign([0])
    running = asyncio.create_task(leaser.run())
    await until(lambda: sum(got) == count and storage.running == 0)
    await clock.advance(500)
    assert storage.most == most
    assert calls <= len(storage.leases) <= calls + 3 * (calls - 1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_window_combines_messages_of_different_times_into_few_leases(
    connect: Connect, clock: VirtualClock, storage: CountingStorage
) -> None:
    consumer = await (await (await connect()).consume()).subscribe(prefetch_ms=1_000)
    producer = await (await connect()).produce()
    start = clock.now_ms() + 2_000
    ids = [f"m{n}" for n in range(1_000)]
    await producer.ask(create=Batches().natural(ids, [start + n for n in range(1_000)]))
    early: list[int] = []
    for _ in range(30):
        await clock.advance(100)
        pushed = len(consumer.received())
        early.append(pushed - max(0, min(1_000, clock.now_ms() - start + 1)))
    await until(lambda: len(consumer.received()) == 1_000)
    assert min(early) >= 0, "all messages are there at their time"
    assert len(consumer.pushes) <= 8


async def test_the_window_grows_before_a_spike_and_shrinks_after_it(
    connect: Connect, clock: VirtualClock, storage: CountingStorage
) -> None:
    consumer = await (await (await connect()).consume()).subscribe(prefetch_ms=500, rows=30_000)
    producer = await (await connect()).produce()
    start = clock.now_ms() + 4_000
    batches = Batches()
    for part in range(20):
        ids = [f"m{part}-{n}" for n in range(1_000)]
        await producer.ask(create=batches.natural(ids, [start + n for n in range(1_000)]))
    await clock.advance(3_650)
    # Leases come back full, so messages due up to 1,350 ms ahead are fetched, although the window is 500 ms.
    await until(lambda: len(consumer.received()) == 20_000)
    storage.leases.clear()
    await clock.advance(3_000)
    await producer.ask(create=batches.natural(["one-more"], clock.now_ms()))
    await until(lambda: len(consumer.received()) == 20_001)
    assert storage.leases[0].until <= clock.now_ms() + 500


async def test_a_create_outside_the_buckets_of_a_consumer_does_not_wake_it(
    connect: Connect, clock: VirtualClock, storage: CountingStorage
) -> None:
    for name in ("a", "b"):
        await (await (await connect()).consume(name)).subscribe()
    producer = await (await connect()).produce()
    await clock.advance(10)
    storage.leases.clear()
    batches = Batches()
    await producer.ask(create=batches.generated([clock.now_ms() + 60_000], bucket=0))
    await clock.advance(10)
    assert storage.leases == [], "it is due later than any consumer waits for"
    await producer.ask(create=batches.generated([clock.now_ms()], bucket=0))
    await until(lambda: storage.leases)
    await clock.advance(10)
    holder = next(name for name, share in assign_buckets(map(Seat, "ab"), 4).items() if 0 in share)
    assert {request.consumer for request in storage.leases} == {holder}


async def test_the_loader_loads_only_topics_that_have_consumers(
    connect: Connect, clock: VirtualClock, storage: CountingStorage, broker: Broker
) -> None:
    await clock.advance(1_000)
    assert storage.loads == []
    consumer = await (await (await connect()).consume()).subscribe()
    storage.loads.clear()
    await clock.advance(2_000)
    assert 7 <= len(storage.loads) <= 9
    assert {name for name, _ in storage.loads} == {"mail"}
    assert all(until > clock.now_ms() for _, until in storage.loads)
    await consumer.close()
    await until(lambda: len(broker.central.greeter) == 0)
    storage.loads.clear()
    await clock.advance(1_000)
    assert storage.loads == []


class SlowStorage(MemoryStorage):
    """A memory store whose lease calls return when the test permits it."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = asyncio.Event()
        self.taken = False

    async def lease(self, topic: Topic, request: LeaseRequest, now: int, context: CallContext) -> LeaseSet | None:
        lease = await super().lease(topic, request, now, context)
        self.taken = True
        await self.answer.wait()
        return lease


@pytest.mark.parametrize("continued", [False, True])
async def test_rows_leased_and_not_pushed_are_recalled_unless_another_broker_continues_the_lease(
    clock: VirtualClock, continued: bool
) -> None:
    """G3: another broker may have sent the message to the consumer meanwhile; that lease must stay valid."""
    storage = SlowStorage()
    await storage.open(clock.now_ms())
    topic = Topic("mail", 1, TopicSettings(buckets=1))
    await storage.put_topic(topic, DIRECT_CALL)
    batch = CreateBatch("billing", ProducerSession(clock.now_ms(), 1), 0, ts=[clock.now_ms()], bodies=[b"x"])
    await apply_one(storage, Create(topic, batch), clock.now_ms(), DIRECT_CALL)

    async def push(lease: LeaseSet) -> None:
        raise AssertionError("it was stopped earlier")

    leaser = Leaser(
        context=DIRECT_CALL,
        storage=storage,
        clock=clock,
        metrics=Metrics(),
        topic=topic,
        consumer="c",
        inflight=Inflight(),
        push=push,
    )
    leaser.set_flow(Flow(credit_rows=10, credit_bytes=1_000_000, lease_ms=30_000, prefetch_ms=0))
    leaser.assign([0])
    running = asyncio.create_task(leaser.run())
    await until(lambda: storage.taken)
    running.cancel()
    await asyncio.wait([running])
    sent = await continued_leases(storage, clock, topic, "c", Inflight(), DIRECT_CALL) if continued else []
    assert len(sent) == continued
    storage.answer.set()
    await leaser.recall_unpushed()
    status = Status.PROCESSING if continued else Status.AVAILABLE
    assert await storage.count(topic, Filter(status=status), clock.now_ms()) == 1


async def test_a_lease_that_the_former_broker_gets_meanwhile_is_left_to_it(clock: VirtualClock) -> None:
    """G3: it was committed after the new session had read what it continues, and so has no end that protects it."""
    now = clock.now_ms()
    topic = Topic("mail", 1, TopicSettings(buckets=1))

    class LateLease(MemoryStorage):
        """The former broker leases another message while a lease is extended."""

        late: LeaseSet | None = None

        async def apply(self, changes: Sequence[Change], now: int, context: CallContext) -> list[Outcomes | Refused]:
            answers = await super().apply(changes, now, context)
            if any(isinstance(change, Extend) for change in changes):
                self.late = await self.lease(topic, request, now, context)
            return answers

    storage = LateLease()
    await storage.open(now)
    await storage.put_topic(topic, DIRECT_CALL)
    batch = CreateBatch("billing", ProducerSession(now, 1), 0, ts=[now] * 2, bodies=[b"x"] * 2)
    await apply_one(storage, Create(topic, batch), now, DIRECT_CALL)
    request = LeaseRequest([0], "c", until=now, expires=now + 30_000, rows_max=1, bytes_max=1_000)
    first = await storage.lease(topic, request, now, DIRECT_CALL)
    sent = await continued_leases(storage, clock, topic, "c", Inflight(), DIRECT_CALL)
    assert first is not None
    assert storage.late is not None
    assert [lease.lease_id for lease in sent] == [first.lease_id]
    recall = Recall(topic, storage.late.lease_id, "c", None)
    assert (await recall_known(storage, recall, [storage.late.expires], now, DIRECT_CALL)).codes == {}


async def test_a_recall_that_a_former_broker_makes_late_ends_no_lease_that_is_continued(clock: VirtualClock) -> None:
    """G3, R6: a broker that was stopped recalled rows that the consumer's session at another broker had got."""
    storage = MemoryStorage()
    await storage.open(clock.now_ms())
    topic = Topic("mail", 1, TopicSettings(buckets=1))
    await storage.put_topic(topic, DIRECT_CALL)
    now = clock.now_ms()
    batch = CreateBatch("billing", ProducerSession(now, 1), 0, ts=[now] * 3, bodies=[b"x"] * 3)
    await apply_one(storage, Create(topic, batch), now, DIRECT_CALL)
    request = LeaseRequest([0], "c", until=now, expires=now + 30_000, rows_max=10, bytes_max=1_000)
    lease = await storage.lease(topic, request, now, DIRECT_CALL)
    assert lease is not None
    former = Inflight()
    former.add(lease)
    recall = Recall(topic, lease.lease_id, "c", [(0, 1)])
    first = await recall_known(storage, recall, former.ends_of(lease.lease_id, 1), now, DIRECT_CALL)
    assert first.codes == {}
    (sent,) = await continued_leases(storage, clock, topic, "c", Inflight(), DIRECT_CALL)
    assert (sent.expires, sent.rows) == (lease.expires + 1, [1, 2])
    late = replace(recall, rows=[(1, 3)])
    refused = await recall_known(storage, late, former.ends_of(lease.lease_id, 6), now, DIRECT_CALL)
    assert refused.codes == {1: Code.LEASE_LOST, 2: Code.LEASE_LOST}
    assert await storage.count(topic, Filter(status=Status.PROCESSING), now) == 2


async def test_rows_whose_push_was_interrupted_are_recalled(clock: VirtualClock) -> None:
    """A client that does not read makes a push wait; when its consumer leaves then, others must get the message."""
    storage = MemoryStorage()
    await storage.open(clock.now_ms())
    topic = Topic("mail", 1, TopicSettings(buckets=1))
    await storage.put_topic(topic, DIRECT_CALL)
    batch = CreateBatch("billing", ProducerSession(clock.now_ms(), 1), 0, ts=[clock.now_ms()], bodies=[b"x"])
    await apply_one(storage, Create(topic, batch), clock.now_ms(), DIRECT_CALL)
    begun: list[LeaseSet] = []
    inflight = Inflight()

    async def push(lease: LeaseSet) -> None:
        begun.append(lease)
        await asyncio.Event().wait()

    leaser = Leaser(
        context=DIRECT_CALL,
        storage=storage,
        clock=clock,
        metrics=Metrics(),
        topic=topic,
        consumer="c",
        inflight=inflight,
        push=push,
        confirm=lambda: None,
    )
    leaser.set_flow(Flow(credit_rows=10, credit_bytes=1_000_000, lease_ms=30_000, prefetch_ms=0))
    leaser.assign([0])
    running = asyncio.create_task(leaser.run())
    await until(lambda: begun)
    running.cancel()
    await asyncio.wait([running])
    assert await leaser.recall_unpushed()
    assert await storage.count(topic, Filter(status=Status.AVAILABLE), clock.now_ms()) == 1
    assert inflight.rows == 0


async def test_a_message_costs_one_lease_call(connect: Connect, clock: VirtualClock, storage: CountingStorage) -> None:
    """L7: every message cost a second call that found nothing."""
    await (await (await connect()).consume()).subscribe()
    producer, batches = await (await connect()).produce(), Batches()
    await clock.advance(100)
    storage.leases.clear()
    for number in range(20):
        await producer.ask(create=batches.natural([f"m{number}"], clock.now_ms() + 50))
        await clock.advance(100)
    assert len(storage.leases) <= 22


async def test_new_messages_that_are_near_and_not_urgent_share_a_lease_call(
    connect: Connect, clock: VirtualClock, storage: CountingStorage
) -> None:
    """L15: each create that was due within the lead was a lease call of its own."""
    consumer = await (await (await connect()).consume()).subscribe(prefetch_ms=2_000)
    producer, batches = await (await connect()).produce(), Batches()
    await producer.ask(create=batches.natural(["first"], clock.now_ms() + 1_000))
    await until(lambda: len(consumer.received()) == 1)
    storage.leases.clear()
    for number in range(20):
        await producer.ask(create=batches.natural([f"m{number}"], clock.now_ms() + 1_000))
        await clock.advance(GATHER_MS // 40)
    assert not storage.leases
    await producer.ask(create=batches.natural(["urgent"], clock.now_ms() + URGENT_MS))
    await until(lambda: len(consumer.received()) == 22)
    assert len(storage.leases) <= 2
    await producer.ask(create=batches.natural(["last"], clock.now_ms() + 1_000))
    await clock.advance(GATHER_MS)
    await until(lambda: len(consumer.received()) == 23)
    assert len(storage.leases) <= 4


class HeldStorage(CountingStorage):
    """A memory store whose answers about the next time are from before the test lets them out."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0
        self.release = asyncio.Event()

    async def next_ts(self, topic: Topic, buckets: Sequence[int], now: int) -> int | None:
        found = await super().next_ts(topic, buckets, now)
        self.waiting += 1
        await self.release.wait()
        return found


async def test_a_new_message_that_is_not_near_makes_no_lease_call_and_is_leased_in_time(clock: VirtualClock) -> None:
    """L15: each create in a moment in which the leaser was at work cost a lease call that found nothing."""
    storage = HeldStorage()
    await storage.open(clock.now_ms())
    topic = Topic("mail", 1, TopicSettings(buckets=1))
    await storage.put_topic(topic, DIRECT_CALL)
    pushed: list[tuple[int, list[str]]] = []

    async def push(lease: LeaseSet) -> None:
        pushed.append((clock.now_ms(), lease.ids()))

    async def create(number: int, ts: int) -> None:
        batch = CreateBatch("billing", ProducerSession(1, number), 0, [ts], [b"x"], ids=[f"m{number}"])
        await apply_one(storage, Create(topic, batch), clock.now_ms(), DIRECT_CALL)
        leaser.notify(ts)

    leaser = Leaser(
        context=DIRECT_CALL,
        storage=storage,
        clock=clock,
        metrics=Metrics(),
        topic=topic,
        consumer="c",
        inflight=Inflight(),
        push=push,
    )
    leaser.set_flow(Flow(credit_rows=10, credit_bytes=1_000_000, lease_ms=30_000, prefetch_ms=100))
    leaser.assign([0])
    running = asyncio.create_task(leaser.run())
    await until(lambda: storage.waiting)
    calls, began = len(storage.leases), clock.now_ms()
    for number in range(1, 20):
        await create(number, began + 5_000)
    await create(20, began + 400)
    storage.release.set()
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(storage.leases) == calls
    # The leaser has a lead of 75 ms.
    await clock.advance(324)
    assert ["m20"] not in [ids for _, ids in pushed]
    await clock.advance(1)
    await until(lambda: (began + 325, ["m20"]) in pushed)
    running.cancel()
    await asyncio.wait([running])


async def settled(broker: Broker, clock: VirtualClock, storage: CountingStorage) -> None:
    """Wait until every consumer of the fleet has its buckets and has found that nothing is due."""
    roster = broker.central.rosters.of(broker.central.catalog.live("fleet"))
    await until(lambda: roster.up_to_date)
    await clock.advance(1_500)
    await until(lambda: all(consumer.idle for consumer in roster if consumer.buckets))
    storage.leases.clear()


async def test_a_batch_wakes_the_consumers_of_its_buckets_and_no_other(
    connect: Connect, transport: InProcessTransport, clock: VirtualClock, storage: CountingStorage, broker: Broker
) -> None:
    """L7: a batch of 17 messages or more woke every consumer of the topic."""
    await create_topic(transport, "fleet", buckets=256)
    for number in range(100):
        await (await (await connect()).consume(f"c{number}", topic="fleet")).subscribe()
    producer = await (await connect()).produce(topic="fleet")
    await settled(broker, clock, storage)
    now = clock.now_ms()
    await producer.ask(create=Batches().natural([f"m{n}" for n in range(20)], [now] * 20))
    await clock.advance(50)
    assert sum(len(request.buckets) for request in storage.leases) < 256
    assert 1 <= len({request.consumer for request in storage.leases}) <= 20
    await settled(broker, clock, storage)
    far = [now + 3_600_000] * 20
    await producer.ask(create=Batches(2).natural([f"f{n}" for n in range(20)], far))
    await clock.advance(50)
    assert storage.leases == []


async def test_a_consumer_that_leaves_without_unsent_leases_wakes_no_other(
    connect: Connect, transport: InProcessTransport, clock: VirtualClock, storage: CountingStorage, broker: Broker
) -> None:
    """L7: every consumer that left woke all others."""
    await create_topic(transport, "fleet", buckets=256)
    clients = [await (await connect()).consume(f"c{number}", topic="fleet") for number in range(100)]
    for client in clients:
        await client.subscribe()
    await settled(broker, clock, storage)
    await clients[0].close()
    roster = broker.central.rosters.of(broker.central.catalog.live("fleet"))
    await until(lambda: len(roster) == 99 and roster.up_to_date)
    await clock.advance(50)
    assert len({request.consumer for request in storage.leases}) < 50, "only the consumers that get its buckets"


async def test_many_waiting_consumers_share_a_timer_and_check_less_often(
    connect: Connect, transport: InProcessTransport, clock: VirtualClock, storage: CountingStorage, broker: Broker
) -> None:
    """L7: 1,000 idle consumers used 10 % of a core."""
    await create_topic(transport, "fleet", buckets=1024)
    for number in range(300):
        await (await (await connect()).consume(f"c{number}", topic="fleet")).subscribe()
    await settled(broker, clock, storage)
    alarms = broker.central.alarms
    assert alarms.count == 300
    storage.checks, starts = 0, alarms.starts
    await clock.advance(6_000)
    assert storage.checks <= 6 * LEASERS_PER_SECOND + 300
    assert len(storage.leases) == 0
    assert alarms.starts - starts <= 20


async def test_deliveries_go_on_while_the_consumers_of_a_fleet_are_replaced(
    connect: Connect, transport: InProcessTransport, clock: VirtualClock
) -> None:
    """L7: no message waits for the check that a consumer makes by itself, whichever consumer leaves or joins."""
    await create_topic(transport, "fleet", buckets=256)
    clients = [await (await connect()).consume(f"c{number}", topic="fleet") for number in range(80)]
    for client in clients:
        await client.subscribe()
    producer, batches = await (await connect()).produce(topic="fleet"), Batches()
    sent: set[str] = set()
    for number in range(40):
        ids = [f"m{number}-{place}" for place in range(5)]
        sent.update(ids)
        await producer.ask(create=batches.natural(ids, clock.now_ms() + 5))
        await clients[number].close()
        clients.append(await (await (await connect()).consume(f"new{number}", topic="fleet")).subscribe())
        await clock.advance(10)
        await until(lambda: {one for client in clients for one in client.received()} == sent)


@pytest.mark.parametrize(("others", "ahead_ms", "calls"), [(0, 500, range(15, 21)), (1_000, 2_000, range(4, 9))])
async def test_consumers_among_many_with_few_messages_look_further_ahead(
    others: int, ahead_ms: int, calls: range
) -> None:
    """L7: 2,000 messages per second for 1,000 consumers were 1,600 lease calls per second."""
    clock, storage = VirtualClock(), CountingStorage()
    alarms = Alarms(clock)
    alarms.count = others
    topic = Topic("t", 1, TopicSettings(buckets=1))
    await storage.open(clock.now_ms())
    await storage.put_topic(topic, DIRECT_CALL)
    times = [clock.now_ms() + 500 * number for number in range(40)]
    batch = CreateBatch("g", ProducerSession(1, 1), 0, times, [b"x"] * 40, bucket=0)
    await apply_one(storage, Create(topic, batch), clock.now_ms(), DIRECT_CALL)
    got: list[LeaseSet] = []

    async def push(lease: LeaseSet) -> None:
        assert lease.ts[-1] <= clock.now_ms() + ahead_ms
        assert lease.ts[0] >= clock.now_ms(), "none is late"
        got.append(lease)

    leaser = Leaser(
        context=DIRECT_CALL, storage=storage, clock=clock, metrics=Metrics(), topic=topic, consumer="c",
        inflight=Inflight(), push=push, alarms=alarms,
    )  # fmt: skip
    leaser.set_flow(Flow(1_000, 1 << 24, lease_ms=30_000, prefetch_ms=500, prefetch_ms_max=5_000))
    leaser.assign([0])
    running = asyncio.create_task(leaser.run())
    for _ in range(100):
        await clock.advance(100)
    assert len(got) in calls
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_returned_messages_wake_the_consumers_of_their_buckets_and_no_other(
    connect: Connect, transport: InProcessTransport, clock: VirtualClock, storage: CountingStorage, broker: Broker
) -> None:
    """L7: each lease that one of 200 leaving consumers returned made all of the others lease."""
    await create_topic(transport, "fleet", buckets=256)
    fleet = [await (await connect()).consume(f"c{number}", topic="fleet") for number in range(100)]
    for consumer in fleet:
        await consumer.subscribe()
    producer = await (await connect()).produce(topic="fleet")
    await settled(broker, clock, storage)
    await producer.ask(create=Batches().natural(["late"], clock.now_ms() - 1))
    await until(lambda: any(consumer.received() for consumer in fleet))
    holder = next(consumer for consumer in fleet if consumer.received())
    await holder.ask(unsubscribe=carrier.Unsubscribe())
    await settled(broker, clock, storage)
    assert not (await holder.settle(carrier.RECALL, holder.pushes[0].lease)).outcomes.codes
    await until(lambda: any("late" in consumer.received() for consumer in fleet if consumer is not holder))
    await clock.advance(50)
    assert len({request.consumer for request in storage.leases}) <= 5
