"""All topics with counts and first pages, and who serves a topic, on every store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import dejaq
from tests.conformance.backends import memory, postgres, rocksdb, sharded


@pytest.fixture(params=[memory, rocksdb, postgres, sharded], ids=lambda backend: backend.__name__)
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[dejaq.Client]:
    async with (
        dejaq.Broker(storage=request.param(tmp_path)(), drain_ms=0) as broker,
        dejaq.connect(broker, deadline=10.0) as client,
    ):
        yield client


async def test_each_topic_has_its_count_and_its_first_messages(client: dejaq.Client) -> None:
    await client.create_topic("a-mail", buckets=4)
    await client.create_topic("b-empty")
    await client.create_topic("c-events", kind="log", buckets=2)
    async with client.producer("a-mail") as producer:
        await producer.send_batch([b"x"] * 9, ids=[f"m{n}" for n in range(9)], delay=[90 - n for n in range(9)])
    await client.log("c-events").append_batch([str(n).encode() for n in range(7)])

    page = await client.all_topics(messages=3, count=2)
    assert (page.more, page.total) == (True, 3)
    mail, empty = page.entries
    assert (mail.topic.name, mail.topic.waiting) == ("a-mail", 9)
    assert [message.id for message in mail.messages if isinstance(message, dejaq.Message)] == ["m8", "m7", "m6"]
    assert (empty.topic.name, empty.messages) == ("b-empty", ())

    rest = await client.all_topics(messages=3, count=2, after="b-empty")
    (events,) = rest.entries
    assert (rest.more, events.topic.name) == (False, "c-events")
    assert sorted(message.body for message in events.messages) == [b"4", b"5", b"6"]


async def test_too_many_messages_are_refused(client: dejaq.Client) -> None:
    with pytest.raises(dejaq.InvalidArgument):
        await client.all_topics(messages=0)


async def test_the_copies_of_a_topic_are_its_brokers_and_servers(
    client: dejaq.Client, request: pytest.FixtureRequest
) -> None:
    await client.create_topic("mail", buckets=8)
    found = await client.copies("mail")
    assert len(found.brokers) == 1
    backend = request.node.callspec.params["client"].__name__
    shared = {"postgres": {""}, "sharded": {store.shard for store in found.stores}}
    assert {store.shard for store in found.stores} == shared.get(backend, set())
    assert (len(found.stores) > 1) == (backend == "sharded")
    assert sum(store.buckets for store in found.stores) == (8 if backend in shared else 0)
    assert all(store.standbys == () and store.confirmed == 0 for store in found.stores)
    await client.create_topic("events", kind="log", buckets=4)
    # All of a log is on the first shard.
    assert [store.buckets for store in (await client.copies("events")).stores] == ([4] if backend in shared else [])
    with pytest.raises(dejaq.Missing):
        await client.copies("none")
