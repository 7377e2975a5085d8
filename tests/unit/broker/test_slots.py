"""D26: uploads and downloads are limited per client and in time, so that slow clients do not block the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack

import pytest

import dejaq
from dejaq import limits
from dejaq.broker import Broker
from dejaq.broker.calls.slots import Slots
from dejaq.domain.bodies.large import declare, sealed_parts
from dejaq.domain.context import CallContext
from dejaq.errors import Code, DejaqError, Unavailable
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.timekeeper.clock import VirtualClock


def slots(clock: VirtualClock, *, total: int = 3, each: int = 2) -> Slots:
    return Slots("download", clock, total=total, each=each)


async def test_one_client_gets_no_more_than_its_share(clock: VirtualClock) -> None:
    """D26: slots above the limit of one client stay free for other clients."""
    places = slots(clock)
    with ExitStack() as stack:
        caller = CallContext("a-request", "one")
        for _ in range(2):
            stack.enter_context(places.take(caller))
        with pytest.raises(Unavailable) as refused:
            stack.enter_context(places.take(caller))
        assert (refused.value.code, refused.value.retryable) == (Code.OVERLOADED, True)
        caller = CallContext("a-request", "another")
        stack.enter_context(places.take(caller))
        with pytest.raises(Unavailable):
            stack.enter_context(places.take(caller))
    assert len(places) == 0


async def test_a_client_that_stops_reading_loses_its_slot(clock: VirtualClock) -> None:
    """D26: a client that does not take the next part in time loses its slot, and gets an error when it continues."""
    places = slots(clock, total=1)
    with ExitStack() as stack:
        caller = CallContext("a-request", "one")
        slow = stack.enter_context(places.take(caller))
        await clock.advance(limits.PART_MS_MAX - 1)
        slow.move()
        await clock.advance(limits.PART_MS_MAX + 1)
        stack.enter_context(places.take(caller))
        with pytest.raises(Unavailable, match="lost its place"):
            slow.move()


async def test_a_client_that_reads_too_slowly_loses_its_slot_too(clock: VirtualClock) -> None:
    """D26: a client that takes every part just in time holds a slot no longer than the time limit of a whole body."""
    places = slots(clock, total=1)
    with places.take(CallContext("a-request", "one"), 1_000_000) as slow:
        await clock.advance(limits.PART_MS_MAX - 1)
        slow.move()
        await clock.advance(limits.PART_MS_MAX - 1)
        with pytest.raises(Unavailable, match="too slow"):
            slow.move()


async def test_downloads_that_stop_do_not_block_others(broker: Broker, clock: VirtualClock) -> None:
    """D26: when readers that stopped hold every slot, another body can be read after the time limit of one part."""
    transport = broker.transport()
    async with dejaq.connect(broker) as client:
        await client.create_topic("mail", buckets=1, max_body_bytes=limits.LARGE_BODY_BYTES_MAX)
    body = bytes(3 * limits.PART_BYTES_MAX)
    parts = list(sealed_parts(body))
    declared = declare(parts, len(body))

    async def frames() -> AsyncIterator[carrier.UploadFrame]:
        yield carrier.UploadFrame(
            head=carrier.UploadHead(topic="mail", size=declared.size, stored=declared.stored, digest=declared.digest)
        )
        for part in parts:
            yield carrier.UploadFrame(part=part)

    reference = (await transport.upload("Carrier.Upload", frames(), carrier.BodyReference, 5.0)).reference
    request = carrier.DownloadRequest(topic="mail", id="m", reference=reference)

    async def first_part() -> AsyncIterator[carrier.BodyPart]:
        reading = transport.stream("Carrier.Download", request, carrier.BodyPart)
        await anext(reading)
        # All downloads at once would be one step of the event loop, in which brokers of this process do nothing.
        await asyncio.sleep(0)
        return reading

    left = [await first_part() for _ in range(limits.DOWNLOADS_MAX)]
    with pytest.raises(DejaqError) as refused:
        await first_part()
    assert refused.value.code is Code.OVERLOADED
    await clock.advance(limits.PART_MS_MAX + 1)
    await first_part()
    with pytest.raises(Unavailable):
        await anext(left[0])
