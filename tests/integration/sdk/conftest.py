from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import dejaq
from dejaq.timekeeper.clock import VirtualClock
from tests.integration.sdk.cutting import CuttingTransport

TOPIC = "mail"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def broker(clock: VirtualClock) -> AsyncIterator[dejaq.Broker]:
    # The virtual clock does not advance while a test waits, so a drain would never end.
    async with dejaq.Broker(clock=clock, drain_ms=0) as broker:
        yield broker


@pytest.fixture
def wire(broker: dejaq.Broker) -> CuttingTransport:
    return CuttingTransport(broker.transport())


@pytest.fixture
async def client(wire: CuttingTransport, clock: VirtualClock) -> AsyncIterator[dejaq.Client]:
    async with dejaq.connect(wire, clock=clock, deadline=5.0) as client:
        await client.create_topic(TOPIC, buckets=4)
        yield client


@pytest.fixture
async def producer(client: dejaq.Client) -> AsyncIterator[dejaq.Producer]:
    async with client.producer(TOPIC, group="billing") as producer:
        yield producer
