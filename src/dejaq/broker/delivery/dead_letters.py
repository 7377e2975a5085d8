"""Dead-letter topics: found or created when a topic needs one, and their consumers notified."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from dejaq.broker.catalog import Catalog
from dejaq.broker.context import bound
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic, TopicSettings, TopicStage
from dejaq.errors import Code, DejaqError, error_of
from dejaq.timekeeper.clock import Clock

if TYPE_CHECKING:
    # A roster holds consumers, and a consumer notifies the roster of its dead-letter topic.
    from dejaq.broker.delivery.roster import Rosters

# How long to wait for a dead-letter topic that is being deleted, before it is created again.
RETRY_SECONDS = 0.05


class DeadLetterTopics:
    """Knows the dead-letter topic of every topic."""

    def __init__(
        self,
        *,
        clock: Clock,
        catalog: Catalog,
        create_topic: Callable[[CallContext, str, TopicSettings, str], Awaitable[tuple[Topic, bool]]],
        rosters: Rosters,
    ) -> None:
        self._clock = clock
        self._catalog = catalog
        self._create_topic = create_topic
        self._rosters = rosters

    async def topic_for(self, context: CallContext, topic: Topic) -> Topic:
        """The dead-letter topic of `topic`: the existing topic of that name, or a new one.

        A dead-letter topic that is being deleted is waited for and created again.
        """
        name = topic.dead_letter_name
        while True:
            there = self._catalog.named(name)
            if there is not None and there.state is not TopicStage.DELETING:
                if there.settings.encryption is not topic.settings.encryption:
                    raise error_of(
                        Code.INVALID_SETTING,
                        f"the topic {topic.name!r} and its dead-letter topic {name!r} must have one encryption; they "
                        f"have {topic.settings.encryption} and {there.settings.encryption}",
                    )
                return there
            try:
                return await self._make(context, topic, name)
            except DejaqError as error:
                if error.code is Code.TOPIC_DELETING and bound(context, RETRY_SECONDS):
                    await self._clock.sleep(RETRY_SECONDS)
                elif error.code is not Code.TOPIC_EXISTS:
                    raise

    async def _make(self, context: CallContext, topic: Topic, name: str) -> Topic:
        settings = topic.settings
        plain = TopicSettings(
            buckets=settings.buckets,
            max_body_bytes=settings.max_body_bytes,
            durability=settings.durability,
            journal=settings.journal,
            encryption=settings.encryption,
        )
        made, _ = await self._create_topic(context, name, plain, topic.creator)
        return made

    def came(self, dead_letter_topic: Topic) -> None:
        """Notify the consumers of a dead-letter topic that messages were moved to it."""
        self._rosters.of(dead_letter_topic).notify(self._clock.now_ms())
