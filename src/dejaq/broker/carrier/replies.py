"""Topics whose messages expire, such as replies: who waits for one is told, and what nobody read is removed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from dejaq import limits
from dejaq.broker.metrics import LAPSED
from dejaq.broker.parts import Parts
from dejaq.domain.ids import valid_id
from dejaq.domain.topic import Topic, TopicState
from dejaq.errors import Code, DejaqError, error_of
from dejaq.protocol.columns import messages_to_proto
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.storage.base import Filter

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
PAGE = 1_000


class Replies:
    """Waits for messages by id, and removes those of expiring topics whose time has come."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._waiting: dict[tuple[int, str], set[asyncio.Future[None]]] = {}

    def arrived(self, topic: Topic, ids: Sequence[str]) -> None:
        """Messages are there now: wake who waits for them."""
        for message_id in ids:
            for waiter in self._waiting.get((topic.number, message_id), ()):
                if not waiter.done():
                    waiter.set_result(None)

    async def await_one(self, request: carrier.AwaitRequest) -> carrier.MessageColumns:
        """The message of an id as soon as it is there; none when it does not come in time."""
        topic = self._parts.catalog.live(request.topic)
        if not valid_id(request.id):
            raise error_of(Code.INVALID_ID)
        # A client's patience is counted by the loop's time, as in the client itself.
        loop = asyncio.get_running_loop()
        until = loop.time() + min(request.timeout_ms, limits.AWAIT_MS_MAX) / 1_000
        while True:
            waiter: asyncio.Future[None] = loop.create_future()
            waiters = self._waiting.setdefault((topic.number, request.id), set())
            waiters.add(waiter)
            try:
                now = self._parts.clock.now_ms()
                (found,) = await self._parts.storage.get(topic, [request.id], now)
                left = until - loop.time()
                if found is not None or left <= 0:
                    return messages_to_proto([found] if found is not None else [], now=now)
                # Now and then it looks by itself, since another broker may have got the message.
                await asyncio.wait((waiter,), timeout=min(left, LOOK_SECONDS))
            finally:
                waiters.discard(waiter)
                if not waiters:
                    self._waiting.pop((topic.number, request.id), None)

    async def run(self) -> None:
        """Remove what has expired, again and again, until cancelled."""
        while True:
            for topic in self._parts.catalog.all():
                if topic.settings.expires and topic.state is TopicState.LIVE:
                    try:
                        await self.sweep(topic)
                    except DejaqError as error:
                        log.info("what expired in %s is removed later: %s", topic.name, error)
            await self._parts.clock.sleep(LOOK_SECONDS)

    async def sweep(self, topic: Topic) -> None:
        """Remove the messages of one topic whose time has come."""
        storage, now = self._parts.storage, self._parts.clock.now_ms()
        while True:
            page = await storage.browse(topic, Filter(end=now + 1), None, PAGE, now)
            owners: dict[str, list[str]] = {}
            for message in page.messages:
                owners.setdefault(message.producer_group, []).append(message.id)
            removed = 0
            for owner, ids in owners.items():
                outcomes = await storage.cancel(topic, owner, ids, now)
                removed += len(ids) - len(outcomes.failed)
            self._parts.metrics.add(LAPSED, removed, topic.name)
            if not removed or page.cursor is None:
                return
