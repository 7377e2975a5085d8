"""The use of an object that is not open, or is closed, is a clear error at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import dejaq
from dejaq.errors import OutOfState
from dejaq.testing.waiting import patient
from tests.integration.sdk.conftest import TOPIC

WITHIN = 2.0


@pytest.mark.parametrize(
    "use",
    [
        lambda client: client.producer(TOPIC).send(b"x"),
        lambda client: client.producer(TOPIC).send_batch([b"x"]),
        lambda client: client.producer(TOPIC).cancel("x"),
        lambda client: client.producer(TOPIC).move("x", delay=1),
        lambda client: client.producer(TOPIC).edit("x", delay=1),
        lambda client: anext(client.consumer(TOPIC)),
        lambda client: client.consumer(TOPIC).take(),
        lambda client: client.consumer(TOPIC).busy(),
    ],
)
async def test_an_object_that_was_not_opened_reports_it_at_once(
    client: dejaq.Client, use: Callable[[dejaq.Client], Awaitable[Any]]
) -> None:
    """U9: a producer waited 30 s and raised NO_BROKER, and a consumer waited without end."""
    with pytest.raises(OutOfState, match=r"is not open: use `async with client\.(producer|consumer)"):
        await asyncio.wait_for(use(client), patient(WITHIN))


async def test_a_client_that_is_not_open_reports_it_at_once(broker: dejaq.Broker) -> None:
    """U9: some calls worked, and their connections stayed open."""
    client = dejaq.connect(broker)
    with pytest.raises(OutOfState, match=r"use `async with dejaq\.connect"):
        await asyncio.wait_for(client.count(TOPIC), patient(WITHIN))
    with pytest.raises(OutOfState, match=r"use `async with dejaq\.connect"):
        await asyncio.wait_for(client.producer(TOPIC).open(), patient(WITHIN))
    async with client:
        assert await client.topics() == []
    with pytest.raises(OutOfState, match="the client is closed"):
        await asyncio.wait_for(client.topics(), patient(WITHIN))


async def test_a_broker_that_is_not_started_reports_it_at_once() -> None:
    """U9: the error advised to check that `dejaq serve` runs."""
    with pytest.raises(OutOfState, match=r"the broker is not started: use `async with dejaq\.Broker"):
        dejaq.connect(dejaq.Broker())


async def test_a_closed_producer_reports_that_it_is_closed(client: dejaq.Client) -> None:
    """U9: the error did not name the producer."""
    async with client.producer(TOPIC) as producer:
        pass
    with pytest.raises(OutOfState, match="the producer is closed"):
        await asyncio.wait_for(producer.send(b"x"), patient(WITHIN))


async def test_a_producer_of_a_parent_process_is_refused(
    producer: dejaq.Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D13: a forked process has a copy of the producer without its connection."""
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(OutOfState, match="opened in another process"):
        await asyncio.wait_for(producer.send(b"x"), patient(WITHIN))
