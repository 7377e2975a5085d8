"""Topics, schedules and the cluster over HTTP, and the description of the API."""

from __future__ import annotations

import httpx

from dejaq.web.api.openapi import openapi
from dejaq.web.api.table import operations


async def test_a_topic_is_created_changed_and_deleted(web: httpx.AsyncClient) -> None:
    wanted = {"name": "mail", "buckets": 2, "max_lease_ms": 60_000}
    made = await web.post("/api/v1/topics", json=wanted)
    assert (made.status_code, made.headers["location"]) == (201, "/api/v1/topics/mail")
    assert (made.json()["settings"]["buckets"], made.json()["settings"]["max_lease_ms"]) == (2, 60_000)
    assert (await web.post("/api/v1/topics", json=wanted)).status_code == 200
    other = await web.post("/api/v1/topics", json={"name": "mail", "buckets": 3})
    assert (other.status_code, other.json()["code"]) == (409, "TOPIC_EXISTS")
    edited = await web.patch("/api/v1/topics/mail", json={"max_attempts": 5})
    assert edited.json()["settings"]["max_attempts"] == 5
    fixed = await web.patch("/api/v1/topics/mail", json={"buckets": 9})
    assert (fixed.status_code, fixed.json()["code"]) == (400, "INVALID_SETTING")
    assert [topic["name"] for topic in (await web.get("/api/v1/topics")).json()["topics"]] == ["mail", "mail.dead"]
    assert (await web.delete("/api/v1/topics/mail")).status_code == 204
    nameless = await web.post("/api/v1/topics", json={})
    assert (nameless.status_code, nameless.json()["code"]) == (400, "INVALID_TOPIC")


async def test_all_topics_come_with_their_first_messages(web: httpx.AsyncClient) -> None:
    await web.post("/api/v1/topics", json={"name": "mail"})
    await web.post("/api/v1/topics", json={"name": "events", "kind": "log", "buckets": 1, "keep_ms": 60_000})
    await web.post("/api/v1/topics/mail/messages", json={"id": "a", "body": "later", "delay": 60})
    await web.post("/api/v1/topics/events/log/messages", json={"body": "happened"})
    first = (await web.get("/api/v1/overview", params={"count": 1})).json()
    assert (first["more"], first["total"], first["topics"][0]["log"][0]["body"]) == (True, 2, "happened")
    assert first["topics"][0]["topic"]["settings"]["keep_ms"] == 60_000
    rest = (await web.get("/api/v1/overview", params={"after": "events", "messages": 5})).json()
    assert [message["id"] for message in rest["topics"][0]["messages"]] == ["a"]
    assert (await web.get("/api/v1/overview", params={"messages": 0})).status_code == 400


async def test_the_copies_of_a_topic_are_listed(api: httpx.AsyncClient) -> None:
    copies = (await api.get("/api/v1/topics/mail/copies")).json()
    assert (len(copies["brokers"]), copies["stores"]) == (1, [])


async def test_schedules_are_added_previewed_and_run(web: httpx.AsyncClient) -> None:
    await web.post("/api/v1/topics", json={"name": "jobs", "kind": "cron"})
    jobs = "/api/v1/topics/jobs/schedules"
    added = await web.put(f"{jobs}/report", json={"expression": "0 9 * * *", "zone": "Europe/Berlin", "body": "go"})
    assert (added.status_code, added.json()["zone"]) == (200, "Europe/Berlin")
    changed = await web.put(f"{jobs}/report", json={"expression": "0 10 * * *"})
    assert (changed.json()["expression"], changed.json()["body"]) == ("0 10 * * *", "go")
    assert len((await web.get(f"{jobs}/report/next", params={"count": 3})).json()["times"]) == 3
    preview = await web.post(f"{jobs}:preview", json={"expression": "30 2 * * *", "zone": "Europe/Berlin"})
    assert len(preview.json()["times"]) == 10
    assert (await web.post(f"{jobs}/report/pause")).json()["paused"] is True
    assert (await web.post(f"{jobs}/report/resume")).json()["paused"] is False
    assert (await web.post(f"{jobs}/report/run")).json()["id"].startswith("report:run-")
    assert [one["name"] for one in (await web.get(jobs)).json()["schedules"]] == ["report"]
    wrong = await web.put(f"{jobs}/bad", json={"expression": "every day"})
    assert (wrong.status_code, wrong.json()["code"]) == (400, "INVALID_SCHEDULE")
    assert (await web.delete(f"{jobs}/report")).status_code == 204
    assert (await web.get(f"{jobs}/report")).status_code == 404


async def test_the_cluster_and_its_time_are_described(api: httpx.AsyncClient) -> None:
    info = (await api.get("/api/v1/info")).json()
    assert [topic["name"] for topic in info["topics"]] == ["mail"]
    assert info["brokers"][0]["degradations"] == []
    time = (await api.get("/api/v1/time")).json()
    assert time["now_ms"] > 1_700_000_000_000


def test_the_description_has_every_operation_of_the_table() -> None:
    described = openapi(operations())
    names = {one["operationId"] for path in described["paths"].values() for one in path.values()}
    assert names == {one.name for one in operations()}
    assert len(names) == len(operations())
    assert described["openapi"] == "3.1.0"
