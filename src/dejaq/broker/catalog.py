"""The topics: created and deleted in steps that survive a crash, and found by name without a call to the storage."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace

from dejaq import limits
from dejaq.broker.background import Background
from dejaq.broker.events import NoListener, TopicListener
from dejaq.broker.name_locks import NameLocks
from dejaq.domain.context import CallContext
from dejaq.domain.naming.topic_name import check_topic_name, is_hidden
from dejaq.domain.topic import Encryption, Topic, TopicKind, TopicSettings, TopicStage, changed_settings
from dejaq.errors import Code, DejaqError, Refused, Unavailable, error_of
from dejaq.storage.base import Storage
from dejaq.storage.log.base import KeepsLogs
from dejaq.timekeeper.clock import Clock

log = logging.getLogger(__name__)

# The kinds that this broker can serve.
KINDS = frozenset({TopicKind.TIMELINE, TopicKind.PRIORITY, TopicKind.CRON, TopicKind.LOG})

# Names the hidden topic beside a cron topic; no client can make or reach such a name.
SCHEDULES = "/schedules"
# Between two tries to drop a topic.
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.1, 1.0
# One bucket: no consumer leases schedules, and schedules that change together are stored together.
_BOOK_BUCKETS = 1
NO_KEYS = "this broker has no keys: start it with --encryption-keys"
# The broker itself finishes the changes of topics that a crash interrupted.
_LOADING = CallContext.internal("finish topics")


class Catalog:
    """The broker's view of the storage's topics; all changes to them go through it."""

    def __init__(self, *, storage: Storage, clock: Clock, background: Background, topics_max: int) -> None:
        self._storage = storage
        self._clock = clock
        self._background = background
        self._topics_max = topics_max
        self._topics: dict[str, Topic] = {}
        # Sorted by name, while no topic has come or gone since it was made.
        self._sorted: list[Topic] | None = None
        # The list of all topics, and those of them that are logs: of 10,000 topics hardly any may be one.
        self._logs: tuple[list[Topic], list[Topic]] = ([], [])
        self._locks = NameLocks()
        # Topics that are being made and are not in `_topics` yet.
        self._making = 0
        self._dropping: set[int] = set()
        self._listener: TopicListener = NoListener()

    def connect(self, listener: TopicListener) -> None:
        """Report topics that are dropped to `listener`, which is constructed after the catalog."""
        self._listener = listener

    async def load(self, *, finish: bool = True) -> None:
        """Read the topics and finish work that a crash interrupted: half-made ones are made, half-deleted ones dropped.

        Without `finish` they are left as they are: another broker may be at work on them.
        """
        async with self._locks.all():
            topics = await self._storage.topics()
            if not finish:
                self._replace(topics)
                return
            for place, topic in enumerate(topics):
                if topic.state is TopicStage.CREATING:
                    topics[place] = topic.in_state(TopicStage.LIVE)
                    await self._storage.put_topic(topics[place], _LOADING)
            self._replace(topics)
            for topic in topics:
                # Schedules are dropped with their topic.
                own = not topic.name.endswith(SCHEDULES) or topic.name.removesuffix(SCHEDULES) not in self._topics
                if topic.state is TopicStage.DELETING and own:
                    self._drop_later(topic, _LOADING)

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
        """Every topic, by name; without those that keep schedules. The caller does not change the list."""
        if self._sorted is None:
            self._sorted = [self._topics[name] for name in sorted(self._topics) if not is_hidden(name)]
        return self._sorted

    def logs(self) -> list[Topic]:
        """Every log, by name. The caller does not change the list."""
        every = self.all()
        if self._logs[0] is not every:
            self._logs = every, [topic for topic in every if topic.is_log]
        return self._logs[1]

    def after(self, name: str, count: int) -> list[Topic]:
        """The next topics after this name, at most `count` of them."""
        topics = self.all()
        first = bisect_right(topics, name, key=lambda topic: topic.name)
        return topics[first : first + count]

    def _replace(self, topics: list[Topic]) -> None:
        self._topics = {topic.name: topic for topic in topics}
        self._sorted = None

    def _put(self, topic: Topic) -> None:
        self._topics[topic.name] = topic
        self._sorted = None

    def _remove(self, name: str) -> None:
        if self._topics.pop(name, None) is not None:
            self._sorted = None

    async def schedules_of(self, topic: Topic) -> Topic:
        """The hidden topic that keeps the schedules of a cron topic."""
        name = topic.name + SCHEDULES
        if name not in self._topics and self._storage.capabilities.shared:
            # Another broker has made it.
            for other in await self._storage.topics():
                if other.name == name:
                    self._put(other)
        book = self._topics.get(name)
        if book is None or book.state is TopicStage.DELETING:
            raise error_of(Code.TOPIC_DELETING, f"topic {topic.name!r} is being deleted")
        return book

    async def records(self, name: str) -> Topic | None:
        """The hidden topic of this name, if there is one; another broker may have made it."""
        if name not in self._topics and self._storage.capabilities.shared:
            for other in await self._storage.topics():
                if other.name == name:
                    self._put(other)
        return self._topics.get(name)

    async def make_records(self, context: CallContext, name: str) -> Topic:
        """The hidden topic of this name, in which the broker keeps records of its own; made when it does not exist."""
        async with self._locks.of(name):
            found = await self.records(name)
            if found is not None:
                return found
            try:
                return await self._make(context, name, _book_settings(TopicSettings()))
            except Refused as refusal:
                found = await self._half_made(context, name) if refusal.code is Code.TOPIC_EXISTS else None
                if found is None:
                    raise
                self._put(found)
                return found

    def named(self, name: str) -> Topic | None:
        """The topic of this name, in any state."""
        return self._topics.get(name)

    def find(self, name: str) -> Topic:
        """The topic of this name, in any state; raises TOPIC_NOT_FOUND."""
        topic = self._topics.get(name)
        if topic is None or is_hidden(name):
            check_topic_name(name)
            raise error_of(Code.TOPIC_NOT_FOUND, f"no topic is named {name!r}")
        return topic

    def live(self, name: str) -> Topic:
        """The timeline of this name; raises TOPIC_NOT_FOUND, TOPIC_DELETING, or INVALID_ARGUMENT for a log."""
        topic = self.usable(name)
        if topic.is_log:
            raise error_of(Code.INVALID_ARGUMENT, f"topic {name!r} is a log; use client.log({name!r}) or `dejaq log`")
        return topic

    def live_log(self, name: str) -> Topic:
        """The log of this name; raises TOPIC_NOT_FOUND, TOPIC_DELETING, or INVALID_ARGUMENT."""
        topic = self.usable(name)
        if not topic.is_log:
            raise error_of(Code.INVALID_ARGUMENT, f"topic {name!r} is not a log; use a producer and consumers")
        return topic

    def usable(self, name: str) -> Topic:
        """The topic of this name, of any kind; raises TOPIC_NOT_FOUND or TOPIC_DELETING."""
        topic = self.find(name)
        if topic.state is TopicStage.DELETING:
            raise error_of(Code.TOPIC_DELETING, f"topic {name!r} is being deleted")
        if topic.unsupported_setting is not None:
            raise Unavailable(
                f"topic {name!r} has {topic.unsupported_setting}, which this broker does not know; "
                "use one of the newer release"
            )
        if topic.settings.encryption is not Encryption.NONE and not self._storage.capabilities.encrypts:
            raise error_of(Code.KEY_UNAVAILABLE, f"topic {name!r} is encrypted, and {NO_KEYS}")
        return topic

    def check(self, topic: Topic) -> None:
        """Raise when this very topic, as a session knows it, no longer takes messages."""
        now = self._topics.get(topic.name)
        if now is not topic:
            self.usable(topic.name)
            if now is None or now.number != topic.number:
                raise error_of(Code.TOPIC_NOT_FOUND, f"topic {topic.name!r} was deleted and created again; reconnect")
            if now.settings != topic.settings:
                raise Unavailable(f"the settings of topic {topic.name!r} have changed; reconnect to continue")

    async def create(
        self, context: CallContext, name: str, settings: TopicSettings, *, creator: str = "", begun: bool = True
    ) -> tuple[Topic, bool]:
        """The topic, and whether it is new; raises TOPIC_EXISTS where its settings differ.

        `creator` has every right on a new topic. `begun` says whether another broker may have begun to make it.
        """
        check_topic_name(name)
        settings.check()
        _check_dead_letter(name, settings)
        self._check_storage(settings)
        if settings.kind not in KINDS:
            raise error_of(Code.INVALID_SETTING, f"topics of the kind {settings.kind} cannot be made yet")
        async with self._locks.of(name):
            old = self._topics.get(name)
            if old is not None and (old.state is not TopicStage.CREATING or not self._storage.capabilities.shared):
                return self._same(self.usable(name), settings), False
            half_made = await self._half_made(context, name) if begun or old is not None else None
            if half_made is not None:
                self._put(half_made)
                return self._same(half_made, settings), True
            if len(self._topics) + self._making >= self._topics_max:
                raise error_of(Code.LIMIT_EXCEEDED, f"there are {self._topics_max} topics, the most this broker keeps")
            self._making += 1
            try:
                if settings.kind is TopicKind.CRON:
                    await self._make_schedules(context, name, settings)
                return await self._make(context, name, settings, creator), True
            except Refused as refusal:
                # The storage has the topic although the cluster has lost the record of it.
                found = await self._half_made(context, name) if refusal.code is Code.TOPIC_EXISTS else None
                if found is None:
                    raise
                self._put(found)
                return self._same(found, settings), False
            finally:
                self._making -= 1

    def _check_storage(self, settings: TopicSettings) -> None:
        """Raise INVALID_SETTING for a setting that the storage does not support."""
        capabilities = self._storage.capabilities
        if settings.share_bodies and not capabilities.shares_bodies:
            raise error_of(Code.INVALID_SETTING, f"share_bodies: the storage {capabilities.name!r} cannot share bodies")
        if settings.encryption is not Encryption.NONE and not capabilities.encrypts:
            raise error_of(Code.INVALID_SETTING, f"encryption: {NO_KEYS}")
        if settings.kind is TopicKind.LOG and not isinstance(self._storage, KeepsLogs):
            raise error_of(Code.INVALID_SETTING, f"kind=log: the storage {capabilities.name!r} keeps no logs")
        if settings.compact and not capabilities.compacts_logs:
            raise error_of(Code.INVALID_SETTING, f"compact: the storage {capabilities.name!r} does not compact logs")

    def edited(self, name: str, values: Mapping[str, int | str | bool]) -> Topic:
        """A live topic with some of its settings changed, not yet stored; raises INVALID_SETTING."""
        topic = self.usable(name)
        settings = changed_settings(topic.settings, values)
        self._check_storage(settings)
        _check_dead_letter(name, settings)
        return replace(topic, settings=settings)

    async def edit(self, context: CallContext, topic: Topic) -> None:
        """Store the changed settings of a topic."""
        async with self._locks.of(topic.name):
            known = self.usable(topic.name)
            if known.number != topic.number:
                raise error_of(Code.TOPIC_NOT_FOUND, f"topic {topic.name!r} was deleted and created again")
            await self._storage.put_topic(topic, context)
            self._put(topic)

    async def _make_schedules(self, context: CallContext, name: str, settings: TopicSettings) -> None:
        """Make the hidden topic of a cron topic, or find what an interrupted creation has left of it."""
        for topic in await self._storage.topics():
            if topic.name == name + SCHEDULES:
                if topic.state is TopicStage.DELETING:
                    raise error_of(Code.TOPIC_DELETING, f"topic {name!r} is being deleted")
                self._put(topic.in_state(TopicStage.LIVE))
                await self._storage.put_topic(self._topics[topic.name], context)
                return
        await self._make(context, name + SCHEDULES, _book_settings(settings))

    async def _make(self, context: CallContext, name: str, settings: TopicSettings, creator: str = "") -> Topic:
        """Write a topic in one step. What its creation consists of besides is done before."""
        topic = Topic(
            name=name,
            number=await self._storage.next_topic_number(),
            settings=settings,
            state=TopicStage.LIVE,
            created_ms=self._clock.now_ms(),
            creator=creator,
        )
        await self._storage.put_topic(topic, context)
        self._put(topic)
        return topic

    async def _half_made(self, context: CallContext, name: str) -> Topic | None:
        """The topic that another broker began to make in a store that both share, now made."""
        if not self._storage.capabilities.shared:
            return None
        for topic in await self._storage.topics():
            if topic.name == name:
                if topic.state is TopicStage.CREATING:
                    topic = topic.in_state(TopicStage.LIVE)
                    await self._storage.put_topic(topic, context)
                return topic
        return None

    def adopt(self, topic: Topic) -> None:
        """Take over what another broker has made of a topic."""
        if self._topics.get(topic.name) != topic:
            self._put(topic)

    def forget(self, name: str) -> None:
        """Another broker has removed the topic, and its schedules with it."""
        self._remove(name)
        self._remove(name + SCHEDULES)

    def drop(self, topic: Topic) -> None:
        """Remove a topic that another broker has marked as deleting, in the background."""
        self._drop_later(topic, _LOADING)

    def _same(self, topic: Topic, settings: TopicSettings) -> Topic:
        if topic.settings != settings:
            wanted, there = settings.as_dict(), topic.settings.as_dict()
            differ = ", ".join(
                f"{key} is {there[key]}, not {wanted[key]}" for key in wanted if wanted[key] != there[key]
            )
            raise error_of(Code.TOPIC_EXISTS, f"topic {topic.name!r} is there with other settings: {differ}")
        return topic

    async def delete(self, context: CallContext, name: str) -> Topic:
        """Mark the topic as deleting, durably; its messages go in the background."""
        async with self._locks.of(name):
            topic = await self._mark(context, self.find(name))
            book = self._topics.get(name + SCHEDULES)
            if book is not None:
                await self._mark(context, book)
            self._drop_later(topic, context)
            return topic

    async def _mark(self, context: CallContext, topic: Topic) -> Topic:
        # Written even when the topic is known as DELETING: that may have come from a record that this broker has just
        # put, and then the storage does not have it yet.
        topic = topic.in_state(TopicStage.DELETING)
        await self._storage.put_topic(topic, context)
        self._put(topic)
        return topic

    def _drop_later(self, topic: Topic, context: CallContext) -> None:
        if topic.number not in self._dropping:
            self._dropping.add(topic.number)
            self._background.spawn(self._drop(topic, context), name=f"drop topic {topic.name}")

    async def _drop(self, topic: Topic, context: CallContext) -> None:
        """Drop a topic, and try again for as long as that fails: nothing else would finish it."""
        pause = RETRY_SECONDS_MIN
        try:
            while not await self._try_to_drop(topic, context) and not self._background.closing:
                await self._clock.sleep(pause)
                pause = min(2 * pause, RETRY_SECONDS_MAX)
        finally:
            self._dropping.discard(topic.number)

    async def _try_to_drop(self, topic: Topic, context: CallContext) -> bool:
        """Whether a topic, its schedules first, is dropped; every step may be repeated."""
        try:
            for one in [*await self._schedules_to_drop(topic), topic]:
                error = error_of(Code.TOPIC_DELETING, f"topic {topic.name!r} is being deleted")
                await self._listener.topic_closing(one, error)
                await self._storage.drop_topic(one, self._clock.now_ms(), context)
                async with self._locks.of(topic.name):
                    known = self._topics.get(one.name)
                    if known is not None and known.number == one.number:
                        self._remove(one.name)
            await self._listener.topic_dropped(topic)
        except DejaqError as error:
            log.warning("topic %s is not dropped yet: %s", topic.name, error)
            return False
        except Exception:
            log.exception("topic %s is not dropped yet", topic.name)
            return False
        return True

    async def _schedules_to_drop(self, topic: Topic) -> list[Topic]:
        if topic.settings.kind is not TopicKind.CRON:
            return []
        # Schedules are made before their topic. Those with a larger number belong to a later topic of the same name.
        return [
            other
            for other in await self._storage.topics()
            if other.name == topic.name + SCHEDULES and other.number < topic.number
        ]


def _check_dead_letter(name: str, settings: TopicSettings) -> None:
    """Refuse a topic that is its own dead-letter topic."""
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
    """Schedules may be at any time in the future; the journal has the events of their occurrences instead."""
    return TopicSettings(
        buckets=_BOOK_BUCKETS,
        max_future_ms=limits.TS_MS_MAX,
        durability=settings.durability,
        journal=False,
        encryption=settings.encryption,
    )
