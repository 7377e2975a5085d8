"""The clients that the broker asks to move to another broker, and how few of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import cast

from dejaq.broker.cluster.member import Member
from dejaq.broker.cluster.spreading import AGAIN_SECONDS, LEAVE_SECONDS, SETTLE_SECONDS, STEADY_SECONDS, Spreading
from dejaq.broker.sessions.session import Session
from dejaq.domain.context import Endpoint
from dejaq.timekeeper.clock import VirtualClock


@dataclass
class Topic:
    number: int


@dataclass
class Consumer:
    topic: Topic


@dataclass
class Client:
    """The part of a session that the balancing uses; a session without a topic belongs to a producer."""

    number: int
    name: str
    consumer: Consumer | None = None
    asked_at: float | None = None
    movable: bool = True
    endpoint: Endpoint = Endpoint.WEBSOCKET


class Brokers:
    """The broker `a` with its sessions, and other brokers that only have a number of sessions."""

    def __init__(self, *others: str) -> None:
        self.clock = VirtualClock()
        self.here: list[Client] = []
        self.there: dict[str, list[Client]] = {name: [] for name in others}
        self.moved: list[str] = []
        self.unwell: set[str] = set()
        self.spreading = Spreading(
            own="a",
            clock=self.clock,
            sessions=lambda: cast("list[Session]", list(self.here)),
            consumers=lambda number, member: len(self.consumers_at(member.id, number)),
        )

    def consumers_at(self, broker: str, number: int) -> list[Client]:
        found = self.here if broker == "a" else self.there[broker]
        return [one for one in found if one.consumer is not None and one.consumer.topic.number == number]

    def come(self, count: int, topic: int | None = None) -> None:
        for _ in range(count):
            number = len(self.here)
            consumer = None if topic is None else Consumer(Topic(topic))
            self.here.append(Client(number, f"{topic}/{number}", consumer))

    async def advance(self, seconds: float) -> None:
        """Check every second, and move the sessions that are asked to move."""
        for _ in range(round(seconds)):
            names = ["a", *self.there]
            members = {
                name: Member(
                    id=name, address=name, sessions=len(self.there.get(name, ())), ready=name not in self.unwell
                )
                for name in names
            }
            for session, target in list(self.spreading.moves(members, Counter())):
                client = cast("Client", session)
                self.moved.append(client.name)
                self.here.remove(client)
                self.there[target.id].append(client)
            await self.clock.advance(1_000)


async def test_only_as_many_clients_move_as_balance_the_brokers() -> None:
    brokers = Brokers("b", "c")
    brokers.come(6, topic=1)
    brokers.come(6)
    await brokers.advance(120)
    assert [len(brokers.consumers_at(name, 1)) for name in ("a", "b", "c")] == [2, 2, 2]
    assert [len(brokers.here), *map(len, brokers.there.values())] == [4, 4, 4]
    assert len(brokers.moved) == len(set(brokers.moved)) == 8


async def test_many_clients_move_in_few_rounds() -> None:
    brokers = Brokers("b")
    brokers.come(200)
    await brokers.advance(60)
    assert 99 <= len(brokers.there["b"]) <= 100


async def test_no_client_moves_to_a_broker_that_is_often_unavailable() -> None:
    brokers = Brokers("b")
    brokers.come(8)
    for _ in range(4):
        await brokers.advance(STEADY_SECONDS - 1)
        brokers.unwell = {"b"}
        await brokers.advance(1)
        brokers.unwell = set()
    assert brokers.moved == []


async def test_a_client_that_came_back_is_not_moved_again_for_a_while() -> None:
    brokers = Brokers("b")
    brokers.come(2)
    await brokers.advance(STEADY_SECONDS + 3)
    assert len(brokers.moved) == 1
    brokers.here += brokers.there["b"]
    brokers.there["b"].clear()
    await brokers.advance(2 * SETTLE_SECONDS)
    assert len(set(brokers.moved)) == len(brokers.moved) == 2, "the other client moves"
    brokers.here += brokers.there["b"]
    brokers.there["b"].clear()
    await brokers.advance(AGAIN_SECONDS / 2)
    assert len(brokers.moved) == 2


async def test_a_client_that_was_asked_to_move_and_stays_counts_again() -> None:
    brokers = Brokers("b")
    brokers.come(2)
    brokers.here[1].asked_at, brokers.here[1].movable = brokers.clock.monotonic(), False
    await brokers.advance(LEAVE_SECONDS - 1)
    assert brokers.moved == []
    await brokers.advance(4)
    assert brokers.moved == ["None/0"]
