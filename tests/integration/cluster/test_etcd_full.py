"""An etcd without free space: brokers report it, still deliver, and recover by themselves when space is free again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

import dejaq
from dejaq.errors import Code, DejaqError, SynchronizationFull
from dejaq.synchronization.embedded import EmbeddedSynchronization
from dejaq.synchronization.etcd.service import EtcdSynchronization
from dejaq.testing.servers.etcd import EtcdCluster
from dejaq.testing.servers.process import HOST, free_port
from dejaq.testing.shared import SharedMemoryStorage
from dejaq.testing.waiting import eventually, patient
from dejaq.timekeeper.clock import SystemClock

QUOTA = ["--quota-backend-bytes=2000000"]


def broker_of(etcd: EtcdCluster, name: str, storage: SharedMemoryStorage) -> dejaq.Broker:
    place = EtcdSynchronization(etcd.endpoints(), cluster="full", clock=SystemClock(), ttl=2.0)
    return dejaq.Broker(broker=name, cluster="full", synchronization=place, storage=storage, listen="127.0.0.1:0")


@asynccontextmanager
async def two_brokers(path: Path) -> AsyncIterator[tuple[EtcdCluster, SharedMemoryStorage, list[dejaq.Broker]]]:
    storage = SharedMemoryStorage()
    async with EtcdCluster(path, options=QUOTA) as etcd, AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(broker_of(etcd, name, storage)) for name in "ab"]
        for broker in brokers:
            await eventually(lambda: len(broker.central.cluster.members) == 2, within=5)
        yield etcd, storage, brokers


def complaint(broker: dejaq.Broker) -> str:
    return broker.central.doctor.degradations.get("synchronization_full", "")


async def test_messages_for_a_departed_consumer_are_delivered_while_etcd_is_full(tmp_path: Path) -> None:
    """C3: 106 of 200 due messages arrived, because the assignment of a departed consumer could not be removed."""
    async with two_brokers(tmp_path) as (etcd, _, brokers), AsyncExitStack() as stack:
        one, other = [
            await stack.enter_async_context(dejaq.connect(f"dejaq://{broker.address}", follow=False))
            for broker in brokers
        ]
        await one.create_topic("mail", buckets=16)
        stays = await stack.enter_async_context(one.consumer("mail", name="stays"))
        async with other.consumer("mail", name="leaves"):
            topic = brokers[0].central.catalog.live("mail")
            await eventually(
                lambda: brokers[0].central.cluster.directory.seats(topic),
                within=5,
                what="the consumer is known at the other broker",
            )
            await etcd.fill()
        producer = await stack.enter_async_context(one.producer("mail"))
        for number in range(100):
            await producer.send(b"x", id=f"m{number}")
        seen: set[str] = set()
        while len(seen) < 100:
            lease = await asyncio.wait_for(anext(stays), patient(5))
            seen.add(lease.id)
            await lease.delete()


async def test_a_full_etcd_has_its_own_error_code_and_brokers_recover_when_space_is_free(tmp_path: Path) -> None:
    """C3: every broker reported that it is healthy, and create_topic ended with NO_BROKER."""
    async with two_brokers(tmp_path) as (etcd, _, brokers):
        await etcd.fill()
        async with dejaq.connect(f"dejaq://{brokers[0].address},{brokers[1].address}") as client:
            started = time.monotonic()
            with pytest.raises(DejaqError) as refused:
                await client.create_topic("mail")
            assert refused.value.code is Code.SYNCHRONIZATION_FULL
            assert time.monotonic() - started < patient(3)
            await eventually(lambda: any(map(complaint, brokers)), within=5, what="a broker reports the full etcd")
            assert all(broker.central.doctor.ready for broker in brokers)
            shown = [why for broker in (await client.info()).brokers for why in broker.degradations]
            assert any("SYNCHRONIZATION_FULL" in why for why in shown)
            await etcd.free_space()
            await eventually(lambda: not any(map(complaint, brokers)), within=5, what="no broker reports a full etcd")
            await client.create_topic("mail")


async def test_a_broker_that_starts_while_etcd_is_full_reports_it_at_once(tmp_path: Path) -> None:
    """C3: a killed broker could not start, and reported that etcd does not answer."""
    async with two_brokers(tmp_path) as (etcd, storage, _):
        await etcd.fill()
        started = time.monotonic()
        with pytest.raises(SynchronizationFull, match="no space left"):
            await broker_of(etcd, "c", storage).start()
        assert time.monotonic() - started < patient(3)
        await etcd.free_space()
        async with broker_of(etcd, "c", storage) as broker:
            assert broker.central.doctor.ready


async def test_an_idle_cluster_hardly_writes_to_etcd(tmp_path: Path) -> None:
    """C4: three idle brokers wrote 60 revisions in 20 seconds."""
    async with two_brokers(tmp_path) as (_, _, brokers):
        place = brokers[0].central.cluster.synchronization
        assert isinstance(place, EtcdSynchronization)
        compared = [0, 0]
        for number, broker in enumerate(brokers):
            await eventually(
                lambda: broker.central.cluster.clocks.offsets_ms(), within=5, what="the clocks are compared"
            )
            compared[number] = broker.central.cluster.rounds
        _, first = await place._read("members/")
        await eventually(
            lambda: all(b.central.cluster.rounds >= n + 3 for b, n in zip(brokers, compared, strict=True)),
            within=20,
            what="every broker has published its record three times",
        )
        _, last = await place._read("members/")
        assert last - first <= 1


async def test_a_full_embedded_etcd_is_compacted_by_its_broker(tmp_path: Path) -> None:
    """C3: no administrator maintains an embedded etcd."""
    own = f"{HOST}:{free_port()}"
    place = EmbeddedSynchronization(data=tmp_path / "etcd", peers=[own], own=own, cluster="x", clock=SystemClock())
    await place.open()
    try:
        assert place.child is not None
        await place.child.stop()
        place.child._options = QUOTA
        server = EtcdCluster(tmp_path)
        server.servers = [place.child]
        await eventually(lambda: place.child is not None and place.child.running, within=5, what="etcd runs again")
        await server.ready()
        await server.fill()

        async def written() -> bool:
            try:
                return await place.put("topics/mail", b"live") is not None
            except DejaqError:
                return False

        await eventually(written, within=20, what="etcd has space again")
        assert place.full is None
    finally:
        await place.close()
