"""The watchdog of the event loop: what it measures, logs and reports."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dejaq.broker.loop import watchdog
from dejaq.broker.loop.watchdog import Watchdog
from dejaq.testing.waiting import eventually

BLOCK_MS = 20


@contextmanager
def watching(*, lag_ms_max: int = 0, block_ms: int = BLOCK_MS) -> Iterator[tuple[Watchdog, dict[str, str | None]]]:
    """A watchdog of the running loop, and what it reports."""
    reported: dict[str, str | None] = {}
    dog = Watchdog(block_ms=block_ms, lag_ms_max=lag_ms_max, report=reported.__setitem__)
    dog.start()
    try:
        yield dog, reported
    finally:
        dog.stop()


def block(cpu_ms: float) -> bool:
    """Use the processor, and give nothing else a turn; never true."""
    until = time.thread_time() + cpu_ms / 1_000
    while time.thread_time() < until:
        pass
    return False


def blocks_of(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if hasattr(record, "cpu_ms")]


async def test_the_stack_of_what_blocks_the_loop_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with watching():
        await eventually(lambda: block(120) or blocks_of(caplog), within=10, what="the block is logged", poll=0.001)
    record = blocks_of(caplog)[0]
    assert record.levelno == logging.WARNING
    assert "while time.thread_time() < until" in record.getMessage()
    assert vars(record)["cpu_ms"] >= BLOCK_MS / 2


async def test_one_place_is_logged_as_a_warning_only_once_per_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with watching():
        await eventually(
            lambda: block(120) or len(blocks_of(caplog)) >= 6, within=20, what="blocks are logged", poll=0.001
        )
    places = [record for record in blocks_of(caplog) if record.levelno == logging.WARNING]
    # The loop of `block` has two lines.
    assert 1 <= len(places) <= 3


async def test_a_loop_that_waits_is_not_blocked(caplog: pytest.LogCaptureFixture) -> None:
    """Without processor time nothing is said about the code: other processes may have the processor."""
    with watching() as (dog, _):
        await eventually(lambda: dog.lag.cumulative()[-1][1] >= 8, within=10, what="the loop answers")
    assert not [record for record in blocks_of(caplog) if record.levelno == logging.WARNING]


async def test_the_lag_is_a_histogram() -> None:
    with watching() as (dog, _):
        await eventually(lambda: block(60) or dog.lag.sum_ms > 50, within=10, what="lag is measured")
    counts = dog.lag.cumulative()
    assert [bound for bound, _ in counts][-1] == "+Inf"
    assert counts == sorted(counts, key=lambda one: one[1])


async def test_a_slow_loop_is_reported_until_it_is_fast_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """G7: an operator sees that the broker cannot keep up."""
    monkeypatch.setattr(watchdog, "SLOW_LAGS_MIN", 3)
    with watching(lag_ms_max=100) as (_, reported):
        await eventually(
            lambda: block(400) or reported.get("event_loop"), within=20, what="a slow loop is reported", poll=0.001
        )
        await eventually(lambda: reported["event_loop"] is None, within=20, what="the loop is fast again")


async def test_a_long_garbage_collection_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops all threads, so the stack of the loop would name the wrong place."""
    with watching(block_ms=1):
        heap = [[number] for number in range(300_000)]
        await eventually(
            lambda: (gc.collect() and False) or "a garbage collection of generation 2" in caplog.text,
            within=10,
            what="the collection is logged",
        )
        del heap


async def test_the_place_where_the_loop_was_most_of_the_time_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The first look may find a harmless step that was followed by a long one."""

    def short_and_long() -> bool:
        until = time.thread_time() + 0.03
        while time.thread_time() < until:
            pass
        return block(300)

    with watching():
        await eventually(lambda: short_and_long() or blocks_of(caplog), within=20, what="a block is logged", poll=0.001)
    assert "in block\n" in blocks_of(caplog)[0].getMessage()


def test_a_loop_that_the_program_does_not_run_is_not_blocked(caplog: pytest.LogCaptureFixture) -> None:
    """A program may run its loop from time to time, as `asyncio.Runner` allows."""
    caplog.set_level(logging.DEBUG)

    async def watch() -> Watchdog:
        dog = Watchdog(block_ms=BLOCK_MS, lag_ms_max=0)
        dog.start()
        return dog

    async def answered(dog: Watchdog, count: float) -> None:
        await eventually(lambda: dog.lag.cumulative()[-1][1] >= count, within=10, what="the loop answers")

    async def stop(dog: Watchdog) -> None:
        dog.stop()

    with asyncio.Runner() as runner:
        dog = runner.run(watch())
        runner.run(answered(dog, 1))
        block(200)
        runner.run(answered(dog, dog.lag.cumulative()[-1][1] + 1))
        runner.run(stop(dog))
    assert not blocks_of(caplog)


async def test_without_a_limit_nothing_is_watched() -> None:
    with watching(block_ms=0) as (dog, _):
        assert dog.lag.cumulative()[-1][1] == 0


async def test_a_watchdog_ends_while_the_loop_is_blocked() -> None:
    """The loop waits for the thread, so the thread must not wait for the loop."""
    with watching() as (dog, _):
        await eventually(lambda: dog.lag.cumulative()[-1][1] >= 1, within=10, what="the loop answers")
        block(60)
    began = time.monotonic()
    dog.stop()
    assert time.monotonic() - began < 5
