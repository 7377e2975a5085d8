"""A broker in a process of its own can be started, paused, killed and stopped, and never survives its block."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

import pytest

import dejaq
from dejaq.testing.servers.process import HOST, BrokerExited, BrokerProcess, free_port
from dejaq.testing.waiting import eventually, patient
from dejaq.trial import ports


async def test_a_broker_restarts_with_its_address_and_its_data(tmp_path: Path) -> None:
    async with BrokerProcess(tmp_path / "data") as broker:
        url, first = broker.url, broker.pid
        async with dejaq.connect(url) as client:
            await client.create_topic("mail")
        broker.kill()
        assert broker.exit_code == -signal.SIGKILL
        await broker.restart()
        assert (broker.url, broker.starts) == (url, 2)
        assert broker.pid != first
        async with dejaq.connect(url) as client:
            assert [topic.name for topic in await client.topics()] == ["mail"]
        assert broker.log().count("serving") == 2


async def test_a_broker_stops_on_a_signal() -> None:
    async with BrokerProcess() as broker:
        broker.terminate()
        assert await broker.exited() == 0
        with pytest.raises(BrokerExited):
            broker.terminate()


async def test_a_paused_broker_does_not_answer() -> None:
    async with BrokerProcess() as broker:
        broker.pause()
        assert broker.running
        with pytest.raises(dejaq.DejaqError):
            await dejaq.connect(broker.url, deadline=0.3, timeout=0.3).open()
        broker.resume()
        await broker.ready()


async def test_a_broker_process_ends_with_its_block() -> None:
    with pytest.raises(ZeroDivisionError) as error:
        async with BrokerProcess() as broker:
            raise ZeroDivisionError
    with pytest.raises(ProcessLookupError):
        os.kill(broker.pid, 0)
    assert "serving" in error.value.__notes__[0]


async def test_a_broker_that_cannot_start_reports_the_reason() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        broker = BrokerProcess(port=taken.getsockname()[1])
        with pytest.raises(BrokerExited, match="PORT_TAKEN"):
            await broker.__aenter__()


async def test_a_crash_point_kills_the_broker(tmp_path: Path) -> None:
    async with BrokerProcess(tmp_path / "data", env={"DEJAQ_CRASH_AT": "storage.before_write:1"}) as broker:
        with pytest.raises(dejaq.DejaqError):
            async with dejaq.connect(broker.url, deadline=patient(2)) as client:
                await client.create_topic("mail")
        assert await broker.exited() == -signal.SIGKILL


def test_a_free_port_is_outside_the_range_of_outgoing_connections() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert free_port() < lowest


BLOCKS_ITS_LOOP = """
import time
from dejaq.broker.doctor import Doctor
examine, left = Doctor._examine_memory, [2]
def slow(self):
    examine(self)
    left[0] -= 1
    until = time.thread_time() + (0.5 if left[0] >= 0 else 0)
    while time.thread_time() < until:
        pass
Doctor._examine_memory = slow
"""


async def test_a_broker_that_blocks_its_event_loop_fails_its_test() -> None:
    broker = BrokerProcess(prelude=BLOCKS_ITS_LOOP)
    with pytest.raises(AssertionError, match=r"the event loop of the broker was blocked for \d{3}"):
        async with broker:
            await eventually(lambda: "was blocked" in broker.log(), within=20, what="the watchdog reports it")


async def test_a_test_may_allow_longer_blocks() -> None:
    async with BrokerProcess(prelude=BLOCKS_ITS_LOOP, block_cpu_ms_max=60_000) as broker:
        await eventually(lambda: "was blocked" in broker.log(), within=20, what="the watchdog reports it")


async def test_a_free_port_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process chose the same port before the first one listened on it, and one of them did not start."""
    first = free_port()
    monkeypatch.setattr(ports, "_PORTS", [first])
    with pytest.raises(OSError, match="no free port"):
        free_port()
    server = await asyncio.start_server(lambda reader, writer: None, HOST, first)
    server.close()
    await server.wait_closed()
