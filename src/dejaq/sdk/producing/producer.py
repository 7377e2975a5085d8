"""The producer: sends messages to one topic, and moves, edits or cancels them later."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from random import Random
from types import TracebackType
from typing import Self

from dejaq import limits
from dejaq.domain.bodies.packing import sealed_column
from dejaq.domain.ids import bucket_of, valid_id
from dejaq.errors import Code, DejaqError, error_of
from dejaq.protocol.transport import Transport
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.sdk.admin.queries import Queries
from dejaq.sdk.admin.replies import Replies, Reply
from dejaq.sdk.admin.scan import scan
from dejaq.sdk.bodies.large import TRIES, LargeBodyClient, TopicTerms
from dejaq.sdk.changing.bulk import BULK_ROWS, BulkResult, OnProgress, Where
from dejaq.sdk.changing.by_owner import ByOwner
from dejaq.sdk.changing.changes import Changes
from dejaq.sdk.producing.accumulator import LINGER_SECONDS, Accumulator
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
from dejaq.sdk.producing.sender import Numbering, Sender, Sent
from dejaq.sdk.results import Results
from dejaq.sdk.session.connection import Connection
from dejaq.sdk.session.link import Link, ask_once
from dejaq.sdk.session.seeds import Seeds
from dejaq.sdk.session.settings import ClientSettings
from dejaq.sdk.times import At, Delay, is_relative, resolve, resolve_column


class Producer:
    """Sends to one topic as one owner (`group`). Open it with `async with`; create it with `client.producer`.

    User code does not notice an outage that is shorter than the client's deadline: batches that were not answered are
    sent again under the same name, and the broker recognises a repeat. A message sent with `delay` gets its time once,
    by the estimate of the broker's clock, so that a repeat does not shift it.
    """

    def __init__(
        self,
        seeds: Seeds,
        settings: ClientSettings,
        *,
        topic: str,
        group: str,
        linger: float = LINGER_SECONDS,
        random: Random,
    ) -> None:
        self.topic = topic
        self.group = group
        self._timeout = settings.timeout
        self._terms = TopicTerms()
        self._large = LargeBodyClient(seeds, settings)
        self._uploading: set[asyncio.Future[Sent]] = set()
        self._numbering = Numbering(settings.clock, random)
        self._connection = Connection(
            seeds,
            settings,
            enter=self._enter,
            on_event=lambda _link, _frame: None,
            role="producer",
            topic=topic,
        )
        self._clock = self._connection.broker_clock
        self._sender = Sender(self._connection, self._numbering)
        self._accumulator = Accumulator(self._sender, until=self._connection.until, linger=linger)
        self._replies = Replies(seeds, settings, self._clock, random, topic=topic, group=group)
        self._queries = Queries(seeds, settings)
        self._by_owner = ByOwner(
            Changes(self._connection, self._queries, topic),
            scan=lambda wanted: scan(seeds, settings, topic, wanted, rows=BULK_ROWS),
            stored=self._stored,
            lookup=lambda ids: self._queries.get(topic, ids),
            clock=self._clock,
            group=group,
        )

    async def _enter(self, link: Link, transport: Transport) -> None:
        described = await transport.call(
            "Overseer.DescribeTopic",
            overseer.TopicRequest(name=self.topic),
            overseer.TopicResponse,
            self._timeout,
        )
        self._terms = TopicTerms.of(described)
        self._numbering.buckets = self._terms.buckets
        self._sender.shares_bodies = self._terms.shares_bodies
        frame = self._connection.frame()
        frame.producer.topic = self.topic
        frame.producer.group = self.group
        await ask_once(link, frame)

    async def open(self) -> None:
        """Connect; raises NoBroker after the deadline, or the broker's refusal."""
        await self._connection.open()

    async def close(self) -> None:
        """Wait until all sends are answered, and disconnect."""
        try:
            await self._accumulator.drain()
            if self._uploading:
                await asyncio.wait(self._uploading)
        finally:
            await self._connection.close()

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
        self._connection.check_open()
        body = as_body(body)
        ts = resolve(at, delay, self._clock.now_us())
        if not 0 <= ts <= limits.TS_MS_MAX:
            raise error_of(Code.INVALID_TIME, details=f"{ts} ms")
        if id is not None:
            _check_id(id)
        check_priority(priority)
        encoded = encoded_headers(headers) if headers else b""
        stored = self._terms.inline(body)
        if stored is not None:
            return await self._accumulator.add(
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
        name = self._numbering.take(1)
        bucket = name[2] if row.ids is None else bucket_of(row.ids[0], self._terms.buckets)
        try:
            for _ in range(TRIES):
                reference = await self._large.upload(self.topic, bucket, row.bodies[0], self._terms)
                outgoing = replace(row, bodies=[reference], large=True)
                sent = await self._sender.create(outgoing, self._connection.until(), name)
                if sent.codes.get(0) is not Code.BODY_MISSING:
                    break
            return sent
        finally:
            self._numbering.done(name)

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
        ts = resolve(at, delay, self._clock.now_us())
        wanted = await self._replies.asked(ts=ts, timeout=timeout, keep=keep, repeatable=id is not None)
        sent = await self.send(
            body,
            at=at,
            delay=delay,
            id=id or self._replies.new_id(),
            priority=priority,
            headers={**(headers or {}), **wanted},
        )
        return await self.reply_to(sent, timeout=timeout + max(0.0, (ts - self._clock.now_ms()) / 1_000))

    async def reply_to(self, id: str, *, timeout: float = 30.0) -> Reply:
        """Wait for the reply to a message that was sent with `request`, and take it."""
        return await self._replies.read(id, timeout)

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
        self._connection.check_open()
        column, large = self._packed(body_column(bodies))
        count = len(column)
        outgoing = OutgoingColumns(
            ts=resolve_column(at, delay, count=count, now_us=self._clock.now_us()),
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
        if not bodies or max(map(len, bodies)) < self._terms.inline_bytes_max:
            return sealed_column(bodies, self._terms.compression), {}
        stored = [self._terms.inline(body) for body in bodies]
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
        until = self._connection.until()
        cuts = list(outgoing.cuts())
        chunks = [outgoing] if len(cuts) == 1 else [outgoing.take(cut) for cut in cuts]
        answers = await asyncio.gather(*(self._sender.create(chunk, until) for chunk in chunks), return_exceptions=True)
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
        step = 1 if self._terms.shares_bodies else 2
        for start in range(0, len(rows), step):
            pair = map(self._send_large, rows[start : start + step])
            answers += await asyncio.gather(*pair, return_exceptions=True)
        return answers

    async def _stored(self, ids: Sequence[str], bodies: Sequence[bytes], attempt: int) -> tuple[list[bytes], bool]:
        """Bodies as they are stored in messages with these ids, and whether some are references to large bodies."""
        return await self._large.stored(self.topic, self._terms, ids, bodies, attempt=attempt)

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
        return await self._by_owner.move(ids, at=at, delay=delay, results=results)

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
        return await self._by_owner.edit(
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
        return await self._by_owner.edit_batch(
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
        return await self._by_owner.cancel(ids, versions=versions, results=results)

    # Changes by filter

    async def count_where(self, where: Where) -> int:
        """The number of messages of this owner that match now."""
        return await self._queries.count(self.topic, where.filter(self.group))

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
        return await self._by_owner.edit_where(
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
        return await self._by_owner.move_where(
            where, at=at, delay=delay, shift=shift, everything=everything, progress=progress
        )

    async def cancel_where(
        self, where: Where, *, everything: bool = False, progress: OnProgress | None = None
    ) -> BulkResult:
        """Remove every message of this owner that matched when the call began.

        A message that changed meanwhile is refused with VERSION_CONFLICT, and a message that a consumer holds with
        LEASED. An empty filter needs `everything=True`.
        """
        return await self._by_owner.cancel_where(where, everything=everything, progress=progress)


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
