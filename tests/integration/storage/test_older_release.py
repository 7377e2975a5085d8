"""R17: the data directory of an older release opens in this one, with everything in it.

`scripts/make_store_fixture.py` made the archive; the newest one must be of the present format.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest
from dejaq.domain.ids import ProducerSession
from dejaq.domain.message import Message
from dejaq.domain.topic import Topic
from dejaq.errors import Code
from dejaq.storage.base import Filter
from dejaq.storage.rocksdb.store import RocksStorage

FIXTURES = sorted((Path(__file__).resolve().parents[2] / "fixtures").glob("store-*.tar.gz"))


class Old:
    """An unpacked archive, opened by this release."""

    def __init__(self, path: Path) -> None:
        self.expected: dict[str, Any] = json.loads((path / "expected.json").read_text())
        self.now: int = self.expected["now"]
        self.storage = RocksStorage(path / "data")

    async def topics(self) -> dict[str, Topic]:
        return {topic.name: topic for topic in await self.storage.topics()}

    async def mail(self) -> Topic:
        return (await self.topics())["mail"]

    async def messages(self) -> list[Message]:
        page = await self.storage.browse(await self.mail(), Filter(), None, 1_000, self.now)
        assert page.cursor is None
        return page.messages


@pytest.fixture(params=FIXTURES, ids=lambda path: path.name)
async def old(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Old]:
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    opened = Old(tmp_path)
    await opened.storage.open(opened.now)
    yield opened
    await opened.storage.close()


def test_r17_there_is_an_archive() -> None:
    assert FIXTURES


async def test_r17_every_topic_is_there(old: Old) -> None:
    """G1 across releases: topics with their states, and every setting that the older release had."""
    topics, expected = await old.topics(), old.expected["topics"]
    assert topics.keys() == expected.keys()
    for name, topic in topics.items():
        assert (topic.number, str(topic.state)) == (expected[name]["number"], expected[name]["state"])
        assert expected[name]["settings"].items() <= topic.settings.as_dict().items()
    assert await old.storage.next_topic_number() > max(topic.number for topic in topics.values())


async def test_r17_every_message_is_there_byte_for_byte(old: Old) -> None:
    """G1 across releases: natural and generated ids, gone rows, leases, bodies apart, headers, priorities."""
    found = {
        message.id: {
            "ts": message.ts,
            "body": hashlib.sha256(message.body).hexdigest(),
            "priority": message.priority,
            "headers": dict(message.headers),
            "group": message.producer_group,
            "consumer": message.lock_consumer,
            "attempts": message.attempts,
        }
        for message in await old.messages()
    }
    assert found == old.expected["messages"]
    ids = list(found)
    by_id = await old.storage.get(await old.mail(), ids, old.now)
    assert [message.id if message else None for message in by_id] == ids


async def test_r17_counters_agree_with_the_messages(old: Old) -> None:
    """G1: the exact counters of the older release count for this one."""
    mail = await old.mail()
    messages = await old.messages()
    assert await old.storage.count(mail, Filter(), old.now) == len(messages)
    groups = Counter(message.producer_group for message in messages)
    for group, count in groups.items():
        assert await old.storage.count(mail, Filter(owner=group), old.now) == count
    histogram = dict(await old.storage.histogram(mail, Filter(), 1_000, old.now))
    assert histogram == Counter(message.ts // 1_000 * 1_000 for message in messages)


async def test_r17_a_live_lease_is_still_held(old: Old) -> None:
    """G3 across releases: the holder can settle under its number, and nobody else is given its rows."""
    mail, held = await old.mail(), old.expected["leases"]["holder"]
    ids = {message.id for message in await old.messages() if message.lock_consumer == "holder"}
    others = await old.storage.lease(mail, LeaseRequest(range(4), "other", old.now, old.now + 1_000), old.now)
    assert others is not None
    assert not ids & set(others.ids())
    rows = [(held["rows"][message_id], held["rows"][message_id] + 1) for message_id in ids]
    outcomes = await old.storage.delete(mail, held["lease"], "holder", sorted(rows), old.now)
    assert not outcomes.codes
    assert not ids & {message.id for message in await old.messages()}


async def test_r17_a_lapsed_lease_is_given_again_with_its_attempts(old: Old) -> None:
    """G4 across releases."""
    lost = [message.id for message in await old.messages() if message.lock_consumer == "lapsed"]
    assert lost
    again = await old.storage.lease(
        await old.mail(), LeaseRequest(range(4), "other", old.now, old.now + 1_000), old.now
    )
    assert again is not None
    attempts = dict(zip(again.ids(), again.attempts or [], strict=True))
    assert [attempts[message_id] for message_id in lost] == [2] * len(lost)


async def test_r17_a_batch_of_the_older_release_is_known_as_a_repeat(old: Old) -> None:
    """G5 across releases: also where its messages are gone meanwhile."""
    mail, before = await old.mail(), await old.messages()
    for batch in old.expected["batches"]:
        repeat = CreateBatch(
            owner=batch["group"],
            session=ProducerSession.unpack(bytes.fromhex(old.expected["session"])),
            sequence=batch["sequence"],
            ts=[old.now] * batch["count"],
            bodies=[b""] * batch["count"],
            ids=batch["ids"],
            bucket=batch["bucket"],
        )
        outcomes = await old.storage.create(mail, repeat, old.now)
        assert set(outcomes.codes.values()) == {Code.ALREADY_EXISTS}
        assert len(outcomes.codes) == batch["count"]
    assert await old.messages() == before
