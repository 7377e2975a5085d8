"""A broker that is killed while logs are used: one order, dense offsets, and nothing that was acknowledged is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

import dejaq
from dejaq.errors import DejaqError
from dejaq.sdk.log.messages import AppendedBatch, LogMessage
from dejaq.testing.servers.process import BrokerProcess
from dejaq.testing.waiting import eventually

KILLS = 3
BATCHES = 120
BUCKETS = 4


async def append_all(log: dejaq.Log, placed: dict[bytes, tuple[int, int]]) -> None:
    """Append batches of several buckets, and note where each message is."""

    async def one(number: int) -> None:
        bodies = [b"%d-%d" % (number, row) for row in range(10)]
        batches: list[AppendedBatch] = await log.append_batch(bodies, bucket=number % BUCKETS)
        (batch,) = batches
        placed.update({body: (batch.bucket, batch.base + row) for row, body in enumerate(bodies)})

    for first in range(0, BATCHES, 4):
        await asyncio.gather(*(one(first + number) for number in range(4)))


async def read_all(log: dejaq.Log, seen: dict[tuple[int, int], bytes], wrong: list[str]) -> None:
    """A reader without a group: each offset once, in order."""
    expected = dict.fromkeys(range(BUCKETS), 0)
    async with log.reader() as reader:
        async for message in reader:
            if message.offset != expected[message.bucket]:
                wrong.append(f"bucket {message.bucket}: {message.offset} instead of {expected[message.bucket]}")
            expected[message.bucket] = message.offset + 1
            seen[message.bucket, message.offset] = message.body


async def consume_all(log: dejaq.Log, handled: Counter[tuple[int, int]], committed: dict[int, int]) -> None:
    """A member of a group, which commits after every ten messages; a commit that was lost with a claim is no error."""
    async with log.group("billing", name="one") as member:
        pending: list[LogMessage] = []
        async for message in member:
            assert message.offset >= committed.get(message.bucket, 0), "a committed message was sent again"
            handled[message.bucket, message.offset] += 1
            pending.append(message)
            if len(pending) == 10:
                positions = member.positions()
                try:
                    await member.commit()
                    committed.update(positions)
                except DejaqError:
                    pass
                pending.clear()


@pytest.mark.chaos
async def test_r1_a_log_survives_kills_with_dense_offsets_and_one_order(tmp_path: Path) -> None:
    """G1 for logs: what was acknowledged is read at its offset, by every reader, and groups miss nothing."""
    placed: dict[bytes, tuple[int, int]] = {}
    seen: dict[tuple[int, int], bytes] = {}
    wrong: list[str] = []
    handled: Counter[tuple[int, int]] = Counter()
    committed: dict[int, int] = {}
    async with BrokerProcess(tmp_path / "data") as broker, dejaq.connect(broker.url, deadline=60) as client:
        await client.create_topic("events", kind="log", buckets=BUCKETS)
        log = client.log("events")
        appending = asyncio.create_task(append_all(log, placed))
        reading = [
            asyncio.create_task(read_all(log, seen, wrong)),
            asyncio.create_task(consume_all(log, handled, committed)),
        ]
        for kill in range(1, KILLS + 1):
            due = kill * BATCHES * 10 // (KILLS + 2)
            await eventually(lambda due=due: len(placed) >= due, within=60, what=f"{due} messages", poll=0.001)  # type: ignore[misc]
            await broker.restart()
        await appending
        total = BATCHES * 10
        await eventually(lambda: len(seen) == total and len(handled) == total, within=60, what="all messages are read")
        for task in reading:
            task.cancel()
        for outcome in await asyncio.gather(*reading, return_exceptions=True):
            assert outcome is None or isinstance(outcome, asyncio.CancelledError), repr(outcome)
        found = {(message.bucket, message.offset): message.body async for batch in log.read() for message in batch}
    assert wrong == []
    assert len(placed) == total
    assert found == {place: body for body, place in placed.items()}, "a message is not where its append said"
    assert seen == found, "a reader saw another order"
    for bucket in range(BUCKETS):
        offsets = sorted(offset for one, offset in found if one == bucket)
        assert offsets == list(range(len(offsets))), f"bucket {bucket} has a hole"
