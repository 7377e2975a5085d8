"""A schema of the first release, with all its content, works with this release."""

from __future__ import annotations

import json
import re
import secrets

import asyncpg
import pytest

from dejaq.domain.batch import LeaseRequest
from dejaq.domain.changes import Delete
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.message import Status
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import Code
from dejaq.storage.base import Filter, apply_one
from dejaq.storage.postgres.connection import schema
from dejaq.storage.postgres.connection.address import Address
from dejaq.storage.postgres.queries import load_migrations
from dejaq.storage.postgres.store import PostgresStorage
from dejaq.testing.servers.postgres import shared_server

NOW = 1_700_000_000_000
ENDS = NOW + 30_000
SETTINGS = TopicSettings(buckets=4)
TOPIC = Topic("mail", 1, SETTINGS)
# A lease of four rows: a natural id, one whose end was recorded, and two generated ids with consecutive numbers.
GENERATED = [f"018bcfe5680000010000000{9}{counter:08x}" for counter in (4, 5)]
FIRST = f"""
INSERT INTO topic (number, name, state, created_ms, settings)
VALUES (nextval('topic_number'), 'mail', 'live', 0, '{json.dumps(SETTINGS.as_dict())}');
INSERT INTO message (topic, id, place, ts, asked_ts, version, priority, size, owner, headers, body) VALUES
(1, 'free', 1024, {NOW}, {NOW}, nextval('version'), 0, 1, 'billing', '', 'x'),
(1, 'later', 1025, {NOW + 3_600_000}, {NOW + 3_600_000}, nextval('version'), 0, 1, 'news', '', 'x');
INSERT INTO message
(topic, id, place, ts, asked_ts, due_ts, before, version, priority, attempts, size, owner, consumer, headers, body)
SELECT 1, key, 1025, {ENDS}, {NOW}, {NOW}, 1, 40, 0, 1, 1, 'billing', 'w', '', 'x'
FROM unnest(ARRAY['held', '{GENERATED[0]}!', '{GENERATED[1]}!']) AS key;
INSERT INTO lease (topic, id, next_end, open, consumer, ids)
VALUES (1, 40, {ENDS}, 3, 'w', ARRAY['held', '', '{GENERATED[0]}!', '{GENERATED[1]}!']);
SELECT setval('version', 50);
INSERT INTO counter (topic, minute, held, shard, count) VALUES
(1, {NOW // 60_000}, false, 1, 2), (1, {NOW // 60_000}, false, 2, -1), (1, {ENDS // 60_000}, true, 1, 3),
(1, {(NOW + 3_600_000) // 60_000}, false, 1, 1);
"""


@pytest.fixture
async def older(monkeypatch: pytest.MonkeyPatch) -> Address:
    """The address of a store of the first release."""
    address = Address(shared_server().dsn, f"older_{secrets.token_hex(4)}")
    connection = await asyncpg.connect(address.dsn)
    with monkeypatch.context() as patched:
        patched.setattr(schema, "load_migrations", lambda: load_migrations()[:1])
        assert await schema.migrate(connection, address) == (0, 1)
    await connection.execute(f'SET search_path TO "{address.schema}"')
    await connection.execute(FIRST)
    await connection.close()
    return address


async def test_the_content_of_an_older_release_is_served(older: Address) -> None:
    """G1, G3: messages, leases and counts are unchanged."""
    assert await schema.migrate_at(older) == (1, len(load_migrations()))
    storage = PostgresStorage(older.dsn, cluster=older.schema)
    await storage.open(NOW)
    counts = {status: await storage.count(TOPIC, Filter(status=status), NOW) for status in Status}
    assert counts == {Status.AVAILABLE: 1, Status.WAITING: 1, Status.PROCESSING: 3}
    owned = {owner: await storage.count(TOPIC, Filter(owner=owner), NOW) for owner in ("billing", "news", "none")}
    assert owned == {"billing": 4, "news": 1, "none": 0}
    (held,) = await storage.leases_of(TOPIC, "w", NOW)
    assert (held.lease_id, held.rows, held.ids()) == (40, [0, 2, 3], ["held", *GENERATED])
    (holder,) = await storage.holders(TOPIC, [GENERATED[1]], NOW)
    assert holder is not None
    assert (holder.consumer, holder.lease_id, holder.row) == ("w", 40, 3)
    outcomes = await apply_one(storage, Delete(TOPIC, 40, "w", [(0, 2)]), NOW, DIRECT_CALL)
    assert outcomes.codes == {1: Code.LEASE_LOST}
    free = await storage.lease(TOPIC, LeaseRequest(range(4), "w2", until=NOW, expires=ENDS), NOW, DIRECT_CALL)
    assert free is not None
    assert free.ids() == ["free"]
    # The other rows of the old lease expire like those of any lease.
    lost = await storage.lease(TOPIC, LeaseRequest(range(4), "w3", until=ENDS, expires=ENDS + 1), ENDS, DIRECT_CALL)
    assert lost is not None
    assert sorted(lost.ids()) == sorted(["free", *GENERATED])
    assert await storage.count(TOPIC, Filter(), NOW) == 4
    await storage.close()


async def test_a_message_of_an_older_release_keeps_its_large_body(older: Address) -> None:
    """G1: the reference is found in the rows that an older release wrote, and in those that it writes meanwhile."""
    storage = PostgresStorage(older.dsn, cluster=older.schema)
    connection = await asyncpg.connect(older.dsn, server_settings={"search_path": older.schema})
    reference = b"\x93dejaqz\x02".ljust(56, b"r")
    write = "UPDATE message SET body = $1, size = 64 WHERE id = $2"
    await connection.execute(write, reference + b"before--", "free")
    await schema.migrate_at(older)
    await connection.execute(write, reference + b"after---", "later")
    await storage.open(NOW)
    names = (b"before--", b"after---", b"nobody's")
    for name in names:
        await connection.execute(
            "INSERT INTO large_body (touched_ms, size, stored, place, whole, name, digest) "
            "VALUES (0, 1, 1, 1025, true, $1, $1)",
            name,
        )
    assert await storage.bodies.reclaim(NOW) == 1
    assert {row[0] for row in await connection.fetch("SELECT name FROM large_body")} == set(names[:2])
    await storage.close()
    await connection.close()


async def test_an_edit_of_bodies_writes_no_index(older: Address) -> None:
    """The new version of a row is in its page, and every index still leads to it."""
    await schema.migrate_at(older)
    storage = PostgresStorage(older.dsn, cluster=older.schema)
    await storage.open(NOW)
    connection = await asyncpg.connect(older.dsn, server_settings={"search_path": older.schema})
    place = "SELECT (ctid::text::point)[0] FROM message WHERE id = 'later'"
    before = await connection.fetchval(place)
    plan = await connection.fetch(
        "EXPLAIN (ANALYZE, WAL, COSTS OFF, TIMING OFF, SUMMARY OFF) "
        "UPDATE message SET body = 'longer', size = 6 WHERE id = 'later' AND topic = 1"
    )
    assert await connection.fetchval(place) == before
    # One record for the row; a row whose indexes are written too has one more for each.
    (records,) = [row[0] for row in plan if "WAL" in row[0]][:1]
    assert re.search(r"records=1\b", records), plan
    await connection.close()
    await storage.close()
