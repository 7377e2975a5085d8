"""A broker on a virtual clock with the memory store; tests connect to it without a network."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from dejaq.broker import Broker
from dejaq.broker.inprocess import InProcessTransport
from dejaq.storage.memory.store import MemoryStorage
from dejaq.timekeeper.clock import VirtualClock
from tests.unit.broker.client import RawClient, create_topic

Connect = Callable[[], Awaitable[RawClient]]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
async def broker(clock: VirtualClock, storage: MemoryStorage) -> AsyncIterator[Broker]:
    async with Broker(clock=clock, storage=storage, drain_ms=0) as broker:
        yield broker


@pytest.fixture
async def transport(broker: Broker) -> InProcessTransport:
    transport = broker.transport()
    await create_topic(transport, "mail", buckets=4)
    return transport


@pytest.fixture
def connect(transport: InProcessTransport) -> Connect:
    async def open_session() -> RawClient:
        return await RawClient(transport).open()

    return open_session
