"""Leases over HTTP: long poll, settling, and what a client that leaves costs."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

import dejaq
from dejaq.testing.waiting import eventually

MAIL = "/api/v1/topics/mail"


async def lease(api: httpx.AsyncClient, **wanted: Any) -> list[dict[str, Any]]:
    answer = await api.post(f"{MAIL}/leases", json={"wait": 20, **wanted})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["leases"])


async def send(api: httpx.AsyncClient, *bodies: str, delay: float = 0) -> None:
    rows = [{"id": body, "body": body, "delay": delay} for body in bodies]
    assert (await api.post(f"{MAIL}/messages", json=rows)).status_code == 201


async def test_a_poll_waits_for_a_message_and_deletes_it(api: httpx.AsyncClient) -> None:
    polling = asyncio.ensure_future(lease(api))
    await send(api, "one", delay=0.2)
    (held,) = await polling
    assert (held["body"], held["attempts"], held["topic"]) == ("one", 1, "mail")
    assert (await api.get(f"{MAIL}/messages/one")).json()["status"] == "processing"
    assert (await api.delete(f"{MAIL}/leases/{held['lease']}")).status_code == 204
    assert (await api.get(f"{MAIL}/count")).json() == {"count": 0}
    again = await api.delete(f"{MAIL}/leases/{held['lease']}")
    assert (again.status_code, again.json()["code"]) == (409, "LEASE_LOST")


async def test_a_message_is_extended_released_and_rejected(api: httpx.AsyncClient) -> None:
    await send(api, "one")
    (held,) = await lease(api, lease=60)
    longer = await api.post(f"{MAIL}/leases/{held['lease']}/extend", json={"seconds": 600})
    assert longer.json()["expires_ms"] > held["expires_ms"] + 500_000
    assert (await api.post(f"{MAIL}/leases/{held['lease']}/release", json={})).status_code == 204
    (held,) = await lease(api, lease=60)
    assert held["attempts"] == 2
    rejected = await api.post(f"{MAIL}/leases/{held['lease']}/reject", json={"reason": "no such user"})
    assert rejected.status_code == 204
    (letter,) = (await api.get(f"{MAIL}/dead-letters")).json()["messages"]
    assert (letter["body"], letter["headers"]["dejaq-dead-reason"]) == ("one", "no such user")
    back = await api.post(f"{MAIL}/dead-letters:redrive", json={"ids": [letter["id"]]})
    assert back.json()["done"] == 1
    assert (await lease(api))[0]["attempts"] == 1


async def test_an_empty_poll_ends_in_time_and_takes_nothing_later(api: httpx.AsyncClient, broker: dejaq.Broker) -> None:
    """G2: between two polls the gateway leases nothing, so another consumer gets the message."""
    assert await lease(api, wait=0.05) == []
    await send(api, "one")
    async with dejaq.connect(broker) as client, client.consumer("mail", max_messages=1) as consumer:
        async for one in consumer:
            assert (one.id, one.attempts) == ("one", 1)
            await one.delete()


async def test_a_client_that_leaves_leases_nothing(api: httpx.AsyncClient) -> None:
    with pytest.raises(httpx.ReadTimeout):
        await api.post(f"{MAIL}/leases", json={"wait": 30, "max": 10}, timeout=0.3)

    async def paused() -> bool:
        clients = (await api.get("/api/v1/info")).json()["clients"]
        return [one["state"] for one in clients if one["who"].startswith("http")] == ["consumer"]

    await eventually(paused, within=10, what="the consumer of the gateway takes nothing")
    await send(api, "one")
    (held,) = await lease(api)
    assert held["attempts"] == 1


async def test_a_lease_that_ran_out_is_lost(api: httpx.AsyncClient) -> None:
    await send(api, "one")
    (held,) = await lease(api, lease=0.2)

    async def lost() -> bool:
        return bool((await api.get(f"{MAIL}/messages/one")).json()["status"] == "available")

    await eventually(lost, within=10, what="the lease ends")
    refused = await api.delete(f"{MAIL}/leases/{held['lease']}")
    assert (refused.status_code, refused.json()["code"]) == (409, "LEASE_LOST")
    assert (await lease(api))[0]["attempts"] == 2


@pytest.mark.parametrize(
    "wanted", [{"max": 0}, {"wait": 31}, {"lease": 0}, {"consumer": ""}, {"max": "1"}, {"other": 1}]
)
async def test_wrong_polls_are_refused(api: httpx.AsyncClient, wanted: dict[str, Any]) -> None:
    answer = await api.post(f"{MAIL}/leases", json=wanted)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_ARGUMENT")
