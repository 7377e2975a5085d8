"""Single sends, against a server that only counts."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import Counter

import pytest
from bench.harness.orders import SingleSends
from bench.harness.payload import Load
from bench.harness.single_sends import send_singly
from bench.systems.base import Refused

LOAD = Load(count=100, start_ms=1_000, scatter_ms=3_600_000)


class CountingSender:
    def __init__(self, *, room: int = 1_000) -> None:
        self.room = room
        self.sent: dict[str, int] = {}
        self.producers: Counter[int] = Counter()
        self.busy: set[int] = set()
        self.opened = self.closed = False

    async def open(self, *, connections: int, producers: int) -> None:
        self.opened = True

    async def send(self, producer: int, message_id: str, body: bytes, due_ms: int) -> None:
        assert producer not in self.busy, "a producer waits for its acknowledgement"
        self.busy.add(producer)
        await asyncio.sleep(0)
        self.busy.remove(producer)
        if len(self.sent) >= self.room:
            raise Refused("full")
        self.sent[message_id] = due_ms
        self.producers[producer] += 1

    async def close(self) -> None:
        self.closed = True


def order(process: int = 0, *, processes: int = 1, seconds_max: float = 60.0) -> SingleSends:
    return SingleSends(
        load=LOAD, process=process, processes=processes, connections=2, producers=5, seconds_max=seconds_max
    )


async def test_every_producer_sends_its_share_and_each_message_is_sent_once() -> None:
    sender = CountingSender()
    done = await send_singly(sender, order(), time.time_ns)
    assert sender.sent == {LOAD.id_of(row): LOAD.due_ms(row) for row in range(100)}
    assert set(sender.producers.values()) == {20}
    assert (done.count, len(array("q", done.late_us)), done.refused) == (100, 100, 0)
    assert sender.closed


async def test_processes_share_the_load() -> None:
    first, second = CountingSender(), CountingSender()
    await send_singly(first, order(0, processes=2), time.time_ns)
    await send_singly(second, order(1, processes=2), time.time_ns)
    assert (len(first.sent), len(second.sent), len(first.sent | second.sent)) == (50, 50, 100)


async def test_a_producer_stops_when_it_is_refused_and_that_is_counted() -> None:
    done = await send_singly(CountingSender(room=40), order(), time.time_ns)
    assert (done.count, done.refused) == (40, 5)


async def test_the_time_ends_the_work() -> None:
    done = await send_singly(CountingSender(), order(seconds_max=-1.0), time.time_ns)
    assert done.count == 0


async def test_an_error_is_raised_and_the_sender_is_closed() -> None:
    class Broken(CountingSender):
        async def send(self, producer: int, message_id: str, body: bytes, due_ms: int) -> None:
            raise ConnectionError("gone")

    sender = Broken()
    with pytest.raises(ConnectionError):
        await send_singly(sender, order(), time.time_ns)
    assert sender.closed
