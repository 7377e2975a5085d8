"""Generated from `dejaq.sdk.admin.message_calls` by `scripts/generate_sync.py`; edit that module, not this one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Unpack

from dejaq.domain.message import Message, Status
from dejaq.sdk.admin.history import MessageHistory
from dejaq.sdk.admin.queries import PAGE_SIZE, Conditions, MessagePage
from dejaq.sdk.blocking.portal import each
from dejaq.sdk.blocking.topic_calls import TopicCalls
from dejaq.sdk.producing.outgoing import Headers
from dejaq.sdk.times import At


class MessageCalls(TopicCalls):
    """The calls of `Client` that read messages."""

    __slots__ = ()

    def get(self, topic: str, ids: Sequence[str], *, fetch_large: bool = True) -> list[Message | None]:
        """The messages, in the order of `ids`; None for an id that no message has.

        Without `fetch_large` the body of a message that has a large body is empty; its `large` says where it is.
        """
        return self._portal.follow(self._inner.get(topic, ids, fetch_large=fetch_large))

    def fetched(self, message: Message) -> Message | None:
        """The message with its large body, as it was when the body was read; None when the message is gone."""
        return self._portal.follow(self._inner.fetched(message))

    def body_parts(self, message: Message) -> Iterator[bytes]:
        """The body of a message, at most 1 MiB at a time; raises BODY_MISSING when the message is gone.

        Raises PERMISSION_DENIED for a message that the caller may inspect and not read.
        """
        return each(self._inner.body_parts(message), self._portal)

    def count(
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
        return self._portal.run(
            self._inner.count(
                topic,
                start=start,
                end=end,
                status=status,
                group=group,
                consumer=consumer,
                priorities=priorities,
                headers=headers,
            )
        )

    def histogram(
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
        return self._portal.run(
            self._inner.histogram(
                topic,
                start=start,
                end=end,
                step=step,
                status=status,
                group=group,
                consumer=consumer,
                priorities=priorities,
                headers=headers,
            )
        )

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
    ) -> Iterator[list[Message]]:
        """Pages of messages in order of time, without leasing them."""
        return each(
            self._inner.browse(
                topic,
                start=start,
                end=end,
                status=status,
                group=group,
                consumer=consumer,
                priorities=priorities,
                headers=headers,
                page_size=page_size,
            ),
            self._portal,
        )

    def browse_page(
        self, topic: str, *, page_size: int = PAGE_SIZE, cursor: bytes = b"", **conditions: Unpack[Conditions]
    ) -> MessagePage:
        """One page of messages in order of time; its `cursor` asks for the next page, also in another program.

        The conditions are those of `browse`, and must be the same for every page.
        """
        return self._portal.run(self._inner.browse_page(topic, page_size=page_size, cursor=cursor, **conditions))

    def history(
        self, topic: str, id: str, *, count: int = 1000, seconds: float = 30.0, cursor: bytes = b""
    ) -> MessageHistory:
        """What the journals of all brokers know of one message id, also when the message is gone.

        The newest events are found first. The search ends after about `count` events or `seconds`; then the history has
        a `cursor`, with which another call continues it.
        """
        return self._portal.follow(self._inner.history(topic, id, count=count, seconds=seconds, cursor=cursor))
