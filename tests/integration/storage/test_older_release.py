"""R17: the data directory of an older release opens in this release, with all its content.

`scripts/make_store_fixture.py` made the archives; one of them must have the present format.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest
from dejaq.domain.changes import Create, Delete
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.message import Message
from dejaq.domain.topic import Topic
from dejaq.errors import Code
from dejaq.storage.base import Filter, apply_one
from dejaq.storage.rocksdb import store
from dejaq.storage.rocksdb.engine import keys, starting
from dejaq.storage.rocksdb.engine.database import RocksDatabase
from dejaq.storage.rocksdb.store import RocksStorage
from tests.integration.storage.killing import copied

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


def test_r17_an_archive_has_the_present_format(tmp_path: Path) -> None:
    formats = set()
    for archive in FIXTURES:
        with tarfile.open(archive) as packed:
            packed.extractall(tmp_path / archive.name, filter="data")
        database = RocksDatabase(tmp_path / archive.name / "data/db")
        formats.add(int(database.get(keys.META + b"format") or b"0"))
        database.close()
    assert starting.FORMAT in formats


@pytest.mark.parametrize("archive", FIXTURES, ids=lambda path: path.name)
async def test_r17_a_first_start_that_is_killed_at_any_point_is_completed_by_the_next(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1 across releases: the commit log begins in steps, and a kill between any two of them loses nothing."""
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    kept: list[Path] = []
    points = {"storage.boot_synced"}
    if not (tmp_path / "data/commit").exists():
        points.add("storage.log_begun")

    def keep(point: str) -> None:
        """What a kill at this point would leave."""
        kept.append(tmp_path / f"{len(kept)}-{point}")
        # RocksDB may change its files meanwhile, in threads.
        assert any(copied(tmp_path / "data", kept[-1] / "data") for _ in range(100))
        shutil.copy(tmp_path / "expected.json", kept[-1])

    with monkeypatch.context() as patch:
        for module in (store, starting):
            patch.setattr(module, "crash_at", keep)
        opened = Old(tmp_path)
        await opened.storage.open(opened.now)
        await opened.storage.close()
    assert {path.name.partition("-")[2] for path in kept} >= points
    for path in kept:
        again = Old(path)
        await again.storage.open(again.now)
        assert {message.id for message in await again.messages()} == set(again.expected["messages"])
        await again.storage.close()


async def test_r17_every_topic_is_kept(old: Old) -> None:
    """G1 across releases: topics with their states, and all settings that the older release had."""
    topics, expected = await old.topics(), old.expected["topics"]
    assert topics.keys() == expected.keys()
    for name, topic in topics.items():
        assert (topic.number, str(topic.state)) == (expected[name]["number"], expected[name]["state"])
        assert expected[name]["settings"].items() <= topic.settings.as_dict().items()
    assert await old.storage.next_topic_number() > max(topic.number for topic in topics.values())


async def test_r17_every_message_is_kept_byte_for_byte(old: Old) -> None:
    """G1 across releases: natural and generated ids, deleted rows, leases, separate bodies, headers, priorities."""
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
    """G1: the exact counters of the older release are valid in this release."""
    mail = await old.mail()
    messages = await old.messages()
    assert await old.storage.count(mail, Filter(), old.now) == len(messages)
    groups = Counter(message.producer_group for message in messages)
    for group, count in groups.items():
        assert await old.storage.count(mail, Filter(owner=group), old.now) == count
    histogram = dict(await old.storage.histogram(mail, Filter(), 1_000, old.now))
    assert histogram == Counter(message.ts // 1_000 * 1_000 for message in messages)


async def test_r17_a_live_lease_is_still_held(old: Old) -> None:
    """G3 across releases: the holder can settle by its lease number, and no other consumer gets its rows."""
    mail, held = await old.mail(), old.expected["leases"]["holder"]
    ids = {message.id for message in await old.messages() if message.lock_consumer == "holder"}
    others = await old.storage.lease(
        mail, LeaseRequest(range(4), "other", old.now, old.now + 1_000), old.now, DIRECT_CALL
    )
    assert others is not None
    assert not ids & set(others.ids())
    rows = [(held["rows"][message_id], held["rows"][message_id] + 1) for message_id in ids]
    outcomes = await apply_one(old.storage, Delete(mail, held["lease"], "holder", sorted(rows)), old.now, DIRECT_CALL)
    assert not outcomes.codes
    assert not ids & {message.id for message in await old.messages()}


async def test_r17_messages_of_an_expired_lease_are_leased_again_with_their_attempts(old: Old) -> None:
    """G4 across releases: the message is delivered again, and its attempts are counted."""
    lost = [message.id for message in await old.messages() if message.lock_consumer == "lapsed"]
    assert lost
    again = await old.storage.lease(
        await old.mail(), LeaseRequest(range(4), "other", old.now, old.now + 1_000), old.now, DIRECT_CALL
    )
    assert again is not None
    attempts = dict(zip(again.ids(), again.attempts or [], strict=True))
    assert [attempts[message_id] for message_id in lost] == [2] * len(lost)


async def test_r17_a_batch_of_the_older_release_is_recognised_as_a_repeat(old: Old) -> None:
    """G5 across releases: also when the messages of the batch are deleted by then."""
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
        outcomes = await apply_one(old.storage, Create(mail, repeat), old.now, DIRECT_CALL)
        assert set(outcomes.codes.values()) == {Code.ALREADY_EXISTS}
        assert len(outcomes.codes) == batch["count"]
    assert await old.messages() == before
