"""R17: this release serves the data directory or PostgreSQL schema that a broker of release 0.1.0 left.

`scripts/make_release_fixture.py` made the archives with the code of that release. The tests use only the public
interface, on a clock that continues from the time at which the archive was made.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import tarfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import dejaq
from dejaq.storage.postgres.connection.address import Address
from dejaq.storage.postgres.connection.schema import migrate_at
from dejaq.testing.servers.postgres import programs, shared_server
from dejaq.timekeeper.clock import SystemClock

FIXTURES = sorted((Path(__file__).resolve().parents[2] / "fixtures").glob("release-*.tar.gz"))
# These contain messages that this release creates by itself when it opens the store.
MADE_BY_SCHEDULES = {"reports"}


class ClockFrom(SystemClock):
    """The system's clock, set to continue from another time."""

    def __init__(self, start_ms: int) -> None:
        super().__init__()
        self.identity = f"from {start_ms}"
        self._offset_us = start_ms * 1_000 - super().now_us()

    def now_us(self) -> int:
        return super().now_us() + self._offset_us

    def now_ms(self) -> int:
        return self.now_us() // 1_000


class Released:
    """The store of an older release, served by a broker of this release."""

    def __init__(self, expected: dict[str, Any], client: dejaq.Client) -> None:
        self.expected = expected
        self.client = client

    async def messages(self, topic: str) -> dict[str, dejaq.Message]:
        return {message.id: message async for page in self.client.browse(topic) for message in page}

    async def expected_messages(self, topic: str) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = self.expected["messages"][topic]
        return found


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def load(dsn: str, dump: Path, cluster: str) -> None:
    """Load the dump where no schema of this name exists."""
    program: list[str | Path] = [programs() / "psql", "--quiet", "--no-psqlrc", "--set=ON_ERROR_STOP=1", dsn]
    drop = f"--command=SET client_min_messages TO warning; DROP SCHEMA IF EXISTS {cluster} CASCADE"
    for argument in (drop, f"--file={dump}"):
        done = subprocess.run([*program, argument], capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr


@pytest.fixture(params=FIXTURES, ids=lambda path: path.name.removesuffix(".tar.gz"))
async def released(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Released]:
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    expected = json.loads((tmp_path / "expected.json").read_text())
    clock = ClockFrom(expected["now"])
    if (tmp_path / "data").exists():
        broker = dejaq.Broker(tmp_path / "data", clock=clock, drain_ms=0)
    else:
        dsn, cluster = shared_server().dsn, expected["cluster"]
        await asyncio.to_thread(load, dsn, tmp_path / "schema.sql", cluster)
        await migrate_at(Address(dsn, cluster))
        broker = dejaq.Broker(storage=dsn, cluster=cluster, clock=clock, drain_ms=0)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(broker)
        client = await stack.enter_async_context(dejaq.connect(broker, clock=clock))
        yield Released(expected, client)


def test_r17_an_archive_exists_for_each_store() -> None:
    assert {path.name for path in FIXTURES} >= {f"release-0.1.0-{store}.tar.gz" for store in ("postgres", "rocksdb")}


async def test_r17_the_topics_of_the_release_are_kept(released: Released) -> None:
    """G1: every topic, with the settings that it had."""
    topics = {topic.name: topic.settings.as_dict() for topic in await released.client.topics()}
    assert topics.keys() == released.expected["topics"].keys()
    for name, settings in released.expected["topics"].items():
        assert settings.items() <= topics[name].items()


async def test_r17_the_messages_of_the_release_are_kept(released: Released) -> None:
    """G1: every message with its time, body, priority, headers, owner, holder and attempts, and no other message."""
    for topic in released.expected["topics"].keys() - MADE_BY_SCHEDULES:
        expected = await released.expected_messages(topic)
        messages = await released.messages(topic)
        found = {
            message.id: {
                "ts": message.ts,
                "body": digest(message.body),
                "priority": message.priority,
                "headers": dict(message.headers),
                "group": message.producer_group,
                "consumer": message.lock_consumer,
                "attempts": message.attempts,
            }
            for message in await released.client.get(topic, list(messages))
            if message is not None
        }
        # The headers and times of a dead letter are set by the store.
        known = {id: {key: found[id][key] for key in fields} for id, fields in expected.items() if id in found}
        assert known == expected, topic
        assert found.keys() == expected.keys(), topic


async def test_r17_the_counts_of_the_release_agree_with_its_messages(released: Released) -> None:
    """G7: the counters of the release continue."""
    for topic in released.expected["topics"].keys() - MADE_BY_SCHEDULES:
        expected = await released.expected_messages(topic)
        assert await released.client.count(topic) == len(expected), topic
        groups = Counter(message["group"] for message in expected.values())
        for group, count in groups.items():
            assert await released.client.count(topic, group=group) == count, (topic, group)


async def test_r17_a_consumer_that_held_a_lease_gets_it_again_and_can_settle_it(released: Released) -> None:
    """G3: the consumer gets its lease under the same version; no other consumer gets those messages."""
    for topic, name in (("orders", "holder"), ("urgent", "surgeon")):
        held = released.expected["held"][name]
        async with released.client.consumer(topic, name=name, prefetch=0, max_messages=len(held)) as consumer:
            leases: dict[str, dejaq.Lease] = {}
            while len(leases) < len(held):
                leases |= {lease.id: lease for lease in await consumer.take(len(held))}
            assert {id: lease.version for id, lease in leases.items()} == held
            for lease in leases.values():
                await lease.delete()
        assert await released.client.count(topic) == len(await released.expected_messages(topic)) - len(held)


async def test_r17_messages_of_an_expired_lease_are_leased_again(released: Released) -> None:
    """G4: the attempts are counted further; messages that others hold are not leased."""
    async with released.client.consumer("orders", name="new", prefetch=0, max_messages=1) as consumer:
        lease = await anext(consumer)
        assert (lease.id, lease.attempts, lease.body) == ("lost", 2, b"lost")
        await lease.delete()


async def test_r17_a_topic_by_priority_keeps_its_order(released: Released) -> None:
    """The most urgent message that is not leased comes first."""
    expected = await released.expected_messages("urgent")
    free = sorted(m["priority"] for m in expected.values() if not m["consumer"])
    async with released.client.consumer("urgent", name="new", max_messages=20) as consumer:
        taken: list[int] = []
        async for lease in consumer:
            taken.append(lease.priority)
            await lease.delete()
        assert sorted(taken) == free[:20]


async def test_r17_dead_letters_of_the_release_can_be_redriven(released: Released) -> None:
    """G8: with the reasons that the older release stored."""
    dead = released.client.dead_letters("work")
    found = [message async for page in dead.browse() for message in page]
    assert {message.id for message in found} == {"bad", "slow"}
    rejected = next(message for message in found if message.id == "bad")
    assert "the body makes no sense" in rejected.headers.values()
    assert (await dead.redrive()).done == 2
    assert await released.client.count("work") == 3


async def test_r17_the_schedules_of_the_release_continue(released: Released) -> None:
    """Each schedule has its definition and its last occurrence; the occurrence that was created exists."""
    for name, expected in released.expected["schedules"].items():
        found = await released.client.cron("reports").get(name)
        assert found is not None
        assert found.expression == expected["expression"]
        assert (found.zone, found.body, found.paused) == (expected["zone"], expected["body"], expected["paused"])
        assert (dict(found.headers), found.priority) == (expected["headers"], expected["priority"])
        assert (found.missed, found.overlap) == (expected["missed"], expected["overlap"])
        if not found.paused:
            assert found.next is not None
    run = released.expected["schedules"]["weekly"]["last_id"]
    (message,) = await released.client.get("reports", [run])
    assert message is not None
    assert message.body == b"weekly"


async def test_r17_a_repeated_natural_id_is_recognised(released: Released) -> None:
    """G5: the same content is a repeat, other content is refused."""
    expected = await released.expected_messages("orders")
    same, other = "order:3", "order:4"
    async with released.client.producer("orders", group="shipping") as producer:
        results = await producer.send_batch([b"order 3"], ids=[same], at=expected[same]["ts"])
        assert results.ok
        with pytest.raises(dejaq.DejaqError) as refused:
            await producer.send(b"something else", id=other, at=expected[other]["ts"])
        assert refused.value.code is dejaq.Code.ID_TAKEN
    assert await released.client.count("orders") == len(expected)


async def test_r17_new_messages_go_through_the_store_of_the_release(released: Released) -> None:
    """G1: new messages are created, leased and deleted together with the old ones."""
    async with (
        released.client.producer("relaxed") as producer,
        released.client.consumer("relaxed", name="new", lease=5, max_messages=200) as consumer,
    ):
        results = await producer.send_batch([b"new"] * 200)
        results.raise_for_failures()
        seen: set[str] = set()
        async for batch in consumer.batches():
            seen |= set(batch.ids)
            (await batch.delete()).raise_for_failures()
    assert seen == set(results.ids)
    assert await released.client.count("relaxed") == 2
