"""R1, R5, R6, R7, R10 and R13 for three brokers on a real PostgreSQL and real servers of etcd, each a process."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import pytest

import dejaq
from dejaq.testing.history.workload import Workload
from dejaq.testing.servers.brokers import BrokerCluster
from dejaq.testing.servers.etcd import EtcdCluster
from dejaq.testing.servers.gate import Gate
from dejaq.testing.servers.postgres import PostgresServer
from dejaq.testing.waiting import eventually, patient
from tests.chaos.loading import progressed, under_load
from tests.chaos.sizes import FULL, size
from tests.pace import measured

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("cluster")]

# The default of `offset_ms_max`.
OFFSET_MS_MAX = 100
SKEWS_MS = [1_000, -1_000, 3_600_000, -3_600_000] if FULL else [1_000, -3_600_000]
JUMPS = size("CLOCK_JUMPS", ci=1, full=12)
KILLS = size("CLUSTER_KILLS", ci=3, full=100)
SERVED_AGAIN_SECONDS = 6.0


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    cluster = EtcdCluster(tmp_path_factory.mktemp("etcd"), size=3)
    try:
        asyncio.run(cluster.start())
        yield cluster
    finally:
        cluster.kill()


@pytest.fixture
async def brokers(postgres: PostgresServer, etcd: EtcdCluster) -> AsyncIterator[BrokerCluster]:
    async with BrokerCluster(postgres.dsn, etcd.url) as cluster:
        yield cluster


async def test_r1_r10_brokers_are_killed_one_after_the_other(brokers: BrokerCluster) -> None:
    """G1 to G5: whichever broker is killed, the others continue, and it returns under the same name."""

    async def faults(workload: Workload) -> None:
        for number in range(KILLS):
            await progressed(workload, (number + 1) / (KILLS + 2))
            await brokers.brokers[number % len(brokers.brokers)].restart()

    await under_load(brokers, faults)


async def test_r6_a_broker_that_is_paused_beyond_its_membership_does_no_harm(brokers: BrokerCluster) -> None:
    """G3, G7: paused longer than its membership lasts and then resumed, it acknowledges nothing that it may not."""

    async def faults(workload: Workload) -> None:
        await progressed(workload, 0.2)
        paused = brokers.brokers[0]
        paused.pause()

        async def vanished() -> bool:
            info = await brokers.info(1)
            return info is not None and len(info.brokers) == len(brokers.brokers) - 1

        await eventually(vanished, within=15, what="the others no longer list the broker as a member", poll=0.1)
        paused.resume()
        await brokers.whole(within=20)

    await under_load(brokers, faults)


async def test_r5_a_broker_that_is_cut_off_from_etcd_stops_and_recovers(
    postgres: PostgresServer, etcd: EtcdCluster
) -> None:
    """G7: the broker reports that it is cut off and refuses clients, which use other brokers; later it recovers."""
    async with AsyncExitStack() as stack:
        gates = [await stack.enter_async_context(Gate(address)) for address in etcd.addresses]
        around = f"etcd://{','.join(gate.address for gate in gates)}"
        cluster = BrokerCluster(postgres.dsn, lambda number: around if number == 0 else etcd.url)
        await stack.enter_async_context(cluster)

        async def faults(workload: Workload) -> None:
            await progressed(workload, 0.2)
            for gate in gates:
                gate.close()

            async def said() -> bool:
                info = await cluster.info(0)
                return info is not None and any("cut off" in why for why in info.brokers[0].degradations)

            await eventually(said, within=15, what="the broker reports that it is cut off", poll=0.1)
            for gate in gates:
                gate.open()
            await cluster.whole(within=20)

        await under_load(cluster, faults)


async def test_r5_a_broker_that_is_cut_off_from_its_storage_stops_and_recovers(
    postgres: PostgresServer, etcd: EtcdCluster
) -> None:
    """G7: without its storage the broker acknowledges nothing; the other brokers continue."""
    async with AsyncExitStack() as stack:
        gate = await stack.enter_async_context(Gate(f"127.0.0.1:{postgres.port}"))
        around = postgres.dsn.replace(f":{postgres.port}/", f":{gate.port}/")
        cluster = BrokerCluster(lambda number: around if number == 0 else postgres.dsn, etcd.url)
        await stack.enter_async_context(cluster)

        async def faults(workload: Workload) -> None:
            await progressed(workload, 0.2)
            gate.close()
            await progressed(workload, 0.6)
            gate.open()
            await cluster.whole(within=60)

        await under_load(cluster, faults)


async def test_r13_deliveries_do_not_pause_when_the_leader_of_etcd_is_killed(
    brokers: BrokerCluster, etcd: EtcdCluster
) -> None:
    """G7: memberships last longer than the election, so every broker continues to serve."""
    gap = 0.0

    async def faults(workload: Workload) -> None:
        nonlocal gap
        await progressed(workload, 0.2)
        dead = await etcd.kill_leader()
        last, deleted, until = time.monotonic(), workload.deleted, time.monotonic() + 4
        while time.monotonic() < until:
            await eventually(lambda: workload.deleted > deleted or time.monotonic() > until, within=5, poll=0.005)
            gap = max(gap, time.monotonic() - last)
            last, deleted = time.monotonic(), workload.deleted
        dead.start()
        await etcd.ready()

    await under_load(brokers, faults)
    assert gap < 1.5, f"delivery paused for {gap:.2f} s"


async def test_r13_without_a_quorum_of_etcd_no_broker_serves_until_the_quorum_returns(
    brokers: BrokerCluster, etcd: EtcdCluster
) -> None:
    """G7: consistency over availability; every broker reports that it is cut off, and all recover by themselves."""

    async def faults(workload: Workload) -> None:
        await progressed(workload, 0.2)
        dead = [await etcd.kill_leader()]
        survivor = next(server for server in etcd.servers if server.running)
        survivor.kill()
        dead.append(survivor)

        async def said() -> bool:
            infos = [await brokers.info(number) for number in range(len(brokers.brokers))]
            return all(info is not None and info.brokers[0].degradations for info in infos)

        await eventually(said, within=15, what="every broker reports that it is cut off", poll=0.1)
        acknowledged = workload.acknowledged
        for server in dead:
            server.start()
        await etcd.ready()
        await brokers.whole(within=30)
        await eventually(lambda: workload.acknowledged > acknowledged, within=30, what="deliveries continue")

    await under_load(brokers, faults)


async def test_r13_brokers_continue_after_a_crash_of_postgresql(
    brokers: BrokerCluster, postgres: PostgresServer
) -> None:
    """G1, G7: the server is killed and started again; no acknowledged message is lost, and the brokers continue."""

    async def faults(workload: Workload) -> None:
        await progressed(workload, 0.3)
        await asyncio.to_thread(postgres.kill)
        await asyncio.to_thread(postgres.start)
        await brokers.whole(within=60)

    await under_load(brokers, faults)


@pytest.mark.parametrize("point", ["broker.before_ack", "broker.after_ack", "broker.before_push", "broker.after_push"])
async def test_r4_a_broker_is_killed_at_a_named_point(point: str, brokers: BrokerCluster) -> None:
    """G1 to G5: after a kill at the worst moments, too, the others continue, and no message is lost or duplicated."""
    doomed = brokers.brokers[0]
    await doomed.restart(env={"DEJAQ_CRASH_AT": f"{point}:15"})
    await brokers.whole()

    async def faults(workload: Workload) -> None:
        assert await doomed.exited(within=60) == -signal.SIGKILL, f"{point} was not reached"
        await doomed.restart()

    await under_load(brokers, faults)


SKEWED = """
import time, pathlib
from dejaq.timekeeper import clock
_file = pathlib.Path({path!r})
class Skewed(clock.SystemClock):
    def __init__(self):
        super().__init__()
        self.identity = "skewed"
    def now_us(self):
        return time.time_ns() // 1_000 + int(_file.read_text()) * 1_000
    def now_ms(self):
        return self.now_us() // 1_000
clock.SystemClock = Skewed
"""


@pytest.mark.parametrize("skew_ms", SKEWS_MS)
async def test_r7_a_broker_whose_clock_is_wrong_stops_serving(
    skew_ms: int, postgres: PostgresServer, etcd: EtcdCluster, tmp_path: Path
) -> None:
    """G2, G3, G7: beyond the limit the broker refuses clients, and no message is early; set right, it recovers."""
    clock = tmp_path / "skew"
    set_clock(clock, 0)
    preludes = [SKEWED.format(path=str(clock)), "", ""]
    async with BrokerCluster(postgres.dsn, etcd.url, preludes=preludes) as cluster:

        async def faults(workload: Workload) -> None:
            for number in range(JUMPS):
                await jump(workload, (number + 1) / (JUMPS + 2))

        async def jump(workload: Workload, share: float) -> None:
            await progressed(workload, share)
            set_clock(clock, skew_ms)

            async def said() -> bool:
                info = await cluster.info(0)
                return info is not None and any("set it right" in why for why in info.brokers[0].degradations)

            await eventually(said, within=15, what="the broker reports that its clock is wrong", poll=0.1)
            others = [await cluster.info(number) for number in (1, 2)]
            assert all(info is not None and not info.brokers[0].degradations for info in others)
            set_clock(clock, 0)
            await cluster.whole(within=30)

        await under_load(cluster, faults)


@pytest.mark.parametrize("skew_ms", [10, -10] if FULL else [10])
async def test_r7_a_broker_whose_clock_is_wrong_within_the_limit_serves(
    skew_ms: int, postgres: PostgresServer, etcd: EtcdCluster, tmp_path: Path
) -> None:
    """G2: no message is early by more than the clocks may differ, and no broker stops."""
    clock = tmp_path / "skew"
    set_clock(clock, 0)
    preludes = [SKEWED.format(path=str(clock)), "", ""]
    async with BrokerCluster(postgres.dsn, etcd.url, preludes=preludes) as cluster:

        async def faults(workload: Workload) -> None:
            await progressed(workload, 0.2)
            set_clock(clock, skew_ms)
            await progressed(workload, 0.6)
            await cluster.whole()

        await under_load(cluster, faults, early_us_max=OFFSET_MS_MAX * 1_000)


def set_clock(file: Path, skew_ms: int) -> None:
    """Replace the file in one step, because the broker may read it at any moment."""
    aside = file.with_suffix(".new")
    aside.write_text(str(skew_ms))
    aside.replace(file)


async def test_the_buckets_of_a_dead_broker_are_served_again_in_time(brokers: BrokerCluster) -> None:
    """G4: other consumers get the messages of the killed broker's consumers within 6 s."""
    numbers = count()

    async def seconds() -> float:
        took = await served_again(brokers, f"mail-{next(numbers)}")
        await brokers.brokers[0].restart()
        await brokers.whole()
        return took

    found = await measured(seconds, lambda one: one < SERVED_AGAIN_SECONDS)
    assert found[-1] < SERVED_AGAIN_SECONDS, f"served again after {found} s"


async def served_again(brokers: BrokerCluster, topic: str) -> float:
    """Kill the broker of one consumer, and return the seconds until the other has received all messages."""
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(dejaq.connect(broker.url, follow=False)) for broker in brokers.brokers[:2]
        ]
        await clients[1].create_topic(topic, buckets=8)
        doomed, safe = (client.consumer(topic, name=f"at-{n}", lease=1) for n, client in enumerate(clients))
        await stack.enter_async_context(safe)
        await doomed.open()
        producer = await stack.enter_async_context(clients[1].producer(topic))

        async def shared() -> bool:
            info = await brokers.info(1)
            return info is not None and sorted(len(client.buckets) for client in info.clients)[-2:] == [4, 4]

        await eventually(shared, within=10, what="the buckets are shared", poll=0.05)
        brokers.brokers[0].kill()
        died = time.monotonic()
        ids = {f"m-{number}" for number in range(64)}
        assert (await producer.send_batch([b"x"] * 64, ids=sorted(ids), delay=0)).ok
        async with asyncio.timeout(patient(60)):
            while ids:
                lease = await anext(safe)
                ids.discard(lease.id)
                await lease.delete()
        took = time.monotonic() - died
        await asyncio.gather(doomed.close(), return_exceptions=True)
    return took
