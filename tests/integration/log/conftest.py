from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import dejaq
from tests.integration.sdk.cutting import CuttingTransport

TOPIC = "events"


@pytest.fixture(params=["memory", "embedded"])
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[dejaq.Broker]:
    data = None if request.param == "memory" else tmp_path / "data"
    async with dejaq.Broker(data, drain_ms=0) as broker:
        yield broker


@pytest.fixture
def wire(broker: dejaq.Broker) -> CuttingTransport:
    return CuttingTransport(broker.transport())


@pytest.fixture
async def client(wire: CuttingTransport) -> AsyncIterator[dejaq.Client]:
    async with dejaq.connect(wire, deadline=10.0) as client:
        await client.create_topic(TOPIC, kind="log", buckets=4)
        yield client
