"""The WebSocket of programs in browsers: producers, consumers with leases, callers, and limits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

import dejaq
from dejaq.testing.waiting import eventually
from dejaq.web.programs.consumers import CONSUMERS_MAX
from tests.integration.web.serving import serving

SITE = "https://app.example"


class Program:
    """Sends calls and keeps what comes."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.n = 0

    async def receive(self) -> dict[str, Any]:
        return dict(json.loads(await asyncio.wait_for(self.socket.recv(), 30)))

    async def call(self, call: str, **fields: Any) -> dict[str, Any]:
        """The answer; the frames before it must be no others."""
        self.n += 1
        await self.socket.send(json.dumps({"call": call, "n": self.n, **fields}))
        answer = await self.receive()
        assert answer["n"] == self.n
        return answer


@asynccontextmanager
async def program(url: str, *, origin: str | None = None, **hello: str) -> AsyncIterator[Program]:
    address = url.replace("http", "ws") + "/api/v1/socket"
    async with connect(address, origin=origin, proxy=None) as socket:  # type: ignore[arg-type]
        opened = Program(socket)
        await socket.send(json.dumps({"call": "hello", **hello}))
        assert (await opened.receive())["ready"] is True
        yield opened


@pytest.fixture
async def url(broker: dejaq.Broker) -> AsyncIterator[str]:
    async with dejaq.connect(broker) as client:
        await client.create_topic("mail", max_attempts=3)
    async with serving(dejaq.connect(broker), origins=(SITE,), rate=0) as address:
        yield address


async def test_a_program_produces_and_consumes_with_leases(url: str) -> None:
    async with program(url) as one:
        rows = [{"id": "a", "body": "first"}, {"body_base64": "AP8="}, {"id": "no id", "body": "x"}]
        sent = (await one.call("send", topic="mail", messages=rows))["results"]
        assert [row["ok"] for row in sent] == [True, True, False]
        again = (await one.call("send", topic="mail", messages=rows[:1]))["results"]
        assert again[0]["code"] == "ALREADY_EXISTS"
        number = (await one.call("open", topic="mail", name="tab", lease=30, credit=1))["consumer"]
        pushed = await one.receive()
        (lease,) = pushed["leases"]
        assert (pushed["consumer"], lease["attempts"]) == (number, 1)
        extended = await one.call("settle", lease=lease["lease"], how="extend", seconds=100)
        assert extended["expires_ms"] > lease["expires_ms"]
        # The second one comes when the first is settled: the credit is one.
        assert "error" not in await one.call("settle", lease=lease["lease"], how="delete")
        (second,) = (await one.receive())["leases"]
        lost = await one.call("settle", lease=lease["lease"], how="delete")
        assert lost["error"]["code"] == "LEASE_LOST"
        await one.call("settle", lease=second["lease"], how="reject", reason="no such customer")
        await one.call("close", consumer=number)
        assert (await one.call("close", consumer=number))["error"]["code"] == "NOT_FOUND"


async def test_what_a_program_that_left_has_not_settled_comes_again_at_once(url: str, broker: dejaq.Broker) -> None:
    async with program(url) as one:
        await one.call("send", topic="mail", messages=[{"body": "x"}])
        await one.call("open", topic="mail", name="tab", lease=600)
        assert len((await one.receive())["leases"]) == 1
    async with dejaq.connect(broker) as client, client.consumer("mail") as consumer:
        batch = await consumer.take(1, timeout=20)
        assert batch[0].attempts == 2
        await batch.delete()


async def test_problems_of_calls_are_those_of_the_api(url: str) -> None:
    async with program(url) as one:
        missing = await one.call("send", topic="nothing", messages=[{"body": "x"}])
        assert missing["error"]["code"] == "TOPIC_NOT_FOUND"
        assert (await one.call("open", topic="nothing", name="x"))["error"]["code"] == "TOPIC_NOT_FOUND"
        for n in range(CONSUMERS_MAX):
            assert "consumer" in await one.call("open", topic="mail", name=f"c{n}")
        assert (await one.call("open", topic="mail", name="more"))["error"]["code"] == "LIMIT_EXCEEDED"


@pytest.mark.parametrize("text", ["", "[]", '{"call": "send"}', '{"call": "hello", "token": 5}', "x" * 100_000])
async def test_a_wrong_first_frame_ends_the_socket(url: str, text: str) -> None:
    async with connect(url.replace("http", "ws") + "/api/v1/socket", proxy=None) as socket:
        await socket.send(text)
        await asyncio.wait_for(socket.wait_closed(), 30)
        assert socket.close_code == 1008


@pytest.mark.parametrize("frame", ["{", '{"call": "hello"}', '{"call": "open", "n": 1, "topic": "mail", "name": "é"}'])
async def test_a_wrong_call_ends_the_socket(url: str, frame: str) -> None:
    async with program(url) as one:
        await one.socket.send(frame)
        with pytest.raises(ConnectionClosed):
            await one.receive()


async def test_only_origins_that_the_operator_names_may_connect(url: str) -> None:
    async with program(url, origin=SITE) as one:
        assert (await one.call("send", topic="mail", messages=[{"body": "x"}]))["results"][0]["ok"]
    for path, origin in (("/api/v1/socket", "https://evil.example"), ("/live", SITE)):
        with pytest.raises(InvalidStatus):
            async with connect(url.replace("http", "ws") + path, origin=origin, proxy=None):  # type: ignore[arg-type]
                pass


async def test_a_read_only_gateway_refuses_programs(broker: dejaq.Broker) -> None:
    async with serving(dejaq.connect(broker), read_only=True) as address, program(address) as one:
        refused = await one.call("send", topic="mail", messages=[{"body": "x"}])
        assert refused["error"]["code"] == "PERMISSION_DENIED"


async def test_with_users_the_first_frame_needs_credentials(broker: dejaq.Broker) -> None:
    asked: list[str] = []

    def client_of(credentials: str) -> dejaq.Client:
        asked.append(credentials)
        return dejaq.connect(broker)

    async with serving(client_of, login=True) as address:
        async with connect(address.replace("http", "ws") + "/api/v1/socket", proxy=None) as socket:
            await socket.send('{"call": "hello"}')
            await asyncio.wait_for(socket.wait_closed(), 30)
            assert socket.close_code == 4401
        async with program(address, token="dq_secret"):
            await eventually(lambda: "dq_secret" in asked, within=10, what="the program has its own client")


async def test_a_program_calls_any_operation_of_the_api(url: str) -> None:
    async with program(url) as one:
        await one.call("send", topic="mail", messages=[{"id": "a", "body": "x", "delay": 3_600}])
        place = {"topic": "mail", "id": "a"}
        read = await one.call("operation", operation="getMessage", path=place)
        assert (read["status"], read["value"]["body"]) == (200, "x")
        match = {"If-Match": f'"{read["value"]["version"]}"'}
        edited = await one.call("operation", operation="editMessage", path=place, headers=match, body={"priority": 7})
        assert edited["value"]["priority"] == 7
        conflict = await one.call("operation", operation="editMessage", path=place, headers=match, body={"priority": 8})
        assert (conflict["status"], conflict["error"]["code"]) == (412, "VERSION_CONFLICT")
        counted = await one.call(
            "operation", operation="countMessages", path={"topic": "mail"}, query={"status": "waiting"}
        )
        assert counted["value"] == {"count": 1}
        body = await one.call("operation", operation="getBody", path=place)
        assert body["value"] == {"body_base64": "eA=="}
        gone = await one.call("operation", operation="cancelMessage", path=place)
        assert (gone["status"], "value" in gone) == (204, False)
        for wrong in ({"operation": "nothing"}, {"operation": "getMessage", "path": {"topic": "mail"}}):
            assert (await one.call("operation", **wrong))["error"]["code"] in ("NOT_FOUND", "INVALID_ARGUMENT")


async def test_a_program_settles_its_leases_in_a_transaction(url: str) -> None:
    async with program(url) as one, program(url) as other:
        await one.call("send", topic="mail", messages=[{"id": "in", "body": "x"}])
        await one.call("open", topic="mail", name="tab", lease=30, credit=1)
        (lease,) = (await one.receive())["leases"]
        steps = [
            {"do": "delete", "topic": "mail", "lease": lease["lease"]},
            {"do": "send", "topic": "mail", "id": "out", "delay": 60},
        ]
        # A lease is found by the program that holds it, and by no other.
        stolen = await other.call("operation", operation="transact", body={"steps": steps})
        assert stolen["error"]["code"] == "LEASE_LOST"
        done = await one.call("operation", operation="transact", body={"steps": steps})
        assert done["value"]["ids"] == ["in", "out"]
        counted = await one.call("operation", operation="countMessages", path={"topic": "mail"})
        assert counted["value"] == {"count": 1}


async def test_a_request_of_one_program_is_answered_by_another(url: str) -> None:
    async with program(url) as asking, program(url) as answering:
        await answering.call("open", topic="mail", name="tab", lease=30, credit=1)
        asked = asyncio.ensure_future(
            asking.call("operation", operation="sendRequest", path={"topic": "mail"}, body={"body": "6"})
        )
        (lease,) = (await answering.receive())["leases"]
        assert lease["wants_reply"] is True
        await answering.call("settle", lease=lease["lease"], how="progress", text="half")
        await answering.call("settle", lease=lease["lease"], how="delete", reply={"body": "36"})
        assert (await asked)["value"]["body"] == "36"


async def test_a_program_watches_a_topic(url: str) -> None:
    async with program(url) as one:
        await one.call("watch", views=[{"kind": "topic", "topic": "mail"}])
        assert (await one.receive())["data"]["waiting"] == 0
        await one.socket.send(
            json.dumps({"call": "send", "n": 9, "topic": "mail", "messages": [{"body": "x", "delay": 60}] * 3})
        )
        frames = [await one.receive()]
        while not ("data" in frames[-1] and frames[-1]["data"]["waiting"] == 3):
            frames.append(await one.receive())
            assert len(frames) < 30
        await one.socket.send(json.dumps({"call": "watch", "n": 10, "views": [{"kind": "due", "topic": "nothing"}]}))
        while frames[-1].get("view", {}).get("kind") != "due":
            frames.append(await one.receive())
        assert frames[-1]["error"]["code"] == "TOPIC_NOT_FOUND"


async def test_a_read_only_gateway_lets_programs_read(broker: dejaq.Broker) -> None:
    async with dejaq.connect(broker) as client:
        await client.create_topic("mail")
    async with serving(dejaq.connect(broker), read_only=True) as url, program(url) as one:
        read = await one.call("operation", operation="listTopics")
        assert [topic["name"] for topic in read["value"]["topics"]] == ["mail"]
        changed = await one.call("operation", operation="deleteTopic", path={"topic": "mail"})
        assert changed["error"]["code"] == "PERMISSION_DENIED"
        sent = await one.call("send", topic="mail", messages=[{"body": "x"}])
        assert sent["error"]["code"] == "PERMISSION_DENIED"
