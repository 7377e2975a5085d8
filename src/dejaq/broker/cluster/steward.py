"""Makes and unmakes topics among several brokers: one at a time does the work, another finishes it if that one dies.

The state of a topic is a record that every broker watches. Who works on it holds a claim, which goes with its broker;
a topic that is half made or half deleted and that nobody has claimed is taken up by whoever sees it first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from dejaq.broker.overseer.catalog import Catalog
from dejaq.domain.topic import Topic, TopicSettings, TopicState, check_topic_name
from dejaq.domain.topic_record import read_topic, write_topic
from dejaq.errors import DejaqError, Refused, Unavailable
from dejaq.synchronization.base import Change, Record, Synchronization
from dejaq.timekeeper.clock import Clock

log = logging.getLogger(__name__)

PREFIX = "topics/"
CLAIMS = "work/topics/"
# How long a broker waits for another that is making the same topic.
PATIENCE_SECONDS = 5.0
POLL_SECONDS = 0.05


class Steward:
    """This broker's part in the topics of the cluster."""

    def __init__(
        self, *, broker: str, synchronization: Synchronization, catalog: Catalog, clock: Clock, shared: bool
    ) -> None:
        self._broker = broker
        # Whether another broker may be at work on the topics of the storage.
        self._shared = shared
        self._synchronization = synchronization
        self._catalog = catalog
        self._clock = clock
        self._half: set[str] = set()
        self._at_work: set[str] = set()
        # Set by the cluster: have every other broker learn of a topic, and wait for those that live.
        self.teach: Callable[[str], Awaitable[None]] | None = None
        # Set by the cluster: end what works on a topic here.
        self.evacuate: Callable[[Topic], Awaitable[None]] | None = None

    async def begin(self) -> None:
        """Bring storage and records together: what the storage has and no record tells gets a record."""
        await self._catalog.load(finish=not self._shared)
        known = {record.key for record in await self._synchronization.under(PREFIX)}
        for topic in self._catalog.all():
            if PREFIX + topic.name not in known:
                await self._synchronization.put(PREFIX + topic.name, write_topic(topic), expected=0)

    # What the records tell

    def told(self, changes: list[Change]) -> list[Topic]:
        """Take changes of the records; gives the topics that are to be left by their clients."""
        leaving: list[Topic] = []
        for change in changes:
            name = change.key.removeprefix(PREFIX)
            if change.record is None:
                self._half.discard(name)
                self._catalog.forget(name)
            elif (topic := self._take(change.record)) is not None:
                leaving.append(topic)
        return leaving

    def _take(self, record: Record) -> Topic | None:
        topic = read_topic(record.value)
        if topic.state is TopicState.LIVE:
            self._half.discard(topic.name)
            self._catalog.adopt(topic)
            return None
        self._half.add(topic.name)
        if topic.state is TopicState.DELETING and topic.number:
            self._catalog.adopt(topic)
            # Who deletes it sees to its own clients.
            return None if topic.name in self._at_work else topic
        return None

    async def learn(self, name: str) -> None:
        """Read what became of a topic now, instead of when the watch tells; a deleted one is left before it returns."""
        record = await self._synchronization.get(PREFIX + name)
        for topic in self.told([Change(PREFIX + name, record)]):
            if self.evacuate is not None:
                await self.evacuate(topic)

    async def finish(self) -> None:
        """Go on with what was begun and nobody works on."""
        for name in list(self._half - self._at_work):
            if await self._claim(name):
                record = await self._synchronization.get(PREFIX + name)
                topic = None if record is None else read_topic(record.value)
                if topic is None or topic.state is TopicState.LIVE:
                    self._half.discard(name)
                    await self._let_go(name)
                elif topic.newer and topic.state is TopicState.CREATING:
                    # Made here it would lack what only a newer release knows; such a broker finishes it.
                    await self._let_go(name)
                elif topic.state is TopicState.CREATING:
                    log.info("topic %s was half made; it is finished here", name)
                    await self._make(name, topic.settings)
                else:
                    log.info("topic %s was half deleted; it is finished here", name)
                    self._catalog.adopt(topic)
                    self._catalog.drop(topic)

    # Making

    async def create(self, name: str, settings: TopicSettings) -> tuple[Topic, bool]:
        """The topic, and whether it is new; raises TOPIC_EXISTS where its settings differ."""
        check_topic_name(name)
        settings.check()
        until = self._clock.monotonic() + PATIENCE_SECONDS
        while not await self._claim(name):
            await self.learn(name)
            known = self._catalog.named(name)
            if known is not None and known.state is not TopicState.CREATING:
                return await self._catalog.create(name, settings)
            if self._clock.monotonic() > until:
                raise Unavailable(f"another broker is at work on topic {name!r}; try again")
            await asyncio.sleep(POLL_SECONDS)
        try:
            await self.learn(name)
        except BaseException:
            await self._let_go(name)
            raise
        return await self._make(name, settings)

    async def _make(self, name: str, settings: TopicSettings) -> tuple[Topic, bool]:
        """Make a topic that is claimed, and give up the claim."""
        try:
            if self._catalog.named(name) is None:
                await self._synchronization.put(PREFIX + name, write_topic(unnumbered(name, settings)))
            try:
                topic, created = await self._catalog.create(name, settings)
            except Refused:
                await self._settle(name)
                raise
            if created:
                await self._settle(name)
            self._half.discard(name)
            return topic, created
        finally:
            await self._let_go(name)

    async def _settle(self, name: str) -> None:
        """Have the record say what the catalog knows: a topic, or none."""
        topic = self._catalog.named(name)
        if topic is None:
            await self._synchronization.remove(PREFIX + name)
        else:
            await self._synchronization.put(PREFIX + name, write_topic(topic))
            if self.teach is not None:
                await self.teach(name)

    # Unmaking

    async def delete(self, name: str) -> Topic:
        """Mark the topic as deleting; its messages go in the background."""
        topic = self._catalog.find(name)
        if topic.state is TopicState.DELETING:
            return topic
        if not await self._claim(name):
            raise Unavailable(f"another broker is at work on topic {name!r}; try again")
        try:
            await self._synchronization.put(PREFIX + name, write_topic(topic.in_state(TopicState.DELETING)))
            # The claim is given up when the topic is dropped.
            return await self._catalog.delete(name)
        except BaseException:
            await self._let_go(name)
            raise

    async def dropped(self, topic: Topic) -> None:
        """The messages of a topic are gone: so is its record."""
        record = await self._synchronization.get(PREFIX + topic.name)
        if record is not None and read_topic(record.value).number == topic.number:
            await self._synchronization.remove(PREFIX + topic.name, expected=record.revision)
        await self._let_go(topic.name)

    # Claims

    async def _claim(self, name: str) -> bool:
        if name in self._at_work:
            return False
        self._at_work.add(name)
        try:
            claim = await self._synchronization.put(CLAIMS + name, self._broker.encode(), expected=0, bound=True)
        except BaseException:
            self._at_work.discard(name)
            raise
        if claim is None:
            self._at_work.discard(name)
        return claim is not None

    async def _let_go(self, name: str) -> None:
        try:
            await asyncio.shield(self._synchronization.remove(CLAIMS + name))
        except DejaqError as error:
            log.warning("the claim on topic %s is given up later: %s", name, error)
        finally:
            self._at_work.discard(name)


def unnumbered(name: str, settings: TopicSettings) -> Topic:
    """A topic that is being made and is not in the storage yet."""
    return Topic(name=name, number=0, settings=settings, state=TopicState.CREATING)
