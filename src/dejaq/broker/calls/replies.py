"""Topics whose messages are discarded at their time, such as replies: waiting for one, and removing the rest."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from dejaq import limits
from dejaq.broker.context import bound
from dejaq.broker.metrics import DISCARDED
from dejaq.broker.sessions.broker_context import BrokerContext
from dejaq.domain.changes import Cancel
from dejaq.domain.context import CallContext
from dejaq.domain.ids import valid_id
from dejaq.domain.topic import Topic, TopicStage
from dejaq.errors import Code, DejaqError, error_of
from dejaq.protocol.columns import messages_to_proto
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.storage.base import Filter, apply_one

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
# Messages that one commit removes: few enough that deliveries between two commits are not late.
CHUNK = 32
_SWEEP = CallContext.internal("expire messages")


class ReplyCalls:
    """Waits for messages by id, and removes those of expiring topics whose time has come."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._waiting: dict[tuple[int, str], set[asyncio.Future[None]]] = {}

    def arrived(self, topic: Topic, ids: Sequence[str]) -> None:
        """Messages have arrived: wake the calls that wait for them."""
        for message_id in ids:
            for waiter in self._waiting.get((topic.number, message_id), ()):
                if not waiter.done():
                    waiter.set_result(None)

    async def await_one(self, context: CallContext, request: carrier.AwaitRequest) -> carrier.MessageColumns:
        """The message of an id as soon as it is there; none when it does not come in time."""
        topic = self._broker.catalog.live(request.topic)
        if not valid_id(request.id):
            raise error_of(Code.INVALID_ID)
        # A client's patience is counted by the loop's time, as in the client itself.
        loop = asyncio.get_running_loop()
        until = loop.time() + bound(context, min(request.timeout_ms, limits.AWAIT_MS_MAX) / 1_000)
        while True:
            waiter: asyncio.Future[None] = loop.create_future()
            waiters = self._waiting.setdefault((topic.number, request.id), set())
            waiters.add(waiter)
            try:
                now = self._broker.clock.now_ms()
                (found,) = await self._broker.storage.get(topic, [request.id], now)
                left = until - loop.time()
                if found is not None or left <= 0:
                    return messages_to_proto([found] if found is not None else [], now=now)
                # The call also reads the store at intervals, since another broker may have got the message.
                await asyncio.wait((waiter,), timeout=min(left, LOOK_SECONDS))
            finally:
                waiters.discard(waiter)
                if not waiters:
                    self._waiting.pop((topic.number, request.id), None)

    async def run(self) -> None:
        """Remove what has expired, again and again, until cancelled."""
        while True:
            for topic in self._broker.catalog.all():
                if topic.settings.expires and topic.state is TopicStage.LIVE:
                    try:
                        await self.sweep(topic)
                    except DejaqError as error:
                        log.info("what expired in %s is removed later: %s", topic.name, error)
            await self._broker.clock.sleep(LOOK_SECONDS)

    async def sweep(self, topic: Topic) -> None:
        """Remove the messages of one topic whose time has come: one pass over them, in small commits."""
        storage, now = self._broker.storage, self._broker.clock.now_ms()
        buckets = range(topic.settings.buckets)
        first = await storage.next_ts(topic, buckets, now)
        if first is None or first > now:
            return
        snapshot = await storage.snapshot(topic, now)
        try:
            async for portion in snapshot.scan(buckets, Filter(end=now + 1), bodies=False):
                # A stretch may be a single message: replies come one by one.
                owners: dict[str, list[str]] = {}
                for stretch in portion.stretches:
                    owners.setdefault(stretch.owner, []).extend(stretch.span.expand())
                for owner, ids in owners.items():
                    await self._remove(topic, owner, ids, now)
        finally:
            snapshot.close()

    async def _remove(self, topic: Topic, owner: str, ids: Sequence[str], now: int) -> None:
        for start in range(0, len(ids), CHUNK):
            part = ids[start : start + CHUNK]
            outcomes = await apply_one(self._broker.storage, Cancel(topic, owner, part), now, _SWEEP)
            self._broker.metrics.add(DISCARDED, len(part) - len(outcomes.failed), topic.name)
            # Deliveries that are due meanwhile go first.
            await asyncio.sleep(0)
