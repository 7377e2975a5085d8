"""The share of each consumer: as much as it can process, and no message waits for a consumer that is slow or stuck."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from statistics import quantiles
from typing import Any

import pytest

import dejaq
from dejaq.domain.ids import bucket_of
from dejaq.testing.waiting import eventually, patient
from dejaq.timekeeper.clock import SystemClock
from tests.pace import measured, take_time
from tests.unit.broker.client import Batches, RawClient, create_topic

TOPIC = "work"
WITHIN = 20.0
# These tests measure work that takes real time. The time that passes is the duration of the work, not a wait for a
# result.
WORK = SystemClock()


@pytest.fixture
async def client() -> AsyncIterator[dejaq.Client]:
    """A broker on the machine's own clock, because these tests measure time that passes."""
    async with dejaq.Broker() as broker, dejaq.connect(broker) as client:
        await client.create_topic(TOPIC, buckets=64)
        yield client


async def take(consumer: dejaq.Consumer, seconds: float, done: Counter[str]) -> None:
    """Settle one message after the other, each after this time."""
    async for lease in consumer:
        await take_time(seconds)
        await lease.delete()
        done[consumer.name] += 1


async def emptied(client: dejaq.Client) -> None:
    async def empty() -> bool:
        return await client.count(TOPIC) == 0

    await eventually(empty, within=WITHIN, what="all messages are processed")


async def evenness(client: dejaq.Client, produce: Callable[[dejaq.Producer], Awaitable[None]], **terms: Any) -> float:
    """The ratio of the messages that both consumers got, divided by the ratio of their speeds: 1 is a fair share."""
    done: Counter[str] = Counter()
    spent: Counter[str] = Counter()

    async def run(consumer: dejaq.Consumer, seconds: float) -> None:
        async for lease in consumer:
            began = WORK.now_us()
            await take_time(seconds)
            await lease.delete()
            done[consumer.name] += 1
            # Measured by the clock, because a busy machine makes short waits relatively longer than long ones.
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
async def test_a_consumer_half_as_fast_gets_about_half_of_a_backlog(
    client: dejaq.Client, terms: dict[str, int]
) -> None:
    async def all_at_once(producer: dejaq.Producer) -> None:
        for _ in range(10):
            await producer.send_batch([b"x"] * 32)

    found = await measured(lambda: evenness(client, all_at_once, **terms), lambda one: 0.75 <= one <= 1.35)
    assert 0.75 <= found[-1] <= 1.35, found


async def test_a_consumer_half_as_fast_gets_about_half_of_a_steady_flow(client: dejaq.Client) -> None:
    async def steadily(producer: dejaq.Producer) -> None:
        # For three seconds, a little more than both consumers can process together.
        for _ in range(60):
            await producer.send_batch([b"x"] * 8)
            await take_time(0.05)

    # The median of three runs, because a pause of the machine at the wrong moment gives one consumer all messages.
    found = [await evenness(client, steadily) for _ in range(3)]
    assert 0.75 <= sorted(found)[1] <= 1.35, found


async def test_one_stuck_consumer_does_not_delay_other_messages(client: dejaq.Client) -> None:
    """G8: the p99 lateness with a stuck consumer equals the one without it, apart from the noise of the machine."""

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
                await take_time(0.01)
            await eventually(lambda: len(late) == 5 * rounds, within=WITHIN, what="all messages are delivered")
            for task in tasks:
                task.cancel()
        return late

    async def both() -> tuple[float, float]:
        """The p99 lateness in milliseconds, without and with a stuck consumer."""
        alone = quantiles(await lateness(100), n=100)[98]
        async with client.consumer(TOPIC, name="m-stuck", max_in_flight=4) as stuck, client.producer(TOPIC) as producer:
            await producer.send_batch([b"x"] * 4)
            held = [await anext(stuck) for _ in range(4)]
            beside = quantiles(await lateness(100), n=100)[98]
            for lease in held:
                await lease.delete()
        return alone, beside

    def equal(figures: tuple[float, float]) -> bool:
        alone, beside = figures
        return beside <= max(alone + 100, 3 * alone)

    found = await measured(both, equal)
    assert equal(found[-1]), found


async def test_messages_that_a_stuck_consumer_holds_are_recalled_for_an_idle_one(client: dejaq.Client) -> None:
    """G8, G3: only one consumer's user code sees each message."""
    done: Counter[str] = Counter()
    async with client.producer(TOPIC) as producer, client.consumer(TOPIC, name="stuck") as stuck:
        await producer.send_batch([b"x"] * 300)
        held = await anext(stuck)
        async with client.consumer(TOPIC, name="good") as good:
            task = asyncio.ensure_future(take(good, 0, done))
            await eventually(
                lambda: done["good"] == 299, within=WITHIN, what="the idle consumer processes the other messages"
            )
            task.cancel()
        assert held.attempts == 1
        await held.delete()
    assert await client.count(TOPIC) == 0


async def test_a_consumer_with_a_higher_weight_gets_a_larger_share(client: dejaq.Client) -> None:
    async with client.consumer(TOPIC, name="heavy", weight=300), client.consumer(TOPIC, name="light", weight=100):
        clients = {c.who: c for c in (await client.info()).clients if c.who}
    assert {name: len(c.buckets) for name, c in clients.items()} == {"heavy": 48, "light": 16}
    assert {name: c.weight for name, c in clients.items()} == {"heavy": 300, "light": 100}


async def test_a_busy_consumer_gets_nothing_for_a_while_and_others_get_its_share(client: dejaq.Client) -> None:
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


async def test_the_pause_of_a_busy_consumer_ends(client: dejaq.Client) -> None:
    async with client.consumer(TOPIC, name="busy") as busy, client.producer(TOPIC) as producer:
        await busy.busy(0.2)
        await producer.send(b"x")
        async with asyncio.timeout(patient(WITHIN)):
            lease = await anext(busy)
        assert busy.now_ms() - lease.ts >= 150
    with pytest.raises(dejaq.InvalidArgument, match="busy for"):
        await busy.busy(0)


async def helpers_of_a_full_consumer(client: dejaq.Client) -> Counter[str]:
    """The consumers that took the messages of one that has no room."""
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
    return done


async def test_messages_of_a_full_consumer_go_to_other_racks(client: dejaq.Client) -> None:
    """A message that a full consumer cannot take goes to another rack before it goes to the consumer's own rack.

    A helper that a pause of the machine keeps from its messages is full too, and then the other one helps.
    """
    found = await measured(partial(helpers_of_a_full_consumer, client), lambda done: done == {"far": 49})
    assert found[-1] == {"far": 49}


async def test_a_consumer_gets_no_more_than_its_rate(client: dejaq.Client) -> None:
    times: list[int] = []
    async with client.producer(TOPIC) as producer, client.consumer(TOPIC, name="slow", rate=20, prefetch=0) as consumer:
        await producer.send_batch([b"x"] * 40)
        async with asyncio.timeout(patient(WITHIN)):
            async for lease in consumer:
                times.append(consumer.now_ms())
                await lease.delete()
                if len(times) == 40:
                    break
    # One second's worth of messages may come at once; the other twenty come at the consumer's rate.
    assert times[-1] - times[0] >= 900


@pytest.mark.parametrize(
    ("terms", "says"),
    [({"weight": 0}, "weight"), ({"weight": 10_001}, "weight"), ({"rate": -1}, "rate"), ({"rack": "r" * 65}, "rack")],
)
async def test_invalid_terms_are_refused(client: dejaq.Client, terms: dict[str, int | str], says: str) -> None:
    with pytest.raises(dejaq.InvalidArgument, match=says):
        client.consumer(TOPIC, **terms)  # type: ignore[arg-type]


async def test_a_client_above_its_rate_is_slowed_down_and_loses_nothing(client: dejaq.Client) -> None:
    """The broker sends a hint in its answers and the SDK waits; the caller only sees that the calls take longer."""
    await client.create_topic("bounded", buckets=4, client_rate=100)
    async with client.producer("bounded") as producer, client.producer("bounded") as second:
        began = client.now_ms()
        for _ in range(5):
            assert (await producer.send_batch([b"x"] * 30)).ok
            assert (await second.send_batch([b"x"] * 10)).ok
        assert client.now_ms() - began >= 700
    assert await client.count("bounded") == 200


async def test_a_client_that_cannot_wait_is_refused_with_the_time_to_wait() -> None:
    """G8: the refusal is definite, and nothing was changed."""
    async with dejaq.Broker() as broker, dejaq.connect(broker, deadline=patient(0.3), name="hasty") as hasty:
        await hasty.create_topic("bounded", buckets=4, client_rate=10)
        async with hasty.producer("bounded") as producer:
            assert (await producer.send_batch([b"x"] * 50, ids=[f"a{n}" for n in range(50)])).ok
            with pytest.raises(dejaq.Unavailable) as refused:
                await producer.send(b"y", id="b")
        assert refused.value.code is dejaq.Code.OVERLOADED
        assert 3_000 < refused.value.throttled_ms <= 4_100
        assert await hasty.get("bounded", ["b"]) == [None]


async def test_a_client_that_ignores_the_hint_is_refused_and_other_clients_are_not() -> None:
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
