"""Which broker a client should use: advice for a client that connects, and moves of sessions that are already here."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from dejaq.broker.background import Background
from dejaq.broker.catalog import Catalog
from dejaq.broker.cluster.clients import Clients
from dejaq.broker.cluster.member import Member
from dejaq.broker.cluster.membership import Membership
from dejaq.broker.cluster.selector import Advice, recommend
from dejaq.broker.cluster.spreading import MovableSession, Spreading
from dejaq.broker.delivery.roster import Rosters
from dejaq.domain.context import Endpoint
from dejaq.domain.topic import Topic
from dejaq.timekeeper.clock import Clock

log = logging.getLogger(__name__)


class Placement:
    """Compares the load of the brokers, with the clients that were sent to each since it last published its load."""

    def __init__(
        self,
        *,
        membership: Membership,
        clients: Clients,
        catalog: Catalog,
        rosters: Rosters,
        clock: Clock,
        background: Background,
        sessions: Callable[[], Sequence[MovableSession]],
    ) -> None:
        self._membership = membership
        self._clients = clients
        self._catalog = catalog
        self._rosters = rosters
        self._background = background
        self._sessions = sessions
        self._spreading = Spreading(own=membership.own, clock=clock, sessions=sessions, consumers=self._consumers_at)
        # Clients that were sent to each broker since it last published its record, and its consumers.
        self._sent: Counter[str] = Counter()
        self._sent_consumers: Counter[str] = Counter()

    def members_published(self, brokers: Iterable[str]) -> None:
        """These brokers have published their load: clients that were sent there are counted in it."""
        for broker in brokers:
            self._sent.pop(broker, None)

    def clients_published(self, brokers: Iterable[str]) -> None:
        """These brokers have published their consumers: consumers that were sent there are among them."""
        for broker in brokers:
            self._sent_consumers.pop(broker, None)

    def recommended(self) -> list[Member]:
        """The brokers to use, the least loaded first."""
        return recommend(self._membership.members.values(), own=self._membership.own, load=self._load)

    def advise(self, *, topic: str, role: str, endpoint: Endpoint) -> Advice:
        """Where a client that has connected here should go: first the consumers of a topic are balanced, then all."""
        members, own = self._membership.members, self._membership.own
        load = self._load
        if role == "consumer" and (found := self._catalog.named(topic)) is not None:
            load = partial(self._consumers, found)
        served = [member for member in members.values() if member.address_at(endpoint)]
        best = recommend(served, own=own, load=load)
        better = best[0] if best and best[0].id != own else None
        if better is not None:
            self._sent[better.id] += 1
            self._sent_consumers[better.id] += role == "consumer"
        unwell = [member for member in served if not member.well]
        addresses = tuple(member.address_at(endpoint) for member in [*best, *unwell])
        return Advice(addresses, better.address_at(endpoint) if better is not None else "")

    def spread(self) -> None:
        """Ask clients to move to brokers that have clearly fewer sessions."""
        for session, target in self._spreading.moves(self._membership.members, self._sent):
            log.info("session %d is asked to move to %s", session.number, target.id)
            self._sent[target.id] += 1
            self._sent_consumers[target.id] += session.consumer is not None
            self._background.spawn(
                session.move(target.address_at(session.endpoint)), name=f"move session {session.number}"
            )

    def _load(self, member: Member) -> int:
        if member.id == self._membership.own:
            return len(self._sessions())
        return member.sessions + self._sent[member.id]

    def _consumers(self, topic: Topic, member: Member) -> int:
        if member.id == self._membership.own:
            # The consumer that asks is not yet among them.
            return len(self._rosters.of(topic)) + 1
        return self._consumers_at(topic.number, member)

    def _consumers_at(self, number: int, member: Member) -> int:
        return self._clients.count_at(number, member.id) + self._sent_consumers[member.id]
