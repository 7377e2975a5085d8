"""The topics: made and unmade in steps that survive a crash, and found by name without asking the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from dejaq import limits
from dejaq.broker.background import Background
from dejaq.domain.topic import Topic, TopicKind, TopicSettings, TopicState, check_topic_name
from dejaq.errors import Code, DejaqError, Unavailable, error_of
from dejaq.storage.base import Storage
from dejaq.timekeeper.clock import Clock

log = logging.getLogger(__name__)

# The kinds that this broker can serve.
KINDS = frozenset({TopicKind.TIMELINE, TopicKind.PRIORITY, TopicKind.CRON})

# Names the hidden topic beside a cron topic; no client can make or reach such a name.
SCHEDULES = "/schedules"
# Nobody leases from it, so there is nothing to share out; in one bucket what is changed together lies together.
_BOOK_BUCKETS = 1


class Catalog:
    """The broker's view of the storage's topics; all changes to them go through it."""

    def __init__(self, *, storage: Storage, clock: Clock, background: Background, topics_max: int) -> None:
        self._storage = storage
        self._clock = clock
        self._background = background
        self._topics_max = topics_max
        self._topics: dict[str, Topic] = {}
        self._changing = asyncio.Lock()
        self._dropping: set[int] = set()
        # Set by central: ends everything that works on a topic and waits for it.
        self.evacuate: Callable[[Topic, DejaqError], Awaitable[None]] | None = None
        # Set by central: told when a topic and its messages are gone.
        self.dropped: Callable[[Topic], Awaitable[None]] | None = None

    async def load(self, *, finish: bool = True) -> None:
        """Read the topics and finish what a crash cut short: half-made ones are made, half-deleted ones dropped.

        Without `finish` they are left as they are: another broker may be at work on them.
        """
        async with self._changing:
            topics = await self._storage.topics()
            if not finish:
                self._topics = {topic.name: topic for topic in topics}
                return
            for place, topic in enumerate(topics):
                if topic.state is TopicState.CREATING:
                    topics[place] = topic.in_state(TopicState.LIVE)
                    await self._storage.put_topic(topics[place])
            self._topics = {topic.name: topic for topic in topics}
            for topic in topics:
                if topic.state is TopicState.DELETING:
                    self._drop_later(topic)

    def newer(self) -> str | None:
        """What topics have that a newer release gave them and this broker lacks, in a sentence; None for nothing."""
        found = sorted(
            f"{topic.name} ({', '.join(name for name, _ in topic.newer)})"
            for topic in self._topics.values()
            if topic.newer
        )
        if not found:
            return None
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        return f"a newer release gave topics settings that this broker lacks: {', '.join(found[:3])}{more}; upgrade it"

    def all(self) -> list[Topic]:
        """Every topic, by name; without those that keep schedules."""
        return [self._topics[name] for name in sorted(self._topics) if not name.endswith(SCHEDULES)]

    async def schedules_of(self, topic: Topic) -> Topic:
        """The hidden topic that keeps the schedules of a cron topic."""
        name = topic.name + SCHEDULES
        if name not in self._topics and self._storage.capabilities.shared:
            # Another broker has made it.
            for other in await self._storage.topics():
                if other.name == name:
                    self._topics[name] = other
        book = self._topics.get(name)
        if book is None or book.state is TopicState.DELETING:
            raise error_of(Code.TOPIC_DELETING, f"topic {topic.name!r} is being deleted")
        return book

    def named(self, name: str) -> Topic | None:
        """The topic of this name, in any state."""
        return self._topics.get(name)

    def find(self, name: str) -> Topic:
        """The topic of this name, in any state; raises TOPIC_NOT_FOUND."""
        topic = self._topics.get(name)
        if topic is None or name.endswith(SCHEDULES):
            check_topic_name(name)
            raise error_of(Code.TOPIC_NOT_FOUND, f"no topic is named {name!r}; create it first")
        return topic

    def live(self, name: str) -> Topic:
        """The topic of this name if it takes messages; raises TOPIC_NOT_FOUND or TOPIC_DELETING."""
        topic = self.find(name)
        if topic.state is TopicState.DELETING:
            raise error_of(Code.TOPIC_DELETING, f"topic {name!r} is being deleted")
        if topic.strange is not None:
            raise Unavailable(
                f"topic {name!r} has {topic.strange}, which this broker does not know; use one of the newer release"
            )
        return topic

    def check(self, topic: Topic) -> None:
        """Raise when this very topic, as a session knows it, no longer takes messages."""
        now = self._topics.get(topic.name)
        if now is not topic:
            self.live(topic.name)
            if now is None or now.number != topic.number:
                raise error_of(Code.TOPIC_NOT_FOUND, f"topic {topic.name!r} was deleted and made anew; reconnect")

    async def create(self, name: str, settings: TopicSettings) -> tuple[Topic, bool]:
        """The topic, and whether it is new; raises TOPIC_EXISTS where its settings differ."""
        check_topic_name(name)
        settings.check()
        _check_dead_letter(name, settings)
        if settings.share_bodies and not self._storage.capabilities.shares_bodies:
            storage = self._storage.capabilities.name
            raise error_of(Code.INVALID_SETTING, f"share_bodies: the storage {storage!r} cannot share bodies")
        if settings.kind not in KINDS:
            raise error_of(Code.INVALID_SETTING, f"topics of the kind {settings.kind} cannot be made yet")
        async with self._changing:
            old = self._topics.get(name)
            if old is not None and (old.state is not TopicState.CREATING or not self._storage.capabilities.shared):
                return self._same(self.live(name), settings), False
            half_made = await self._half_made(name)
            if half_made is not None:
                self._topics[name] = half_made
                return self._same(half_made, settings), True
            if len(self._topics) >= self._topics_max:
                raise error_of(Code.LIMIT_EXCEEDED, f"there are {self._topics_max} topics, the most this broker keeps")
            if settings.kind is TopicKind.CRON and name + SCHEDULES not in self._topics:
                await self._make(name + SCHEDULES, _book_settings(settings))
            return await self._make(name, settings), True

    async def _make(self, name: str, settings: TopicSettings) -> Topic:
        topic = Topic(
            name=name,
            number=await self._storage.next_topic_number(),
            settings=settings,
            state=TopicState.CREATING,
            created_ms=self._clock.now_ms(),
        )
        await self._storage.put_topic(topic)
        topic = topic.in_state(TopicState.LIVE)
        await self._storage.put_topic(topic)
        self._topics[name] = topic
        return topic

    async def _half_made(self, name: str) -> Topic | None:
        """The topic that another broker began to make in a store that both share, now made."""
        if not self._storage.capabilities.shared:
            return None
        for topic in await self._storage.topics():
            if topic.name == name:
                if topic.state is TopicState.CREATING:
                    topic = topic.in_state(TopicState.LIVE)
                    await self._storage.put_topic(topic)
                return topic
        return None

    def adopt(self, topic: Topic) -> None:
        """Take over what another broker has made of a topic."""
        if self._topics.get(topic.name) != topic:
            self._topics[topic.name] = topic

    def forget(self, name: str) -> None:
        """Another broker has removed the topic."""
        self._topics.pop(name, None)

    def drop(self, topic: Topic) -> None:
        """Remove a topic that is marked as deleting, in the background."""
        self._drop_later(topic)

    def _same(self, topic: Topic, settings: TopicSettings) -> Topic:
        if topic.settings != settings:
            wanted, there = settings.as_dict(), topic.settings.as_dict()
            differ = ", ".join(
                f"{key} is {there[key]}, not {wanted[key]}" for key in wanted if wanted[key] != there[key]
            )
            raise error_of(Code.TOPIC_EXISTS, f"topic {topic.name!r} is there with other settings: {differ}")
        return topic

    async def delete(self, name: str) -> Topic:
        """Mark the topic as deleting, durably; its messages go in the background."""
        async with self._changing:
            topic = await self._mark(self.find(name))
            book = self._topics.get(name + SCHEDULES)
            if book is not None:
                await self._mark(book)
            return topic

    async def _mark(self, topic: Topic) -> Topic:
        if topic.state is not TopicState.DELETING:
            topic = topic.in_state(TopicState.DELETING)
            await self._storage.put_topic(topic)
            self._topics[topic.name] = topic
            self._drop_later(topic)
        return topic

    def _drop_later(self, topic: Topic) -> None:
        if topic.number not in self._dropping:
            self._dropping.add(topic.number)
            self._background.spawn(self._drop(topic), name=f"drop topic {topic.name}")

    async def _drop(self, topic: Topic) -> None:
        try:
            if self.evacuate is not None:
                await self.evacuate(topic, error_of(Code.TOPIC_DELETING, f"topic {topic.name!r} is being deleted"))
            await self._storage.drop_topic(topic, self._clock.now_ms())
            async with self._changing:
                self._topics.pop(topic.name, None)
            if self.dropped is not None:
                await self.dropped(topic)
        except DejaqError as error:
            # It stays DELETING; the next load, after recovery or restart, goes on with it.
            log.warning("topic %s is not dropped yet: %s", topic.name, error)
        finally:
            self._dropping.discard(topic.number)


def _check_dead_letter(name: str, settings: TopicSettings) -> None:
    """Dead letters need a topic other than the one they died in."""
    if settings.dead_letter == name:
        raise error_of(Code.INVALID_SETTING, f"dead_letter={name!r} is the topic itself")
    if settings.max_attempts and not settings.dead_letter:
        try:
            check_topic_name(Topic(name, 0, settings).dead_letter_name)
        except DejaqError:
            raise error_of(
                Code.INVALID_SETTING, f"{name[:40]!r}... and `.dead` is too long a topic name; give a dead_letter"
            ) from None


def _book_settings(settings: TopicSettings) -> TopicSettings:
    """Schedules may lie as far ahead as time goes; the journal tells of their occurrences."""
    return TopicSettings(
        buckets=_BOOK_BUCKETS, max_future_ms=limits.TS_MS_MAX, durability=settings.durability, journal=False
    )
