"""The producer: sends messages to one topic, and changes its mind about them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from random import Random
from types import TracebackType
from typing import Self

from dejaq import limits
from dejaq.domain.bodies import sealed_column
from dejaq.domain.ids import bucket_of, valid_id
from dejaq.errors import Code, DejaqError, error_of
from dejaq.protocol.transport import Transport
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.sdk.accumulator import LINGER_SECONDS, Accumulator
from dejaq.sdk.bulk import BULK_ROWS, BulkResult, OnProgress, Where
from dejaq.sdk.changes import Change, Changes
from dejaq.sdk.connection import Connection, ask_once
from dejaq.sdk.large import TRIES, LargeBodies, Terms
from dejaq.sdk.link import Link
from dejaq.sdk.outgoing import (
    Headers,
    Outgoing,
    as_body,
    body_column,
    encoded_headers,
    header_column,
    id_column,
    priority_column,
    refusals,
)
from dejaq.sdk.queries import Queries
from dejaq.sdk.replies import Replies, Reply
from dejaq.sdk.results import Results
from dejaq.sdk.scan import Found, scan
from dejaq.sdk.seeds import Seeds
from dejaq.sdk.sender import Numbering, Sender, Sent
from dejaq.sdk.settings import ClientSettings
from dejaq.sdk.times import At, Delay, resolve, resolve_column


class Producer:
    """Sends to one topic as one owner (`group`). Open it with `async with`; make it with `client.producer`.

    An outage shorter than the client's deadline goes unnoticed: what was not answered is sent again under the same
    name, and the broker recognises a repeat. A message sent with `delay` gets its time once, by the broker's clock as
    seen from here, so that a repeat does not shift it.
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
        self._terms = Terms()
        self._large = LargeBodies(seeds, settings)
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
        self._changes = Changes(self._connection, self._queries, topic)
        self._seeds, self._settings = seeds, settings

    async def _enter(self, link: Link, transport: Transport) -> None:
        described = await transport.call(
            "Overseer.DescribeTopic",
            overseer.TopicRequest(name=self.topic),
            overseer.TopicResponse,
            self._timeout,
        )
        self._terms = Terms.of(described)
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
        """Wait until everything sent is answered, and disconnect."""
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
        """Send one message and return its id when the broker has it for good.

        Due at `at` (aware datetime or epoch ms), after `delay` seconds, or at once. A send that repeats the `id` and
        content of an earlier one succeeds and changes nothing. Sends of one moment travel together. A send that is
        cancelled may have been done. A body above 1 MiB is uploaded in parts first, where the topic's `max_body_bytes`
        allows it.
        """
        body = as_body(body)
        ts = resolve(at, delay, self._clock.now_us())
        if not 0 <= ts <= limits.TS_MS_MAX:
            raise error_of(Code.INVALID_TIME, details=f"{ts} ms")
        if id is not None:
            _check_id(id)
        _check_priority(priority)
        encoded = encoded_headers(headers) if headers else b""
        stored = self._terms.inline(body)
        if stored is not None:
            return await self._accumulator.add(stored, ts=ts, id=id, priority=priority, headers=encoded)
        row = Outgoing([ts], [body], ids=None if id is None else [id], priorities=[priority], headers=[encoded])
        sent = await self._send_large(row)
        for code in sent.codes.values():
            if not code.succeeded:
                raise error_of(code, details=id or "")
        return id or sent.generated()[0]

    def _send_large(self, row: Outgoing) -> asyncio.Future[Sent]:
        sending = asyncio.ensure_future(self._upload_and_create(row))
        self._uploading.add(sending)
        sending.add_done_callback(self._uploading.discard)
        return sending

    async def _upload_and_create(self, row: Outgoing) -> Sent:
        """Upload the body of a single row, then create its message; again when the body was gone in between."""
        name = self._numbering.take(1)
        bucket = name[2] if row.ids is None else bucket_of(row.ids[0], self._terms.buckets)
        for _ in range(TRIES):
            reference = await self._large.upload(self.topic, bucket, row.bodies[0], self._terms)
            outgoing = replace(row, bodies=[reference], large=True)
            sent = await self._sender.create(outgoing, self._connection.until(), name)
            if sent.codes.get(0) is not Code.BODY_MISSING:
                break
        return sent

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

        The `timeout` counts from the message's time. Raises INDEFINITE when no reply comes: the message stays, and
        a reply that comes later can be read with `reply_to` for as long again, then it expires. Of several replies to
        one id the first is kept, or the last.
        """
        ts = resolve(at, delay, self._clock.now_us())
        wanted = await self._replies.asked(ts=ts, timeout=timeout, keep=keep)
        sent = await self.send(
            body, at=ts, id=id or self._replies.new_id(), priority=priority, headers={**(headers or {}), **wanted}
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
    ) -> Results:
        """Send many messages, given as columns; the outcome of each is in the results.

        Times, priorities and headers are one value for all or one a message. More than one batch can hold is split;
        raises when no part of it was answered, and otherwise says INDEFINITE or NO_BROKER for the part that was not.
        """
        column, large = self._packed(body_column(bodies))
        count = len(column)
        outgoing = Outgoing(
            ts=resolve_column(at, delay, count=count, now_us=self._clock.now_us()),
            bodies=column,
            ids=None if ids is None else id_column(ids, count),
            priorities=priority_column(priorities, count),
            headers=header_column(headers, count),
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
        return Results(count, codes, outgoing_ids(count, ids, parts))

    def _packed(self, bodies: list[bytes]) -> tuple[list[bytes], dict[int, bytes]]:
        """Bodies as they are stored; those that are too large for that are apart, by row."""
        if not bodies or max(map(len, bodies)) < self._terms.inline_bytes_max:
            return sealed_column(bodies, self._terms.compression), {}
        stored = [self._terms.inline(body) for body in bodies]
        large = {row: bodies[row] for row, body in enumerate(stored) if body is None}
        return [body or b"" for body in stored], large

    async def _send_parts(
        self, outgoing: Outgoing, rows: Sequence[int], codes: dict[int, Code], alone: Mapping[int, Outgoing]
    ) -> list[tuple[Sequence[int], Sent]]:
        """Send each part, write what was not OK into `codes`; the rows and ids of the parts that were answered.

        The rows `alone` have large bodies, and are parts by themselves.
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

    async def _send_each(self, rows: Sequence[Outgoing]) -> list[Sent | BaseException]:
        """Send rows with large bodies, two at a time; one where the next may have the same body, to be found there."""
        answers: list[Sent | BaseException] = []
        step = 1 if self._terms.shares_bodies else 2
        for start in range(0, len(rows), step):
            pair = map(self._send_large, rows[start : start + step])
            answers += await asyncio.gather(*pair, return_exceptions=True)
        return answers

    async def _edit(self, change: Change, bodies: Sequence[bytes] | None) -> dict[int, Code]:
        """Make a change whose bodies are given as they are; again for those that were gone before it came."""
        if bodies is None:
            return await self._changes.edit(change)
        rows: Sequence[int] = range(len(change.ids))
        codes: dict[int, Code] = {}
        for attempt in range(TRIES):
            ids = [change.ids[row] for row in rows]
            stored, large = await self._large.stored(
                self.topic, self._terms, ids, [bodies[row] for row in rows], attempt=attempt
            )
            part = replace(change.of(rows), bodies=stored, large=large)
            found = await self._changes.edit(part)
            codes.update({rows[place]: code for place, code in found.items()})
            missing = [row for row, code in codes.items() if code is Code.BODY_MISSING]
            if not missing or attempt == TRIES - 1:
                return codes
            codes = {row: code for row, code in codes.items() if row not in missing}
            rows = sorted(missing)
        return codes

    async def move(
        self,
        ids: str | Sequence[str],
        *,
        at: At | Sequence[At] | None = None,
        delay: Delay | Sequence[Delay] | None = None,
    ) -> Results:
        """Give messages of this owner another time. One id alone raises when it is refused; a list says so by item."""
        if at is None and delay is None:
            raise error_of(Code.INVALID_ARGUMENT, "give the new time with `at` or `delay`")
        listed = _listed(ids)
        ts = resolve_column(at, delay, count=len(listed), now_us=self._clock.now_us())
        refused = refusals(Outgoing(ts=ts, bodies=[b""] * len(ts)))
        rows = [row for row in range(len(ts)) if row not in refused]
        codes = await self._changes.edit(Change(ids=[listed[row] for row in rows], ts=[ts[row] for row in rows]))
        refused.update({rows[row]: code for row, code in codes.items()})
        return _results(ids, listed, refused)

    async def edit(
        self,
        id: str,
        *,
        body: bytes | None = None,
        at: At | None = None,
        delay: Delay | None = None,
        priority: int | None = None,
        headers: Headers | None = None,
        version: int | None = None,
    ) -> Code:
        """Change one message of this owner; what is not given stays. Raises when it is refused.

        With `version` it is refused with VERSION_CONFLICT unless the message still has that version.
        """
        if priority is not None:
            _check_priority(priority)
        ts = None if at is None and delay is None else resolve(at, delay, self._clock.now_us())
        if ts is not None and not 0 <= ts <= limits.TS_MS_MAX:
            raise error_of(Code.INVALID_TIME, details=f"{ts} ms")
        change = Change(
            ids=[id],
            ts=None if ts is None else [ts],
            priorities=None if priority is None else [priority],
            headers=None if headers is None else [encoded_headers(headers)],
            versions=None if version is None else [version],
        )
        if body is None and change == Change(ids=[id], versions=change.versions):
            raise error_of(Code.INVALID_ARGUMENT, "give what to change: body, at, delay, priority or headers")
        return _results(id, [id], await self._edit(change, None if body is None else [as_body(body)]))[0]

    async def edit_batch(
        self,
        ids: Sequence[str],
        *,
        bodies: Sequence[bytes] | None = None,
        at: At | Sequence[At] | None = None,
        delay: Delay | Sequence[Delay] | None = None,
        priorities: Sequence[int] | None = None,
        headers: Sequence[Headers] | None = None,
        versions: Sequence[int] | None = None,
    ) -> Results:
        """Change many messages of this owner, as columns; a column that is not given stays. Outcomes by item."""
        listed = _listed(list(ids))
        columns = (bodies, priorities, headers, versions)
        if any(column is not None and len(column) != len(listed) for column in columns):
            raise error_of(Code.INVALID_ARGUMENT, "every column must be as long as `ids`")
        if at is None and delay is None and bodies is None and priorities is None and headers is None:
            raise error_of(Code.INVALID_ARGUMENT, "give what to change: bodies, at, delay, priorities or headers")
        for priority in priorities or ():
            _check_priority(priority)
        timed = at is not None or delay is not None
        change = Change(
            ids=listed,
            ts=resolve_column(at, delay, count=len(listed), now_us=self._clock.now_us()) if timed else None,
            priorities=priorities,
            headers=None if headers is None else [encoded_headers(one) for one in headers],
            versions=versions,
        )
        codes = await self._edit(change, None if bodies is None else body_column(bodies))
        return Results(len(listed), codes, listed)

    async def cancel(self, ids: str | Sequence[str], *, versions: int | Sequence[int] | None = None) -> Results:
        """Remove messages of this owner. One id alone raises when it is refused; a list says so by item.

        With `versions`, one a message, each is removed only if it still has that version, and else VERSION_CONFLICT.
        """
        listed = _listed(ids)
        seen = [versions] if isinstance(versions, int) else versions
        if seen is not None and len(seen) != len(listed):
            raise error_of(Code.INVALID_ARGUMENT, f"{len(seen)} versions for {len(listed)} ids")
        return _results(ids, listed, await self._changes.cancel(listed, seen))

    # In bulk

    async def count_where(self, where: Where) -> int:
        """How many messages of this owner match now."""
        return await self._queries.count(self.topic, where.filter(self.group))

    async def edit_where(
        self,
        where: Where,
        *,
        body: bytes | None = None,
        at: At | None = None,
        delay: Delay | None = None,
        priority: int | None = None,
        headers: Headers | None = None,
        progress: OnProgress | None = None,
    ) -> BulkResult:
        """Change every message of this owner that matched when it began; what is not given stays.

        A message that changed meanwhile is refused with VERSION_CONFLICT, one that a consumer holds with LEASED.
        """
        timed = at is not None or delay is not None
        if not timed and body is None and priority is None and headers is None:
            raise error_of(Code.INVALID_ARGUMENT, "give what to change: body, at, delay, priority or headers")
        # Once, so that all of them are due together.
        ts = resolve(at, delay, self._clock.now_us()) if timed else None

        async def change(found: Found) -> Results:
            count = len(found.ids)
            return await self.edit_batch(
                found.ids,
                bodies=None if body is None else [body] * count,
                at=ts,
                priorities=None if priority is None else [priority] * count,
                headers=None if headers is None else [headers] * count,
                versions=found.versions,
            )

        return await self._each(where, change, progress)

    async def move_where(
        self,
        where: Where,
        *,
        at: At | None = None,
        delay: Delay | None = None,
        shift: float | timedelta | None = None,
        progress: OnProgress | None = None,
    ) -> BulkResult:
        """Give every message of this owner that matched when it began another time, or `shift` each by seconds."""
        if shift is None:
            if at is None and delay is None:
                raise error_of(Code.INVALID_ARGUMENT, "give the new time with `at`, `delay` or `shift`")
            return await self.edit_where(where, at=at, delay=delay, progress=progress)
        if at is not None or delay is not None:
            raise error_of(Code.INVALID_ARGUMENT, "give one of `at`, `delay` and `shift`")
        seconds = shift.total_seconds() if isinstance(shift, timedelta) else shift
        by_ms = round(seconds * 1_000)

        async def change(found: Found) -> Results:
            times = [min(max(ts + by_ms, 0), limits.TS_MS_MAX) for ts in found.ts]
            return await self.edit_batch(found.ids, at=times, versions=found.versions)

        return await self._each(where, change, progress)

    async def cancel_where(self, where: Where, *, progress: OnProgress | None = None) -> BulkResult:
        """Remove every message of this owner that matched when it began.

        A message that changed meanwhile is refused with VERSION_CONFLICT, one that a consumer holds with LEASED.
        """

        async def change(found: Found) -> Results:
            return await self.cancel(found.ids, versions=found.versions)

        return await self._each(where, change, progress)

    async def _each(
        self, where: Where, change: Callable[[Found], Awaitable[Results]], progress: OnProgress | None
    ) -> BulkResult:
        result = BulkResult()
        wanted = where.filter(self.group)
        async for found in scan(self._seeds, self._settings, self.topic, wanted, rows=BULK_ROWS):
            outcomes = await change(found)
            result.add(found.ids, outcomes.failed)
            if progress is not None:
                progress(result.matched, None)
        return result


def outgoing_ids(
    count: int, ids: Sequence[str] | None, parts: list[tuple[Sequence[int], Sent]]
) -> Sequence[str] | _GeneratedIds:
    """The ids the caller gave, or a way to make the generated ones when they are asked for."""
    return list(ids) if ids is not None else _GeneratedIds(count, parts)


class _GeneratedIds:
    """Makes the ids of a batch, in the caller's order; a refused row has none."""

    def __init__(self, count: int, parts: list[tuple[Sequence[int], Sent]]) -> None:
        self._count = count
        self._parts = parts

    def __call__(self) -> list[str]:
        made = [""] * self._count
        for rows, sent in self._parts:
            for row, message_id in zip(rows, sent.generated(), strict=True):
                made[row] = message_id
        return made


def _listed(ids: str | Sequence[str]) -> list[str]:
    return [ids] if isinstance(ids, str) else id_column(ids, len(ids))


def _results(given: str | Sequence[str], ids: Sequence[str], codes: Mapping[int, Code]) -> Results:
    results = Results(len(ids), codes, ids)
    if isinstance(given, str):
        results.raise_for_failures()
    return results


def _check_id(message_id: object) -> None:
    if not isinstance(message_id, str) or not valid_id(message_id):
        raise error_of(Code.INVALID_ID, details=repr(message_id)[:100])


def _check_priority(priority: object) -> None:
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise error_of(Code.INVALID_PRIORITY, details=repr(priority)[:100])
    if not limits.PRIORITY_MIN <= priority <= limits.PRIORITY_MAX:
        raise error_of(Code.INVALID_PRIORITY, details=str(priority))
