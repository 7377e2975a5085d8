"""What each consumer gets: as much as it is good for, and nobody waits for one that is slow or stuck."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from statistics import quantiles

import pytest

import dejaq
from dejaq.domain.ids import bucket_of
from dejaq.testing.waiting import eventually
from dejaq.timekeeper.clock import SystemClock
from tests.unit.broker.client import Batches, RawClient, create_topic

TOPIC = "work"
WITHIN = 20.0
# These tests are about work that takes time: what passes is the work's, and nothing is waited for by it.
WORK = SystemClock()


@pytest.fixture
async def client() -> AsyncIterator[dejaq.Client]:
    """A broker on the machine's own clock: these tests are about time that passes."""
    async with dejaq.Broker() as broker, dejaq.connect(broker) as client:
        await client.create_topic(TOPIC, buckets=64)
        yield client


async def take(consumer: dejaq.Consumer, seconds: float, done: Counter[str]) -> None:
    """Settle one message after the other, each after so long."""
    async for lease in consumer:
        await WORK.sleep(seconds)
        await lease.delete()
        done[consumer.name] += 1


async def emptied(client: dejaq.Client) -> None:
    async def empty() -> bool:
        return await client.count(TOPIC) == 0

    await eventually(empty, within=WITHIN, what="everything is done")


async def evenness(client: dejaq.Client, produce: Callable[[dejaq.Producer], Awaitable[None]], **terms: int) -> float:
    """How many messages a consumer got for each of one half as fast, as a part of how many times as fast it was."""
    done: Counter[str] = Counter()
    spent: Counter[str] = Counter()

    async def run(consumer: dejaq.Consumer, seconds: float) -> None:
        async for lease in consumer:
            began = WORK.now_us()
            await WORK.sleep(seconds)
            await lease.delete()
            done[consumer.name] += 1
            # By the clock, since a machine with other work stretches short waits more than long ones.
            spent[consumer.name] += WORK.now_us() - began

    async with (
        client.consumer(TOPIC, name="fast", **terms) as fast,
        client.consumer(TOPIC, name="slow", **terms) as slow,
        client.producer(TOPIC) as producer,
    ):
        tasks = [asyncio.ensure_future(run(fast, 0.01)), asyncio.ensure_future(run(slow, 0.02))]
        await produce(producer)
        await emptied(client)
        for task in tasks:
            task.cancel()
    faster = (spent["slow"] / done["slow"]) / (spent["fast"] / done["fast"])
    return done["fast"] / done["slow"] / faster


@pytest.mark.parametrize("terms", [{}, {"max_in_flight": 4}], ids=["large credit", "small credit"])
async def test_of_a_backlog_a_consumer_half_as_fast_gets_about_half(
    client: dejaq.Client, terms: dict[str, int]
) -> None:
    async def all_at_once(producer: dejaq.Producer) -> None:
        for _ in range(10):
            await producer.send_batch([b"x"] * 32)

    assert 0.75 <= await evenness(client, all_at_once, **terms) <= 1.35


async def test_of_a_steady_flow_a_consumer_half_as_fast_gets_about_half(client: dejaq.Client) -> None:
    async def steadily(producer: dejaq.Producer) -> None:
        # A little more than both can do together, for three seconds.
        for _ in range(60):
            await producer.send_batch([b"x"] * 8)
            await WORK.sleep(0.05)

    # The middle of three: a pause of the machine at the wrong moment gives all of it to one of them.
    found = [await evenness(client, steadily) for _ in range(3)]
    assert 0.75 <= sorted(found)[1] <= 1.35, found


async def test_one_stuck_consumer_delays_nobody_s_messages(client: dejaq.Client) -> None:
    """G8: the p99 of lateness with a stuck consumer is that without, but for the machine's own noise."""

    async def lateness(rounds: int) -> list[int]:
        late: list[int] = []

        async def run(consumer: dejaq.Consumer) -> None:
            async for lease in consumer:
                late.append(consumer.now_ms() - lease.ts)
                await lease.delete()

        async with (
            client.consumer(TOPIC, name="a") as first,
            client.consumer(TOPIC, name="z") as second,
            client.producer(TOPIC) as producer,
        ):
            tasks = [asyncio.ensure_future(run(first)), asyncio.ensure_future(run(second))]
            for _ in range(rounds):
                await producer.send_batch([b"x"] * 5, delay=0.02)
                await WORK.sleep(0.01)
            await eventually(lambda: len(late) == 5 * rounds, within=WITHIN, what="all are delivered")
            for task in tasks:
                task.cancel()
        return late

    alone = quantiles(await lateness(100), n=100)[98]
    async with client.consumer(TOPIC, name="m-stuck", max_in_flight=4) as stuck, client.producer(TOPIC) as producer:
        await producer.send_batch([b"x"] * 4)
        held = [await anext(stuck) for _ in range(4)]
        beside = quantiles(await lateness(100), n=100)[98]
        for lease in held:
            await lease.delete()
    assert beside <= max(alone + 100, 3 * alone), f"p99 {alone:.0f} ms alone, {beside:.0f} ms beside a stuck consumer"


async def test_what_a_stuck_consumer_hoards_is_taken_back_for_one_that_is_idle(client: dejaq.Client) -> None:
    """G8, G3: user code of one consumer alone sees each."""
    done: Counter[str] = Counter()
    async with client.producer(TOPIC) as producer, client.consumer(TOPIC, name="stuck") as stuck:
        await producer.send_batch([b"x"] * 300)
        held = await anext(stuck)
        async with client.consumer(TOPIC, name="good") as good:
            task = asyncio.ensure_future(take(good, 0, done))
            await eventually(lambda: done["good"] == 299, within=WITHIN, what="the idle one does the rest")
            task.cancel()
        assert held.attempts == 1
        await held.delete()
    assert await client.count(TOPIC) == 0


async def test_a_heavier_consumer_gets_a_larger_part(client: dejaq.Client) -> None:
    async with client.consumer(TOPIC, name="heavy", weight=300), client.consumer(TOPIC, name="light", weight=100):
        clients = {c.who: c for c in (await client.info()).clients if c.who}
    assert {name: len(c.buckets) for name, c in clients.items()} == {"heavy": 48, "light": 16}
    assert {name: c.weight for name, c in clients.items()} == {"heavy": 300, "light": 100}


async def test_who_pushes_back_gets_nothing_for_a_while_and_others_have_its_part(client: dejaq.Client) -> None:
    done: Counter[str] = Counter()
    async with (
        client.consumer(TOPIC, name="busy") as busy,
        client.consumer(TOPIC, name="free") as free,
        client.producer(TOPIC) as producer,
    ):
        tasks = [asyncio.ensure_future(take(busy, 0, done)), asyncio.ensure_future(take(free, 0, done))]
        await busy.busy(60)
        await producer.send_batch([b"x"] * 20, delay=[n / 100 for n in range(20)])
        await emptied(client)
        for task in tasks:
            task.cancel()
    assert done == {"free": 20}


async def test_what_a_busy_consumer_is_told_to_wait_ends(client: dejaq.Client) -> None:
    async with client.consumer(TOPIC, name="busy") as busy, client.producer(TOPIC) as producer:
        await busy.busy(0.2)
        await producer.send(b"x")
        async with asyncio.timeout(WITHIN):
            lease = await anext(busy)
        assert busy.now_ms() - lease.ts >= 150
    with pytest.raises(dejaq.InvalidArgument, match="busy for"):
        await busy.busy(0)


async def test_stand_ins_are_in_other_racks(client: dejaq.Client) -> None:
    """What a full consumer cannot take goes to another rack before it goes to its own."""
    done: Counter[str] = Counter()
    async with (
        client.consumer(TOPIC, name="full", rack="east", max_in_flight=1) as full,
        client.consumer(TOPIC, name="near", rack="east") as near,
        client.consumer(TOPIC, name="far", rack="west") as far,
        client.producer(TOPIC) as producer,
    ):
        buckets = {c.who: set(c.buckets) for c in (await client.info()).clients}
        ids = [name for name in map(str, range(2_000)) if bucket_of(name, 64) in buckets["full"]][:50]
        await producer.send_batch([b"x"] * 50, ids=ids)
        held = await anext(full)
        tasks = [asyncio.ensure_future(take(near, 0, done)), asyncio.ensure_future(take(far, 0, done))]
        await eventually(lambda: done.total() == 49, within=WITHIN)
        for task in tasks:
            task.cancel()
        await held.delete()
    assert done == {"far": 49}


async def test_a_consumer_gets_no_more_than_its_rate(client: dejaq.Client) -> None:
    times: list[int] = []
    async with client.producer(TOPIC) as producer, client.consumer(TOPIC, name="slow", rate=20, prefetch=0) as consumer:
        await producer.send_batch([b"x"] * 40)
        async with asyncio.timeout(WITHIN):
            async for lease in consumer:
                times.append(consumer.now_ms())
                await lease.delete()
                if len(times) == 40:
                    break
    # A second's worth is there at first; the other twenty come at their rate.
    assert times[-1] - times[0] >= 900


@pytest.mark.parametrize(
    ("terms", "says"),
    [({"weight": 0}, "weight"), ({"weight": 10_001}, "weight"), ({"rate": -1}, "rate"), ({"rack": "r" * 65}, "rack")],
)
async def test_terms_that_make_no_sense_are_refused(
    client: dejaq.Client, terms: dict[str, int | str], says: str
) -> None:
    with pytest.raises(dejaq.InvalidArgument, match=says):
        client.consumer(TOPIC, **terms)  # type: ignore[arg-type]


async def test_a_client_above_its_rate_is_slowed_down_and_loses_nothing(client: dejaq.Client) -> None:
    """The broker hints in its answers, the SDK waits, and the caller sees only that it takes longer."""
    await client.create_topic("bounded", buckets=4, client_rate=100)
    async with client.producer("bounded") as producer, client.producer("bounded") as second:
        began = client.now_ms()
        for _ in range(5):
            assert (await producer.send_batch([b"x"] * 30)).ok
            assert (await second.send_batch([b"x"] * 10)).ok
        assert client.now_ms() - began >= 700
    assert await client.count("bounded") == 200


async def test_a_client_that_cannot_wait_is_told_for_how_long() -> None:
    """G8: a definite refusal; nothing was changed."""
    async with dejaq.Broker() as broker, dejaq.connect(broker, deadline=0.3, name="hasty") as hasty:
        await hasty.create_topic("bounded", buckets=4, client_rate=10)
        async with hasty.producer("bounded") as producer:
            assert (await producer.send_batch([b"x"] * 50, ids=[f"a{n}" for n in range(50)])).ok
            with pytest.raises(dejaq.Unavailable) as refused:
                await producer.send(b"y", id="b")
        assert refused.value.code is dejaq.Code.OVERLOADED
        assert 3_000 < refused.value.throttled_ms <= 4_100
        assert await hasty.get("bounded", ["b"]) == [None]


async def test_a_client_that_ignores_the_hint_is_refused_and_others_are_not() -> None:
    async with dejaq.Broker() as broker:
        transport = broker.transport()
        await create_topic(transport, "bounded", buckets=4, client_rate=10)
        first = await (await RawClient(transport).open()).produce("bounded")
        done = await first.ask(create=Batches().natural([f"a{n}" for n in range(20)], 0))
        assert 900 <= done.outcomes.throttled_ms <= 1_100
        refused = await first.ask(create=Batches(2).natural(["b"], 0))
        assert refused.error.code == dejaq.Code.OVERLOADED
        assert 0 < refused.error.throttled_ms <= done.outcomes.throttled_ms
        assert refused.error.retryable
        async with dejaq.connect(broker, name="another") as another, another.producer("bounded") as producer:
            await producer.send(b"c")
            assert await another.count("bounded") == 21
        await first.close()
