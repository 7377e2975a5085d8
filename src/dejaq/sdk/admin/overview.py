"""All topics, each with the first page of its messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dejaq.domain.message import Message
from dejaq.errors import Code, DejaqError
from dejaq.sdk.admin.cluster import TopicInfo, TopicsPage
from dejaq.sdk.log.messages import LogMessage

# So many topics are read at the same time.
_TOGETHER = 8
# The caller may see the topic and not its messages, or the topic was deleted meanwhile.
_WITHOUT_MESSAGES = (Code.PERMISSION_DENIED, Code.TOPIC_NOT_FOUND, Code.TOPIC_DELETING)

FirstPage = tuple[Message, ...] | tuple[LogMessage, ...]


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """A topic and its first messages: those that are due next, or the last ones of a log.

    There are none when the caller may not inspect the topic.
    """

    topic: TopicInfo
    messages: FirstPage


@dataclass(frozen=True, slots=True)
class AllTopics:
    """Some topics with their first messages; `more` follow the last one, and `total` is the number of all of them."""

    entries: tuple[TopicEntry, ...]
    more: bool
    total: int


async def with_first_pages(page: TopicsPage, read: Callable[[TopicInfo], Awaitable[FirstPage]]) -> AllTopics:
    """The topics of a page, each with what `read` returns for it."""
    places = asyncio.Semaphore(_TOGETHER)

    async def entry(topic: TopicInfo) -> TopicEntry:
        async with places:
            try:
                return TopicEntry(topic, await read(topic))
            except DejaqError as error:
                if error.code not in _WITHOUT_MESSAGES:
                    raise
                return TopicEntry(topic, ())

    entries = await asyncio.gather(*map(entry, page.topics))
    return AllTopics(tuple(entries), page.more, page.total)
