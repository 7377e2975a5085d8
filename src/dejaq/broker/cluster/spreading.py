"""Moves clients to brokers that have clearly less to do, such as one that has come back.

A client is asked, and goes when what it has under way is answered; it sees no error. Few are asked at a time, by one
broker after the other. One that stays, or that comes back because it cannot reach the others, is left in peace.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from dejaq.broker.cluster.member import Member
from dejaq.broker.cluster.selector import relief
from dejaq.timekeeper.clock import Clock

if TYPE_CHECKING:
    from dejaq.broker.carrier.session import Session

# So long a broker must have been well before clients are moved to it: one that only comes and goes gets none.
STEADY_SECONDS = 5.0
TURN_SECONDS = 1.0
# After some were asked: time to arrive there, and for the news of it to come here.
SETTLE_SECONDS = 3.0
# A client that was asked and is still here after this time stays.
LEAVE_SECONDS = 10.0
# And one that is here again is not asked again before this.
AGAIN_SECONDS = 300.0

# How many consumers of a topic, by its number, a member has.
Consumers = Callable[[int, Member], int]


class Spreading:
    """Says which of the sessions here should move, and to which broker."""

    def __init__(
        self, *, own: str, clock: Clock, sessions: Callable[[], Iterable[Session]], consumers: Consumers
    ) -> None:
        """`sessions` are those here, `consumers` tells of the other brokers."""
        self._own = own
        self._clock = clock
        self._sessions = sessions
        self._consumers = consumers
        self._well_since: dict[str, float] = {}
        self._quiet_until = 0.0
        # When clients were last asked, by what they are known by.
        self._asked: dict[str, float] = {}

    def moves(self, members: Mapping[str, Member], sent: Counter[str]) -> Iterator[tuple[Session, Member]]:
        """Who should go where, now; `sent` are those on their way to each other member."""
        steady = self._steady(members)
        if not self._has_turn(steady):
            return
        here = [session for session in self._sessions() if not self._leaves(session)]
        by_topic: dict[int, list[Session]] = defaultdict(list)
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

    def _has_more(self, by_topic: Mapping[int, list[Session]], session: Session, target: Member) -> bool:
        assert session.consumer is not None
        number = session.consumer.topic.number
        return len(by_topic[number]) > self._consumers(number, target)

    def _leaves(self, session: Session) -> bool:
        return session.asked_at is not None and self._clock.monotonic() - session.asked_at < LEAVE_SECONDS

    def _ask(self, sessions: list[Session], found: tuple[Member, int] | None) -> list[tuple[Session, Member]]:
        """The last that came go first: they have the least under way."""
        if found is None:
            return []
        target, count = found
        now = self._clock.monotonic()
        self._asked = {name: at for name, at in self._asked.items() if now - at < AGAIN_SECONDS}
        movable = [session for session in sessions if session.movable and session.name not in self._asked]
        moved = sorted(movable, key=lambda session: -session.number)[:count]
        self._asked |= {session.name: now for session in moved}
        if moved:
            self._quiet_until = now + SETTLE_SECONDS
        return [(session, target) for session in moved]
