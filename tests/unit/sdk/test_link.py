"""A session over a direct channel: requests without tasks, one timer for all deadlines, and seldom pings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from dejaq.errors import DejaqError, Indefinite
from dejaq.protocol.spliced import ClientSent, whole
from dejaq.protocol.transport import Payload, Transport
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.sdk.session.broker_clock import BrokerClock
from dejaq.sdk.session.link import Answer, Link
from dejaq.sdk.session.pings import IDLE_FACTOR, PING_SECONDS, Pings
from dejaq.sdk.session.settings import ClientSettings
from dejaq.testing.waiting import eventually
from dejaq.timekeeper.clock import VirtualClock


class ScriptedBroker:
    """The broker's end of a direct channel: a test answers what it wants; pings are answered at once."""

    def __init__(self) -> None:
        self.frames: list[carrier.ClientFrame] = []
        self.writable = True
        self._take: Callable[[Payload], bool] = lambda payload: False
        self._over = asyncio.Event()

    def send_now(self, sent: ClientSent) -> bool:
        if not self.writable:
            return False
        frame = whole(sent)
        self.frames.append(frame)
        if frame.HasField("ping"):
            pong = carrier.Pong(broker_us=frame.ping.client_us)
            asyncio.get_running_loop().call_soon(self.send_back, carrier.BrokerFrame(request=frame.request, pong=pong))
        return True

    def offer_to(self, take: Callable[[Payload], bool]) -> None:
        self._take = take

    def send_back(self, frame: carrier.BrokerFrame) -> None:
        assert self._take(frame.SerializeToString())

    def answer(self, request: int) -> None:
        frame = carrier.BrokerFrame(request=request)
        frame.outcomes.SetInParent()
        self.send_back(frame)

    async def send(self, frame: ClientSent) -> None:
        self.send_now(frame)

    async def receive(self) -> carrier.BrokerFrame | None:
        await self._over.wait()
        return None

    async def close(self) -> None:
        self._over.set()

    @property
    def pings(self) -> int:
        return sum(frame.HasField("ping") for frame in self.frames)


class NamedTransport:
    address = "scripted"


@pytest.fixture
def broker() -> ScriptedBroker:
    return ScriptedBroker()


@pytest.fixture
async def link(broker: ScriptedBroker) -> AsyncIterator[Link]:
    transport: Transport = NamedTransport()  # type: ignore[assignment]
    link = Link(broker, transport, lambda _link, _frame: None)
    yield link
    await link.close()


def asked(link: Link, number: int, until: float) -> list[Answer]:
    """Send a request; what its answer will be, once it is there."""
    answers: list[Answer] = []
    assert link.ask_now(carrier.ClientFrame(request=number), until, answers.append)
    return answers


async def test_an_answer_is_given_while_its_frame_is_read(broker: ScriptedBroker, link: Link) -> None:
    soon = asyncio.get_running_loop().time() + 60
    first, second = asked(link, 1, soon), asked(link, 2, soon)
    tasks = asyncio.all_tasks()
    broker.answer(2)
    assert [len(first), len(second)] == [0, 1]
    broker.answer(1)
    assert len(first) == 1
    assert asyncio.all_tasks() == tasks


async def test_each_request_waits_until_its_own_deadline(broker: ScriptedBroker, link: Link) -> None:
    now = asyncio.get_running_loop().time()
    late, answered, patient = asked(link, 1, now + 0.01), asked(link, 2, now + 0.02), asked(link, 3, now + 60)
    broker.answer(2)
    await eventually(lambda: bool(late), within=10)
    assert [type(one) for one in late] == [TimeoutError]
    assert [type(one) for one in answered] == [carrier.BrokerFrame]
    assert patient == []
    # An answer that comes too late is ignored.
    broker.answer(1)
    assert len(late) == 1
    broker.answer(3)
    assert len(patient) == 1


async def test_the_end_of_a_session_answers_every_request_once(broker: ScriptedBroker, link: Link) -> None:
    requests = [asked(link, number, asyncio.get_running_loop().time() + 60) for number in range(1, 4)]
    broker.answer(2)
    await link.close()
    assert [[type(one) for one in answers] for answers in requests] == [
        [Indefinite],
        [carrier.BrokerFrame],
        [Indefinite],
    ]
    assert not link.ask_now(carrier.ClientFrame(request=9), 0.0, requests[0].append)


async def test_what_cannot_be_sent_now_is_left_to_the_caller(broker: ScriptedBroker, link: Link) -> None:
    broker.writable = False
    answers: list[Answer] = []
    assert not link.ask_now(carrier.ClientFrame(request=1), 0.0, answers.append)
    assert answers == []
    assert broker.frames == []


async def test_a_frame_that_cannot_be_handled_ends_the_session(broker: ScriptedBroker) -> None:
    def fail(_link: Link, _frame: carrier.BrokerFrame) -> None:
        raise RuntimeError("a bug")

    transport: Transport = NamedTransport()  # type: ignore[assignment]
    link = Link(broker, transport, fail)
    answers = asked(link, 1, asyncio.get_running_loop().time() + 60)
    broker.send_back(carrier.BrokerFrame(push=carrier.Push()))
    assert link.ended
    assert all(isinstance(one, DejaqError) for one in answers)
    assert len(answers) == 1
    await link.close()


@pytest.mark.parametrize(
    ("shared", "busy", "expected"), [(False, False, 2), (False, True, 2 * IDLE_FACTOR), (True, True, 2)]
)
async def test_an_idle_session_and_one_with_the_brokers_clock_ping_seldom(
    broker: ScriptedBroker, link: Link, shared: bool, busy: bool, expected: int
) -> None:
    clock = VirtualClock()
    settings = ClientSettings(clock=clock, name="")
    broker_clock = BrokerClock(clock)
    broker_clock.meet(clock.identity if shared else "another")
    numbers = iter(range(1, 1_000))
    pings = Pings(settings, broker_clock, None, lambda: carrier.ClientFrame(request=next(numbers)))
    running = asyncio.ensure_future(pings.run(link))
    await asyncio.sleep(0)
    for _ in range(2 * IDLE_FACTOR):
        if busy:
            broker.send_back(carrier.BrokerFrame(request=10_000))
        await clock.advance(round(PING_SECONDS * 1_000))
    assert broker.pings == expected
    if not shared and not busy:
        await clock.advance(round(PING_SECONDS * 2_500))
        pings.hurry()
        await eventually(lambda: broker.pings == expected + 1, within=10)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
