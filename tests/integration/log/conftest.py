from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import dejaq
from dejaq.broker.log import topics
from dejaq.testing.servers.postgres import FreshStorage, shared_server
from tests.integration.sdk.cutting import CuttingTransport

TOPIC = "events"


@pytest.fixture(autouse=True)
def _quick_removal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker removes old messages after 0.25 s, and not after 5 s."""
    monkeypatch.setattr(topics, "RETAIN_SECONDS", 0.25)


@pytest.fixture(params=["memory", "embedded", "postgres"])
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[dejaq.Broker]:
    data = tmp_path / "data" if request.param == "embedded" else None
    storage = FreshStorage({}, shared_server().dsn, cluster="logs") if request.param == "postgres" else None
    async with dejaq.Broker(data, storage=storage, drain_ms=0) as broker:
        yield broker


@pytest.fixture
def wire(broker: dejaq.Broker) -> CuttingTransport:
    return CuttingTransport(broker.transport())


@pytest.fixture
async def client(wire: CuttingTransport) -> AsyncIterator[dejaq.Client]:
    async with dejaq.connect(wire, deadline=10.0) as client:
        await client.create_topic(TOPIC, kind="log", buckets=4)
        yield client
