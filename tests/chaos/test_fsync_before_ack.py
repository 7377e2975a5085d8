"""R3: every acknowledged create was synced first, according to the system calls that the kernel recorded."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import dejaq
from dejaq.testing.servers.process import BrokerProcess
from tests.chaos.sizes import size
from tests.chaos.syscalls import Ack, acks_of_creates, read_calls, strace, unsynced

MARKER = re.compile(rb"marker-\d{6}-end")
ACKS = size("R3", ci=200, full=5_000)


def _body(number: int) -> bytes:
    # The marker occurs twice with a gap between: the log inserts a header where a record crosses a block, so never into
    # both.
    marker = b"marker-%06d-end" % number
    return marker + b"." * 64 + marker


async def trace_acks(path: Path, *, acks: int, prelude: str = "", grpc: bool = False) -> tuple[list[Ack], list[str]]:
    """Create messages one by one and in batches of several producers; returns the acks, and those without a sync."""
    wrapper = strace(path / "trace")
    if wrapper is None:
        pytest.skip("strace is not installed")
    singles, batches = acks // 2, acks - acks // 2
    async with BrokerProcess(path / "data", wrapper=wrapper, prelude=prelude, grpc=grpc) as broker:
        async with dejaq.connect(broker.url) as client:
            await client.create_topic("mail", buckets=4)
            async with client.producer("mail") as producer:
                for number in range(singles):
                    await producer.send(_body(number), delay=3_600)
        numbers = iter(range(singles, singles + batches))

        async def produce() -> None:
            async with dejaq.connect(broker.url) as client, client.producer("mail") as producer:
                for number in numbers:
                    results = await producer.send_batch([_body(number)] * 20, delay=3_600)
                    assert results.ok

        await asyncio.gather(*(produce() for _ in range(4)))
        broker.terminate()
        assert await broker.exited() == 0
    calls = await asyncio.to_thread(read_calls, path / "trace")
    found = acks_of_creates(calls)
    return found, unsynced(calls, found, MARKER)


@pytest.mark.chaos
@pytest.mark.parametrize(("grpc", "count"), [(False, ACKS), (True, ACKS // 5)], ids=["websocket", "grpc"])
async def test_r3_a_sync_precedes_every_ack(
    tmp_path: Path, record_property: Callable[[str, object], None], grpc: bool, count: int
) -> None:
    """G1: the acknowledgement leaves the broker only after a sync of the log that followed the message's own write."""
    acks, faults = await trace_acks(tmp_path, acks=count, grpc=grpc)
    messages = sum(len(ack.bodies) for ack in acks)
    record_property("figure", f"{len(acks)} acks of {messages} messages, {len(faults)} without a sync before")
    assert len(acks) >= count
    assert faults == []
