"""A gateway on a loopback port, in front of a broker of the same process, and an HTTP client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

import dejaq
from dejaq.web import gateway
from tests.integration.web.serving import serving


@pytest.fixture
def no_wait_for_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway without a broker serves at once, and not after a wait of three seconds."""
    monkeypatch.setattr(gateway, "OPEN_SECONDS", 0.1)


@pytest.fixture
async def broker() -> AsyncIterator[dejaq.Broker]:
    async with dejaq.Broker(drain_ms=0) as broker:
        yield broker


@pytest.fixture
def settings() -> dict[str, Any]:
    """Settings of the gateway; a test module may have others."""
    return {}


@pytest.fixture
async def web(broker: dejaq.Broker, settings: dict[str, Any]) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        serving(dejaq.connect(broker, deadline=5), **settings) as address,
        httpx.AsyncClient(base_url=address, timeout=60, verify=False, trust_env=False) as client,
    ):
        yield client


@pytest.fixture
async def api(web: httpx.AsyncClient) -> httpx.AsyncClient:
    """The client, with the topic `mail`."""
    answer = await web.post("/api/v1/topics", json={"name": "mail", "buckets": 4})
    assert answer.status_code == 201, answer.text
    return web
