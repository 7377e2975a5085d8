"""Slow work, against a queue in memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence

import pytest
from bench.harness.payload import Batch
from bench.systems.catalog import SLOW_CONSUMERS
from bench.workloads.sizes import TINY, changed
from bench.workloads.slow_work import FAST, SLOW, batch_of, measure

from dejaq.testing.waiting import patient

SIZES = changed(TINY, ["slow_messages=20000", "slow_held=40", "slow_seconds=0", "slow_seconds_max=60"])


class QueueTaken:
    def __init__(self, queue: QueueInMemory, bodies: Sequence[bytes]) -> None:
        self.bodies = bodies
        self._queue = queue

    async def delete(self, positions: Sequence[int]) -> None:
        assert all(self.bodies[position].startswith(FAST) for position in positions)
        self._queue.deleted += len(positions)

    def keep(self, positions: Sequence[int]) -> None:
        kept = [self.bodies[position] for position in positions]
        assert all(body.startswith(SLOW) for body in kept)
        self._queue.kept += kept
        if self._queue.forgets and kept:
            self._queue.lost += 1
            self._queue.waiting.put_nowait(kept[:1])


class QueueInMemory:
    """Delivers at once; one that `forgets` loses a lease of every batch and delivers its message again."""

    def __init__(self, *, forgets: bool = False) -> None:
        self.forgets = forgets
        self.waiting: asyncio.Queue[Sequence[bytes]] = asyncio.Queue()
        self.kept: list[bytes] = []
        self.deleted = self.lost = 0
        self.closed = False

    async def open(self, *, lease_seconds: float, held: int) -> None: ...

    async def send(self, batch: Batch) -> None:
        self.waiting.put_nowait(batch.bodies)

    async def taken(self) -> AsyncIterator[QueueTaken]:
        while True:
            yield QueueTaken(self, await self.waiting.get())
            self.forgets = False

    async def delete_kept(self) -> int:
        return self.lost

    async def close(self) -> None:
        self.closed = True


async def run(queue: QueueInMemory, monkeypatch: pytest.MonkeyPatch) -> dict[str, float | int | None]:
    monkeypatch.setitem(SLOW_CONSUMERS, "memory", lambda _: queue)
    async with asyncio.timeout(patient(60)):
        return await measure("memory", "", os.getpid(), SIZES)


async def test_held_messages_stay_and_all_others_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = QueueInMemory()
    figures = await run(queue, monkeypatch)
    assert len(queue.kept) == len(set(queue.kept)) == 40
    assert queue.deleted == figures["passed"] == 20_000 - 40
    assert (figures["held_leases"], figures["lost_leases"], figures["redelivered"]) == (40, 0, 0)
    assert queue.closed


async def test_a_lost_lease_and_a_message_that_comes_again_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = await run(QueueInMemory(forgets=True), monkeypatch)
    assert (figures["lost_leases"], figures["redelivered"]) == (1, 1)


async def test_a_consumer_that_fails_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(QueueInMemory):
        async def taken(self) -> AsyncIterator[QueueTaken]:
            raise ConnectionError("the broker is gone")
            yield

    queue = Broken()
    with pytest.raises(ConnectionError, match="the broker is gone"):
        await run(queue, monkeypatch)
    assert queue.closed


def test_the_held_messages_are_spread_over_the_first_tenth() -> None:
    slow = [sum(body.startswith(SLOW) for body in batch_of(number, SIZES).bodies) for number in range(20)]
    assert slow == [20, 20] + [0] * 18
    batches = [batch_of(number, SIZES) for number in range(20)]
    assert len({message_id for batch in batches for message_id in batch.ids}) == 20_000
