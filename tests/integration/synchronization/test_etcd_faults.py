"""R13, the part of etcd: what the members of a cluster notice when its servers fail."""

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
from dejaq.testing.etcd import EtcdCluster
from dejaq.testing.gate import Gate
from dejaq.testing.process import HOST, free_port
from dejaq.testing.waiting import eventually
from dejaq.timekeeper.clock import SystemClock


def member(endpoints: Endpoints, ttl: float = 5.0) -> EtcdSynchronization:
    return EtcdSynchronization(endpoints, cluster="faults", clock=SystemClock(), ttl=ttl)


async def _put_at_last(service: EtcdSynchronization, key: str, value: bytes) -> Record:
    """Put a new record as soon as a leader is found, which takes a busy machine longer than one call waits."""
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


async def test_members_outlive_the_leader_and_notice_the_loss_of_the_quorum(tmp_path: Path):
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
            assert await other.get("members/one") == record, "the membership is the one from before"

            second = await etcd.kill_leader()
            with pytest.raises(SynchronizationError, match="more than half"):
                await other.put("topics/mail", b"lost")
            await eventually(lambda: one.serving_until() < time.monotonic(), within=8, what="it may no longer serve")
            assert one.failure is not None

            dead.start()
            second.start()
            await eventually(
                lambda: one.serving_until() > time.monotonic() and one.failure is None, within=20, what="it is back"
            )
            assert await other.get("topics/mail") == written
            again = await other.get("members/one")
            assert again is not None
            assert again.value == b"1"
        finally:
            await one.close()
            await other.close()


async def test_a_watch_behind_a_compaction_reads_anew(tmp_path: Path):
    async with EtcdCluster(tmp_path) as etcd, Gate(etcd.addresses[0]) as gate:
        one, other = member(Endpoints((gate.address,))), member(etcd.endpoints())
        await one.open()
        await other.open()
        told: list[tuple[str, bytes | None]] = []
        watch = one.watch("n/")
        try:
            await other.put("n/gone", b"1")
            await other.put("n/stays", b"1")
            told += [(change.key, change.record and change.record.value) for change in await anext(watch)]
            gate.close()
            await other.remove("n/gone")
            last = await other.put("n/stays", b"2")
            assert last is not None
            wire = Wire(etcd.endpoints())
            await wire.call("KV.Compact", rpc.CompactionRequest(revision=last.revision), rpc.CompactionResponse)
            await wire.close()
            gate.open()
            while ("n/stays", b"2") not in told:
                told += [(change.key, change.record and change.record.value) for change in await anext(watch)]
            assert told == [("n/gone", b"1"), ("n/stays", b"1"), ("n/gone", None), ("n/stays", b"2")]
        finally:
            await watch.aclose()  # type: ignore[attr-defined]
            await one.close()
            await other.close()


async def test_an_address_where_nobody_answers_is_passed_over(tmp_path: Path):
    async with EtcdCluster(tmp_path) as etcd:
        place = member(Endpoints((f"{HOST}:{free_port()}", *etcd.addresses)))
        await place.open()
        assert await place.put("a", b"1") is not None
        await place.close()


async def test_without_any_server_the_error_says_what_to_do():
    place = member(Endpoints((f"{HOST}:{free_port()}",)))
    started = time.monotonic()
    with pytest.raises(SynchronizationError, match="check that they run"):
        await place.open()
    assert time.monotonic() - started < 15
    await place.close()
