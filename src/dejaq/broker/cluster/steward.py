"""Creates and deletes topics in a cluster: one broker at a time does the work, another finishes it if that one ends.

The state of a topic is a record that every broker watches. The broker that works on it holds a claim, which ends with
that broker; a topic that is half created or half deleted, without a claim, is finished by the first broker that claims
it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from dejaq.broker.catalog import Catalog
from dejaq.broker.context import bound
from dejaq.broker.events import NoListener, TopicListener
from dejaq.domain.context import CallContext
from dejaq.domain.naming.topic_name import check_topic_name
from dejaq.domain.topic import Topic, TopicSettings, TopicStage
from dejaq.domain.topic_record import read_topic, write_topic
from dejaq.errors import Refused, Unavailable
from dejaq.storage.base import RotatesKeys
from dejaq.synchronization.base import Record, RecordChange, Synchronization
from dejaq.synchronization.claims import Claims
from dejaq.timekeeper.clock import Clock

log = logging.getLogger(__name__)

PREFIX = "topics/"
CLAIMS = "work/topics/"
# How long a broker waits for another that is creating the same topic.
PATIENCE_SECONDS = 5.0
POLL_SECONDS = 0.05
# What a broker that crashed left half done is finished by another one.
_FINISHING = CallContext.internal("finish topics")


class Steward:
    """Creates, edits and deletes topics of the cluster from this broker."""

    def __init__(
        self,
        *,
        broker: str,
        synchronization: Synchronization,
        catalog: Catalog,
        clock: Clock,
        shared: bool,
        teach: Callable[[str], Awaitable[None]],
    ) -> None:
        """`teach` has every other broker read the record of a topic, and waits for the brokers that answer."""
        # Whether another broker may be working on the topics of the storage.
        self._shared = shared
        self._synchronization = synchronization
        self._catalog = catalog
        self._clock = clock
        self._half: set[str] = set()
        # The last known revision of each record: the watch may deliver an earlier one afterwards.
        self._revisions: dict[str, int] = {}
        self._claims = Claims(owner=broker, synchronization=synchronization, prefix=CLAIMS)
        self._teach = teach
        self._listener: TopicListener = NoListener()

    def connect(self, listener: TopicListener) -> None:
        """Report changed topics to `listener`."""
        self._listener = listener

    async def begin(self) -> None:
        """Write a record for each topic of the storage that has none."""
        await self._catalog.load(finish=not self._shared)
        known = {record.key for record in await self._synchronization.under(PREFIX)}
        for topic in self._catalog.all():
            if PREFIX + topic.name not in known:
                await self._synchronization.put(PREFIX + topic.name, write_topic(topic), expected=0)

    # Changed records

    def records_changed(self, changes: list[RecordChange]) -> list[Topic]:
        """Read changed records; returns the topics whose sessions must be ended."""
        leaving: list[Topic] = []
        for change in changes:
            name = change.key.removeprefix(PREFIX)
            if change.record is None:
                self._half.discard(name)
                self._revisions.pop(name, None)
                self._catalog.forget(name)
            elif (topic := self._take(change.record)) is not None:
                leaving.append(topic)
        return leaving

    def _take(self, record: Record) -> Topic | None:
        topic = read_topic(record.value)
        if record.revision < self._revisions.get(topic.name, 0):
            return None
        self._revisions[topic.name] = record.revision
        if topic.state is TopicStage.LIVE:
            self._half.discard(topic.name)
            before = self._catalog.named(topic.name)
            self._catalog.adopt(topic)
            # Clients reconnect to use the new settings; the broker that changes them ends its own sessions itself.
            known = before is not None and before.number == topic.number and before.state is TopicStage.LIVE
            edited = known and before is not None and before.settings != topic.settings
            return topic if edited and topic.name not in self._claims else None
        self._half.add(topic.name)
        if topic.state is TopicStage.DELETING and topic.number:
            self._catalog.adopt(topic)
            # The broker that deletes it ends the sessions of its own clients.
            return None if topic.name in self._claims else topic
        return None

    async def learn(self, name: str) -> None:
        """Read the record of a topic now, before the watch delivers it, and end the sessions on a deleted topic."""
        record = await self._synchronization.get(PREFIX + name)
        for topic in self.records_changed([RecordChange(PREFIX + name, record)]):
            await self._listener.topic_changed(topic)

    async def finish(self) -> None:
        """Finish topics that are half created or half deleted and have no claim."""
        await self._claims.tidy()
        for name in [name for name in self._half if name not in self._claims]:
            if await self._claims.take(name):
                try:
                    await self._finish(name)
                except BaseException:
                    await self._claims.release(name)
                    raise

    async def _finish(self, name: str) -> None:
        """Finish a topic that is claimed, or release the claim."""
        record = await self._synchronization.get(PREFIX + name)
        topic = None if record is None else read_topic(record.value)
        if topic is None or topic.state is TopicStage.LIVE:
            self._half.discard(name)
            await self._claims.release(name)
        elif topic.newer and topic.state is TopicStage.CREATING:
            # Created here it would lack settings that only a newer release knows; a broker of that release finishes it.
            await self._claims.release(name)
        elif topic.state is TopicStage.CREATING:
            log.info("topic %s was half created; this broker finishes it", name)
            await self._make(_FINISHING, name, topic.settings, topic.creator)
        else:
            log.info("topic %s was half deleted; this broker finishes it", name)
            self._catalog.adopt(topic)
            self._catalog.drop(topic)

    # Creating

    async def create(
        self, context: CallContext, name: str, settings: TopicSettings, creator: str = ""
    ) -> tuple[Topic, bool]:
        """The topic, and whether it is new; raises TOPIC_EXISTS where its settings differ.

        `creator` has every right on a new topic.
        """
        check_topic_name(name)
        settings.check()
        until = self._clock.monotonic() + bound(context, PATIENCE_SECONDS)
        while not await self._claims.take(name):
            await self.learn(name)
            known = self._catalog.named(name)
            if known is not None and known.state is not TopicStage.CREATING:
                return await self._catalog.create(context, name, settings)
            if self._clock.monotonic() > until:
                raise Unavailable(f"another broker is working on topic {name!r}; try again")
            await asyncio.sleep(POLL_SECONDS)
        try:
            await self.learn(name)
        except BaseException:
            await self._claims.release(name)
            raise
        return await self._make(context, name, settings, creator)

    async def edit(self, context: CallContext, name: str, values: Mapping[str, int | str | bool]) -> Topic:
        """Change settings of a topic at every broker; sessions on the topic are ended and begin again with them."""
        self._catalog.edited(name, values)
        await self._claim(context, name)
        try:
            await self.learn(name)
            topic = self._catalog.edited(name, values)
            # The record is written first: after a crash between the two writes, every broker uses the record.
            await self._put(topic)
            await self._catalog.edit(context, topic)
        finally:
            await self._claims.release(name)
        await self._listener.topic_changed(topic)
        await self._teach(name)
        return topic

    async def rekey(self, context: CallContext, name: str, storage: RotatesKeys, *, new_key: bool) -> str:
        """Replace what protects the keys of a topic, while no broker edits or deletes it; the name of the new key."""
        await self._claim(context, name)
        try:
            await self.learn(name)
            return await storage.rekey(self._catalog.live(name), context, new_key=new_key)
        finally:
            await self._claims.release(name)

    async def _claim(self, context: CallContext, name: str) -> None:
        until = self._clock.monotonic() + bound(context, PATIENCE_SECONDS)
        while not await self._claims.take(name):
            if self._clock.monotonic() > until:
                raise Unavailable(f"another broker is working on topic {name!r}; try again")
            await asyncio.sleep(POLL_SECONDS)

    async def _make(self, context: CallContext, name: str, settings: TopicSettings, creator: str) -> tuple[Topic, bool]:
        """Create a topic that is claimed, and release the claim."""
        begun = name in self._half
        try:
            if self._catalog.named(name) is None:
                await self._synchronization.put(PREFIX + name, write_topic(unnumbered(name, settings, creator)))
            try:
                # Before another broker begins to make a topic in the storage, it writes the record.
                topic, created = await self._catalog.create(context, name, settings, creator=creator, begun=begun)
            except Refused:
                await self._settle(name)
                raise
            if created:
                await self._settle(name)
            self._half.discard(name)
            return topic, created
        finally:
            await self._claims.release(name)

    async def _settle(self, name: str) -> None:
        """Write the topic that the catalog has to the record, or remove the record."""
        topic = self._catalog.named(name)
        if topic is None:
            await self._synchronization.remove(PREFIX + name)
        else:
            await self._put(topic)
            await self._teach(name)

    async def _put(self, topic: Topic) -> None:
        record = await self._synchronization.put(PREFIX + topic.name, write_topic(topic))
        if record is not None:
            self._revisions[topic.name] = record.revision

    # Deleting

    async def delete(self, context: CallContext, name: str) -> Topic:
        """Mark the topic as deleting; its messages are removed in the background."""
        topic = self._catalog.find(name)
        if topic.state is TopicStage.DELETING:
            return topic
        if not await self._claims.take(name):
            raise Unavailable(f"another broker is working on topic {name!r}; try again")
        try:
            # Another broker may have deleted the topic, and created another of its name, before this one had the claim.
            await self.learn(name)
            topic = self._catalog.find(name)
            await self._put(topic.in_state(TopicStage.DELETING))
            # The claim is released when the topic is dropped.
            return await self._catalog.delete(context, name)
        except BaseException:
            await self._claims.release(name)
            raise

    async def dropped(self, topic: Topic) -> None:
        """The messages of a topic are removed: remove its record too."""
        record = await self._synchronization.get(PREFIX + topic.name)
        if record is not None and read_topic(record.value).number == topic.number:
            await self._synchronization.remove(PREFIX + topic.name, expected=record.revision)
        await self._claims.release(topic.name)


def unnumbered(name: str, settings: TopicSettings, creator: str = "") -> Topic:
    """A topic that is being created and is not in the storage yet."""
    return Topic(name=name, number=0, settings=settings, state=TopicStage.CREATING, creator=creator)
