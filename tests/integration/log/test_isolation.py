"""Very many readers of one log at one broker: each batch is encoded once, and readers that do not read delay nobody."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

import dejaq
from dejaq.broker.log import encoding
from dejaq.broker.log.reader import LogFeed
from dejaq.protocol.spliced import BrokerSent
from dejaq.storage.log.base import StoredBatch
from dejaq.testing.waiting import eventually
from dejaq.timekeeper.clock import SystemClock
from tests.integration.log.conftest import TOPIC

READERS = 2_000
STUCK = 500
BATCHES = 5


async def test_thousands_of_readers_share_one_encoding_and_stuck_ones_delay_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoded: Counter[tuple[int, int]] = Counter()
    make = encoding.slice_of

    def counted(bucket: int, batch: StoredBatch) -> object:
        encoded[bucket, batch.base] += 1
        return make(bucket, batch)

    monkeypatch.setattr(encoding, "slice_of", counted)
    async with dejaq.Broker() as broker, dejaq.connect(broker) as client:
        await client.create_topic(TOPIC, kind="log", buckets=1)
        logs = broker.central.logs
        topic = logs.catalog.live_log(TOPIC)
        received = [0] * READERS
        never = asyncio.Event()

        def feed(number: int) -> LogFeed:
            async def send(frame: BrokerSent) -> None:
                if number < STUCK:
                    await never.wait()

            def sent(count: int) -> None:
                received[number] += count

            return LogFeed(
                topic,
                logs.storage,
                SystemClock(),
                logs.encoded,
                committed=True,
                wanted=None,
                credit=1 << 30,
                send=send,
                sent=sent,
            )

        feeds = [feed(number) for number in range(READERS)]
        tasks = []
        for one in feeds:
            one.give([(0, 0)])
            logs.enter(one)
            tasks.append(asyncio.ensure_future(one.run()))
        for _ in range(BATCHES):
            await client.log(TOPIC).append_batch([b"x"] * 10)
        await eventually(lambda: min(received[STUCK:]) == 10 * BATCHES, within=60, what="the others have everything")
        assert max(received[:STUCK]) < 10 * BATCHES
        assert encoded == {(0, 10 * number): 1 for number in range(BATCHES)}
        for one in feeds:
            logs.leave(one)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
