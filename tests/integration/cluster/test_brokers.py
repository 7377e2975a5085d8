"""Several brokers on one store: whatever comes through one is served by all."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from typing import Any

import pytest

import dejaq
from dejaq.broker.cluster.steward import unnumbered
from dejaq.domain.topic import TopicSettings
from dejaq.domain.topic_record import write_topic
from dejaq.errors import ClusterRefused, Code, DejaqError
from dejaq.testing.shared import SharedMemoryStorage
from dejaq.testing.waiting import eventually
from tests.integration.cluster.crew import Crew, crew_of


def pinned(url: str, **options: Any) -> dejaq.Client:
    """A client that stays with the broker it is told."""
    return dejaq.connect(url, follow=False, **options)


async def test_a_topic_made_at_one_broker_is_at_once_known_at_the_other():
    async with crew_of("a", "b") as crew:
        one, other = crew.urls
        async with pinned(one) as here, pinned(other) as there:
            await here.create_topic("mail")
            async with there.producer("mail") as producer:
                await producer.send(b"x", id="m")
            assert await here.count("mail") == 1


async def test_what_is_created_at_one_broker_reaches_the_consumer_at_the_other_on_time():
    async with crew_of("a", "b") as crew:
        one, other = crew.urls
        async with pinned(one) as here, pinned(other) as there:
            await here.create_topic("mail")
            async with there.consumer("mail", name="c", prefetch=0.05) as consumer, here.producer("mail") as producer:
                await eventually(
                    lambda: crew.brokers["a"].central.cluster.seats(crew.brokers["a"].central.catalog.live("mail")),
                    within=5,
                    what="the consumer is known at the other broker",
                )
                lateness = []
                for _ in range(20):
                    due = time.time_ns() // 1_000_000 + 30
                    await producer.send(b"x", at=due)
                    lease = await asyncio.wait_for(anext(consumer), 5)
                    lateness.append(time.time_ns() // 1_000_000 - due)
                    await lease.delete()
                assert min(lateness) >= 0, "never early"
                assert sorted(lateness)[10] < 200, "nudged, not found by the look around"


async def test_the_buckets_are_spread_over_the_consumers_of_all_brokers():
    async with crew_of("a", "b", "c") as crew:
        clients = [pinned(url) for url in crew.urls]
        async with clients[0] as one, clients[1] as two, clients[2] as three:
            await one.create_topic("mail", buckets=12)
            async with one.consumer("mail", name="x"), two.consumer("mail", name="y"), three.consumer("mail", name="z"):

                async def spread() -> bool:
                    shares = {c.who: list(c.buckets) for c in (await two.info()).clients if c.state == "subscribed"}
                    dealt = sorted(bucket for share in shares.values() for bucket in share)
                    return len(shares) == 3 and dealt == list(range(12)) and all(len(s) == 4 for s in shares.values())

                await eventually(spread, within=5, what="everybody has four of twelve")
            await eventually(
                lambda: not crew.brokers["b"].central.cluster.seats(crew.brokers["b"].central.catalog.live("mail")),
                within=5,
                what="nobody is left",
            )


async def test_an_owner_takes_back_what_a_consumer_at_another_broker_has_prefetched():
    async with crew_of("a", "b") as crew:
        one, other = crew.urls
        async with pinned(one) as here, pinned(other) as there:
            await here.create_topic("mail")
            async with there.consumer("mail", name="c", prefetch=5) as consumer, here.producer("mail") as producer:
                await producer.send(b"x", id="m", delay=2)
                await eventually(lambda: here.count("mail", status="processing"), within=5, what="it is prefetched")
                result = await producer.cancel(["m"])
                assert result.ok
                assert await here.count("mail") == 0
                await producer.send(b"y", id="n")
                lease = await asyncio.wait_for(anext(consumer), 5)
                assert lease.id == "n"
                await lease.delete()


async def test_a_consumer_that_comes_to_another_broker_takes_its_leases_along():
    async with crew_of("a", "b") as crew:
        one, other = crew.urls
        async with pinned(one) as here, pinned(other) as there:
            await here.create_topic("mail")
            async with here.producer("mail") as producer:
                await producer.send(b"x", id="m")
            old = here.consumer("mail", name="c", lease=30)
            async with old as first:
                held = await asyncio.wait_for(anext(first), 5)
                async with there.consumer("mail", name="c", lease=30) as second:
                    again = await asyncio.wait_for(anext(second), 5)
                    assert again.id == held.id == "m"
                    await again.delete()
                with pytest.raises(dejaq.DejaqError, match="took over"):
                    await asyncio.wait_for(anext(first), 5)


async def test_a_broker_that_is_cut_off_stops_and_comes_back():
    async with crew_of("a", "b") as crew:
        one, other = crew.urls
        async with pinned(one) as here:
            await here.create_topic("mail")
        async with pinned(one, deadline=0.5) as here, pinned(other) as there:
            async with here.producer("mail") as producer:
                await producer.send(b"x", id="before")
                crew.places["a"].cut()
                with pytest.raises(dejaq.DejaqError):
                    await producer.send(b"x", id="lost")
                await eventually(lambda: not crew.brokers["a"].central.doctor.ready, within=5, what="it says so")
                assert "synchronization" in crew.brokers["a"].central.doctor.degradations
                assert await there.count("mail") == 1
                crew.places["a"].mend()
                await eventually(lambda: crew.brokers["a"].central.doctor.ready, within=5, what="it is back")
                await crew.gathered()
            async with here.producer("mail") as producer:
                await producer.send(b"x", id="after")
            assert await there.count("mail") == 2


async def test_a_deleted_topic_is_left_by_the_clients_of_every_broker():
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

            await eventually(gone, within=5, what="the topic is gone everywhere")
            assert crew.hub.under("topics/") == []
            assert crew.hub.under("work/") == []


async def test_a_topic_that_a_dead_broker_left_half_made_is_finished_by_another():
    async with crew_of("a", "b") as crew:
        storage = crew.storage
        crew.hub.write("topics/half", write_topic(unnumbered("half", TopicSettings())))
        await eventually(
            lambda: any(t.name == "half" for t in crew.brokers["b"].central.catalog.all()), within=5, what="it is made"
        )
        assert [topic.state for topic in await storage.topics()] == ["live"]
        await eventually(lambda: crew.hub.under("work/") == [], within=5, what="the claim is given up")


async def test_a_topic_of_a_newer_release_is_served_without_what_is_not_known_and_keeps_it():
    """A rolling upgrade: the newer broker has given the topic a setting that this one has never heard of."""
    async with crew_of("a") as crew, pinned(crew.url) as client:
        await client.create_topic("mail", buckets=4)
        await tell_newer(crew, colour="red")
        async with client.producer("mail") as producer, client.consumer("mail") as consumer:
            await producer.send(b"x")
            assert (await anext(consumer)).body == b"x"
        await eventually(
            lambda: "mail (colour)" in crew.brokers["a"].central.doctor.degradations.get("newer", ""), within=5
        )
        assert crew.brokers["a"].central.doctor.ready
        await crew.storage.put_topic(crew.brokers["a"].central.catalog.find("mail"))
        (kept,) = await crew.storage.topics()
        assert kept.settings_record()["colour"] == "red"


async def test_a_topic_of_a_kind_that_is_not_known_is_refused_and_left_alone():
    async with crew_of("a") as crew, pinned(crew.url, deadline=1) as client:
        await client.create_topic("mail", buckets=4)
        await client.create_topic("post", buckets=4)
        await tell_newer(crew, kind="spiral")
        with pytest.raises(DejaqError, match=r"mail.*kind=spiral.*newer release"):
            async with client.producer("mail") as producer:
                await producer.send(b"x")
        async with client.producer("post") as producer:
            await producer.send(b"x")
        # Half made by a newer broker that died, it is left to another such broker.
        half = replace(unnumbered("half", TopicSettings()), newer=(("colour", "red"),))
        crew.hub.write("topics/half", write_topic(half))
        await crew.brokers["a"].central.cluster.steward.finish()
        assert crew.brokers["a"].central.catalog.named("half") is None


async def tell_newer(crew: Crew, **settings: str) -> None:
    """Have the record of topic mail say what a newer release would."""
    record = json.loads(crew.hub.under("topics/")[0].value)
    assert record["name"] == "mail"
    record["settings"] |= settings
    crew.hub.write("topics/mail", json.dumps(record).encode())
    await eventually(lambda: crew.brokers["a"].central.catalog.find("mail").newer, within=5, what="the record is read")


async def test_many_brokers_that_make_one_topic_make_it_once():
    async with crew_of("a", "b", "c") as crew:
        clients = [pinned(url) for url in crew.urls]
        async with clients[0] as one, clients[1] as two, clients[2] as three:
            await asyncio.gather(*(client.create_topic("mail") for client in (one, two, three) * 3))
            assert len(await crew.storage.topics()) == 1


async def test_a_broker_of_the_same_name_is_refused():
    async with crew_of("a", "b") as crew:
        first = crew.brokers["a"]
        with pytest.raises(ClusterRefused, match=f"named 'a' already serves cluster 'dejaq' at {first.address}"):
            await crew.make("a").start()
        assert first.central.doctor.ready


async def test_a_cluster_of_one_name_on_another_storage_is_refused():
    async with crew_of("a") as crew:
        with pytest.raises(ClusterRefused, match="another storage"):
            await crew.make("b", storage=SharedMemoryStorage()).start()


async def test_a_storage_that_cannot_be_shared_is_refused_beside_others():
    async with crew_of("a") as crew:
        with pytest.raises(ClusterRefused, match="cannot be shared"):
            await crew.make("b", storage=None).start()


async def test_info_shows_every_broker_and_who_serves_what():
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
