"""A broker for the connector's readers and writers, without Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark", reason="the pipeline is not installed")

import dejaq.sync


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with dejaq.sync.Broker() as broker:
        yield broker.url


@pytest.fixture
def topic(url: str, request: pytest.FixtureRequest) -> str:
    """A topic with ten messages that are due in an hour."""
    name = request.node.originalname[:100]
    with dejaq.sync.connect(url) as client:
        client.create_topic(name)
        with client.producer(name, group="spark") as producer:
            producer.send_batch([b"x"] * 10, delay=3_600, ids=[f"m-{number}" for number in range(10)])
    return str(name)
