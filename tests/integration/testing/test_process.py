"""A broker in a process of its own can be started, paused, killed and asked to stop, and never outlives its block."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

import dejaq
from dejaq.testing.process import HOST, BrokerExited, BrokerProcess, free_port


async def test_it_comes_back_with_its_address_and_its_data(tmp_path: Path) -> None:
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


async def test_it_stops_by_itself_when_asked_to() -> None:
    async with BrokerProcess() as broker:
        broker.terminate()
        assert await broker.exited() == 0
        with pytest.raises(BrokerExited):
            broker.terminate()


async def test_while_paused_it_answers_nobody() -> None:
    async with BrokerProcess() as broker:
        broker.pause()
        assert broker.running
        with pytest.raises(dejaq.DejaqError):
            await dejaq.connect(broker.url, deadline=0.3, timeout=0.3).open()
        broker.resume()
        await broker.ready()


async def test_it_does_not_outlive_its_block() -> None:
    with pytest.raises(ZeroDivisionError) as error:
        async with BrokerProcess() as broker:
            raise ZeroDivisionError
    with pytest.raises(ProcessLookupError):
        os.kill(broker.pid, 0)
    assert "serving" in error.value.__notes__[0]


async def test_one_that_cannot_start_says_why() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        broker = BrokerProcess(port=taken.getsockname()[1])
        with pytest.raises(BrokerExited, match="PORT_TAKEN"):
            await broker.__aenter__()


async def test_a_crash_point_kills_it(tmp_path: Path) -> None:
    async with BrokerProcess(tmp_path / "data", env={"DEJAQ_CRASH_AT": "storage.before_write:1"}) as broker:
        with pytest.raises(dejaq.DejaqError):
            async with dejaq.connect(broker.url, deadline=0.5) as client:
                await client.create_topic("mail")
        assert await broker.exited() == -signal.SIGKILL


def test_a_free_port_is_none_that_an_outgoing_connection_can_have() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert free_port() < lowest
