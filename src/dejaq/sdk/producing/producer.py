"""The producer: sends messages to one topic, and moves, edits or cancels them later."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import Self

from dejaq import limits
from dejaq.domain.bodies.packing import sealed_column
from dejaq.domain.ids import bucket_of, valid_id
from dejaq.errors import Code, DejaqError, OutOfState, error_of
from dejaq.sdk.admin.replies import Replies, Reply
from dejaq.sdk.bodies.large import TRIES
from dejaq.sdk.changing.bulk import BulkResult, OnProgress, Where
from dejaq.sdk.producing.accumulator import LINGER_SECONDS
from dejaq.sdk.producing.group_session import GroupSession, GroupSessions
from dejaq.sdk.producing.outgoing import (
    HeaderChange,
    Headers,
    OutgoingColumns,
    as_body,
    body_column,
    check_priority,
    encoded_headers,
    header_column,
    id_column,
    priority_column,
    refusals,
)
from dejaq.sdk.producing.sender import Sent
from dejaq.sdk.results import Results
from dejaq.sdk.times import At, Delay, is_relative, resolve, resolve_column


class Producer:
    """Sends to one topic as one owner (`group`). Open it with `async with`; create it with `client.producer`.

    User code does not notice an outage that is shorter than the client's deadline: batches that were not answered are
    sent again under the same name, and the broker recognises a repeat. A message sent with `delay` gets its time once,
    by the estimate of the broker's clock, so that a repeat does not shift it. Producers of one client with the same
    topic and group share a session, and the messages that they send at the same time share frames.
    """

    def __init__(self, sessions: GroupSessions, *, topic: str, group: str, linger: float = LINGER_SECONDS) -> None:
        self.topic = topic
        self.group = group
        self._linger = linger
        self._sessions = sessions
        self._session = sessions.of(topic, group, linger)
        self._uploading: set[asyncio.Future[Sent]] = set()
        self._replies: Replies | None = None
        self._joined = False
        self._left = False

    async def open(self) -> None:
        """Connect; raises NoBroker after the deadline, or the broker's refusal."""
        if self._joined:
            raise OutOfState("the producer is open already")
        while not self._joined:
            if not self._session.is_usable:
                self._session = self._sessions.of(self.topic, self.group, self._linger)
            self._joined = await self._session.join(self)

    async def close(self) -> None:
        """Wait until all sends are answered, and disconnect."""
        if not self._joined:
            return
        try:
            await self._session.accumulator.drain()
            if self._uploading:
                await asyncio.wait(self._uploading)
        finally:
            if not self._left:
                self._left = True
                await self._session.leave(self)

    def _opened(self) -> GroupSession:
        """The open session; raises OUT_OF_STATE when there is none."""
        session = self._session
        if not self._joined or self._left:
            raise OutOfState(
                "the producer is closed"
                if self._left
                else "the producer is not open: use `async with client.producer(...)`"
            )
        session.connection.check_open()
        return session

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def send(
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
        session = self._opened()
        body = as_body(body)
        ts = resolve(at, delay, session.clock.now_us())
        if not 0 <= ts <= limits.TS_MS_MAX:
            raise error_of(Code.INVALID_TIME, details=f"{ts} ms")
        if id is not None:
            _check_id(id)
        check_priority(priority)
        encoded = encoded_headers(headers) if headers else b""
        stored = session.terms.inline(body)
        if stored is not None:
            return await session.accumulator.add(
                stored, ts=ts, id=id, priority=priority, headers=encoded, relative=is_relative(at)
            )
        row = OutgoingColumns([ts], [body], priorities=[priority], headers=[encoded])
        if id is not None:
            row.ids, row.relative = [id], [is_relative(at)]
        sent = await self._send_large(row)
        for code in sent.codes.values():
            if not code.succeeded:
                raise error_of(code, details=id or "")
        return id or sent.generated()[0]

    def _send_large(self, row: OutgoingColumns) -> asyncio.Future[Sent]:
        sending = asyncio.ensure_future(self._upload_and_create(row))
        self._uploading.add(sending)
        sending.add_done_callback(self._uploading.discard)
        return sending

    async def _upload_and_create(self, row: OutgoingColumns) -> Sent:
        """Upload the body of a single row, then create its message; start again when the broker removed the body in
        between.
        """
        session = self._session
        name = session.numbering.take(1)
        bucket = name[2] if row.ids is None else bucket_of(row.ids[0], session.terms.buckets)
        try:
            for _ in range(TRIES):
                reference = await session.large.upload(self.topic, bucket, row.bodies[0], session.terms)
                outgoing = replace(row, bodies=[reference], large=True)
                sent = await session.sender.create(outgoing, session.connection.until(), name)
                if sent.codes.get(0) is not Code.BODY_MISSING:
                    break
            return sent
        finally:
            session.numbering.done(name)

    async def request(
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
        clock, replies = self._session.clock, self._reply_client()
        ts = resolve(at, delay, clock.now_us())
        wanted = await replies.asked(ts=ts, timeout=timeout, keep=keep, repeatable=id is not None)
        sent = await self.send(
            body,
            at=at,
            delay=delay,
            id=id or replies.new_id(),
            priority=priority,
            headers={**(headers or {}), **wanted},
        )
        return await self.reply_to(sent, timeout=timeout + max(0.0, (ts - clock.now_ms()) / 1_000))

    async def reply_to(self, id: str, *, timeout: float = 30.0) -> Reply:
        """Wait for the reply to a message that was sent with `request`, and take it."""
        return await self._reply_client().read(id, timeout)

    def _reply_client(self) -> Replies:
        """What reads replies, made at the first use."""
        if self._replies is None:
            shared, clock = self._sessions, self._session.clock
            self._replies = Replies(
                shared.seeds, shared.settings, clock, shared.random, topic=self.topic, group=self.group
            )
        return self._replies

    async def send_batch(
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
        session = self._opened()
        column, large = self._packed(body_column(bodies))
        count = len(column)
        outgoing = OutgoingColumns(
            ts=resolve_column(at, delay, count=count, now_us=session.clock.now_us()),
            bodies=column,
            ids=None if ids is None else id_column(ids, count),
            priorities=priority_column(priorities, count),
            headers=header_column(headers, count),
            relative=[True] * count if at is None and ids is not None else None,
        )
        codes = refusals(outgoing)
        rows: Sequence[int] = range(count)
        alone = {row: replace(outgoing.take([row]), bodies=[body]) for row, body in large.items() if row not in codes}
        if codes or large:
            rows = [row for row in range(count) if row not in codes and row not in large]
            outgoing = outgoing.take(rows)
        order = outgoing.order() if ids is None else None
        if order is not None:
            rows = [rows[position] for position in order]
            outgoing = outgoing.take(order)
        parts = await self._send_parts(outgoing, rows, codes, alone)
        sent = Results(count, codes, outgoing_ids(count, ids, parts))
        if not results:
            sent.raise_for_failures()
        return sent

    def _packed(self, bodies: list[bytes]) -> tuple[list[bytes], dict[int, bytes]]:
        """Bodies as they are stored; bodies that are too large for that are returned separately, by row."""
        if not bodies or max(map(len, bodies)) < self._session.terms.inline_bytes_max:
            return sealed_column(bodies, self._session.terms.compression), {}
        stored = [self._session.terms.inline(body) for body in bodies]
        large = {row: bodies[row] for row, body in enumerate(stored) if body is None}
        return [body or b"" for body in stored], large

    async def _send_parts(
        self,
        outgoing: OutgoingColumns,
        rows: Sequence[int],
        codes: dict[int, Code],
        alone: Mapping[int, OutgoingColumns],
    ) -> list[tuple[Sequence[int], Sent]]:
        """Send each part and write the codes that are not OK into `codes`; returns the rows and ids of the answered
        parts.

        The rows in `alone` have large bodies; each of them is a part by itself.
        """
        session = self._session
        until = session.connection.until()
        cuts = list(outgoing.cuts())
        chunks = [outgoing] if len(cuts) == 1 else [outgoing.take(cut) for cut in cuts]
        answers = await asyncio.gather(
            *(session.sender.create(chunk, until) for chunk in chunks), return_exceptions=True
        )
        answers += await self._send_each(list(alone.values()))
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        strange = [failure for failure in failures if not isinstance(failure, DejaqError)]
        if strange or (failures and len(failures) == len(answers)):
            raise (strange or failures)[0]
        parts: list[tuple[Sequence[int], Sent]] = []
        for chosen, answer in zip([*(rows[cut] for cut in cuts), *([row] for row in alone)], answers, strict=True):
            if isinstance(answer, Sent):
                parts.append((chosen, answer))
                codes.update({chosen[row]: code for row, code in answer.codes.items()})
            elif isinstance(answer, DejaqError):
                codes.update(dict.fromkeys(chosen, answer.code))
        return parts

    async def _send_each(self, rows: Sequence[OutgoingColumns]) -> list[Sent | BaseException]:
        """Send rows with large bodies, two at a time; only one when the next may have the same body, which it then
        reuses.
        """
        answers: list[Sent | BaseException] = []
        step = 1 if self._session.terms.shares_bodies else 2
        for start in range(0, len(rows), step):
            pair = map(self._send_large, rows[start : start + step])
            answers += await asyncio.gather(*pair, return_exceptions=True)
        return answers

    async def move(
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
        return await self._opened().by_owner.move(ids, at=at, delay=delay, results=results)

    async def edit(
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
        return await self._opened().by_owner.edit(
            id, body=body, at=at, delay=delay, priority=priority, headers=headers, version=version
        )

    async def edit_batch(
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
        return await self._opened().by_owner.edit_batch(
            ids,
            bodies=bodies,
            at=at,
            delay=delay,
            priorities=priorities,
            headers=headers,
            versions=versions,
            results=results,
        )

    async def cancel(
        self, ids: str | Sequence[str], *, versions: int | Sequence[int] | None = None, results: bool = False
    ) -> Results:
        """Remove messages of this owner. Raises when any is refused, as `move` does, unless `results=True`.

        With `versions`, one per message, each message is removed only if it still has that version; otherwise it is
        refused with VERSION_CONFLICT.
        """
        return await self._opened().by_owner.cancel(ids, versions=versions, results=results)

    # Changes by filter

    async def count_where(self, where: Where) -> int:
        """The number of messages of this owner that match now."""
        return await self._session.queries.count(self.topic, where.filter(self.group))

    async def edit_where(
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
        return await self._opened().by_owner.edit_where(
            where,
            body=body,
            at=at,
            delay=delay,
            priority=priority,
            headers=headers,
            everything=everything,
            progress=progress,
        )

    async def move_where(
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
        return await self._opened().by_owner.move_where(
            where, at=at, delay=delay, shift=shift, everything=everything, progress=progress
        )

    async def cancel_where(
        self, where: Where, *, everything: bool = False, progress: OnProgress | None = None
    ) -> BulkResult:
        """Remove every message of this owner that matched when the call began.

        A message that changed meanwhile is refused with VERSION_CONFLICT, and a message that a consumer holds with
        LEASED. An empty filter needs `everything=True`.
        """
        return await self._opened().by_owner.cancel_where(where, everything=everything, progress=progress)


def outgoing_ids(
    count: int, ids: Sequence[str] | None, parts: list[tuple[Sequence[int], Sent]]
) -> Sequence[str] | _GeneratedIds:
    """The ids that the caller gave, or a function that computes the generated ids at the first use."""
    return list(ids) if ids is not None else _GeneratedIds(count, parts)


class _GeneratedIds:
    """Computes the ids of a batch, in the caller's order; a refused row has none."""

    def __init__(self, count: int, parts: list[tuple[Sequence[int], Sent]]) -> None:
        self._count = count
        self._parts = parts

    def __call__(self) -> list[str]:
        made = [""] * self._count
        for rows, sent in self._parts:
            for row, message_id in zip(rows, sent.generated(), strict=True):
                made[row] = message_id
        return made


def _check_id(message_id: object) -> None:
    if not isinstance(message_id, str) or not valid_id(message_id):
        raise error_of(Code.INVALID_ID, details=repr(message_id)[:100])
