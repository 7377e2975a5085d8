"""The HTTP API for messages: conventions, conditions, batches, pages."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from dejaq.errors import Code, error_of
from dejaq.sdk.changing.bulk import BULK_ROWS, BulkResult
from dejaq.sdk.producing.producer import Producer
from dejaq.testing.waiting import eventually
from dejaq.web.api.operations import bulk

MAIL = "/api/v1/topics/mail"


async def put(api: httpx.AsyncClient, message_id: str, **values: Any) -> httpx.Response:
    return await api.put(f"{MAIL}/messages/{message_id}", json={"delay": 3_600, **values})


async def test_a_message_is_created_once_and_read_with_its_version(api: httpx.AsyncClient) -> None:
    first = await put(api, "one", body="hello", headers={"kind": "greeting"}, priority=3)
    assert (first.status_code, first.json()) == (201, {"id": "one", "code": "OK", "ok": True})
    again = await put(api, "one", body="hello", headers={"kind": "greeting"}, priority=3)
    assert (again.status_code, again.json()["code"]) == (200, "ALREADY_EXISTS")
    other = await put(api, "one", body="another")
    assert (other.status_code, other.json()["code"]) == (409, "ID_TAKEN")
    read = await api.get(first.headers["location"])
    value = read.json()
    assert (value["body"], value["headers"], value["priority"]) == ("hello", {"kind": "greeting"}, 3)
    assert (value["status"], value["group"]) == ("waiting", "default")
    assert read.headers["etag"] == f'"{value["version"]}"'


async def test_bytes_are_sent_and_read_as_they_are(api: httpx.AsyncClient) -> None:
    body = bytes(range(256))
    sent = await api.put(
        f"{MAIL}/messages/raw", params={"delay": 60}, content=body, headers={"content-type": "application/octet-stream"}
    )
    assert sent.status_code == 201
    assert base64.b64decode((await api.get(f"{MAIL}/messages/raw")).json()["body_base64"]) == body
    read = await api.get(f"{MAIL}/messages/raw/body")
    assert read.content == body
    assert read.headers["content-disposition"] == "attachment"
    assert "sandbox" in read.headers["content-security-policy"]


async def test_a_cloud_event_passes_through(api: httpx.AsyncClient) -> None:
    headers = {
        "ce-specversion": "1.0",
        "ce-type": "com.example.paid",
        "ce-source": "/shop",
        "ce-id": "77",
        "ce-subject": "M%C3%BCller%20%22x%22",
        "content-type": "application/json; charset=utf-8",
    }
    sent = await api.put(f"{MAIL}/messages/event?delay=60", content=b'{"paid": true}', headers=headers)
    assert sent.status_code == 201
    value = (await api.get(f"{MAIL}/messages/event")).json()
    assert value["headers"]["ce-type"] == "com.example.paid"
    assert value["headers"]["ce-subject"] == 'Müller "x"'
    read = await api.get(f"{MAIL}/messages/event/body")
    assert read.content == b'{"paid": true}'
    assert {name: read.headers[name] for name in headers if name != "ce-subject"} == {
        name: value for name, value in headers.items() if name != "ce-subject"
    }
    assert read.headers["ce-subject"] == "M%C3%BCller %22x%22"


async def test_a_change_needs_the_version_that_was_seen(api: httpx.AsyncClient) -> None:
    await put(api, "one", body="a")
    etag = (await api.get(f"{MAIL}/messages/one")).headers["etag"]
    edited = await api.patch(
        f"{MAIL}/messages/one", json={"body": "b", "headers": {"x": "y"}}, headers={"If-Match": etag}
    )
    assert (edited.status_code, edited.json()["body"], edited.json()["headers"]) == (200, "b", {"x": "y"})
    late = await api.patch(f"{MAIL}/messages/one", json={"body": "c"}, headers={"If-Match": etag})
    assert (late.status_code, late.json()["code"], late.json()["retryable"]) == (412, "VERSION_CONFLICT", False)
    assert late.headers["content-type"] == "application/problem+json"
    assert (await api.delete(f"{MAIL}/messages/one", headers={"If-Match": etag})).status_code == 412
    gone = await api.delete(f"{MAIL}/messages/one", headers={"If-Match": edited.headers["etag"]})
    assert gone.status_code == 204
    missing = await api.get(f"{MAIL}/messages/one")
    assert (missing.status_code, missing.json()["code"]) == (404, "NOT_FOUND")
    removed = await put(api, "two", headers={"x": "y"})
    assert removed.status_code == 201
    assert (await api.patch(f"{MAIL}/messages/two", json={"headers": {"x": None}})).json()["headers"] == {}


async def test_another_group_may_not_change_a_message(api: httpx.AsyncClient) -> None:
    await api.put(f"{MAIL}/messages/one", params={"group": "billing"}, json={"delay": 60})
    refused = await api.patch(f"{MAIL}/messages/one", params={"group": "other"}, json={"body": "x"})
    assert (refused.status_code, refused.json()["code"]) == (403, "NOT_OWNER")
    assert "billing" in refused.json()["detail"]


async def test_a_repeated_request_with_a_key_creates_nothing_twice(api: httpx.AsyncClient) -> None:
    rows = [{"body": "a", "delay": 60}, {"body": "b", "at": "+1m"}, {"id": "own", "body": "c", "delay": 60}]
    for _ in range(2):
        answer = await api.post(f"{MAIL}/messages", json=rows, headers={"Idempotency-Key": "order-77"})
        assert answer.status_code == 201
    assert (await api.get(f"{MAIL}/count")).json() == {"count": 3}
    other = await api.post(f"{MAIL}/messages", json=rows[:1], headers={"Idempotency-Key": "order-78"})
    assert other.json()["results"][0]["code"] == "OK"
    assert (await api.get(f"{MAIL}/count")).json() == {"count": 4}


async def test_each_line_has_its_own_outcome(api: httpx.AsyncClient) -> None:
    """One bad line does not stop the others."""
    lines = [
        json.dumps({"id": "a", "body": "1", "delay": 60}),
        "{not json",
        json.dumps({"id": "b c", "body": "2"}),
        json.dumps({"body": "3", "delay": 60}),
        json.dumps({"body": "4", "at": "yesterday"}),
        json.dumps({"id": "a", "body": "other", "delay": 60}),
    ]
    answer = await api.post(
        f"{MAIL}/messages", content="\n".join(lines), headers={"content-type": "application/x-ndjson"}
    )
    assert answer.status_code == 200
    outcomes = [json.loads(line) for line in answer.text.splitlines()]
    codes = [one["code"] for one in outcomes]
    assert codes == ["OK", "INVALID_ARGUMENT", "INVALID_ID", "OK", "INVALID_TIME", "DUPLICATE_IN_BATCH"]
    assert [one["ok"] for one in outcomes] == [True, False, False, True, False, False]
    assert all(one.get("detail") for one in outcomes if not one["ok"])
    assert (await api.get(f"{MAIL}/count")).json() == {"count": 2}


async def test_pages_follow_one_another_by_link(api: httpx.AsyncClient) -> None:
    rows = [{"id": f"m{n}", "body": "x", "delay": 60 + n, "headers": {"even": str(n % 2 == 0)}} for n in range(9)]
    await api.post(f"{MAIL}/messages", json=rows)
    found: list[str] = []
    url: str | None = f"{MAIL}/messages?limit=2&header=even:True&bodies=false"
    while url:
        page = await api.get(url)
        found += [message["id"] for message in page.json()["messages"]]
        assert all("body" not in message for message in page.json()["messages"])
        url = page.links["next"]["url"] if "next" in page.links else None
    assert found == ["m0", "m2", "m4", "m6", "m8"]
    lines = await api.get(f"{MAIL}/messages", headers={"accept": "application/x-ndjson"})
    assert [json.loads(line)["id"] for line in lines.text.splitlines()] == [row["id"] for row in rows]


async def test_counts_and_histograms_are_exact(api: httpx.AsyncClient) -> None:
    start = 2_000_000_000_000
    rows = [{"body": "x", "at": start + n * 250, "priority": n} for n in range(8)]
    await api.post(f"{MAIL}/messages", json=rows)
    drawn = await api.get(f"{MAIL}/histogram", params={"start": start, "end": start + 5_000, "step_ms": 1_000})
    assert drawn.json() == {"starts": [start, start + 1_000], "counts": [4, 4]}
    counted = await api.get(f"{MAIL}/count", params={"priority_min": 2, "priority_max": 3, "status": "waiting"})
    assert counted.json() == {"count": 2}
    iso = await api.get(f"{MAIL}/count", params={"end": "2033-05-18T03:33:20.500Z"})
    assert iso.json() == {"count": 2}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("move", {"ts": 2_000_000_600_000}),
        ("shift", {"ts": 2_000_000_000_000 - 10_000}),
        ("edit", {"priority": 9}),
        ("cancel", None),
    ],
)
async def test_many_are_changed_at_once_after_a_dry_run(
    api: httpx.AsyncClient, change: str, expected: dict[str, Any] | None
) -> None:
    at = 2_000_000_000_000
    await api.post(f"{MAIL}/messages", json=[{"id": f"m{n}", "at": at + n * 1_000} for n in range(4)])
    chosen = {"start": at, "end": at + 2_000}
    verb = "move" if change == "shift" else change
    bodies = {"move": {"at": at + 600_000}, "shift": {"shift": -10}, "edit": {"priority": 9}, "cancel": {}}
    url = f"{MAIL}/messages:{verb}"
    dry = await api.post(url, params={**chosen, "dry_run": True}, json=bodies[change])
    assert dry.json() == {"matched": 2, "done": 0, "refused": {}, "examples": {}, "dry_run": True}
    assert (await api.get(f"{MAIL}/messages/m0")).json()["ts"] == at
    done = await api.post(url, params=chosen, json=bodies[change])
    assert (done.json()["matched"], done.json()["done"], done.json()["dry_run"]) == (2, 2, False)
    changed = await api.get(f"{MAIL}/messages/m0")
    if expected is None:
        assert changed.status_code == 404
    else:
        assert expected.items() <= changed.json().items()
    assert (await api.get(f"{MAIL}/messages/m3")).json()["ts"] == at + 3_000
    everything = await api.post(url, json=bodies[change])
    assert (everything.status_code, everything.json()["code"]) == (400, "INVALID_ARGUMENT")


LINES = {"accept": "application/x-ndjson"}


async def test_a_change_of_many_reports_its_progress(api: httpx.AsyncClient) -> None:
    count = 2 * BULK_ROWS + 500
    await api.post(f"{MAIL}/messages", json=[{"body": "x", "delay": 3_600}] * count)
    url = f"{MAIL}/messages:move?start=now"
    answer = await api.post(url, json={"shift": 60}, headers=LINES)
    *progress, outcome = [json.loads(line) for line in answer.text.splitlines()]
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    assert progress
    tried = [one["tried"] for one in progress]
    assert tried == sorted(tried)
    assert 0 < tried[0] <= tried[-1] <= count
    assert outcome == {"matched": count, "done": count, "refused": {}, "examples": {}, "dry_run": False}
    # A change of few is one line, and what is wrong is a problem with its status.
    (one,) = (await api.post(f"{url}&end=now", json={"shift": 60}, headers=LINES)).text.splitlines()
    assert json.loads(one)["matched"] == 0
    wrong = await api.post(f"{MAIL}/messages:cancel", headers=LINES)
    assert (wrong.status_code, wrong.json()["code"]) == (400, "INVALID_ARGUMENT")


async def test_a_change_that_fails_in_the_middle_says_so(
    api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(*_: object, progress: Callable[[int, None], None], **__: object) -> None:
        progress(1_000, None)
        # The answer begins.
        for _turn in range(10):
            await asyncio.sleep(0)
        raise error_of(Code.DRAINING)

    monkeypatch.setattr(Producer, "cancel_where", failing)
    answer = await api.post(f"{MAIL}/messages:cancel?start=now", headers=LINES)
    first, *_, last = [json.loads(line) for line in answer.text.splitlines()]
    assert first == {"tried": 1_000}
    assert (last["code"], last["retryable"]) == ("DRAINING", True)


async def test_a_change_whose_client_leaves_ends_behind_the_step_in_progress(caplog: pytest.LogCaptureFixture) -> None:
    """It was cut off within a step, and nobody knew what was done."""
    steps, step = list[int](), asyncio.Event()

    async def change(_: object, progress: Callable[[int, int | None], None]) -> BulkResult:
        for tried in (1_000, 2_000, 3_000):
            progress(tried, None)
            await step.wait()
            steps.append(tried)
        return BulkResult()

    @asynccontextmanager
    async def producer(topic: str, group: str) -> AsyncIterator[None]:
        yield

    call = SimpleNamespace(
        gateway=SimpleNamespace(producer=producer),
        topic="mail",
        query=SimpleNamespace(group="billing"),
    )
    running = bulk._RunningChange(call, change)  # type: ignore[arg-type]
    await running.news()
    lines = running.lines()
    assert json.loads(await anext(lines)) == {"tried": 1_000}
    await lines.aclose()  # type: ignore[attr-defined]
    assert not running.task.done()
    step.set()
    await eventually(running.task.done, within=5)
    await asyncio.sleep(0)
    assert steps == [1_000]
    assert "a change of billing in mail ended behind 2000 messages" in caplog.text
    assert not bulk._ending
