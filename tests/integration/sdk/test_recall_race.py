"""A cancel or a move that races the hand-over of a message: exactly one of the two wins."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import dejaq
from dejaq.errors import Code
from dejaq.testing.waiting import eventually
from dejaq.timekeeper.clock import SystemClock
from tests.pace import take_time

RACES = 1_000
CLOCK = SystemClock()


async def test_a_thousand_cancels_and_moves_race_the_hand_over(tmp_path: Path) -> None:
    """G3, G6: the owner gets OK exactly when user code never sees the message at its first time."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    async with dejaq.Broker(tmp_path, listen="127.0.0.1:0") as broker:  # noqa: SIM117  the address comes with it
        async with dejaq.connect(f"dejaq://{broker.address}") as client:
            await client.create_topic("t", buckets=8)
            async with client.producer("t", group="g") as producer, client.consumer("t", name="w") as consumer:
                seen: dict[str, list[int]] = {}
                taking = asyncio.create_task(_take(consumer, seen))
                start = consumer.now_ms() + 800
                due = {f"r{number}": start + chance.randrange(2_000) for number in range(RACES)}
                sent = await producer.send_batch([b"x"] * RACES, ids=list(due), at=list(due.values()))
                assert sent.ok
                later = start + 60_000
                outcomes = dict(
                    await asyncio.gather(
                        *(_race(producer, consumer, message_id, ts, later, chance) for message_id, ts in due.items())
                    )
                )
                lost = {message_id for message_id, code in outcomes.items() if code is not Code.OK}
                await eventually(lambda: lost <= seen.keys(), within=20, what="every message that was not changed")
                taking.cancel()
    won = outcomes.keys() - lost
    assert won, "no owner won a single race"
    assert lost, "no consumer won a single race"
    assert not won & seen.keys(), "user code saw a message whose cancel or move had been answered OK"
    assert set(outcomes.values()) <= {Code.OK, Code.LEASED, Code.NOT_FOUND}
    assert all(len(times) == 1 and times[0] == due[message_id] for message_id, times in seen.items())


async def _take(consumer: dejaq.Consumer, seen: dict[str, list[int]]) -> None:
    async for batch in consumer.batches(50):
        for message_id, ts in zip(batch.ids, batch.ts, strict=True):
            seen.setdefault(message_id, []).append(ts)
        await batch.delete()


async def _race(
    producer: dejaq.Producer, consumer: dejaq.Consumer, message_id: str, ts: int, later: int, chance: random.Random
) -> tuple[str, Code]:
    """Wait until about the time of the message, then cancel or move it."""
    at = ts + chance.randrange(-300, 4)
    await take_time(max(0.0, (at - consumer.now_ms()) / 1_000))
    if chance.random() < 0.5:
        results = await producer.cancel([message_id], results=True)
    else:
        results = await producer.move([message_id], at=later, results=True)
    return message_id, results[0]
