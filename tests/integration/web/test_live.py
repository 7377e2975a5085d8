"""Live data: one set of queries for all pages, slow pages, other sites, and an outage."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

import dejaq
from dejaq.errors import Code, DejaqError
from dejaq.testing.waiting import eventually
from dejaq.web.live.hub import CLIENTS_MAX, VIEWS_PER_CLIENT_MAX, LiveHub
from dejaq.web.live.pace import LivePace
from dejaq.web.live.views import DueView, OverviewView, TimelineView, View
from tests.integration.web.serving import serving

OVERVIEW = {"kind": "overview"}
START = 2_000_000_000_000


class CountingClient:
    """Counts the calls that reach the brokers."""

    def __init__(self, client: dejaq.Client) -> None:
        self._client = client
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        if name in ("info", "histogram", "browse_page"):
            self.calls[name] += 1
        return getattr(self._client, name)


@pytest.fixture
async def client(broker: dejaq.Broker) -> AsyncIterator[dejaq.Client]:
    async with dejaq.connect(broker) as client:
        await client.create_topic("mail")
        yield client


async def calls_of(client: dejaq.Client, pages: int, turns: int) -> Counter[str]:
    """The calls while so many pages look at the same views for so many turns of the clock."""
    counting = CountingClient(client)
    turn = asyncio.Semaphore(0)
    slept = 0

    async def sleep(_: float) -> None:
        nonlocal slept
        slept += 1
        await turn.acquire()

    hub = LiveHub(counting, pace=LivePace(sleep=sleep, monotonic=lambda: 0.0))  # type: ignore[arg-type]
    views: set[View] = {OverviewView(), DueView("mail"), TimelineView("mail", START, START + 10_000, 100)}
    joined = [hub.join() for _ in range(pages)]
    for one in joined:
        hub.choose(one, set(views))
    for number in range(1, turns + 1):
        await eventually(lambda: slept == number * len(views), within=10, what="every view was read")
        if number < turns:
            for _ in views:
                turn.release()
    for one in joined:
        answers = await one.take()
        assert len(answers) == len(views)
        assert all('"data"' in answer for answer in answers)
    await hub.close()
    return counting.calls


async def test_a_hundred_pages_cost_the_broker_as_much_as_one(client: dejaq.Client) -> None:
    """The pages must not hurt the broker."""
    assert await calls_of(client, 100, 3) == await calls_of(client, 1, 3)


async def test_a_page_that_does_not_read_keeps_one_answer_per_view(client: dejaq.Client) -> None:
    turns = asyncio.Semaphore(0)
    hub = LiveHub(client, pace=LivePace(sleep=lambda _: turns.acquire(), monotonic=lambda: 0.0))  # type: ignore[arg-type,return-value]
    slow, fast = hub.join(), hub.join()
    for one in (slow, fast):
        hub.choose(one, {OverviewView()})
    for _ in range(20):
        await fast.take()
        turns.release()
    await fast.take()
    assert len(await slow.take()) == 1
    hub.leave(slow)
    hub.leave(fast)
    await hub.close()


async def test_a_query_that_takes_long_is_repeated_less_often(client: dejaq.Client) -> None:
    slept: list[float] = []
    forever = asyncio.Event()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await forever.wait()

    times = iter([0.0, 0.01, 10.0, 10.5, 20.0, 29.0, 30.0, 35.0])
    hub = LiveHub(client, pace=LivePace(sleep=sleep, monotonic=lambda: 0.0), monotonic=lambda: next(times))
    page = hub.join()
    # The last one is refused: a broker that does not answer is asked again soon.
    views: list[tuple[View, float]] = [
        (OverviewView(), 1.0),
        (DueView("mail"), 10.0),
        (TimelineView("mail", START, START + 10, 1), 30.0),
        (DueView("nothing"), 1.0),
    ]
    for view, pause in views:
        hub.choose(page, {view})
        await eventually(lambda: len(slept) == 1, within=10, what="the view was read")
        assert slept.pop() == pytest.approx(pause)
    await hub.close()


async def test_the_number_of_pages_and_views_is_bounded(client: dejaq.Client) -> None:
    hub = LiveHub(client)
    pages = [hub.join() for _ in range(CLIENTS_MAX)]
    with pytest.raises(DejaqError) as full:
        hub.join()
    assert full.value.code is Code.OVERLOADED
    views: set[View] = {TimelineView("mail", n, n + 100, 10) for n in range(VIEWS_PER_CLIENT_MAX + 1)}
    with pytest.raises(DejaqError) as refused:
        hub.choose(pages[0], set(views))
    assert refused.value.code is Code.LIMIT_EXCEEDED
    hub.leave(pages[0])
    hub.join()
    await hub.close()


async def ask(socket: ClientConnection, *views: dict[str, Any]) -> dict[str, Any]:
    await socket.send(json.dumps({"views": views}))
    return dict(json.loads(await asyncio.wait_for(socket.recv(), 30)))


def address_of(url: str) -> str:
    return url.replace("http://", "ws://") + "/live"


async def test_a_page_gets_what_it_looks_at(broker: dejaq.Broker, client: dejaq.Client) -> None:
    now = client.now_ms()
    async with client.producer("mail") as producer:
        await producer.send_batch([b"a", b"b", b"c"], at=[now + 20_000, now + 20_000, now + 90_000])
    async with serving(dejaq.connect(broker)) as url, connect(address_of(url), origin=url, proxy=None) as socket:  # type: ignore[arg-type]
        answer = await ask(socket, OVERVIEW)
        assert [topic["name"] for topic in answer["data"]["topics"]] == ["mail"]
        due = await ask(socket, {"kind": "due", "topic": "mail"})
        assert (len(due["data"]["messages"]), sum(due["data"]["counts"])) == (2, 2)
        assert "body" not in due["data"]["messages"][0]
        line = {"kind": "timeline", "topic": "mail", "start": now, "end": now + 100_000, "step_ms": 1_000}
        drawn = await ask(socket, line)
        assert (drawn["data"]["counts"], drawn["data"]["held_counts"]) == ([2, 1], [])
        missing = await ask(socket, {"kind": "due", "topic": "nothing"})
        assert missing["error"]["code"] == "TOPIC_NOT_FOUND"


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
async def test_a_page_of_another_site_gets_no_socket(broker: dejaq.Broker, origin: str) -> None:
    """S9: refused before the handshake is accepted."""
    async with serving(dejaq.connect(broker)) as url:
        with pytest.raises(InvalidStatus) as refused:
            async with connect(address_of(url), origin=origin, proxy=None):  # type: ignore[arg-type]
                pass
        assert refused.value.response.status_code == 403


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"views": [{"kind": "other"}]}', '{"views": 5}', "x" * 70_000])
async def test_a_wrong_request_ends_the_socket_and_nothing_else(broker: dejaq.Broker, text: str) -> None:
    async with serving(dejaq.connect(broker)) as url:
        async with connect(address_of(url), proxy=None) as socket:
            await socket.send(text)
            with pytest.raises(ConnectionClosed):
                await asyncio.wait_for(socket.recv(), 30)
        async with connect(address_of(url), proxy=None) as socket:
            assert "data" in await ask(socket, OVERVIEW)
