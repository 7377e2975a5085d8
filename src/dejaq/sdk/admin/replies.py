"""Replies: a producer sends a request and waits; the consumer answers in the transaction that deletes the request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from dejaq import limits
from dejaq.domain.bodies.packing import opened
from dejaq.domain.message import Message
from dejaq.errors import Code, Conflict, DejaqError, Indefinite, InvalidArgument, TopicExists, error_of
from dejaq.protocol.columns import messages_from_proto
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.sdk.changing.transaction import HasHeld, Transaction, Transactor
from dejaq.sdk.session.broker_clock import BrokerClock
from dejaq.sdk.session.seeds import Seeds
from dejaq.sdk.session.settings import ClientSettings

# The headers of a message whose producer waits for a reply.
REPLY_TO, REPLY_GROUP, REPLY_BY, REPLY_KEEP = "reply-to", "reply-group", "reply-by", "reply-keep"
# How long the reply is kept, in ms from when it is sent: in place of `reply-by`, in a request with an own id, since a
# repeat must have the same headers.
REPLY_FOR = "reply-for"
KEEPS = ("first", "last")
_BUCKETS = 4
# How long one waiting call to the broker lasts. It must be shorter than the time-out of a call.
_AWAIT_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Reply:
    """The consumer's answer to the message with this id."""

    id: str
    body: bytes
    headers: Mapping[str, str]


class Replies:
    """The replies to the messages of one producer group in one topic: a second topic, whose messages expire."""

    def __init__(
        self, seeds: Seeds, settings: ClientSettings, clock: BrokerClock, random: Random, *, topic: str, group: str
    ) -> None:
        self.topic = f"{topic}.replies"
        self.group = group
        self._seeds = seeds
        self._settings = settings
        self._clock = clock
        self._transactor = Transactor(seeds, settings, clock, random)
        self._made = False

    def new_id(self) -> str:
        """An id for a message that requests a reply."""
        return self._transactor.new_id()

    async def asked(self, *, ts: int, timeout: float, keep: str, repeatable: bool) -> dict[str, str]:
        """The headers of a message that is due at `ts` and requests a reply; creates the topic of replies when needed.

        Those of a `repeatable` request are the same at every time.
        """
        if keep not in KEEPS:
            raise error_of(Code.INVALID_ARGUMENT, f"keep is one of {', '.join(KEEPS)}, not {keep!r}")
        if not timeout > 0:
            raise error_of(Code.INVALID_ARGUMENT, "a reply is waited for during seconds above 0")
        if not self._made:
            await self._make()
            self._made = True
        # A reply is kept for twice the time that the producer waits, so that a producer that asks late still gets it.
        kept_ms = min(round(2_000 * timeout), limits.TS_MS_MAX)
        by = min(max(ts, self._clock.now_ms()) + kept_ms, limits.TS_MS_MAX)
        end = {REPLY_FOR: str(kept_ms)} if repeatable else {REPLY_BY: str(by)}
        return {REPLY_TO: self.topic, REPLY_GROUP: self.group, REPLY_KEEP: keep, **end}

    async def _make(self) -> None:
        settings = overseer.TopicSettings(
            buckets=_BUCKETS,
            expires=True,
            max_future_ms=limits.TS_MS_MAX,
            max_body_bytes=limits.LARGE_BODY_BYTES_MAX,
        )
        try:
            try:
                await self._create(settings)
            except InvalidArgument:
                # This store has no support for large bodies.
                settings.ClearField("max_body_bytes")
                await self._create(settings)
        except TopicExists:
            described = await self._seeds.call(
                "Overseer.DescribeTopic",
                overseer.TopicRequest(name=self.topic, settings_only=True),
                overseer.TopicResponse,
                patience=self._settings,
            )
            if not described.topic.settings.expires:
                raise
            self.topic = described.topic.name

    async def _create(self, settings: overseer.TopicSettings) -> None:
        request = overseer.CreateTopicRequest(name=self.topic, settings=settings)
        answer = await self._seeds.call(
            "Overseer.CreateTopic", request, overseer.TopicResponse, patience=self._settings
        )
        # The full name, which means the same topic to the consumer that answers.
        self.topic = answer.topic.name

    async def read(self, message_id: str, timeout: float) -> Reply:
        """Wait for the reply to a message and take it; raises INDEFINITE when no reply comes in time."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        while (left := until - loop.time()) > 0:
            seconds = min(left, _AWAIT_SECONDS, self._settings.timeout / 2)
            request = carrier.AwaitRequest(topic=self.topic, id=message_id, timeout_ms=max(1, round(seconds * 1_000)))
            answer = await self._seeds.call("Carrier.Await", request, carrier.MessageColumns, patience=self._settings)
            for message in messages_from_proto(answer, topic=self.topic):
                body = opened(answer.bodies[0]) if message.large is None else await self._fetch(message)
                await self._take(message_id)
                return Reply(id=message.id, body=body, headers=message.headers)
        raise Indefinite(f"no reply to {message_id} within {timeout:g} s; one that comes later is kept for a while")

    async def _fetch(self, message: Message) -> bytes:
        assert message.large is not None
        return await self._transactor.bodies.fetch(self.topic, message.id, message.large)

    async def _take(self, message_id: str) -> None:
        try:
            async with Transaction(self._transactor, group=self.group) as t:
                t.cancel(self.topic, message_id)
        except DejaqError:
            # Another reader took the reply, or it expired after this call read it: the call knows the reply in both
            # cases.
            return


async def delete_with_reply(
    transactor: Transactor, lease: HasHeld, asked: Mapping[str, str], message_id: str, body: bytes, **more: Any
) -> bool:
    """Delete a leased message and answer it in one transaction; returns whether the answer was kept.

    When the message has an answer already, its headers (`asked`) say which of the two answers is kept.
    """
    topic, group = asked[REPLY_TO], asked.get(REPLY_GROUP, "default")
    kept_ms = int(asked.get(REPLY_FOR) or limits.LEASE_MS_DEFAULT)
    by = int(asked.get(REPLY_BY) or 0) or min(transactor.clock.now_ms() + kept_ms, limits.TS_MS_MAX)
    try:
        async with Transaction(transactor, group=group) as t:
            t.delete(lease)
            t.send(topic, body, id=message_id, at=by, **more)
        return True
    except Conflict as refused:
        if refused.code is not Code.ID_TAKEN:
            raise
    keeps_last = asked.get(REPLY_KEEP) == "last"
    async with Transaction(transactor, group=group) as t:
        t.delete(lease)
        if keeps_last:
            t.edit(topic, message_id, body=body, at=by, **more)
    return keeps_last
