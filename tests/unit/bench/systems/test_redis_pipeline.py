"""A connection to Redis that many tasks share, against a server that speaks just enough of the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dejaq.testing.waiting import patient

pytest.importorskip("hiredis", reason="requirements/bench.txt is not installed")
from bench.systems.redis_pipeline import PipelinedRedis


class Echo:
    """Answers every command with its last word, or with an error for FAIL, and ends the connection at QUIT."""

    def __init__(self) -> None:
        self.reads = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        import hiredis

        parser = hiredis.Reader()
        while received := await reader.read(1 << 16):
            self.reads += 1
            parser.feed(received)
            while (command := parser.gets()) is not False:
                if command[0] == b"QUIT":
                    writer.close()
                    return
                answer = b"-ERR refused" if command[0] == b"FAIL" else b"+" + command[-1]
                writer.write(answer + b"\r\n")
        writer.close()


@pytest.fixture
async def echo() -> AsyncIterator[tuple[Echo, PipelinedRedis]]:
    server = Echo()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    connection = PipelinedRedis(listening.sockets[0].getsockname()[1])
    await connection.open()
    yield server, connection
    await connection.close()
    listening.close()


async def test_each_call_gets_its_own_answer_and_calls_of_one_moment_travel_together(
    echo: tuple[Echo, PipelinedRedis],
) -> None:
    server, connection = echo
    async with asyncio.timeout(patient(10)):
        answers = await asyncio.gather(*(connection.call("PING", number) for number in range(100)))
    assert answers == [b"%d" % number for number in range(100)]
    assert server.reads == 1


async def test_an_error_is_raised_for_its_call_only(echo: tuple[Echo, PipelinedRedis]) -> None:
    _, connection = echo
    first, failing, last = connection.call("PING", "a"), connection.call("FAIL"), connection.call("PING", "b")
    async with asyncio.timeout(patient(10)):
        assert await first == b"a"
        with pytest.raises(Exception, match="refused"):
            await failing
        assert await last == b"b"


async def test_calls_fail_when_the_connection_ends(echo: tuple[Echo, PipelinedRedis]) -> None:
    _, connection = echo
    async with asyncio.timeout(patient(10)):
        with pytest.raises(ConnectionError):
            await connection.call("QUIT")
