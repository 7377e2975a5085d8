"""Live views take a small share of the brokers' time, whatever pages show."""

from __future__ import annotations

import asyncio

from dejaq.web.live.pace import GAP_SECONDS_MAX, PAUSE_SECONDS_MAX, POLL_SECONDS, QUERIES_MAX, TOTAL_SHARE_MAX, LivePace


class Clock:
    """A clock that the test moves; sleeping moves it too."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    def pace(self) -> LivePace:
        return LivePace(sleep=self.sleep, monotonic=lambda: self.now)


async def test_refreshes_take_a_small_share_of_the_time() -> None:
    clock = Clock()
    pace, busy = clock.pace(), 0.0

    async def refresh_often(took: float) -> None:
        nonlocal busy
        for _ in range(50):
            async with pace.refresh():
                clock.now += took
                busy += took

    began = clock.now
    await asyncio.gather(*(refresh_often(took) for took in (0.002, 0.01, 0.05)))
    assert busy / (clock.now - began) < TOTAL_SHARE_MAX * 1.01


async def test_one_slow_view_does_not_stop_the_others_for_long() -> None:
    clock = Clock()
    pace = clock.pace()
    async with pace.refresh():
        clock.now += 60.0
    async with pace.refresh():
        pass
    assert clock.slept == [GAP_SECONDS_MAX]
    await pace.rest(60.0, answered=True)
    await pace.rest(0.001, answered=True)
    await pace.rest(60.0, answered=False)
    assert clock.slept[1:] == [PAUSE_SECONDS_MAX, POLL_SECONDS, POLL_SECONDS]


async def test_only_one_refresh_and_a_few_new_views_run_at_one_time() -> None:
    clock = Clock()
    pace, running, most = clock.pace(), {"first": 0, "refresh": 0}, {"first": 0, "refresh": 0}

    async def ask(kind: str) -> None:
        async with getattr(pace, kind)():
            running[kind] += 1
            most[kind] = max(most[kind], running[kind])
            await asyncio.sleep(0)
            running[kind] -= 1

    await asyncio.gather(*(ask(kind) for kind in ("first", "refresh") for _ in range(20)))
    assert most == {"first": QUERIES_MAX, "refresh": 1}


async def test_a_new_view_does_not_wait_for_the_pause_of_refreshes() -> None:
    clock = Clock()
    pace = clock.pace()
    async with pace.refresh():
        clock.now += 1.0
    waiting = asyncio.ensure_future(_enter(pace))
    async with pace.first():
        pass
    assert clock.slept == []
    await waiting
    assert clock.slept == [GAP_SECONDS_MAX]


async def _enter(pace: LivePace) -> None:
    async with pace.refresh():
        pass
