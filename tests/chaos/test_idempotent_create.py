"""R10: a create that is retried while the broker is killed creates each message exactly once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import dejaq
from dejaq.testing.servers.process import BrokerProcess
from dejaq.testing.waiting import eventually
from tests.chaos.sizes import size

MESSAGES = size("R10", ci=500, full=50_000)
KILLS = size("R10_KILLS", ci=6, full=100)
SENDERS = 8
FAR_MS = 1_900_000_000_000


class Sending:
    """Concurrent senders, half of them with ids of their own; counts the sent and the acknowledged messages."""

    def __init__(self, producer: dejaq.Producer) -> None:
        self._producer = producer
        self._numbers = iter(range(MESSAGES))
        self.natural: list[str] = []
        self.generated: list[str] = []

    @property
    def acknowledged(self) -> int:
        return len(self.natural) + len(self.generated)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as senders:
            for _ in range(SENDERS):
                senders.create_task(self._send())

    async def _send(self) -> None:
        for number in self._numbers:
            body = b"%d" % number
            if number % 2:
                self.generated.append(await self._producer.send(body, delay=3_600))
            else:
                self.natural.append(await self._producer.send(body, at=FAR_MS, id=f"order-{number}"))


async def _kill_now_and_then(broker: BrokerProcess, sending: Sending) -> None:
    for kill in range(1, KILLS + 1):
        due = kill * MESSAGES // (KILLS + 1)
        await eventually(lambda: sending.acknowledged >= due, within=60, what=f"{due} messages are sent", poll=0.001)
        await broker.restart()


@pytest.mark.chaos
async def test_r10_a_create_retried_through_kills_creates_one_message(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """G1, G5: every acknowledged message exists once, whether its id came from the producer or was generated."""
    async with BrokerProcess(tmp_path / "data") as broker, dejaq.connect(broker.url, deadline=60) as client:
        await client.create_topic("mail", buckets=4)
        async with client.producer("mail", group="billing") as producer:
            sending = Sending(producer)
            async with asyncio.TaskGroup() as both:
                both.create_task(sending.run())
                both.create_task(_kill_now_and_then(broker, sending))
            # A repeat by the user, much later: the same id and content is no error and creates no message.
            numbers = [number for number in range(MESSAGES) if number % 2 == 0]
            results = await producer.send_batch(
                [b"%d" % number for number in numbers], at=FAR_MS, ids=[f"order-{number}" for number in numbers]
            )
            assert set(results.codes) == {dejaq.Code.ALREADY_EXISTS}
        assert broker.starts == KILLS + 1
        found = Counter([message.id async for page in client.browse("mail") for message in page])
        bodies = Counter([message.body async for page in client.browse("mail") for message in page])
    record_property("figure", f"{sending.acknowledged} acknowledged through {KILLS} kills, {len(found)} there")
    assert set(found.values()) == {1}
    assert set(bodies.values()) == {1}, "one send created two messages"
    assert set(found) == {*sending.natural, *sending.generated}
    assert len(found) == MESSAGES
