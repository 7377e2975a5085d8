"""How often the pump and the loader ask the store: as seldom as they can, as early as they must."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from dejaq.broker import Broker
from dejaq.broker.carrier.dealer import Seat, deal
from dejaq.broker.carrier.inflight import Inflight
from dejaq.broker.carrier.leaser import Flow, Leaser
from dejaq.broker.metrics import Metrics
from dejaq.domain.batch import CreateBatch, LeaseRequest, LeaseSet, Outcomes, RowRange
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import Indefinite
from dejaq.storage.memory import MemoryStorage
from dejaq.timekeeper.clock import VirtualClock
from tests.unit.broker.client import Batches, until
from tests.unit.broker.conftest import Connect


class CountingStorage(MemoryStorage):
    """A memory store that remembers how it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.leases: list[LeaseRequest] = []
        self.loads: list[tuple[str, int]] = []

    async def lease(self, topic: Topic, request: LeaseRequest, now: int) -> LeaseSet | None:
        self.leases.append(request)
        return await super().lease(topic, request, now)

    async def load(self, topic: Topic, buckets: Sequence[int], until: int) -> None:
        self.loads.append((topic.name, until))


@pytest.fixture
def storage() -> CountingStorage:
    return CountingStorage()


async def test_while_nothing_is_due_the_store_is_asked_once_a_second(
    connect: Connect, clock: VirtualClock, storage: CountingStorage
) -> None:
    consumer = await (await (await connect()).consume()).subscribe()
    producer = await (await connect()).produce()
    await producer.ask(create=Batches().natural(["far"], clock.now_ms() + 30_500))
    await clock.advance(100)
    storage.leases.clear()
    await clock.advance(30_000)
    assert 25 <= len(storage.leases) <= 31
    assert consumer.received() == []
    await clock.advance(400)
    await until(lambda: consumer.received() == ["far"])


async def test_a_window_gathers_what_is_spread_over_time_into_few_leases(
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
    assert min(early) >= 0, "everything is there when its time comes"
    assert len(consumer.pushes) <= 8


async def test_the_window_grows_before_a_spike_and_shrinks_behind_it(
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
    # Leases come back full, so what is due up to 1,350 ms ahead is fetched, though the window is 500 ms.
    await until(lambda: len(consumer.received()) == 20_000)
    storage.leases.clear()
    await clock.advance(3_000)
    assert storage.leases[-1].until <= clock.now_ms() + 500


async def test_a_create_that_does_not_concern_a_consumer_does_not_wake_it(
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
    assert storage.leases == [], "it is due later than anybody waits for"
    await producer.ask(create=batches.generated([clock.now_ms()], bucket=0))
    await until(lambda: storage.leases)
    await clock.advance(10)
    holder = next(name for name, share in deal(map(Seat, "ab"), 4).items() if 0 in share)
    assert {request.consumer for request in storage.leases} == {holder}


async def test_the_loader_keeps_ahead_of_topics_that_have_consumers_and_of_no_other(
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
    """A memory store whose leases are answered when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = asyncio.Event()
        self.taken = False
        self.recalls: list[int] = []

    async def lease(self, topic: Topic, request: LeaseRequest, now: int) -> LeaseSet | None:
        lease = await super().lease(topic, request, now)
        self.taken = True
        await self.answer.wait()
        return lease

    async def recall(
        self, topic: Topic, lease_id: int, consumer: str, rows: Sequence[RowRange] | None, now: int
    ) -> Outcomes:
        self.recalls.append(lease_id)
        return await super().recall(topic, lease_id, consumer, rows, now)


@pytest.mark.parametrize("cut_off", [False, True])
async def test_what_was_leased_and_not_pushed_is_given_back_unless_the_broker_is_cut_off(
    clock: VirtualClock, cut_off: bool
) -> None:
    """G3: another broker may have sent it to the consumer meanwhile, and its lease must not end under it."""
    storage = SlowStorage()
    await storage.open(clock.now_ms())
    topic = Topic("mail", 1, TopicSettings(buckets=1))
    await storage.put_topic(topic)
    batch = CreateBatch("billing", ProducerSession(clock.now_ms(), 1), 0, ts=[clock.now_ms()], bodies=[b"x"])
    await storage.create(topic, batch, clock.now_ms())
    cut: list[bool] = []

    def confirm() -> None:
        if cut:
            raise Indefinite("cut off")

    async def push(lease: LeaseSet) -> None:
        raise AssertionError("it was stopped before")

    leaser = Leaser(
        storage=storage,
        clock=clock,
        metrics=Metrics(),
        topic=topic,
        consumer="c",
        inflight=Inflight(),
        push=push,
        confirm=confirm,
    )
    leaser.set_flow(Flow(credit_rows=10, credit_bytes=1_000_000, lease_ms=30_000, prefetch_ms=0))
    leaser.assign([0])
    running = asyncio.create_task(leaser.run())
    await until(lambda: storage.taken)
    running.cancel()
    await asyncio.wait([running])
    if cut_off:
        cut.append(True)
    storage.answer.set()
    if cut_off:
        with pytest.raises(Indefinite):
            await leaser.give_back()
    else:
        await leaser.give_back()
    assert len(storage.recalls) == (0 if cut_off else 1)
