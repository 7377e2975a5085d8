"""A fleet of consumers at three brokers, of which one after the other is replaced while messages fall due."""

from __future__ import annotations

import asyncio
import time

import dejaq
from dejaq.testing.waiting import eventually, patient
from tests.integration.cluster.crew import crew_of
from tests.pace import ResponsiveTime, measured, take_time

FLEET, REPLACED = 90, 90
# Thrice as often as 500 per minute.
REPLACED_PER_SECOND = 25
DUE_PER_SECOND = 100
# A consumer that no notice reached would find its messages by its own check, after up to five seconds. Brokers and
# consumers share the test's event loop, so only the time counts in which that answers.
LATE_MS_MAX = 500


class Fleet:
    """Consumers that delete what they get, and when they got it."""

    def __init__(self, clients: list[dejaq.Client], topic: str) -> None:
        self.clients, self.topic = clients, topic
        # When each message was due and came, in seconds of the wall clock.
        self.came: dict[str, tuple[float, float]] = {}
        self.repeated: list[str] = []
        self._leave: list[asyncio.Event] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.joined = 0

    def join(self) -> None:
        leave = asyncio.Event()
        self._leave.append(leave)
        self._tasks.append(asyncio.create_task(self._consume(len(self._tasks), leave)))

    def replace_oldest(self) -> None:
        self._leave.pop(0).set()
        self.join()

    async def _consume(self, number: int, leave: asyncio.Event) -> None:
        client = self.clients[number % len(self.clients)]
        async with client.consumer(self.topic, name=f"c{number}") as consumer:
            self.joined += 1
            working = asyncio.create_task(self._work(consumer))
            await leave.wait()
            # It takes nothing more, and deletes what it has.
            await consumer.stop()
            await working

    async def _work(self, consumer: dejaq.Consumer) -> None:
        async for lease in consumer:
            if lease.id in self.came:
                self.repeated.append(lease.id)
            self.came[lease.id] = lease.ts / 1_000, time.time()
            await lease.delete()

    async def leave(self) -> None:
        for leave in self._leave:
            leave.set()
        await asyncio.gather(*self._tasks)


async def replace_a_fleet(clients: list[dejaq.Client], topic: str, counted: ResponsiveTime) -> int:
    """The largest lateness while consumers are replaced, in milliseconds; every message comes once and none early."""
    await clients[0].create_topic(topic, buckets=128)
    fleet = Fleet(clients, topic)
    for _ in range(FLEET):
        fleet.join()
    await eventually(lambda: fleet.joined == FLEET, within=20, what="the fleet has joined")
    seconds = REPLACED / REPLACED_PER_SECOND
    count = int(DUE_PER_SECOND * seconds)
    start = time.time_ns() // 1_000_000 + 1_000
    async with clients[0].producer(topic) as producer:
        times = [start + number * 1_000 // DUE_PER_SECOND for number in range(count)]
        ids = [f"m{number}" for number in range(count)]
        (await producer.send_batch([b"x"] * count, at=times, ids=ids)).raise_for_failures()
    for number in range(REPLACED):
        at = start / 1_000 + number / REPLACED_PER_SECOND
        await take_time(max(0.0, at - time.time()))
        fleet.replace_oldest()
    await eventually(lambda: len(fleet.came) == count, within=20, what="every message was delivered")
    async with asyncio.timeout(patient(20)):
        await fleet.leave()
    assert fleet.repeated == []
    assert all(at >= due for due, at in fleet.came.values()), "never early"
    return round(1_000 * max(counted.between(*times) for times in fleet.came.values()))


async def test_replacing_consumers_at_three_brokers_disturbs_no_delivery() -> None:
    """L7: no message waits for the check that a consumer makes by itself, comes twice, or is lost."""
    async with crew_of("a", "b", "c") as crew:
        clients = [dejaq.connect(url, follow=False) for url in crew.urls]
        async with clients[0], clients[1], clients[2], ResponsiveTime() as counted:
            turns = iter("xyz")

            async def attempt() -> int:
                return await replace_a_fleet(clients, f"fleet-{next(turns)}", counted)

            found = await measured(attempt, lambda late_ms: late_ms < LATE_MS_MAX)
            assert found[-1] < LATE_MS_MAX
