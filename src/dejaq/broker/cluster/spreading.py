"""Moves clients to brokers that have clearly fewer clients, such as a broker that was restarted.

A client is asked, and moves when its running requests are answered; it sees no error. Few are asked at a time, by one
broker after the other. A client that stays, or comes back because it cannot reach the others, is not asked again soon.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Protocol

from dejaq.broker.cluster.member import Member
from dejaq.broker.cluster.selector import relief
from dejaq.broker.delivery.consumer import ConnectedConsumer
from dejaq.domain.context import Endpoint
from dejaq.timekeeper.clock import Clock

# How long a broker must have been ready before clients are moved to it: a broker that restarts repeatedly gets none.
STEADY_SECONDS = 5.0
TURN_SECONDS = 1.0
# How long to wait after some were asked: until they have arrived there, and that broker has published it.
SETTLE_SECONDS = 3.0
# A client that was asked and is still connected after this time stays.
LEAVE_SECONDS = 10.0
# A client that has come back is not asked again before this.
AGAIN_SECONDS = 300.0

# How many consumers of a topic, by its number, a member has.
Consumers = Callable[[int, Member], int]


class MovableSession(Protocol):
    """A client's session, as far as a move to another broker concerns it."""

    @property
    def number(self) -> int:
        """A larger number began later."""

    @property
    def name(self) -> str:
        """A name that the client has again after it came back."""

    @property
    def consumer(self) -> ConnectedConsumer | None:
        """The consumer of the session."""

    @property
    def movable(self) -> bool:
        """Whether the client may be asked to move."""

    @property
    def endpoint(self) -> Endpoint:
        """The kind of address at which its client connected."""

    @property
    def asked_at(self) -> float | None:
        """When the client was asked to move, by the monotonic clock."""

    async def move(self, address: str) -> None:
        """Ask the client to move to the broker at this address."""


class Spreading:
    """Chooses the sessions of this broker that should move, and the broker to move to."""

    def __init__(
        self, *, own: str, clock: Clock, sessions: Callable[[], Iterable[MovableSession]], consumers: Consumers
    ) -> None:
        """`sessions` are those of this broker, `consumers` counts the consumers of the other brokers."""
        self._own = own
        self._clock = clock
        self._sessions = sessions
        self._consumers = consumers
        self._well_since: dict[str, float] = {}
        self._quiet_until = 0.0
        # When clients were last asked, by the names of their sessions.
        self._asked: dict[str, float] = {}

    def moves(self, members: Mapping[str, Member], sent: Counter[str]) -> Iterator[tuple[MovableSession, Member]]:
        """The sessions that should move now, and where; `sent` counts the clients already sent to each member."""
        steady = self._steady(members)
        if not self._has_turn(steady):
            return
        here = [session for session in self._sessions() if not self._leaves(session)]
        by_topic: dict[int, list[MovableSession]] = defaultdict(list)
        for session in here:
            if session.consumer is not None:
                by_topic[session.consumer.topic.number].append(session)
        for number, own in by_topic.items():
            there = partial(self._count, own=len(own), others=partial(self._consumers, number))
            if moved := self._ask(own, relief(steady, own=self._own, load=there)):
                yield from moved
                return
        everybody = partial(self._count, own=len(here), others=lambda member: member.sessions + sent[member.id])
        found = relief(steady, own=self._own, load=everybody)
        if found is not None:
            target = found[0]
            # A topic's consumers stay as even as they are.
            free = [s for s in here if s.consumer is None or self._has_more(by_topic, s, target)]
            yield from self._ask(free, found)

    def _steady(self, members: Mapping[str, Member]) -> list[Member]:
        now = self._clock.monotonic()
        self._well_since = {one.id: self._well_since.get(one.id, now) for one in members.values() if one.well}
        return [members[name] for name in sorted(self._well_since) if now - self._well_since[name] >= STEADY_SECONDS]

    def _has_turn(self, steady: list[Member]) -> bool:
        """Whether it is this broker's turn: two that move clients at one time would move too many."""
        names = [member.id for member in steady]
        turn = int(self._clock.now_ms() / 1_000 / TURN_SECONDS)
        quiet = self._clock.monotonic() < self._quiet_until
        return len(names) > 1 and names[turn % len(names)] == self._own and not quiet

    def _count(self, member: Member, *, own: int, others: Callable[[Member], int]) -> int:
        return own if member.id == self._own else others(member)

    def _has_more(self, by_topic: Mapping[int, list[MovableSession]], session: MovableSession, target: Member) -> bool:
        assert session.consumer is not None
        number = session.consumer.topic.number
        return len(by_topic[number]) > self._consumers(number, target)

    def _leaves(self, session: MovableSession) -> bool:
        return session.asked_at is not None and self._clock.monotonic() - session.asked_at < LEAVE_SECONDS

    def _ask(
        self, sessions: list[MovableSession], found: tuple[Member, int] | None
    ) -> list[tuple[MovableSession, Member]]:
        """The newest sessions are moved first: they have the fewest running requests."""
        if found is None:
            return []
        target, count = found
        now = self._clock.monotonic()
        self._asked = {name: at for name, at in self._asked.items() if now - at < AGAIN_SECONDS}
        movable = [
            session
            for session in sessions
            if session.movable and target.address_at(session.endpoint) and session.name not in self._asked
        ]
        moved = sorted(movable, key=lambda session: -session.number)[:count]
        self._asked |= {session.name: now for session in moved}
        if moved:
            self._quiet_until = now + SETTLE_SECONDS
        return [(session, target) for session in moved]
