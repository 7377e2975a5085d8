"""The session of the producers of one client that send to one topic as one group.

They share the session with the broker, the names of batches, and the batches: messages that several producers send in
one turn of the event loop leave in one frame.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from random import Random
from weakref import WeakValueDictionary

from dejaq.errors import DejaqError
from dejaq.protocol.transport import Transport
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.sdk.admin.queries import Queries
from dejaq.sdk.admin.scan import scan
from dejaq.sdk.bodies.large import LargeBodyClient, TopicTerms
from dejaq.sdk.changing.bulk import BULK_ROWS
from dejaq.sdk.changing.by_owner import ByOwner
from dejaq.sdk.changing.changes import Changes
from dejaq.sdk.gathering import copy_of
from dejaq.sdk.producing.accumulator import Accumulator
from dejaq.sdk.producing.sender import Numbering, Sender
from dejaq.sdk.session.connection import Connection
from dejaq.sdk.session.link import Link, ask_once
from dejaq.sdk.session.seeds import Seeds
from dejaq.sdk.session.settings import ClientSettings


class GroupSession:
    """What the producers of one topic and group share. It is open while one of them is."""

    def __init__(
        self, seeds: Seeds, settings: ClientSettings, *, topic: str, group: str, linger: float, random: Random
    ) -> None:
        self.topic, self.group = topic, group
        self.terms = TopicTerms()
        self.large = LargeBodyClient(seeds, settings)
        self.numbering = Numbering(settings.clock, random)
        self.connection = Connection(
            seeds,
            settings,
            enter=self._enter,
            on_event=lambda _link, _frame: None,
            role="producer",
            topic=topic,
        )
        self.clock = self.connection.broker_clock
        self.sender = Sender(self.connection, self.numbering)
        self.accumulator = Accumulator(self.sender, until=self.connection.until, linger=linger)
        self.queries = Queries(seeds, settings)
        self.by_owner = ByOwner(
            Changes(self.connection, self.queries, topic),
            scan=lambda wanted: scan(seeds, settings, topic, wanted, rows=BULK_ROWS),
            stored=self._stored,
            lookup=lambda ids: self.queries.get(topic, ids),
            clock=self.clock,
            group=group,
        )
        self._seeds, self._settings = seeds, settings
        # The producers that are open. A client closes its producers as long as they exist, and this keeps them.
        self._users: set[object] = set()
        # When the topic was created that the session began with.
        self._created_ms = 0
        self._ended = False
        self._process = os.getpid()
        self._opening: asyncio.Task[None] | None = None

    @property
    def is_usable(self) -> bool:
        """Whether a producer may still join it."""
        return self._process == os.getpid() and not self._ended and not self.connection.is_closed

    async def _enter(self, link: Link, transport: Transport) -> None:
        request = overseer.TopicRequest(name=self.topic, settings_only=True)
        described = await transport.call(
            "Overseer.DescribeTopic", request, overseer.TopicResponse, self._settings.timeout
        )
        self._created_ms = described.topic.created_ms
        self._described(described)
        frame = self.connection.frame()
        frame.producer.topic = self.topic
        frame.producer.group = self.group
        await ask_once(link, frame)

    def _described(self, described: overseer.TopicResponse) -> None:
        self.terms = TopicTerms.of(described)
        self.numbering.buckets = self.terms.buckets
        self.sender.shares_bodies = self.terms.shares_bodies

    async def join(self, producer: object) -> bool:
        """Open it for one more producer; raises NoBroker after the deadline, or the broker's refusal.

        False when the topic was deleted and created again, so that the producer needs another session.
        """
        self._users.add(producer)
        joined = False
        try:
            joined = await self._join()
        finally:
            if not joined:
                await self.leave(producer)
        return joined

    async def _join(self) -> bool:
        if self._opening is None:
            self._opening = asyncio.ensure_future(self.connection.open())
            await self._opened(self._opening)
            return True
        await self._opened(self._opening)
        await self.connection.wait_open()
        # The settings of the topic may have changed since the session began.
        request = overseer.TopicRequest(name=self.topic, settings_only=True)
        described = await self._seeds.call(
            "Overseer.DescribeTopic", request, overseer.TopicResponse, patience=self._settings
        )
        if described.topic.created_ms != self._created_ms:
            self._ended = True
            return False
        self._described(described)
        return True

    async def _opened(self, opening: asyncio.Task[None]) -> None:
        try:
            await asyncio.shield(opening)
        except DejaqError as error:
            raise copy_of(error) from None

    async def leave(self, producer: object) -> None:
        """One producer fewer uses it; the last one ends it."""
        self._users.discard(producer)
        if self._users:
            return
        self._ended = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        await self.connection.close()

    async def _stored(self, ids: Sequence[str], bodies: Sequence[bytes], attempt: int) -> tuple[list[bytes], bool]:
        """Bodies as they are stored in messages with these ids, and whether some are references to large bodies."""
        return await self.large.stored(self.topic, self.terms, ids, bodies, attempt=attempt)


class GroupSessions:
    """The sessions of one client's producers."""

    def __init__(self, seeds: Seeds, settings: ClientSettings, random: Random) -> None:
        self.seeds, self.settings, self.random = seeds, settings, random
        self._sessions: WeakValueDictionary[tuple[str, str, float], GroupSession] = WeakValueDictionary()

    def of(self, topic: str, group: str, linger: float) -> GroupSession:
        """The session of a topic's group; another one when the last one has ended."""
        session = self._sessions.get((topic, group, linger))
        if session is None or not session.is_usable:
            session = GroupSession(
                self.seeds, self.settings, topic=topic, group=group, linger=linger, random=self.random
            )
            self._sessions[topic, group, linger] = session
        return session
