from __future__ import annotations

import asyncio
import inspect

import pytest
from bench.harness.window import Window


async def test_no_more_calls_than_the_limit_are_in_flight() -> None:
    open_calls, most = 0, 0

    async def call() -> None:
        nonlocal open_calls, most
        open_calls += 1
        most = max(most, open_calls)
        await asyncio.sleep(0)
        open_calls -= 1

    window = Window(3)
    for _ in range(20):
        await window.add(call())
    await window.drain()
    assert (most, open_calls) == (3, 0)


async def test_a_failure_is_raised_by_the_drain() -> None:
    async def fail() -> None:
        raise RuntimeError("refused")

    window = Window(2)
    await window.add(fail())
    with pytest.raises(RuntimeError, match="refused"):
        await window.drain()


async def test_a_call_that_cannot_start_is_closed() -> None:
    blocked = asyncio.Event()
    window = Window(1)
    await window.add(blocked.wait())

    async def call() -> None:
        raise AssertionError("it must not run")

    waiting = call()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await window.add(waiting)
    assert inspect.getcoroutinestate(waiting) == inspect.CORO_CLOSED
    blocked.set()
    await window.drain()
