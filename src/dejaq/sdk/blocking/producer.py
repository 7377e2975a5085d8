"""Generated from `dejaq.sdk.producing.producer` by `scripts/generate_sync.py`; edit that module, not this one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType
from typing import Self

from dejaq.errors import Code
from dejaq.sdk.admin.replies import Reply
from dejaq.sdk.blocking.portal import Blocking
from dejaq.sdk.changing.bulk import BulkResult, OnProgress, Where
from dejaq.sdk.producing.outgoing import HeaderChange, Headers
from dejaq.sdk.producing.producer import Producer as AsyncProducer
from dejaq.sdk.results import Results
from dejaq.sdk.times import At, Delay


class Producer(Blocking[AsyncProducer]):
    """Sends to one topic as one owner (`group`). Open it with `with`; create it with `client.producer`.

    User code does not notice an outage that is shorter than the client's deadline: batches that were not answered are
    sent again under the same name, and the broker recognises a repeat. A message sent with `delay` gets its time once,
    by the estimate of the broker's clock, so that a repeat does not shift it. Producers of one client with the same
    topic and group share a session, and the messages that they send at the same time share frames.
    """

    __slots__ = ()

    @property
    def topic(self) -> str:
        """The topic of this producer."""
        return self._inner.topic

    @property
    def group(self) -> str:
        """The group of this producer."""
        return self._inner.group

    def open(self) -> None:
        """Connect; raises NoBroker after the deadline, or the broker's refusal."""
        self._portal.run(self._inner.open())

    def close(self) -> None:
        """Wait until all sends are answered, and disconnect."""
        if self._portal.is_open:
            self._portal.follow(self._inner.close())

    def __enter__(self) -> Self:
        self._portal.run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._portal.is_open:
            self._portal.follow(self._inner.__aexit__(kind, error, trace))

    def send(
        self,
        body: bytes,
        *,
        at: At | None = None,
        delay: Delay | None = None,
        id: str | None = None,
        priority: int = 0,
        headers: Headers | None = None,
    ) -> str:
        """Send one message and return its id when the broker has stored it durably.

        The message is due at `at` (aware datetime or epoch ms), after `delay` seconds, or immediately. A send that
        repeats the `id` and content of an existing message succeeds and changes nothing; without `at`, its time is not
        compared. A send that repeats an `id` within the topic's `dedup` window when the message is gone also succeeds.
        Sends of one moment share a batch. A send that was cancelled may have succeeded. A body above 1 MiB is uploaded
        in parts first, when the topic's `max_body_bytes` allows it.
        """
        return self._portal.follow(
            self._inner.send(body, at=at, delay=delay, id=id, priority=priority, headers=headers)
        )

    def request(
        self,
        body: bytes,
        *,
        timeout: float = 30.0,
        at: At | None = None,
        delay: Delay | None = None,
        id: str | None = None,
        priority: int = 0,
        headers: Headers | None = None,
        keep: str = "first",
    ) -> Reply:
        """Send one message and wait until its consumer answers with `lease.delete(reply=...)`.

        The `timeout` counts from the message's time. Raises INDEFINITE when no reply comes: the message stays. A later
        reply can be read with `reply_to` during another `timeout`, then it expires. When one id gets several replies,
        `keep` says whether the first or the last is kept. A request that repeats the `id` and content of an existing
        one waits for the same reply.
        """
        return self._portal.follow(
            self._inner.request(
                body, timeout=timeout, at=at, delay=delay, id=id, priority=priority, headers=headers, keep=keep
            )
        )

    def reply_to(self, id: str, *, timeout: float = 30.0) -> Reply:
        """Wait for the reply to a message that was sent with `request`, and take it."""
        return self._portal.follow(self._inner.reply_to(id, timeout=timeout))

    def send_batch(
        self,
        bodies: Sequence[bytes],
        *,
        at: At | Sequence[At] | None = None,
        delay: Delay | Sequence[Delay] | None = None,
        ids: Sequence[str] | None = None,
        priorities: int | Sequence[int] | None = None,
        headers: Headers | Sequence[Headers | None] | None = None,
        results: bool = False,
    ) -> Results:
        """Send many messages, given as columns, and return their ids and outcomes.

        Raises when any message is refused, and the error lists all that were, as `failed`; the others are sent. With
        `results=True` it does not raise for a refused message, and the results say what happened to each.

        Times, priorities and headers are one value for all messages or one value per message. Messages that do not fit
        into one batch are split over several. The call always raises an error when no batch was answered; otherwise the
        messages of batches that were not answered are refused with INDEFINITE or NO_BROKER.
        """
        return self._portal.follow(
            self._inner.send_batch(
                bodies, at=at, delay=delay, ids=ids, priorities=priorities, headers=headers, results=results
            )
        )

    def move(
        self,
        ids: str | Sequence[str],
        *,
        at: At | Sequence[At] | None = None,
        delay: Delay | Sequence[Delay] | None = None,
        results: bool = False,
    ) -> Results:
        """Move messages of this owner to another time.

        Raises an error when any message is refused; the error lists all refused messages as `failed`, and the others
        are moved. With `results=True` it does not raise for a refused message, and the results have the outcome of
        each.
        """
        return self._portal.follow(self._inner.move(ids, at=at, delay=delay, results=results))

    def edit(
        self,
        id: str,
        *,
        body: bytes | None = None,
        at: At | None = None,
        delay: Delay | None = None,
        priority: int | None = None,
        headers: HeaderChange | None = None,
        version: int | None = None,
    ) -> Code:
        """Change one message of this owner; a field that is not given keeps its value. Raises when it is refused.

        `headers` are merged with those of the message; a header whose new value is None is removed. With `version` the
        message is refused with VERSION_CONFLICT unless it still has that version.
        """
        return self._portal.follow(
            self._inner.edit(id, body=body, at=at, delay=delay, priority=priority, headers=headers, version=version)
        )

    def edit_batch(
        self,
        ids: Sequence[str],
        *,
        bodies: Sequence[bytes] | None = None,
        at: At | Sequence[At] | None = None,
        delay: Delay | Sequence[Delay] | None = None,
        priorities: Sequence[int] | None = None,
        headers: Sequence[HeaderChange] | None = None,
        versions: Sequence[int] | None = None,
        results: bool = False,
    ) -> Results:
        """Change many messages of this owner, as columns; a column that is not given keeps its values.

        The headers of each are merged with those of its message; a header whose new value is None is removed. Raises
        when any message is refused, as `move` does, unless `results=True`.
        """
        return self._portal.follow(
            self._inner.edit_batch(
                ids,
                bodies=bodies,
                at=at,
                delay=delay,
                priorities=priorities,
                headers=headers,
                versions=versions,
                results=results,
            )
        )

    def cancel(
        self, ids: str | Sequence[str], *, versions: int | Sequence[int] | None = None, results: bool = False
    ) -> Results:
        """Remove messages of this owner. Raises when any is refused, as `move` does, unless `results=True`.

        With `versions`, one per message, each message is removed only if it still has that version; otherwise it is
        refused with VERSION_CONFLICT.
        """
        return self._portal.follow(self._inner.cancel(ids, versions=versions, results=results))

    def count_where(self, where: Where) -> int:
        """The number of messages of this owner that match now."""
        return self._portal.run(self._inner.count_where(where))

    def edit_where(
        self,
        where: Where,
        *,
        body: bytes | None = None,
        at: At | None = None,
        delay: Delay | None = None,
        priority: int | None = None,
        headers: HeaderChange | None = None,
        everything: bool = False,
        progress: OnProgress | None = None,
    ) -> BulkResult:
        """Change every message of this owner that matched when the call began; a field that is not given keeps its
        value.

        `headers` are merged with those of each message; a header whose new value is None is removed. A message that
        changed meanwhile is refused with VERSION_CONFLICT, and a message that a consumer holds with LEASED. An empty
        filter needs `everything=True`.
        """
        return self._portal.follow(
            self._inner.edit_where(
                where,
                body=body,
                at=at,
                delay=delay,
                priority=priority,
                headers=headers,
                everything=everything,
                progress=progress,
            )
        )

    def move_where(
        self,
        where: Where,
        *,
        at: At | None = None,
        delay: Delay | None = None,
        shift: float | timedelta | None = None,
        everything: bool = False,
        progress: OnProgress | None = None,
    ) -> BulkResult:
        """Move every message of this owner that matched when the call began to another time, or by `shift` seconds.

        An empty filter needs `everything=True`.
        """
        return self._portal.follow(
            self._inner.move_where(where, at=at, delay=delay, shift=shift, everything=everything, progress=progress)
        )

    def cancel_where(self, where: Where, *, everything: bool = False, progress: OnProgress | None = None) -> BulkResult:
        """Remove every message of this owner that matched when the call began.

        A message that changed meanwhile is refused with VERSION_CONFLICT, and a message that a consumer holds with
        LEASED. An empty filter needs `everything=True`.
        """
        return self._portal.follow(self._inner.cancel_where(where, everything=everything, progress=progress))
