"""One timer whose time can be changed."""

from __future__ import annotations

import asyncio

from dejaq.timekeeper.alarm import Alarm, within
from dejaq.timekeeper.clock import VirtualClock


class Bell:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.start_ms = self.clock.now_ms()
        self.rang: list[int] = []
        self.alarm = Alarm(self.clock, lambda: self.rang.append(self.clock.now_ms() - self.start_ms))

    def at(self, offset_ms: int) -> None:
        self.alarm.set(self.start_ms + offset_ms)


async def test_an_alarm_rings_once_at_its_time() -> None:
    bell = Bell()
    bell.at(100)
    await bell.clock.advance(99)
    assert bell.rang == []
    await bell.clock.advance(1_000)
    assert bell.rang == [100]


async def test_an_alarm_rings_at_the_time_that_was_set_last() -> None:
    bell = Bell()
    bell.at(500)
    bell.at(100)
    await bell.clock.advance(200)
    assert bell.rang == [100]
    bell.at(300)
    bell.at(900)
    await bell.clock.advance(500)
    assert bell.rang == [100]
    await bell.clock.advance(500)
    assert bell.rang == [100, 900]


async def test_an_alarm_that_was_unset_does_not_ring_and_can_be_set_again() -> None:
    bell = Bell()
    bell.at(100)
    bell.alarm.unset()
    await bell.clock.advance(200)
    assert bell.rang == []
    bell.at(300)
    await bell.clock.advance(200)
    assert bell.rang == [300]
    bell.at(500)
    bell.alarm.close()
    await bell.clock.advance(200)
    assert bell.rang == [300]


async def test_an_alarm_in_the_past_rings_at_once() -> None:
    bell = Bell()
    bell.at(-5)
    await asyncio.sleep(0)
    assert bell.rang == [0]


async def test_within_returns_the_result_or_none_after_the_time_limit() -> None:
    clock = VirtualClock()
    answer: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(within(clock, 1.0, answer))
    await clock.advance(999)
    assert not waiting.done()
    await clock.advance(1)
    assert await waiting is None
    answer.set_result(7)
    assert await within(clock, 1.0, answer) == 7
