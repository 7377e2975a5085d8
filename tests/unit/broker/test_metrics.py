"""The metrics that the broker publishes for Prometheus."""

from __future__ import annotations

import asyncio
import re
import urllib.request

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

from dejaq.broker import Broker
from dejaq.broker.metrics import (
    CREATED,
    LATENESS_BOUNDS_MS,
    METRICS,
    REST,
    SCRAPES_MAX,
    TOPIC_SERIES_MAX,
    Lateness,
    Metrics,
)
from dejaq.errors import Code, DejaqError
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.testing.waiting import eventually, patient
from dejaq.timekeeper.clock import VirtualClock
from tests.unit.broker.client import Batches, until
from tests.unit.broker.conftest import Connect


def exposed(broker: Broker) -> dict[str, float]:
    lines = generate_latest(broker.central.metrics.registry).decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def test_every_metric_has_one_row_in_the_table() -> None:
    names = [spec.name for spec in METRICS]
    assert len(set(names)) == len(names)
    for spec in METRICS:
        assert re.fullmatch(r"dejaq_[a-z_]+", spec.name)
        assert spec.help.endswith(".")
        assert spec.kind in {"counter", "gauge", "histogram"}


async def test_every_metric_of_the_table_is_exposed(broker: Broker) -> None:
    text = generate_latest(broker.central.metrics.registry).decode()
    for spec in METRICS:
        assert f"# HELP {spec.name}" in text


async def test_a_message_is_counted_at_each_step_of_its_life(
    connect: Connect, clock: VirtualClock, broker: Broker
) -> None:
    producer = await (await connect()).produce()
    consumer = await (await (await connect()).consume()).subscribe(rows=3, lease_ms=500)
    batches = Batches()
    batch = batches.natural(["a", "b", "c", "x", "bad id"], [clock.now_ms()] * 3 + [clock.now_ms() + 10_000] * 2)
    await producer.ask(create=batch)
    await producer.ask(create=batch)
    await until(lambda: len(consumer.received()) == 3)
    lease = consumer.pushes[0].lease
    await consumer.settle(carrier.DELETE, lease, ranges=[0, 1])
    await consumer.settle(carrier.EXTEND, lease, ranges=[1, 3], lease_ms=500)
    await consumer.settle(carrier.RELEASE, lease, ranges=[1, 2], ts=[5_000], relative=True)
    await producer.ask(edit=carrier.EditBatch(ids=["x"], bodies=[b"new"]))
    await producer.ask(cancel=carrier.CancelBatch(ids=["x"]))
    await producer.ask(hello=carrier.Hello(protocol=1))
    await clock.advance(900)
    values = exposed(broker)
    expected_counts = {
        "created": 4,
        "repeated": 4,
        "deleted": 1,
        "extended": 2,
        "released": 1,
        "edited": 1,
        "cancelled": 1,
        "expired": 1,
    }
    for step, expected in expected_counts.items():
        assert values[f'dejaq_messages_{step}_total{{topic="mail"}}'] == expected, step
    assert values['dejaq_items_refused_total{code="INVALID_ID"}'] == 2
    assert values['dejaq_errors_total{code="OUT_OF_STATE"}'] == 1
    assert values['dejaq_sessions{state="subscribed"}'] == 1
    assert values['dejaq_topics{state="live"}'] == 1
    assert values['dejaq_frames_total{command="create"}'] == 2


async def test_pending_messages_are_sampled(connect: Connect, clock: VirtualClock, broker: Broker) -> None:
    producer = await (await connect()).produce()
    await producer.ask(create=Batches().natural(["a", "b"], [0, clock.now_ms() + 60_000]))
    await clock.advance(6_000)
    values = exposed(broker)
    assert values['dejaq_pending_messages{status="available",topic="mail"}'] == 1
    assert values['dejaq_pending_messages{status="waiting",topic="mail"}'] == 1


@given(ts=st.lists(st.integers(0, 100_000), max_size=50), now=st.integers(0, 100_000))
def test_lateness_by_search_equals_lateness_by_loop(ts: list[int], now: int) -> None:
    lateness = Lateness()
    lateness.observe(sorted(ts), now)
    late = [max(0, now - one) for one in ts]
    expected = [sum(one <= bound for one in late) for bound in LATENESS_BOUNDS_MS] + [len(late)]
    assert [count for _, count in lateness.cumulative()] == expected
    assert lateness.sum_ms == sum(late)


async def test_the_endpoint_serves_and_a_taken_port_is_a_clear_error() -> None:
    metrics = Metrics()
    metrics.add(CREATED, 3, "mail")
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(DejaqError) as caught:
        metrics.expose(f"127.0.0.1:{port}")
    assert caught.value.code is Code.PORT_TAKEN
    server.close()
    await server.wait_closed()
    address, close = metrics.expose("127.0.0.1:0")
    try:
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(f"http://{address}/metrics").read())
        assert b'dejaq_messages_created_total{topic="mail"} 3.0' in text
        for path in ("/", "/metrics/x", "/healthz"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                await asyncio.to_thread(urllib.request.urlopen, f"http://{address}{path}")
            assert refused.value.code == 404, "U23: every path answered 200"
            refused.value.close()
    finally:
        await asyncio.to_thread(close)


async def test_connections_beyond_the_limit_are_closed_and_later_ones_served() -> None:
    """Each connection has a thread, so clients that send nothing must not take any number of them."""
    address, close = Metrics().expose("127.0.0.1:0")
    host, port = address.split(":")
    try:
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(SCRAPES_MAX)]
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await asyncio.wait_for(reader.read(), patient(5.0)) == b""
        writer.close()
        for _, one in silent:
            one.close()
            await one.wait_closed()

        def scrape() -> bool:
            try:
                with urllib.request.urlopen(f"http://{address}/metrics") as answer:
                    return bool(answer.read())
            except OSError:
                return False

        await eventually(lambda: asyncio.to_thread(scrape), within=20.0, what="a place is free again")
    finally:
        await asyncio.to_thread(close)


def test_the_metrics_of_deleted_topics_are_removed() -> None:
    """D24: one new topic per minute does not fill the memory, nor every scrape."""
    metrics = Metrics()
    for topic in ("gone", "stays"):
        metrics.add(CREATED, 3, topic)
        metrics.late(topic, [5], 6)
    metrics.choose_topics({"stays"})
    assert (metrics.value(CREATED, "gone"), metrics.value(CREATED, "stays")) == (0, 3)
    text = generate_latest(metrics.registry).decode()
    assert 'topic="gone"' not in text
    assert 'topic="stays"' in text


def topics_in(metrics: Metrics) -> set[str]:
    return set(re.findall(r'topic="([^"]*)"', generate_latest(metrics.registry).decode()))


def test_the_busiest_topics_have_series_of_their_own_and_the_rest_share_one() -> None:
    """L8: a scrape of 10,000 topics had 10,000 times every series."""
    metrics = Metrics()
    names = [f"topic-{number}" for number in range(1_000)]
    for name in names:
        metrics.add(CREATED, 1, name)
        metrics.late(name, [5], 6)
    assert len(topics_in(metrics)) == TOPIC_SERIES_MAX + 1
    assert metrics.value(CREATED, REST) == 1_000 - TOPIC_SERIES_MAX
    metrics.add(CREATED, 50, names[-1])
    metrics.choose_topics(names)
    metrics.add(CREATED, 7, names[-1])
    assert metrics.value(CREATED, names[-1]) == 7, "its own series begins at 0"
    assert len(topics_in(metrics)) == TOPIC_SERIES_MAX + 1


@given(adds=st.lists(st.tuples(st.integers(0, 150), st.integers(1, 100)), max_size=400))
def test_no_series_ever_shrinks_and_the_sum_is_exact(adds: list[tuple[int, int]]) -> None:
    metrics = Metrics()
    for number in range(TOPIC_SERIES_MAX):
        metrics.add(CREATED, 1, f"topic-{number}")
    rest = 0.0
    for place, (number, amount) in enumerate(adds):
        metrics.add(CREATED, amount, f"topic-{number}")
        if place % 50 == 49:
            metrics.choose_topics([f"topic-{number}" for number in range(151)])
        assert metrics.value(CREATED, REST) >= rest
        rest = metrics.value(CREATED, REST)
    total = sum(metrics.value(CREATED, name) for name in topics_in(metrics))
    assert total == TOPIC_SERIES_MAX + sum(amount for _, amount in adds)
