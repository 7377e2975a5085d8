"""The PostgreSQL store under faults: nothing is lost or done twice, and each fault has one clear error line."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from dejaq.domain.batch import CreateBatch, LeaseRequest
from dejaq.domain.changes import Cancel, Create, Delete, Edit, Edits, Extend, Recall, Release
from dejaq.domain.context import DIRECT_CALL
from dejaq.domain.ids import ProducerSession
from dejaq.domain.topic import Topic, TopicSettings
from dejaq.errors import Code, DejaqError, StoreError
from dejaq.storage.base import Filter, apply_one
from dejaq.storage.postgres import queries, store
from dejaq.storage.postgres.connection import database, schema
from dejaq.storage.postgres.connection.address import Address
from dejaq.storage.postgres.connection.database import CONNECT_SECONDS, PostgresLink
from dejaq.storage.postgres.operations import settling
from dejaq.storage.postgres.store import PostgresStorage
from dejaq.storage.transactions import Step, Transaction
from dejaq.testing.model.replay import read_journal
from dejaq.testing.servers.postgres import PostgresServer, shared_server
from dejaq.testing.servers.process import free_port
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
    await storage.put_topic(topic, DIRECT_CALL)
    return topic


async def refusal(answer: Awaitable[object]) -> DejaqError:
    with pytest.raises(DejaqError) as caught:
        await answer
    text = str(caught.value)
    assert "\n" not in text
    assert "secret" not in text
    return caught.value


# Bad input


async def test_an_unreachable_server_is_one_clear_line() -> None:
    storage = PostgresStorage(f"postgres://u:secret@127.0.0.1:{free_port()}/x")
    error = await refusal(storage.open(NOW))
    assert error.code is Code.STORE_FAILED
    assert "cannot be reached" in str(error)


async def test_a_missing_database_is_one_clear_line() -> None:
    server = shared_server()
    storage = PostgresStorage(server.dsn_of("postgres", database="nowhere"))
    assert "names a database that is not there" in str(await refusal(storage.open(NOW)))


async def test_a_wrong_password_is_one_clear_line() -> None:
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


async def test_missing_rights_are_one_clear_line() -> None:
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


async def test_a_standby_is_one_clear_line() -> None:
    with PostgresServer() as primary, primary.standby() as standby:
        error = await refusal(PostgresStorage(standby.dsn).open(NOW))
        assert error.code is Code.STORE_FAILED
        assert "read-only standby" in str(error)
        # A standby that is listed together with its primary is skipped.
        both = f"postgres://postgres@127.0.0.1:{standby.port},127.0.0.1:{primary.port}/postgres"
        storage = PostgresStorage(both)
        await storage.open(NOW)
        await storage.close()


async def test_a_silent_host_does_not_hide_the_one_that_takes_writes() -> None:
    """The driver alone tries the hosts in order, and uses all its time to wait for the silent one."""
    server, name = shared_server(), new_name()
    with socket.create_server(("127.0.0.1", 0), backlog=8) as silent:
        hosts = f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{server.port}"
        storage = PostgresStorage(f"postgres://postgres@{hosts}/postgres", cluster=name)
        async with asyncio.timeout(CONNECT_SECONDS - 1):
            await storage.open(NOW)
        await storage.close()


async def test_without_a_host_that_takes_writes_the_most_useful_error_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dejaq.storage.postgres.connection.connecting.SILENCE_SECONDS", 0.1)
    server = shared_server()
    with socket.create_server(("127.0.0.1", 0), backlog=8) as silent:
        hosts = f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{server.port}"
        storage = PostgresStorage(f"postgres://postgres@{hosts}/nowhere", cluster=new_name())
        assert "names a database that is not there" in str(await refusal(storage.open(NOW)))


async def test_a_schema_of_a_newer_release_is_refused() -> None:
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


async def test_a_schema_of_an_older_release_is_migrated_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    server, name = shared_server(), new_name()
    storage = PostgresStorage(server.dsn, cluster=name)
    await storage.open(NOW)
    topic = await new_topic(storage)
    await apply_one(storage, Create(topic, batch("kept")), NOW, DIRECT_CALL)
    await storage.close()
    steps = [*queries.load_migrations(), "ALTER TABLE message ADD COLUMN colour text"]
    monkeypatch.setattr(schema, "load_migrations", lambda: steps)
    error = await refusal(storage.open(NOW))
    assert "dejaq storage migrate" in str(error)
    assert await schema.migrate_at(Address(server.dsn, name)) == (len(steps) - 1, len(steps))
    assert await schema.migrate_at(Address(server.dsn, name)) == (len(steps), len(steps))
    await storage.open(NOW)
    assert await storage.count(topic, Filter(), NOW) == 1
    await storage.close()


async def test_brokers_that_start_together_on_an_empty_database_agree() -> None:
    server, name = shared_server(), new_name()
    storages = [PostgresStorage(server.dsn, cluster=name) for _ in range(4)]
    await asyncio.gather(*(storage.open(NOW) for storage in storages))
    assert len({storage.identity for storage in storages}) == 1
    numbers = await asyncio.gather(*(storage.next_topic_number() for storage in storages))
    assert len(set(numbers)) == 4
    for storage in storages:
        await storage.close()


async def test_clusters_in_one_database_do_not_affect_each_other() -> None:
    server = shared_server()
    one, two = [PostgresStorage(server.dsn, cluster=new_name()) for _ in range(2)]
    for storage in (one, two):
        await storage.open(NOW)
    topic = await new_topic(one)
    await apply_one(one, Create(topic, batch("mine")), NOW, DIRECT_CALL)
    assert one.identity != two.identity
    assert await two.topics() == []
    assert await two.get(topic, ["mine"], NOW) == [None]
    for storage in (one, two):
        await storage.close()


async def test_a_topic_name_is_used_once() -> None:
    storage = PostgresStorage(shared_server().dsn, cluster=new_name())
    await storage.open(NOW)
    topic = await new_topic(storage)
    assert (await refusal(new_topic(storage))).code is Code.TOPIC_EXISTS
    await storage.put_topic(topic, DIRECT_CALL)
    await storage.close()


class SmallDisk:
    """A disk of a few megabytes on which a server may keep a database."""

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
    """Create batches of five until the store refuses; returns the number of stored messages."""
    made = begin
    for _ in range(batches):
        sent = CreateBatch("billing", SESSION, made, ts=[NOW] * 5, bodies=[os.urandom(200_000)] * 5)
        try:
            outcomes = await apply_one(storage, Create(topic, sent), NOW, DIRECT_CALL)
        except StoreError as error:
            assert "is full" in str(error)
            break
        assert not outcomes.codes
        made += 5
    return made


async def test_a_full_disk_stops_the_store_until_there_is_space(disk: SmallDisk) -> None:
    """R12: acknowledged messages are kept, the fault has one line, and the store continues by itself."""
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
        await apply_one(storage, Create(topic, batch("a")), NOW, DIRECT_CALL)
        lease = await storage.lease(
            topic, LeaseRequest(range(4), "w", until=NOW, expires=NOW + 30_000), NOW, DIRECT_CALL
        )
        assert lease is not None
        await apply_one(storage, Create(topic, batch("b", "c", sequence=1)), NOW, DIRECT_CALL)
        yield Stage(storage, topic, cutter, lease.lease_id)
        await storage.close()


async def _create(stage: Stage) -> None:
    assert not (
        await apply_one(stage.storage, Create(stage.topic, batch("b", "d", sequence=9)), NOW, DIRECT_CALL)
    ).codes.get(1)
    assert await stage.ids() == ["a", "b", "c", "d"]


async def _lease(stage: Stage) -> None:
    request = LeaseRequest(range(4), "w2", until=NOW, expires=NOW + 30_000)
    lease = await stage.storage.lease(stage.topic, request, NOW, DIRECT_CALL)
    assert lease is not None
    assert sorted(lease.ids()) == ["b", "c"]
    outcomes = await apply_one(stage.storage, Delete(stage.topic, lease.lease_id, "w2", None), NOW, DIRECT_CALL)
    assert not outcomes.codes
    # The delete is a change in a commit of its own.
    assert await stage.ids() == ["a"]


async def _delete(stage: Stage) -> None:
    # For a lease of another broker, the store reads the rows first.
    stage.storage._forget()
    assert not (await apply_one(stage.storage, Delete(stage.topic, stage.lease_id, "w", None), NOW, DIRECT_CALL)).codes
    assert await stage.ids() == ["b", "c"]


async def _extend(stage: Stage) -> None:
    outcomes = await apply_one(
        stage.storage, Extend(stage.topic, stage.lease_id, "w", None, NOW + 60_000), NOW, DIRECT_CALL
    )
    assert not outcomes.codes
    (found,) = await stage.storage.get(stage.topic, ["a"], NOW)
    assert found is not None
    assert found.ts == NOW + 60_000


async def _release(stage: Stage) -> None:
    assert not (
        await apply_one(stage.storage, Release(stage.topic, stage.lease_id, "w", None, NOW + 5), NOW, DIRECT_CALL)
    ).codes
    (found,) = await stage.storage.get(stage.topic, ["a"], NOW)
    assert found is not None
    assert (found.ts, found.attempts, found.lock_consumer) == (NOW + 5, 1, "")


async def _recall(stage: Stage) -> None:
    assert not (await apply_one(stage.storage, Recall(stage.topic, stage.lease_id, "w", None), NOW, DIRECT_CALL)).codes
    (found,) = await stage.storage.get(stage.topic, ["a"], NOW)
    assert found is not None
    assert (found.attempts, found.lock_consumer) == (0, "")


async def _edit(stage: Stage) -> None:
    (before,) = await stage.storage.get(stage.topic, ["b"], NOW)
    assert before is not None
    edits = Edits(["b"], bodies=[b"new"], versions=[before.version])
    assert not (await apply_one(stage.storage, Edit(stage.topic, "billing", edits), NOW, DIRECT_CALL)).codes


async def _cancel(stage: Stage) -> None:
    assert not (await apply_one(stage.storage, Cancel(stage.topic, "billing", ["b"]), NOW, DIRECT_CALL)).codes
    assert await stage.ids() == ["a", "c"]


async def _transact(stage: Stage) -> None:
    steps: list[Step] = [Cancel(stage.topic, "billing", ["b"]), Create(stage.topic, batch("e", sequence=20))]
    verdict = await stage.storage.transact(Transaction(ProducerSession(NOW, 7), 1, steps), NOW, DIRECT_CALL)
    assert verdict.code is Code.OK
    assert await stage.ids() == ["a", "c", "e"]


@pytest.mark.parametrize("before", [True, False], ids=["before_commit", "after_commit"])
@pytest.mark.parametrize(
    "change",
    [_create, _lease, _delete, _extend, _release, _recall, _edit, _cancel, _transact],
    ids=lambda change: change.__name__,
)
async def test_an_interrupted_commit_is_resolved(
    stage: Stage, change: Callable[[Stage], Awaitable[None]], before: bool
) -> None:
    """G1, G6, G9: whether or not the commit was done, the change exists once, and so does its record."""
    records = await stage.records()
    stage.cutter.arm(before=before)
    await change(stage)
    assert stage.cutter.cuts == 1
    assert await stage.records() == records + (2 if change is _lease else 1)
    assert stage.storage.failure is None
    counted = await stage.storage.count(stage.topic, Filter(), NOW)
    assert counted == len(await stage.ids()), "the counts were changed twice or not at all"


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
async def test_an_interrupted_create_of_one_statement_is_resolved(stage: Stage, before: bool) -> None:
    """G5: the usual create is a commit by itself; repeated under its name it creates nothing twice."""
    records = await stage.records()
    stage.cutter.arm(at=b"marked", before=before)
    outcomes = await apply_one(stage.storage, Create(stage.topic, batch("marked", sequence=30)), NOW, DIRECT_CALL)
    assert not outcomes.failed
    assert stage.cutter.cuts == 1
    assert await stage.ids() == ["a", "b", "c", "marked"]
    assert await stage.records() == records + 1
    assert await stage.storage.count(stage.topic, Filter(), NOW) == 4


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
async def test_an_interrupted_delete_of_one_statement_is_resolved(stage: Stage, before: bool) -> None:
    """G3, G6, G9: the usual delete is a commit by itself; a completed delete is not reported as a lost lease."""
    await apply_one(stage.storage, Create(stage.topic, batch("marked", sequence=30)), NOW, DIRECT_CALL)
    request = LeaseRequest(range(4), "w2", until=NOW, expires=NOW + 30_000)
    lease = await stage.storage.lease(stage.topic, request, NOW, DIRECT_CALL)
    assert lease is not None
    records = await stage.records()
    stage.cutter.arm(at=b"marked", before=before)
    outcomes = await apply_one(stage.storage, Delete(stage.topic, lease.lease_id, "w2", None), NOW, DIRECT_CALL)
    assert not outcomes.codes
    assert stage.cutter.cuts == 1
    assert await stage.ids() == ["a"]
    assert await stage.records() == records + 1
    assert await stage.storage.count(stage.topic, Filter(), NOW) == 1


async def test_a_cancelled_caller_does_not_cancel_a_commit(stage: Stage) -> None:
    """Cancelling a commit does not undo it, so the store lets it finish."""
    call = asyncio.ensure_future(
        apply_one(stage.storage, Delete(stage.topic, stage.lease_id, "w", None), NOW, DIRECT_CALL)
    )
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    async def gone() -> bool:
        return await stage.ids() == ["b", "c"]

    await eventually(gone, within=5, what="the delete is done nevertheless")


async def test_a_change_with_a_serialization_failure_is_tried_again(stage: Stage) -> None:
    tries = 0

    async def work(link: PostgresLink) -> str:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise asyncpg.SerializationError("could not serialize access")
        return "done"

    assert await stage.storage._database.change(work) == "done"
    assert tries == 3


# Servers that stop or restart


async def test_the_store_continues_after_a_restart_of_the_server() -> None:
    """G1, R13: kill -9 of the server under load; acknowledged messages are kept, and no caller gets an error."""
    with PostgresServer() as server:
        storage = PostgresStorage(server.dsn, patience_ms=20_000)
        await storage.open(NOW)
        topic = await new_topic(storage)
        acknowledged: list[str] = []

        async def produce(number: int) -> None:
            session = ProducerSession(NOW, number)
            for sequence in range(40):
                one = f"{number}-{sequence}"
                outcomes = await apply_one(
                    storage, Create(topic, batch(one, sequence=sequence, session=session)), NOW, DIRECT_CALL
                )
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


async def test_a_server_that_stays_unavailable_is_reported_and_its_return_is_detected() -> None:
    """G7: after its time limit the store stops, reports the reason, and returns to service by `recover`."""
    with PostgresServer() as server:
        storage = PostgresStorage(server.dsn, patience_ms=2_000)
        await storage.open(NOW)
        topic = await new_topic(storage)
        await apply_one(storage, Create(topic, batch("kept")), NOW, DIRECT_CALL)
        await asyncio.to_thread(server.stop)
        error = await refusal(apply_one(storage, Create(topic, batch("late", sequence=1)), NOW, DIRECT_CALL))
        assert error.code is Code.STORE_FAILED
        assert storage.failure is not None
        assert "takes no requests" in str(await refusal(storage.count(topic, Filter(), NOW)))
        await refusal(storage.recover(NOW))
        await asyncio.to_thread(server.start)
        await storage.recover(NOW)
        assert storage.failure is None
        assert not (await apply_one(storage, Create(topic, batch("late", sequence=1)), NOW, DIRECT_CALL)).failed
        assert await storage.count(topic, Filter(), NOW) == 2
        await storage.close()


async def test_rows_of_broken_connections_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """D27: a server that often drops connections does not keep a row for each of them permanently."""
    monkeypatch.setattr(database, "WRITER_SECONDS", 0.0)
    server, name = shared_server(), new_name()
    storage = PostgresStorage(server.dsn, cluster=name, connections=2)
    await storage.open(NOW)
    admin = await asyncpg.connect(server.dsn)
    for _ in range(6):
        topic = await new_topic(storage, secrets.token_hex(4))
        await apply_one(
            storage, Create(topic, batch("m", session=ProducerSession(NOW, topic.number))), NOW, DIRECT_CALL
        )
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'dejaq' AND pid IN "
            "(SELECT pid FROM pg_stat_activity WHERE query <> '' AND pid <> pg_backend_pid())"
        )
    await storage.next_topic_number()
    assert await admin.fetchval(f'SELECT count(*) FROM "{storage._address.schema}".writer') <= 3
    await storage.close()
    assert await admin.fetchval(f'SELECT count(*) FROM "{storage._address.schema}".writer') <= 1
    await admin.close()


async def test_a_topic_number_above_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """D27: after two million topics the store reports a clear limit, and not a server error at every create."""
    storage = PostgresStorage(shared_server().dsn, cluster=new_name(), connections=2)
    await storage.open(NOW)
    await storage.next_topic_number()
    monkeypatch.setattr(store, "_TOPIC_NUMBER_MAX", 1)
    assert (await refusal(storage.next_topic_number())).code is Code.LIMIT_EXCEEDED
    await storage.close()


async def test_the_server_ends_a_snapshot_whose_broker_is_frozen() -> None:
    """D7: no transaction of a snapshot stays open permanently, whatever happens to its broker."""
    storage = PostgresStorage(shared_server().dsn, cluster=new_name(), connections=2)
    await storage.open(NOW)
    snapshot = await storage.snapshot(await new_topic(storage), NOW)
    timeout = await snapshot._connection.fetchval("SHOW idle_in_transaction_session_timeout")
    assert timeout not in ("0", "")
    snapshot.close()
    await storage.close()


async def test_a_delete_is_answered_though_its_lease_is_forgotten_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """G6: when buckets move, a store forgets its leases, even during a delete."""
    storage = PostgresStorage(shared_server().dsn, cluster=new_name(), connections=2)
    await storage.open(NOW)
    topic = await new_topic(storage)
    await apply_one(storage, Create(topic, batch("m")), NOW, DIRECT_CALL)
    lease = await storage.lease(topic, LeaseRequest(range(4), "w", until=NOW, expires=NOW + 30_000), NOW, DIRECT_CALL)
    assert lease is not None
    delete_all = settling.delete_all

    async def forgetting(*arguments: Any) -> int:
        storage._forget()
        return await delete_all(*arguments)

    monkeypatch.setattr(settling, "delete_all", forgetting)
    assert not (await apply_one(storage, Delete(topic, lease.lease_id, "w", None), NOW, DIRECT_CALL)).codes
    assert await storage.get(topic, ["m"], NOW) == [None]
    await storage.close()
