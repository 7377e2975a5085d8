"""The etcd that a broker starts itself: three machines form a cluster, one is lost and replaced, one is added."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
from pathlib import Path

from dejaq.synchronization.embedded import EmbeddedSynchronization
from dejaq.testing.servers.process import HOST, free_port
from dejaq.testing.waiting import eventually
from dejaq.timekeeper.clock import SystemClock


def free_pair() -> str:
    """A port whose successor is also free."""
    while True:
        port = free_port()
        try:
            with socket.socket() as probe:
                probe.bind((HOST, port + 1))
            return f"{HOST}:{port}"
        except OSError:
            continue


def machine(path: Path, peers: list[str], own: str) -> EmbeddedSynchronization:
    return EmbeddedSynchronization(
        data=path / own.replace(":", "-"), peers=peers, own=own, cluster="home", clock=SystemClock()
    )


async def test_three_machines_form_a_cluster_and_one_is_replaced(tmp_path: Path) -> None:
    peers = [free_pair() for _ in range(3)]
    machines = [machine(tmp_path, peers, own) for own in peers]
    try:
        await asyncio.gather(*(each.open() for each in machines))
        assert await machines[0].put("topics/mail", b"live", expected=0) is not None
        record = await machines[2].get("topics/mail")
        assert record is not None

        # The machine loses its disk: it starts with an empty directory and joins again.
        await machines[2].close()
        shutil.rmtree(tmp_path / peers[2].replace(":", "-"))
        machines[2] = machine(tmp_path, peers, peers[2])
        await machines[2].open()
        assert await machines[2].get("topics/mail") == record

        # The test adds a fourth machine to the list.
        wider = [*peers, free_pair()]
        machines.append(machine(tmp_path, wider, wider[3]))
        await machines[3].open()
        assert await machines[3].get("topics/mail") == record
    finally:
        await asyncio.gather(*(each.close() for each in machines))


async def test_an_etcd_that_dies_is_started_again(tmp_path: Path) -> None:
    own = free_pair()
    place = machine(tmp_path, [own], own)
    await place.open()
    try:
        await place.put("topics/mail", b"live")
        child = place.child
        assert child is not None
        pid = child.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: child.pid not in (None, pid), within=10, what="a new etcd runs")
        await eventually(lambda: place.failure is None, within=10, what="the membership is valid")
        record = await place.get("topics/mail")
        assert record is not None
        assert record.value == b"live"
    finally:
        await place.close()
