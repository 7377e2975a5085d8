"""What one request of the API does together: transactions, fan-out, several messages, requests with replies, logs."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import httpx
import pytest

import dejaq

TOPIC = "/api/v1/topics/mail"
TRANSACTIONS = "/api/v1/transactions"


async def ids_in(api: httpx.AsyncClient, topic: str = "mail") -> dict[str, dict[str, Any]]:
    found = (await api.get(f"/api/v1/topics/{topic}/messages?limit=1000")).json()["messages"]
    return {one["id"]: one for one in found}


async def put(api: httpx.AsyncClient, *ids: str, delay: float = 3_600) -> None:
    sent = await api.post(f"{TOPIC}/messages", json=[{"id": one, "body": one, "delay": delay} for one in ids])
    assert sent.status_code == 201, sent.text


async def test_a_transaction_makes_all_changes(api: httpx.AsyncClient) -> None:
    await api.post("/api/v1/topics", json={"name": "orders"})
    await api.post("/api/v1/topics", json={"name": "events", "kind": "log", "buckets": 2})
    await put(api, "old", "moved", "changed")
    await api.put(f"{TOPIC}/messages/due", json={"body": "input"})
    (held,) = (await api.post(f"{TOPIC}/leases", json={"wait": 10})).json()["leases"]
    steps = [
        {"do": "send", "topic": "orders", "id": "made", "body": "output", "at": "+1h", "priority": 4},
        {"do": "send", "topic": "orders", "body_base64": base64.b64encode(b"\xff").decode(), "delay": 60},
        {"do": "move", "topic": "mail", "id": "moved", "at": 2_000_000_000_000},
        {"do": "edit", "topic": "mail", "id": "changed", "priority": 7, "headers": {"kind": "x"}},
        {"do": "cancel", "topic": "mail", "id": "old"},
        {"do": "append", "topic": "events", "body": "done", "key": "k"},
        {"do": "delete", "topic": "mail", "lease": held["lease"]},
    ]
    done = await api.post(TRANSACTIONS, json={"steps": steps})
    assert done.status_code == 200, done.text
    ids = done.json()["ids"]
    assert (ids[0], ids[2:]) == ("made", ["moved", "changed", "old", "", "due"])
    orders, mail = await ids_in(api, "orders"), await ids_in(api)
    assert (orders["made"]["priority"], set(orders)) == (4, {"made", ids[1]})
    assert (set(mail), mail["moved"]["ts"], mail["changed"]["priority"]) == ({"moved", "changed"}, 2_000_000_000_000, 7)
    assert [one["body"] for one in (await api.get("/api/v1/topics/events/log/messages")).json()["messages"]] == ["done"]
    gone = await api.delete(f"{TOPIC}/leases/{held['lease']}")
    assert (gone.status_code, gone.json()["code"]) == (409, "LEASE_LOST")


async def test_a_transaction_that_is_refused_changes_nothing(api: httpx.AsyncClient) -> None:
    await put(api, "kept")
    await api.put(f"{TOPIC}/messages/due", json={"body": "input"})
    (held,) = (await api.post(f"{TOPIC}/leases", json={"wait": 10})).json()["leases"]
    steps: list[dict[str, Any]] = [
        {"do": "delete", "topic": "mail", "lease": held["lease"]},
        {"do": "send", "topic": "mail", "id": "new", "body": "x", "delay": 60},
        {"do": "cancel", "topic": "mail", "id": "absent"},
    ]
    refused = await api.post(TRANSACTIONS, json={"steps": steps})
    assert (refused.status_code, refused.json()["code"]) == (404, "NOT_FOUND")
    assert "nothing was done: cancel of absent" in refused.json()["detail"]
    assert set(await ids_in(api)) == {"kept", "due"}
    # The lease is still held, and a smaller transaction settles it.
    assert (await api.post(TRANSACTIONS, json={"steps": steps[:2]})).status_code == 200
    assert set(await ids_in(api)) == {"kept", "new"}


async def test_the_key_of_a_transaction_names_its_messages(api: httpx.AsyncClient) -> None:
    steps = [{"do": "send", "topic": "mail", "body": str(n), "at": 2_000_000_000_000} for n in range(2)]
    answers = [
        await api.post(TRANSACTIONS, json={"steps": steps}, headers={"Idempotency-Key": key})
        for key in ("one", "one", "two")
    ]
    first, again, other = (answer.json()["ids"] for answer in answers)
    assert first == again
    assert not set(first) & set(other)
    assert len(await ids_in(api)) == 4


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [{"do": "other", "topic": "mail"}],
        [{"do": "send", "topic": "mail", "surprise": 1}],
        [{"do": "move", "topic": "mail", "id": "x"}],
        [{"do": "edit", "topic": "mail", "id": "x"}],
        [{"do": "send", "topic": "mail", "at": "+1h", "delay": 3}],
        [{"do": "send", "topic": "mail", "at": "yesterday"}],
    ],
)
async def test_a_wrong_step_is_refused(api: httpx.AsyncClient, steps: list[dict[str, Any]]) -> None:
    refused = await api.post(TRANSACTIONS, json={"steps": steps})
    assert refused.status_code == 400, refused.text
    assert await ids_in(api) == {}


async def test_a_message_is_sent_to_several_topics(api: httpx.AsyncClient) -> None:
    await api.post("/api/v1/topics", json={"name": "audit"})
    wanted: dict[str, Any] = {"topics": ["mail", "audit"], "message": {"body": "paid", "delay": 60}}
    key = {"Idempotency-Key": "17"}
    sent = await api.post("/api/v1/fan-out", json=wanted, headers=key)
    assert (sent.status_code, sent.json()["codes"]) == (201, {"mail": "OK", "audit": "OK"})
    assert (await api.post("/api/v1/fan-out", json=wanted, headers=key)).json()["id"] == sent.json()["id"]
    assert set(await ids_in(api)) == set(await ids_in(api, "audit")) == {sent.json()["id"]}
    wanted |= {"topics": ["mail", "nothing"], "message": {"id": "half", "body": "x", "delay": 60}}
    assert (await api.post("/api/v1/fan-out", json=wanted)).status_code == 404
    partly = await api.post("/api/v1/fan-out", json={**wanted, "atomic": False})
    assert (partly.status_code, partly.json()["codes"]) == (207, {"mail": "OK", "nothing": "TOPIC_NOT_FOUND"})


async def test_a_request_gets_the_reply_of_its_consumer(api: httpx.AsyncClient) -> None:
    asking = asyncio.ensure_future(api.post(f"{TOPIC}/requests", json={"body": "6", "timeout": 20}))
    (held,) = (await api.post(f"{TOPIC}/leases", json={"wait": 20})).json()["leases"]
    assert held["wants_reply"] is True
    lease = f"{TOPIC}/leases/{held['lease']}"
    assert (await api.post(f"{lease}/progress", json={"text": "half"})).status_code == 204
    assert (await api.get(f"{TOPIC}/messages/{held['id']}")).json()["progress"] == "half"
    answered = await api.post(f"{lease}/reply", json={"body": "36", "headers": {"kind": "square"}})
    assert answered.status_code == 204, answered.text
    reply = (await asking).json()
    assert (reply["id"], reply["body"], reply["headers"]["kind"]) == (held["id"], "36", "square")
    assert await ids_in(api) == {}


async def test_a_reply_that_comes_late_is_taken_later(api: httpx.AsyncClient) -> None:
    silent = await api.post(f"{TOPIC}/requests", json={"id": "q", "body": "6", "timeout": 0.05})
    assert (silent.status_code, silent.json()["code"], silent.json()["indefinite"]) == (503, "INDEFINITE", True)
    (held,) = (await api.post(f"{TOPIC}/leases", json={"wait": 20})).json()["leases"]
    # A reply is kept for a while, at least for as long as the producer would have waited.
    await api.post(f"{TOPIC}/leases/{held['lease']}/release", json={})
    asking = asyncio.ensure_future(api.post(f"{TOPIC}/requests/q/reply", json={"timeout": 20}))
    (held,) = (await api.post(f"{TOPIC}/leases", json={"wait": 20})).json()["leases"]
    await api.post(f"{TOPIC}/leases/{held['lease']}/reply", json={"body": "36"})
    assert (await asking).json()["body"] == "36"


async def test_a_request_with_a_time_too_far_away_is_refused(api: httpx.AsyncClient) -> None:
    for when in ({"at": "+5m"}, {"delay": 300}):
        refused = await api.post(f"{TOPIC}/requests", json={"body": "x", "timeout": 5, **when})
        assert (refused.status_code, refused.json()["code"]) == (400, "INVALID_ARGUMENT")
    assert await ids_in(api) == {}


async def test_several_messages_by_their_ids(api: httpx.AsyncClient) -> None:
    await put(api, "a", "b", "c")
    found = (await api.post(f"{TOPIC}/messages:get-by-id", json={"ids": ["c", "none", "a"]})).json()["messages"]
    assert [one and one["id"] for one in found] == ["c", None, "a"]
    version = found[2]["version"]
    changes = [
        {"id": "a", "priority": 5, "version": version},
        {"id": "b", "body": "new", "headers": {"x": "y"}},
        {"id": "none", "priority": 1},
        {"id": "c", "at": 2_000_000_000_000, "priority": 1},
    ]
    edited = await api.post(f"{TOPIC}/messages:edit-by-id", json=changes)
    assert edited.status_code == 207
    assert [one["code"] for one in edited.json()["results"]] == ["OK", "OK", "NOT_FOUND", "OK"]
    now = await ids_in(api)
    assert (now["a"]["priority"], now["b"]["body"], now["b"]["headers"]) == (5, "new", {"x": "y"})
    assert (now["c"]["ts"], now["c"]["priority"]) == (2_000_000_000_000, 1)
    cancelled = await api.post(f"{TOPIC}/messages:cancel-by-id", json=[{"id": "a", "version": version}, {"id": "b"}])
    assert [one["code"] for one in cancelled.json()["results"]] == ["VERSION_CONFLICT", "OK"]
    assert set(await ids_in(api)) == {"a", "c"}
    nothing = await api.post(f"{TOPIC}/messages:edit-by-id", json=[{"id": "a"}])
    assert nothing.json()["code"] == "INVALID_ARGUMENT"


async def test_batches_of_a_log(api: httpx.AsyncClient, broker: dejaq.Broker) -> None:
    await api.post("/api/v1/topics", json={"name": "events", "kind": "log", "buckets": 2})
    log = "/api/v1/topics/events/log"
    rows = [{"body": str(n), "key": str(n)} for n in range(6)]
    appended = await api.post(f"{log}/batches", json=rows)
    assert appended.status_code == 201, appended.text
    assert sum(one["count"] for one in appended.json()["batches"]) == 6
    (batch,) = (await api.post(f"{log}/batches", json=[{"body": "x", "bucket": 1}])).json()["batches"]
    assert (batch["bucket"], batch["count"]) == (1, 1)
    mixed = await api.post(f"{log}/batches", json=[{"body": "x", "bucket": 1}, {"body": "x"}])
    assert mixed.json()["code"] == "INVALID_ARGUMENT"
    key = {"Idempotency-Key": "import-1"}
    named = [await api.post(f"{log}/batches", json=[{"body": "once", "bucket": 0}], headers=key) for _ in range(2)]
    assert named[0].json() == named[1].json()
    assert (await api.post(f"{log}/batches", json=[{"body": "once"}], headers=key)).status_code == 400
    offsets = (await api.get(f"{log}/offsets", params={"at": "-1h"})).json()["offsets"]
    assert offsets == [0, 0]
    async with dejaq.connect(broker) as client, client.transaction() as prepared:
        prepared.append(client.log("events"), b"maybe")
        await prepared.prepare(client.log("events"), "p-1")
    (waiting,) = (await api.get(f"{log}/prepared")).json()["prepared"]
    assert (waiting["name"], waiting["messages"]) == ("p-1", 1)
    for _ in range(2):
        assert (await api.post(f"{log}/prepared/p-1", json={"commit": True})).status_code == 204
    assert (await api.post(f"{log}/prepared/p-1", json={"commit": False})).status_code == 409
    bodies = [one["body"] for one in (await api.get(f"{log}/messages")).json()["messages"]]
    assert bodies.count("maybe") == 1


async def test_a_quota_and_a_key_need_a_broker_that_has_them(api: httpx.AsyncClient) -> None:
    limited = await api.post("/api/v1/rights:quota", json={"principal": "user:ann", "topics": 3})
    assert (limited.status_code, limited.json()["topics"]) == (200, 3)
    rekeyed = await api.post(f"{TOPIC}/keys:rekey", json={})
    assert rekeyed.json()["code"] == "INVALID_ARGUMENT"
