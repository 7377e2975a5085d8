"""R13 for etcd: the members of a cluster when etcd servers fail."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dejaq.errors import SynchronizationError
from dejaq.protocol.etcd import rpc_pb2 as rpc
from dejaq.synchronization.base import Record
from dejaq.synchronization.etcd.endpoints import Endpoints
from dejaq.synchronization.etcd.service import EtcdSynchronization
from dejaq.synchronization.etcd.wire import Wire
from dejaq.testing.servers.etcd import EtcdCluster
from dejaq.testing.servers.gate import Gate
from dejaq.testing.servers.process import HOST, free_port
from dejaq.testing.waiting import eventually, patient
from dejaq.timekeeper.clock import SystemClock


def member(endpoints: Endpoints, ttl: float = 5.0) -> EtcdSynchronization:
    return EtcdSynchronization(endpoints, cluster="faults", clock=SystemClock(), ttl=ttl)


async def _put_at_last(service: EtcdSynchronization, key: str, value: bytes) -> Record:
    """Put a new record as soon as a leader is found; on a busy machine this takes longer than one call waits."""
    deadline = time.monotonic() + 30
    while True:
        try:
            written = await service.put(key, value, expected=0) or await service.get(key)
        except SynchronizationError:
            if time.monotonic() > deadline:
                raise
            continue
        assert written is not None
        assert written.value == value
        return written


async def test_members_survive_the_loss_of_the_leader_and_detect_the_loss_of_the_quorum(tmp_path: Path) -> None:
    async with EtcdCluster(tmp_path, size=3) as etcd:
        one, other = member(etcd.endpoints()), member(etcd.endpoints(*reversed(etcd.addresses)))
        await one.open()
        await other.open()
        try:
            record = await one.put("members/one", b"1", expected=0, bound=True)

            dead = await etcd.kill_leader()
            written = await _put_at_last(other, "topics/mail", b"live")
            renewed = time.monotonic() + 4
            await eventually(lambda: one.serving_until() > renewed, within=8, what="the membership is renewed")
            assert await other.get("members/one") == record, "the membership is the same as before"

            second = await etcd.kill_leader()
            with pytest.raises(SynchronizationError, match="more than half"):
                await other.put("topics/mail", b"lost")
            await eventually(
                lambda: one.serving_until() < time.monotonic(), within=8, what="the member may no longer serve"
            )
            assert one.failure is not None

            dead.start()
            second.start()
            await eventually(
                lambda: one.serving_until() > time.monotonic() and one.failure is None,
                within=20,
                what="the member may serve again",
            )
            assert await other.get("topics/mail") == written
            again = await other.get("members/one")
            assert again is not None
            assert again.value == b"1"
        finally:
            await one.close()
            await other.close()


async def test_a_watch_behind_a_compaction_reads_all_records_again(tmp_path: Path) -> None:
    async with EtcdCluster(tmp_path) as etcd, Gate(etcd.addresses[0]) as gate:
        one, other = member(Endpoints((gate.address,))), member(etcd.endpoints())
        await one.open()
        await other.open()
        changes: list[tuple[str, bytes | None]] = []
        watch = one.watch("n/")
        try:
            await other.put("n/gone", b"1")
            await other.put("n/stays", b"1")
            changes += [(change.key, change.record.value if change.record else None) for change in await anext(watch)]
            gate.close()
            await other.remove("n/gone")
            last = await other.put("n/stays", b"2")
            assert last is not None
            wire = Wire(etcd.endpoints())
            await wire.call("KV.Compact", rpc.CompactionRequest(revision=last.revision), rpc.CompactionResponse)
            await wire.close()
            gate.open()
            while ("n/stays", b"2") not in changes:
                changes += [
                    (change.key, change.record.value if change.record else None) for change in await anext(watch)
                ]
            assert changes == [("n/gone", b"1"), ("n/stays", b"1"), ("n/gone", None), ("n/stays", b"2")]
        finally:
            await watch.aclose()  # type: ignore[attr-defined]
            await one.close()
            await other.close()


async def test_an_address_that_does_not_answer_is_skipped(tmp_path: Path) -> None:
    async with EtcdCluster(tmp_path) as etcd:
        place = member(Endpoints((f"{HOST}:{free_port()}", *etcd.addresses)))
        await place.open()
        assert await place.put("a", b"1") is not None
        await place.close()


async def test_without_any_server_the_error_names_the_next_step() -> None:
    place = member(Endpoints((f"{HOST}:{free_port()}",)))
    started = time.monotonic()
    with pytest.raises(SynchronizationError, match="check that they run"):
        await place.open()
    assert time.monotonic() - started < patient(15)
    await place.close()
