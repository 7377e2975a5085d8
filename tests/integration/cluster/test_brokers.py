"""Several brokers on one store: a message that one broker accepts is served by all of them."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

import dejaq
from dejaq.broker.cluster import users
from dejaq.broker.cluster.steward import unnumbered
from dejaq.broker.delivery.peers import RemoteConsumer
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.topic import TopicSettings
from dejaq.domain.topic_record import write_topic
from dejaq.errors import ClusterRefused, Code, DejaqError
from dejaq.synchronization.local import Hub, LocalSynchronization
from dejaq.testing.servers.postgres import shared_server
from dejaq.testing.shared import SharedMemoryStorage
from dejaq.testing.waiting import eventually, patient
from tests.integration.cluster.crew import Crew, crew_of
from tests.pace import measured


def pinned(url: str, **options: Any) -> dejaq.Client:
    """A client that stays with the given broker."""
    return dejaq.connect(url, follow=False, **options)


def seats_known_at(broker: dejaq.Broker) -> Mapping[str, RemoteConsumer]:
    """The consumers of the topic `mail` that are connected to other brokers."""
    return broker.central.cluster.directory.seats(broker.central.catalog.live("mail"))


async def test_a_topic_created_at_one_broker_is_known_at_the_other_at_once() -> None:
    async with crew_of("a", "b") as crew:
        one, other = crew.urls
        async with pinned(one) as here, pinned(other) as there:
            await here.create_topic("mail")
            async with there.producer("mail") as producer:
                await producer.send(b"x", id="m")
            assert await here.count("mail") == 1


async def test_a_message_created_at_one_broker_reaches_a_consumer_at_another_on_time() -> None:
    async with crew_of("a", "b") as crew:
        one, other = crew.urls
        async with pinned(one) as here, pinned(other) as there:
            await here.create_topic("mail")
            async with there.consumer("mail", name="c", prefetch=0.05) as consumer, here.producer("mail") as producer:
                await eventually(
                    lambda: crew.brokers["a"].central.cluster.directory.seats(
                        crew.brokers["a"].central.catalog.live("mail")
                    ),
                    within=5,
                    what="the consumer is known at the other broker",
                )

                async def median_lateness_ms() -> int:
                    lateness = []
                    for _ in range(20):
                        due = time.time_ns() // 1_000_000 + 30
                        await producer.send(b"x", at=due)
                        lease = await asyncio.wait_for(anext(consumer), patient(5))
                        lateness.append(time.time_ns() // 1_000_000 - due)
                        await lease.delete()
                    assert min(lateness) >= 0, "never early"
                    return sorted(lateness)[10]

                found = await measured(median_lateness_ms, lambda one: one < 200)
                assert found[-1] < 200, "the broker was notified and did not wait for its next check"


async def test_the_buckets_are_spread_over_the_consumers_of_all_brokers() -> None:
    async with crew_of("a", "b", "c") as crew:
        clients = [pinned(url) for url in crew.urls]
        async with clients[0] as one, clients[1] as two, clients[2] as three:
            await one.create_topic("mail", buckets=12)
            async with one.consumer("mail", name="x"), two.consumer("mail", name="y"), three.consumer("mail", name="z"):

                async def spread() -> bool:
                    shares = {c.who: list(c.buckets) for c in (await two.info()).clients if c.state == "subscribed"}
                    assigned = sorted(bucket for share in shares.values() for bucket in share)
                    return (
                        len(shares) == 3 and assigned == list(range(12)) and all(len(s) == 4 for s in shares.values())
                    )

                await eventually(spread, within=5, what="every consumer has four of twelve buckets")
            await eventually(
                lambda: (
                    not crew.brokers["b"].central.cluster.directory.seats(
                        crew.brokers["b"].central.catalog.live("mail")
                    )
                ),
                within=5,
                what="no consumer is left",
            )


async def test_a_message_prefetched_at_another_broker_is_recalled_for_its_owner() -> None:
    async with crew_of("a", "b") as crew:
        one, other = crew.urls
        async with pinned(one) as here, pinned(other) as there:
            await here.create_topic("mail")
            async with there.consumer("mail", name="c", prefetch=5) as consumer, here.producer("mail") as producer:
                await producer.send(b"x", id="m", delay=2)
                await eventually(
                    lambda: here.count("mail", status="processing"), within=5, what="the message is prefetched"
                )
                result = await producer.cancel(["m"])
                assert result.ok
                assert await here.count("mail") == 0
                await producer.send(b"y", id="n")
                lease = await asyncio.wait_for(anext(consumer), patient(5))
                assert lease.id == "n"
                await lease.delete()


async def test_a_consumer_that_moves_to_another_broker_keeps_its_leases() -> None:
    async with crew_of("a", "b") as crew:
        one, other = crew.urls
        async with pinned(one) as here, pinned(other) as there:
            await here.create_topic("mail")
            async with here.producer("mail") as producer:
                await producer.send(b"x", id="m")
            old = here.consumer("mail", name="c", lease=30)
            async with old as first:
                held = await asyncio.wait_for(anext(first), patient(5))
                async with there.consumer("mail", name="c", lease=30) as second:
                    again = await asyncio.wait_for(anext(second), patient(5))
                    assert again.id == held.id == "m"
                    await again.delete()
                with pytest.raises(dejaq.DejaqError, match="took over"):
                    await asyncio.wait_for(anext(first), patient(5))


async def test_a_broker_that_is_cut_off_stops_and_recovers() -> None:
    async with crew_of("a", "b") as crew:
        one, other = crew.urls
        async with pinned(one) as here:
            await here.create_topic("mail")
        async with pinned(one, deadline=patient(0.5)) as here, pinned(other) as there:
            async with here.producer("mail") as producer:
                await producer.send(b"x", id="before")
                crew.places["a"].cut()
                with pytest.raises(dejaq.DejaqError):
                    await producer.send(b"x", id="lost")
                await eventually(
                    lambda: not crew.brokers["a"].central.doctor.ready,
                    within=5,
                    what="the broker reports that it is cut off",
                )
                assert "synchronization" in crew.brokers["a"].central.doctor.degradations
                assert await there.count("mail") == 1
                crew.places["a"].mend()
                await eventually(
                    lambda: crew.brokers["a"].central.doctor.ready, within=5, what="the broker serves again"
                )
                await crew.gathered()
            async with here.producer("mail") as producer:
                await producer.send(b"x", id="after")
            assert await there.count("mail") == 2


async def test_clients_of_every_broker_leave_a_deleted_topic() -> None:
    async with crew_of("a", "b") as crew:
        one, other = crew.urls
        async with pinned(one) as here, pinned(other) as there:
            await here.create_topic("mail")
            async with there.producer("mail") as producer:
                await producer.send(b"x")
                await here.delete_topic("mail")
                with pytest.raises(dejaq.DejaqError) as refused:
                    await producer.send(b"y")
                assert refused.value.code in (Code.TOPIC_DELETING, Code.TOPIC_NOT_FOUND)

            async def gone() -> bool:
                return [topic.name for topic in await there.topics()] == []

            await eventually(gone, within=5, what="no broker has the topic")
            assert crew.hub.under("topics/") == []
            assert crew.hub.under("work/") == []


async def test_a_half_created_topic_of_a_dead_broker_is_completed_by_another() -> None:
    async with crew_of("a", "b") as crew:
        storage = crew.storage
        crew.hub.write("topics/half", write_topic(unnumbered("half", TopicSettings())))
        await eventually(
            lambda: any(t.name == "half" for t in crew.brokers["b"].central.catalog.all()),
            within=5,
            what="the topic is created",
        )
        assert [topic.state for topic in await storage.topics()] == ["live"]
        await eventually(lambda: crew.hub.under("work/") == [], within=5, what="the claim is released")


async def test_a_topic_of_a_newer_release_is_served_and_keeps_its_unknown_settings() -> None:
    """During a rolling upgrade, a newer broker has written a setting of the topic that this release does not know."""
    async with crew_of("a") as crew, pinned(crew.url) as client:
        await client.create_topic("mail", buckets=4)
        await write_newer_settings(crew, colour="red")
        async with client.producer("mail") as producer, client.consumer("mail") as consumer:
            await producer.send(b"x")
            assert (await anext(consumer)).body == b"x"
        await eventually(
            lambda: "mail (colour)" in crew.brokers["a"].central.doctor.degradations.get("newer", ""), within=5
        )
        assert crew.brokers["a"].central.doctor.ready
        await crew.storage.put_topic(crew.brokers["a"].central.catalog.find("mail"), DIRECT_CALL)
        (kept,) = await crew.storage.topics()
        assert kept.settings_record()["colour"] == "red"


async def test_a_topic_of_an_unknown_kind_is_refused_and_not_changed() -> None:
    async with crew_of("a") as crew, pinned(crew.url, deadline=1) as client:
        await client.create_topic("mail", buckets=4)
        await client.create_topic("post", buckets=4)
        await write_newer_settings(crew, kind="spiral")
        with pytest.raises(DejaqError, match=r"mail.*kind=spiral.*newer release"):
            async with client.producer("mail") as producer:
                await producer.send(b"x")
        async with client.producer("post") as producer:
            await producer.send(b"x")
        # A newer broker was killed while it created this topic; only a broker of that release may complete it.
        half = replace(unnumbered("half", TopicSettings()), newer=(("colour", "red"),))
        crew.hub.write("topics/half", write_topic(half))
        await crew.brokers["a"].central.cluster.steward.finish()
        assert crew.brokers["a"].central.catalog.named("half") is None


async def write_newer_settings(crew: Crew, **settings: str) -> None:
    """Add settings of a newer release to the record of the topic `mail`."""
    record = json.loads(crew.hub.under("topics/")[0].value)
    assert record["name"] == "mail"
    record["settings"] |= settings
    crew.hub.write("topics/mail", json.dumps(record).encode())
    await eventually(lambda: crew.brokers["a"].central.catalog.find("mail").newer, within=5, what="the record is read")


async def test_several_brokers_that_create_one_topic_create_it_once() -> None:
    async with crew_of("a", "b", "c") as crew:
        clients = [pinned(url) for url in crew.urls]
        async with clients[0] as one, clients[1] as two, clients[2] as three:
            await asyncio.gather(*(client.create_topic("mail") for client in (one, two, three) * 3))
            assert len(await crew.storage.topics()) == 1


async def test_a_broker_of_the_same_name_is_refused() -> None:
    async with crew_of("a", "b") as crew:
        first = crew.brokers["a"]
        with pytest.raises(ClusterRefused, match=f"named 'a' already serves cluster 'dejaq' at {first.address}"):
            await crew.make("a").start()
        assert first.central.doctor.ready


async def test_a_cluster_of_one_name_on_another_storage_is_refused() -> None:
    async with crew_of("a") as crew:
        with pytest.raises(ClusterRefused, match="another storage"):
            await crew.make("b", storage=SharedMemoryStorage()).start()


async def test_a_storage_that_cannot_be_shared_is_refused_in_a_cluster() -> None:
    async with crew_of("a") as crew:
        with pytest.raises(ClusterRefused, match="cannot be shared"):
            await crew.make("b", storage=None).start()


async def test_info_shows_every_broker_and_its_clients() -> None:
    async with crew_of("a", "b") as crew:
        one, other = crew.urls
        async with pinned(one) as here, pinned(other) as there:
            await here.create_topic("mail")
            async with there.consumer("mail", name="c"), here.producer("mail", group="g"):
                info = await here.info()
                assert [broker.id for broker in info.brokers] == ["a", "b"]
                assert {(client.who, client.broker) for client in info.clients} == {("c", "b"), ("g", "a")}
                (topic,) = info.topics
                assert (topic.consumers, topic.producers) == (1, 1)


async def test_a_broker_without_synchronization_is_refused_on_the_storage_of_a_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """U6: the broker was accepted, reported that it is healthy, and saw other topics."""
    monkeypatch.setattr(users, "WAIT_SECONDS", 0.5)
    dsn, cluster = shared_server().dsn, f"forgotten_{secrets.token_hex(4)}"

    def broker(**keys: Any) -> dejaq.Broker:
        return dejaq.Broker(storage=dsn, cluster=cluster, listen="127.0.0.1:0", **keys)

    hub = Hub()
    async with broker(broker="a", synchronization=LocalSynchronization(hub)):
        with pytest.raises(ClusterRefused, match="without synchronization; start it with the --synchronization"):
            await broker(broker="b").start()
        async with broker(broker="c", synchronization=LocalSynchronization(hub)) as third:
            assert third.central.doctor.ready
    async with broker(broker="b"):
        with pytest.raises(ClusterRefused, match=r"a broker without synchronization \(at 127.0.0.1\)"):
            await broker(broker="a", synchronization=LocalSynchronization(hub)).start()
        with pytest.raises(ClusterRefused, match="without synchronization"):
            await broker(broker="d").start()
