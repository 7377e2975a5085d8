from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio as redis_client

import dejaq
from dejaq.testing.servers.redis import RedisServer


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RedisServer]:
    async with RedisServer(tmp_path) as server:
        yield server


@pytest.fixture
async def redis(server: RedisServer) -> AsyncIterator[redis_client.Redis]:
    client = redis_client.Redis.from_url(server.url)
    yield client
    await client.aclose()


@pytest.fixture
async def client() -> AsyncIterator[dejaq.Client]:
    async with dejaq.Broker() as broker, dejaq.connect(broker) as client:
        await client.create_topic("from", buckets=4)
        await client.create_topic("to", buckets=4)
        yield client
