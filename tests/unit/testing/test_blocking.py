"""A long step of a broker fails its test; many short steps, and a garbage collection, do not."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from types import FunctionType

from dejaq.broker.loop.watchdog import Watchdog
from tests.blocking import limited_blocks
from tests.pace import take_time

CODE = """
def work(seconds):
    until = clock() + seconds
    while clock() < until:
        pass

def collect():
    work(0.002)
    gc.collect()
"""


def of_a_broker(name: str) -> Callable[..., None]:
    """A function whose file is one of the broker's."""
    place = {"clock": time.thread_time, "gc": gc}
    exec(compile(CODE, "/src/dejaq/broker/delivery/planted.py", "exec"), place)
    made = place[name]
    assert isinstance(made, FunctionType)
    return made


async def blocks_of(callbacks: list[Callable[[], None]]) -> list[str]:
    """What is found while these run in one turn of the event loop."""
    loop = asyncio.get_running_loop()
    with limited_blocks() as found:
        watchdog = Watchdog(block_ms=20, lag_ms_max=0)
        watchdog.start()
        for one in callbacks:
            loop.call_soon(one)
        await take_time(0.5)
        watchdog.stop()
        return list(found)


async def test_a_long_step_is_found() -> None:
    work = of_a_broker("work")
    found = [await blocks_of([lambda: work(0.12)]) for _ in range(3)]
    assert any(found)
    assert "planted.py" in next(one[0] for one in found if one)


async def test_many_short_steps_are_not() -> None:
    work = of_a_broker("work")
    assert await blocks_of([lambda: work(0.004)] * 40) == []


async def test_a_garbage_collection_is_not() -> None:
    kept = [{"a": [number]} for number in range(400_000)]
    assert await blocks_of([of_a_broker("collect")]) == []
    assert kept
