"""R1 for transactions: a broker that is killed while consumers take messages, work and produce."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import dejaq
from dejaq.testing.servers.process import BrokerProcess
from dejaq.testing.waiting import eventually
from tests.chaos.sizes import new_seed, size

CYCLES = size("STEPS", ci=4, full=100)
MESSAGES = size("STEPS_MESSAGES", ci=600, full=20_000)
WORKERS = 3
IN, OUT, LOG = "orders", "invoices", "log"


class Shop:
    """Turns each order into an invoice and an entry in the log, in one transaction."""

    def __init__(self, client: dejaq.Client) -> None:
        self._client = client
        self.done = 0
        self.lost = 0

    async def fill(self) -> None:
        async with self._client.producer(IN) as producer:
            results = await producer.send_batch([b"%d" % number for number in range(MESSAGES)])
            assert results.ok

    async def work(self, name: str) -> None:
        async with self._client.consumer(IN, name=name, lease=0.5, max_in_flight=20) as consumer:
            async for lease in consumer:
                try:
                    async with self._client.transaction() as t:
                        t.delete(lease)
                        # Each try uses new ids, so only the name of the transaction prevents a second invoice.
                        t.send(OUT, lease.body)
                        t.send(LOG, lease.body, delay=3_600)
                    self.done += 1
                except dejaq.Conflict as refused:
                    assert refused.code is dejaq.Code.LEASE_LOST
                    self.lost += 1

    async def numbers(self, topic: str) -> Counter[int]:
        return Counter([int(m.body) async for page in self._client.browse(topic) for m in page])


@pytest.mark.chaos
async def test_every_input_becomes_one_output_though_the_broker_is_killed(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """G10: whatever the broker did when it was killed, each order leads to one invoice and one entry."""
    seed = new_seed()
    chance = random.Random(seed)
    async with BrokerProcess(tmp_path / "data") as broker, dejaq.connect(broker.url, deadline=60) as client:
        for topic in (IN, OUT, LOG):
            await client.create_topic(topic, buckets=8)
        shop = Shop(client)
        await shop.fill()
        workers = [asyncio.create_task(shop.work(f"worker-{number}")) for number in range(WORKERS)]
        for cycle in range(CYCLES):
            due = round((cycle + chance.random()) * MESSAGES / (CYCLES + 1))
            await eventually(lambda: shop.done >= due, within=60, what=f"{due} orders are processed", poll=0.001)
            await broker.restart()

        async def drained() -> bool:
            assert not any(worker.done() for worker in workers), "a worker failed"
            return await client.count(IN) == 0

        await eventually(drained, within=60, what="every order is processed")
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        expected = Counter(range(MESSAGES))
        record_property("figure", f"{CYCLES} kills, {MESSAGES} inputs, {shop.lost} too late")
        assert await shop.numbers(OUT) == expected, f"seed {seed}"
        assert await shop.numbers(LOG) == expected, f"seed {seed}"
        assert broker.starts == 1 + CYCLES
