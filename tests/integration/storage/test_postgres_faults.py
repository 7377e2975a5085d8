"""The PostgreSQL store under faults: nothing is lost, nothing is done twice, and each fault has one clear line."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import Code, DejaqError, StoreError
from dejaq.storage.base import Edits, Filter
from dejaq.storage.postgres import schema
from dejaq.storage.postgres.address import Address
from dejaq.storage.postgres.database import CONNECT_SECONDS, Link
from dejaq.storage.postgres.store import PostgresStorage
from dejaq.storage.steps import CancelStep, CreateStep, Transaction
from dejaq.testing.postgres import PostgresServer, shared_server
from dejaq.testing.process import free_port
from dejaq.testing.replay import read_journal
from dejaq.testing.waiting import eventually
from tests.integration.storage.cutting import Cutter

NOW = 1_700_000_000_000
SESSION = ProducerSession(NOW, 1)


def new_name() -> str:
    return f"faults_{secrets.token_hex(4)}"


def batch(*ids: str, sequence: int = 0, session: ProducerSession = SESSION) -> CreateBatch:
    bodies = [one.encode() for one in ids]
    return CreateBatch("billing", session, sequence, ts=[NOW] * len(ids), bodies=bodies, ids=ids)


async def new_topic(storage: PostgresStorage, name: str = "mail") -> Topic:
    topic = Topic(name, await storage.next_topic_number(), TopicSettings(buckets=4))
    await storage.put_topic(topic)
    return topic


async def refusal(answer: Awaitable[object]) -> DejaqError:
    with pytest.raises(DejaqError) as caught:
        await answer
    text = str(caught.value)
    assert "\n" not in text
    assert "secret" not in text
    return caught.value


# Bad input


async def test_a_server_that_is_not_there_is_one_clear_line():
    storage = PostgresStorage(f"postgres://u:secret@127.0.0.1:{free_port()}/x")
    error = await refusal(storage.open(NOW))
    assert error.code is Code.STORE_FAILED
    assert "cannot be reached" in str(error)


async def test_a_missing_database_is_one_clear_line():
    server = shared_server()
    storage = PostgresStorage(server.dsn_of("postgres", database="nowhere"))
    assert "names a database that is not there" in str(await refusal(storage.open(NOW)))


async def test_a_wrong_password_is_one_clear_line():
    with PostgresServer() as server:
        connection = await asyncpg.connect(server.dsn)
        await connection.execute("CREATE ROLE dejaq LOGIN PASSWORD 'right'")
        await connection.close()
        (server.path / "pg_hba.conf").write_text("host all all 127.0.0.1/32 scram-sha-256\n")
        server.stop()
        server.start()
        error = await refusal(PostgresStorage(server.dsn_of("dejaq", password="secret")).open(NOW))
        assert "refuses the login" in str(error)
        error = await refusal(schema.migrate_at(Address(server.dsn_of("dejaq", password="secret"), "x")))
        assert "refuses the login" in str(error)


async def test_missing_rights_are_one_clear_line():
    server, name, role = shared_server(), new_name(), f"role_{secrets.token_hex(4)}"
    connection = await asyncpg.connect(server.dsn)
    await connection.execute(f"CREATE ROLE {role} LOGIN")
    try:
        error = await refusal(PostgresStorage(server.dsn_of(role), cluster=name).open(NOW))
        assert "lacks a right" in str(error)
        owner = PostgresStorage(server.dsn, cluster=name)
        await owner.open(NOW)
        await owner.close()
        error = await refusal(PostgresStorage(server.dsn_of(role), cluster=name).open(NOW))
        assert "lacks a right" in str(error)
    finally:
        await connection.close()


async def test_a_standby_is_one_clear_line():
    with PostgresServer() as primary, primary.standby() as standby:
        error = await refusal(PostgresStorage(standby.dsn).open(NOW))
        assert error.code is Code.STORE_FAILED
        assert "read-only standby" in str(error)
        # Named beside its primary, it is passed over.
        both = f"postgres://postgres@127.0.0.1:{standby.port},127.0.0.1:{primary.port}/postgres"
        storage = PostgresStorage(both)
        await storage.open(NOW)
        await storage.close()


async def test_a_silent_host_does_not_hide_the_one_that_takes_writes():
    """The driver alone asks one host after the other, and waits for the silent one until all time is used up."""
    server, name = shared_server(), new_name()
    with socket.create_server(("127.0.0.1", 0), backlog=8) as silent:
        hosts = f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{server.port}"
        storage = PostgresStorage(f"postgres://postgres@{hosts}/postgres", cluster=name)
        async with asyncio.timeout(CONNECT_SECONDS - 1):
            await storage.open(NOW)
        await storage.close()


async def test_without_a_host_that_takes_writes_the_error_says_most(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dejaq.storage.postgres.connecting.SILENCE_SECONDS", 0.1)
    server = shared_server()
    with socket.create_server(("127.0.0.1", 0), backlog=8) as silent:
        hosts = f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{server.port}"
        storage = PostgresStorage(f"postgres://postgres@{hosts}/nowhere", cluster=new_name())
        assert "names a database that is not there" in str(await refusal(storage.open(NOW)))


async def test_a_schema_of_a_newer_release_is_refused():
    server, name = shared_server(), new_name()
    storage = PostgresStorage(server.dsn, cluster=name)
    await storage.open(NOW)
    await storage.close()
    connection = await asyncpg.connect(server.dsn)
    await connection.execute(f"INSERT INTO {name}.migration (version) VALUES (99)")
    await connection.close()
    for answer in (storage.open(NOW), schema.migrate_at(Address(server.dsn, name))):
        error = await refusal(answer)
        assert error.code is Code.STORE_NEWER
        assert "99" in str(error)


async def test_a_schema_of_an_older_release_is_migrated_when_told(monkeypatch: pytest.MonkeyPatch):
    server, name = shared_server(), new_name()
    storage = PostgresStorage(server.dsn, cluster=name)
    await storage.open(NOW)
    topic = await new_topic(storage)
    await storage.create(topic, batch("kept"), NOW)
    await storage.close()
    steps = [*schema.load_migrations(), "ALTER TABLE message ADD COLUMN colour text"]
    monkeypatch.setattr(schema, "load_migrations", lambda: steps)
    error = await refusal(storage.open(NOW))
    assert "dejaq storage migrate" in str(error)
    assert await schema.migrate_at(Address(server.dsn, name)) == (len(steps) - 1, len(steps))
    assert await schema.migrate_at(Address(server.dsn, name)) == (len(steps), len(steps))
    await storage.open(NOW)
    assert await storage.count(topic, Filter(), NOW) == 1
    await storage.close()


async def test_brokers_that_start_together_on_an_empty_database_agree():
    server, name = shared_server(), new_name()
    storages = [PostgresStorage(server.dsn, cluster=name) for _ in range(4)]
    await asyncio.gather(*(storage.open(NOW) for storage in storages))
    assert len({storage.identity for storage in storages}) == 1
    numbers = await asyncio.gather(*(storage.next_topic_number() for storage in storages))
    assert len(set(numbers)) == 4
    for storage in storages:
        await storage.close()


async def test_clusters_in_one_database_do_not_meet():
    server = shared_server()
    one, two = [PostgresStorage(server.dsn, cluster=new_name()) for _ in range(2)]
    for storage in (one, two):
        await storage.open(NOW)
    topic = await new_topic(one)
    await one.create(topic, batch("mine"), NOW)
    assert one.identity != two.identity
    assert await two.topics() == []
    assert await two.get(topic, ["mine"], NOW) == [None]
    for storage in (one, two):
        await storage.close()


async def test_a_topic_name_is_given_once():
    storage = PostgresStorage(shared_server().dsn, cluster=new_name())
    await storage.open(NOW)
    topic = await new_topic(storage)
    assert (await refusal(new_topic(storage))).code is Code.TOPIC_EXISTS
    await storage.put_topic(topic)
    await storage.close()


class SmallDisk:
    """A disk of a few megabytes that a server may keep a database on."""

    def __init__(self) -> None:
        self._mount = Path(tempfile.mkdtemp(prefix="dejaq-disk-"))
        self._mount.chmod(0o755)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", self._mount], check=True)
        self.path = self._mount / "space"
        self.path.mkdir()

    def grow(self) -> None:
        subprocess.run(["mount", "-o", "remount,size=200m", self._mount], check=True)

    def close(self) -> None:
        subprocess.run(["umount", "-l", self._mount], check=True)
        self._mount.rmdir()


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    disk = SmallDisk()
    yield disk
    disk.close()


async def _fill(storage: PostgresStorage, topic: Topic, begin: int = 0, *, batches: int = 100) -> int:
    """Create until the store refuses, in batches of five; how many stand."""
    made = begin
    for _ in range(batches):
        sent = CreateBatch("billing", SESSION, made, ts=[NOW] * 5, bodies=[os.urandom(200_000)] * 5)
        try:
            outcomes = await storage.create(topic, sent, NOW)
        except StoreError as error:
            assert "is full" in str(error)
            break
        assert not outcomes.codes
        made += 5
    return made


async def test_a_full_disk_stops_the_store_and_room_brings_it_back(disk: SmallDisk):
    """R12: what was acknowledged stands, the fault has one line, and the store goes on by itself."""
    with PostgresServer() as server:
        os.chown(disk.path, os.stat(server.path).st_uid, -1)
        connection = await asyncpg.connect(server.dsn)
        await connection.execute(f"CREATE TABLESPACE small LOCATION '{disk.path}'")
        await connection.execute("CREATE DATABASE small TABLESPACE small")
        await connection.close()
        storage = PostgresStorage(server.dsn_of("postgres", database="small"), patience_ms=2_000)
        await storage.open(NOW)
        topic = await new_topic(storage)
        made = await _fill(storage, topic)
        assert 0 < made < 500
        assert storage.failure is not None
        disk.grow()
        await storage.recover(NOW)
        assert storage.failure is None
        assert await _fill(storage, topic, made, batches=1) == made + 5
        assert await storage.count(topic, Filter(), NOW) == made + 5
        await storage.close()


# Connections that are cut


class Stage:
    """A store behind a proxy, with three messages, the first of them leased."""

    def __init__(self, storage: PostgresStorage, topic: Topic, cutter: Cutter, lease_id: int) -> None:
        self.storage, self.topic, self.cutter, self.lease_id = storage, topic, cutter, lease_id

    async def records(self) -> int:
        return len(await read_journal(self.storage))

    async def ids(self) -> list[str]:
        page = await self.storage.browse(self.topic, Filter(), None, 100, NOW)
        return sorted(message.id for message in page.messages)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with Cutter(shared_server().port) as cutter:
        dsn = f"postgres://postgres@127.0.0.1:{cutter.port}/postgres"
        storage = PostgresStorage(dsn, cluster=new_name(), journal="j", connections=2, patience_ms=5_000)
        await storage.open(NOW)
        topic = await new_topic(storage)
        await storage.create(topic, batch("a"), NOW)
        lease = await storage.lease(topic, LeaseRequest(range(4), "w", until=NOW, expires=NOW + 30_000), NOW)
        assert lease is not None
        await storage.create(topic, batch("b", "c", sequence=1), NOW)
        yield Stage(storage, topic, cutter, lease.lease_id)
        await storage.close()


async def _create(stage: Stage) -> None:
    assert not (await stage.storage.create(stage.topic, batch("b", "d", sequence=9), NOW)).codes.get(1)
    assert await stage.ids() == ["a", "b", "c", "d"]


async def _lease(stage: Stage) -> None:
    request = LeaseRequest(range(4), "w2", until=NOW, expires=NOW + 30_000)
    lease = await stage.storage.lease(stage.topic, request, NOW)
    assert lease is not None
    assert sorted(lease.ids()) == ["b", "c"]
    outcomes = await stage.storage.delete(stage.topic, lease.lease_id, "w2", None, NOW)
    assert not outcomes.codes
    # The delete is a change of its own.
    assert await stage.ids() == ["a"]


async def _delete(stage: Stage) -> None:
    # Of a lease that another broker gave, the rows are looked at first.
    stage.storage._forget()
    assert not (await stage.storage.delete(stage.topic, stage.lease_id, "w", None, NOW)).codes
    assert await stage.ids() == ["b", "c"]


async def _extend(stage: Stage) -> None:
    outcomes = await stage.storage.extend(stage.topic, stage.lease_id, "w", None, NOW + 60_000, NOW)
    assert not outcomes.codes
    (found,) = await stage.storage.get(stage.topic, ["a"], NOW)
    assert found is not None
    assert found.ts == NOW + 60_000


async def _release(stage: Stage) -> None:
    assert not (await stage.storage.release(stage.topic, stage.lease_id, "w", None, NOW + 5, NOW)).codes
    (found,) = await stage.storage.get(stage.topic, ["a"], NOW)
    assert found is not None
    assert (found.ts, found.attempts, found.lock_consumer) == (NOW + 5, 1, "")


async def _recall(stage: Stage) -> None:
    assert not (await stage.storage.recall(stage.topic, stage.lease_id, "w", None, NOW)).codes
    (found,) = await stage.storage.get(stage.topic, ["a"], NOW)
    assert found is not None
    assert (found.attempts, found.lock_consumer) == (0, "")


async def _edit(stage: Stage) -> None:
    (before,) = await stage.storage.get(stage.topic, ["b"], NOW)
    assert before is not None
    edits = Edits(["b"], bodies=[b"new"], versions=[before.version])
    assert not (await stage.storage.edit(stage.topic, "billing", edits, NOW)).codes


async def _cancel(stage: Stage) -> None:
    assert not (await stage.storage.cancel(stage.topic, "billing", ["b"], NOW)).codes
    assert await stage.ids() == ["a", "c"]


async def _transact(stage: Stage) -> None:
    steps = [CancelStep(stage.topic, "billing", ["b"]), CreateStep(stage.topic, batch("e", sequence=20))]
    verdict = await stage.storage.transact(Transaction(ProducerSession(NOW, 7), 1, steps), NOW)
    assert verdict.code is Code.OK
    assert await stage.ids() == ["a", "c", "e"]


@pytest.mark.parametrize("before", [True, False], ids=["before_commit", "after_commit"])
@pytest.mark.parametrize(
    "change",
    [_create, _lease, _delete, _extend, _release, _recall, _edit, _cancel, _transact],
    ids=lambda change: change.__name__,
)
async def test_a_cut_commit_is_resolved(stage: Stage, change: Callable[[Stage], Awaitable[None]], before: bool):
    """G1, G6, G9: whether the commit was done or not, the change is there once, and so is its record."""
    records = await stage.records()
    stage.cutter.arm(before=before)
    await change(stage)
    assert stage.cutter.cuts == 1
    assert await stage.records() == records + (2 if change is _lease else 1)
    assert stage.storage.failure is None
    counted = await stage.storage.count(stage.topic, Filter(), NOW)
    assert counted == len(await stage.ids()), "the counts were changed twice or not at all"


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
async def test_a_cut_create_of_one_statement_is_resolved(stage: Stage, before: bool):
    """G5: the usual create commits by itself; repeated under its name it makes nothing twice."""
    records = await stage.records()
    stage.cutter.arm(at=b"marked", before=before)
    outcomes = await stage.storage.create(stage.topic, batch("marked", sequence=30), NOW)
    assert not outcomes.failed
    assert stage.cutter.cuts == 1
    assert await stage.ids() == ["a", "b", "c", "marked"]
    assert await stage.records() == records + 1
    assert await stage.storage.count(stage.topic, Filter(), NOW) == 4


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
async def test_a_cut_delete_of_one_statement_is_resolved(stage: Stage, before: bool):
    """G3, G6, G9: the usual delete commits by itself; what was done is not taken for a lost lease."""
    await stage.storage.create(stage.topic, batch("marked", sequence=30), NOW)
    request = LeaseRequest(range(4), "w2", until=NOW, expires=NOW + 30_000)
    lease = await stage.storage.lease(stage.topic, request, NOW)
    assert lease is not None
    records = await stage.records()
    stage.cutter.arm(at=b"marked", before=before)
    outcomes = await stage.storage.delete(stage.topic, lease.lease_id, "w2", None, NOW)
    assert not outcomes.codes
    assert stage.cutter.cuts == 1
    assert await stage.ids() == ["a"]
    assert await stage.records() == records + 1
    assert await stage.storage.count(stage.topic, Filter(), NOW) == 1


async def test_a_caller_that_goes_away_does_not_cancel_a_commit(stage: Stage):
    """Cancelling a commit does not undo it, so it is left to finish."""
    call = asyncio.ensure_future(stage.storage.delete(stage.topic, stage.lease_id, "w", None, NOW))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    async def gone() -> bool:
        return await stage.ids() == ["b", "c"]

    await eventually(gone, within=5, what="the delete is done all the same")


async def test_a_change_that_cannot_be_serialized_is_made_again(stage: Stage):
    tries = 0

    async def work(link: Link) -> str:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise asyncpg.SerializationError("could not serialize access")
        return "done"

    assert await stage.storage._database.change(work) == "done"
    assert tries == 3


# Servers that go


async def test_a_server_that_restarts_is_ridden_out():
    """G1, R13: kill -9 of the server under load; what was acknowledged is there, and nobody was told of an error."""
    with PostgresServer() as server:
        storage = PostgresStorage(server.dsn, patience_ms=20_000)
        await storage.open(NOW)
        topic = await new_topic(storage)
        acknowledged: list[str] = []

        async def produce(number: int) -> None:
            session = ProducerSession(NOW, number)
            for sequence in range(40):
                one = f"{number}-{sequence}"
                outcomes = await storage.create(topic, batch(one, sequence=sequence, session=session), NOW)
                assert not outcomes.failed
                acknowledged.append(one)

        load = asyncio.gather(*(produce(number) for number in range(4)))
        await eventually(lambda: len(acknowledged) > 30, within=20, what="the load runs", poll=0.001)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        await load
        found = await storage.get(topic, acknowledged, NOW)
        assert len(acknowledged) == 160
        assert None not in found
        assert await storage.count(topic, Filter(), NOW) == 160
        await storage.close()


async def test_a_server_that_stays_away_is_told_and_its_return_is_found():
    """G7: beyond its patience the store stops, says why, and comes back by `recover`."""
    with PostgresServer() as server:
        storage = PostgresStorage(server.dsn, patience_ms=300)
        await storage.open(NOW)
        topic = await new_topic(storage)
        await storage.create(topic, batch("kept"), NOW)
        await asyncio.to_thread(server.stop)
        error = await refusal(storage.create(topic, batch("late", sequence=1), NOW))
        assert error.code is Code.STORE_FAILED
        assert storage.failure is not None
        assert "takes no requests" in str(await refusal(storage.count(topic, Filter(), NOW)))
        await refusal(storage.recover(NOW))
        await asyncio.to_thread(server.start)
        await storage.recover(NOW)
        assert storage.failure is None
        assert not (await storage.create(topic, batch("late", sequence=1), NOW)).failed
        assert await storage.count(topic, Filter(), NOW) == 2
        await storage.close()
