"""U15: the settings of a topic change while it is in use, on every store and in a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import dejaq
from dejaq.broker.sessions.greeter import Greeter
from dejaq.domain.topic import Topic
from dejaq.testing.waiting import eventually, patient
from tests.conformance.backends import memory, postgres, rocksdb, sharded
from tests.integration.cluster.crew import crew_of

TOPIC = "mail"


@pytest.fixture(params=[memory, rocksdb, postgres, sharded], ids=lambda backend: backend.__name__)
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[dejaq.Broker]:
    async with dejaq.Broker(storage=request.param(tmp_path)(), drain_ms=0) as broker:
        yield broker


@pytest.fixture
async def client(broker: dejaq.Broker) -> AsyncIterator[dejaq.Client]:
    async with dejaq.connect(broker, deadline=10.0) as client:
        yield client


async def test_changed_settings_apply_to_connected_clients(broker: dejaq.Broker, client: dejaq.Client) -> None:
    """U15: the settings of a topic could never change after its creation."""
    await client.create_topic(TOPIC, buckets=4)
    async with client.producer(TOPIC) as producer, client.consumer(TOPIC, name="w") as consumer:
        await producer.send(b"once too often", id="bad")
        lease = await anext(consumer)
        await consumer.pause()
        await lease.release()
        changed = await client.edit_topic(TOPIC, max_attempts=1, dead_letter="dead-mail", max_body_bytes=20)
        assert (changed.settings.max_attempts, changed.settings.buckets) == (1, 4)
        assert (await client.describe_topic(TOPIC)).settings == changed.settings
        with pytest.raises(dejaq.LimitExceeded) as refused:
            await producer.send(b"x" * 21)
        assert refused.value.code is dejaq.Code.BODY_TOO_LARGE
        await producer.send(b"fine", id="good")
        await consumer.resume()
        lease = await asyncio.wait_for(anext(consumer), patient(10))
        assert lease.id == "good"
        await lease.delete()

        async def dead_letter_count_is_one() -> bool:
            return await client.count("dead-mail") == 1

        await eventually(dead_letter_count_is_one, within=10)
        stored = {topic.name: topic.settings for topic in await broker.central.storage.topics()}
        assert stored[TOPIC] == changed.settings


async def test_a_consumer_that_is_back_before_other_sessions_have_ended_gets_messages(
    broker: dejaq.Broker, client: dejaq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit ends all sessions on the topic; a consumer that came back meanwhile was forgotten, and got nothing."""
    await client.create_topic(TOPIC, buckets=4)
    central = broker.central
    async with client.producer(TOPIC) as producer, client.consumer(TOPIC, name="w") as consumer:
        before = central.rosters.of(central.catalog.live(TOPIC)).find("w")
        evacuate = Greeter.evacuate

        async def wait_for_a_slow_session(greeter: Greeter, topic: Topic, error: dejaq.DejaqError) -> None:
            await evacuate(greeter, topic, error)
            roster = central.rosters.of(topic)
            await eventually(lambda: roster.find("w") not in (None, before), within=10, what="the consumer is back")

        monkeypatch.setattr(Greeter, "evacuate", wait_for_a_slow_session)
        await client.edit_topic(TOPIC, max_body_bytes=20)
        await consumer.pause()
        await consumer.resume()
        await producer.send(b"fine", id="good")
        lease = await asyncio.wait_for(anext(consumer), patient(10))
        assert lease.id == "good"
        await lease.delete()


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"buckets": 8}, "buckets is 4 and is fixed"),
        ({"kind": "priority"}, "kind is timeline and is fixed"),
        ({"journal": False}, "journal is True and is fixed"),
        ({"dedup": "24h"}, "dedup_ms is 0 and is fixed"),
        ({"max_attempts": -1}, "range"),
        ({"max_lease": "1ms"}, "max_lease_ms=1"),
        ({"max_lease": "a while"}, "not a length of time"),
        ({"max_lease_ms": 1_000}, "give max_lease"),
        ({"dead_letter": TOPIC}, "the topic itself"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
async def test_a_setting_that_is_fixed_or_wrong_is_refused_and_changes_nothing(
    client: dejaq.Client, values: dict[str, object], says: str
) -> None:
    """U15: the error for a fixed setting names it and the settings that can change."""
    made = await client.create_topic(TOPIC, buckets=4, max_lease="15m")
    assert made.settings.max_lease_ms == 900_000
    with pytest.raises(dejaq.InvalidArgument) as refused:
        await client.edit_topic(TOPIC, client_rate=5, **values)  # type: ignore[arg-type]
    assert refused.value.code is dejaq.Code.INVALID_SETTING
    assert says in str(refused.value)
    assert (await client.describe_topic(TOPIC)).settings == made.settings
    assert (await client.edit_topic(TOPIC, buckets=4, client_rate=5)).settings.client_rate == 5


async def test_a_topic_that_does_not_exist_cannot_be_edited(client: dejaq.Client) -> None:
    with pytest.raises(dejaq.Missing) as refused:
        await client.edit_topic("nosuch", max_attempts=1)
    assert refused.value.code is dejaq.Code.TOPIC_NOT_FOUND


async def test_a_topic_is_created_again_as_soon_as_its_deletion_is_done(
    client: dejaq.Client, broker: dejaq.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U15: creating a topic right after its deletion failed with TOPIC_DELETING."""
    drop = broker.central.storage.drop_topic
    may_drop = asyncio.Event()

    async def slow(topic: object, now: int, context: object) -> None:
        await may_drop.wait()
        await drop(topic, now, context)  # type: ignore[arg-type]

    monkeypatch.setattr(broker.central.storage, "drop_topic", slow)
    await client.create_topic(TOPIC, buckets=4)
    async with client.producer(TOPIC) as producer:
        await producer.send(b"x", delay=3_600)
    await client.delete_topic(TOPIC)
    making = asyncio.ensure_future(client.create_topic(TOPIC, buckets=2))
    done, _ = await asyncio.wait((making,), timeout=0.2)
    assert not done
    may_drop.set()
    made = await making
    assert (made.created, made.settings.buckets, await client.count(TOPIC)) == (True, 2, 0)


async def test_changed_settings_apply_at_every_broker_of_a_cluster() -> None:
    """U15: when the call has returned, clients of another broker use the new settings."""
    async with (
        crew_of("a", "b") as crew,
        dejaq.connect(crew.brokers["a"]) as one,
        dejaq.connect(crew.brokers["b"]) as other,
    ):
        await one.create_topic(TOPIC)
        async with other.producer(TOPIC) as producer:
            await producer.send(b"x" * 100)
            await one.edit_topic(TOPIC, max_body_bytes=10)
            with pytest.raises(dejaq.LimitExceeded):
                await producer.send(b"x" * 100)
            assert (await other.describe_topic(TOPIC)).settings.max_body_bytes == 10
