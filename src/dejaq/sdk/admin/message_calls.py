"""Queries about messages, which do not lease them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Unpack

from dejaq.domain.bodies.large import PART_BYTES
from dejaq.domain.message import Message, Status
from dejaq.errors import Code, Missing, error_of
from dejaq.sdk.admin.history import HistoryClient, MessageHistory
from dejaq.sdk.admin.queries import PAGE_SIZE, Conditions, MessagePage, Queries, filter_of
from dejaq.sdk.bodies.large import LargeBodyClient
from dejaq.sdk.producing.outgoing import Headers
from dejaq.sdk.times import At


class MessageCalls:
    """The calls of `Client` that read messages."""

    # Set by the client.
    _queries: Queries
    _large: LargeBodyClient
    _histories: HistoryClient

    async def get(self, topic: str, ids: Sequence[str], *, fetch_large: bool = True) -> list[Message | None]:
        """The messages, in the order of `ids`; None for an id that no message has.

        Without `fetch_large` the body of a message that has a large body is empty; its `large` says where it is.
        """
        found = await self._queries.get(topic, [ids] if isinstance(ids, str) else list(ids))
        if not fetch_large or all(message is None or message.large is None for message in found):
            return found
        return [await self.fetched(message) if message else None for message in found]

    async def fetched(self, message: Message) -> Message | None:
        """The message with its large body, as it was when the body was read; None when the message is gone."""
        current: Message | None = message
        while current is not None and current.large is not None:
            try:
                body = await self._large.fetch(current.topic, current.id, current.large)
                return replace(current, body=body, large=None)
            except Missing:
                # Gone, or changed, between the look and the read.
                before = current.version
                (current,) = await self._queries.get(current.topic, [current.id])
                if current is not None and current.version == before:
                    raise
        return current

    def body_parts(self, message: Message) -> AsyncIterator[bytes]:
        """The body of a message, at most 1 MiB at a time; raises BODY_MISSING when the message is gone.

        Raises PERMISSION_DENIED for a message that the caller may inspect and not read.
        """
        if message.masked:
            raise error_of(Code.PERMISSION_DENIED, f"no right to read the body of message {message.id!r}")
        if message.large is None:
            return _cut(message.body)
        return self._large.parts(message.topic, message.id, message.large)

    async def count(
        self,
        topic: str,
        *,
        start: At | None = None,
        end: At | None = None,
        status: Status | str | None = None,
        group: str | None = None,
        consumer: str | None = None,
        priorities: tuple[int, int] | None = None,
        headers: Headers | None = None,
    ) -> int:
        """How many messages there are with `start <= time < end` and this status, owner and consumer; exactly.

        `priorities` is the lowest and the highest priority that count; a message must have all `headers`.
        """
        where = filter_of(start, end, status, group, consumer, priorities, headers)
        return await self._queries.count(topic, where)

    async def histogram(
        self,
        topic: str,
        *,
        start: At,
        end: At,
        step: float | timedelta,
        status: Status | str | None = None,
        group: str | None = None,
        consumer: str | None = None,
        priorities: tuple[int, int] | None = None,
        headers: Headers | None = None,
    ) -> list[tuple[int, int]]:
        """(start of the step in epoch ms, count) for each step of so many seconds that has messages; exactly."""
        where = filter_of(start, end, status, group, consumer, priorities, headers)
        return await self._queries.histogram(topic, where, step)

    def browse(
        self,
        topic: str,
        *,
        start: At | None = None,
        end: At | None = None,
        status: Status | str | None = None,
        group: str | None = None,
        consumer: str | None = None,
        priorities: tuple[int, int] | None = None,
        headers: Headers | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncIterator[list[Message]]:
        """Pages of messages in order of time, without leasing them."""
        where = filter_of(start, end, status, group, consumer, priorities, headers)
        return self._queries.browse(topic, where, page_size)

    async def browse_page(
        self, topic: str, *, page_size: int = PAGE_SIZE, cursor: bytes = b"", **conditions: Unpack[Conditions]
    ) -> MessagePage:
        """One page of messages in order of time; its `cursor` asks for the next page, also in another program.

        The conditions are those of `browse`, and must be the same for every page.
        """
        return await self._queries.page(topic, filter_of(**conditions), cursor, page_size)

    async def history(
        self, topic: str, id: str, *, count: int = 1_000, seconds: float = 30.0, cursor: bytes = b""
    ) -> MessageHistory:
        """What the journals of all brokers know of one message id, also when the message is gone.

        The newest events are found first. The search ends after about `count` events or `seconds`; then the history has
        a `cursor`, with which another call continues it.
        """
        return await self._histories.read(topic, id, count=count, seconds=seconds, cursor=cursor)


async def _cut(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), PART_BYTES):
        yield body[start : start + PART_BYTES]
