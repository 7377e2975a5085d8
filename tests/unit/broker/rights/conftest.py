"""A broker that checks rights, with one administrator."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dejaq.broker import Broker
from dejaq.storage.memory.store import MemoryStorage
from dejaq.timekeeper.clock import VirtualClock


@pytest.fixture
async def guarded(clock: VirtualClock, storage: MemoryStorage) -> AsyncIterator[Broker]:
    async with Broker(clock=clock, storage=storage, drain_ms=0, admins="user:root") as broker:
        yield broker
