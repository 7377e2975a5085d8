"""Changes of all messages of one owner that match: move, edit, cancel; with `dry_run` only a count."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from dejaq.errors import Code, DejaqError, error_of
from dejaq.sdk.changing.bulk import BulkResult
from dejaq.sdk.producing.producer import Producer
from dejaq.web.api.filters import OwnerFilter, where_of
from dejaq.web.api.operation import NDJSON, ApiAnswer, ApiCall
from dejaq.web.api.times import parse_time
from dejaq.web.api.values import BulkOutcome, Epoch, MessageChange, Seconds, bulk_outcome, decoded_body
from dejaq.web.problem import problem_of

log = logging.getLogger(__name__)


class MoveTarget(msgspec.Struct, forbid_unknown_fields=True):
    """The new time: `at`, `delay` seconds from now, or `shift` seconds from the time of each message."""

    at: str | Epoch | None = None
    delay: Seconds | None = None
    shift: Seconds | None = None


# Changes with this producer, and gives the number of messages that were tried so far to its second argument.
Change = Callable[[Producer, Callable[[int, int | None], None]], Awaitable[BulkResult]]


async def _dry_run(call: ApiCall) -> ApiAnswer:
    query: OwnerFilter = call.query
    where = where_of(query, call.client.now_ms())
    if where.is_empty and not query.all:
        raise error_of(Code.INVALID_ARGUMENT, "an empty filter matches every message of the group; pass all=true")
    async with call.gateway.producer(call.topic, query.group) as producer:
        matched = await producer.count_where(where)
    return ApiAnswer(BulkOutcome(matched=matched, done=0, refused={}, examples={}, dry_run=True))


async def _changed(call: ApiCall, change: Change) -> ApiAnswer:
    """Change the messages; a caller that accepts NDJSON gets lines with the progress before the outcome."""
    if call.query.dry_run:
        return await _dry_run(call)
    running = _RunningChange(call, change)
    if not call.wants_lines:
        return ApiAnswer(bulk_outcome(await running.task))
    await running.news()
    if running.task.done():
        return ApiAnswer(content=_line(bulk_outcome(running.task.result())), kind=NDJSON)
    return ApiAnswer(lines=running.lines())


class _ClientLeft(Exception):
    """Nobody waits for the outcome of a change any more."""


# Changes whose clients have left, until their last step is done.
_ending: set[asyncio.Task[BulkResult]] = set()


class _RunningChange:
    """A change in progress. It is ended between two steps, so that the outcome of each message is definite."""

    def __init__(self, call: ApiCall, change: Change) -> None:
        self._call, self._change = call, change
        self._tried = 0
        self._left = False
        self._news = asyncio.Event()
        self.task = asyncio.ensure_future(self._run())
        self.task.add_done_callback(lambda _: self._news.set())

    async def _run(self) -> BulkResult:
        async with self._call.gateway.producer(self._call.topic, self._call.query.group) as producer:
            return await self._change(producer, self._note)

    def _note(self, tried: int, total: int | None) -> None:
        self._tried = tried
        self._news.set()
        if self._left:
            raise _ClientLeft

    async def news(self) -> None:
        """Wait until more messages were tried, or the change has ended."""
        await self._news.wait()
        self._news.clear()

    async def lines(self) -> AsyncIterator[bytes]:
        """How many messages were tried, again and again; then the outcome or the problem.

        When the client leaves before that, the change ends behind the step in progress.
        """
        try:
            while not self.task.done():
                yield _line({"tried": self._tried})
                await self.news()
            try:
                yield _line(bulk_outcome(self.task.result()))
            except DejaqError as error:
                yield _line(problem_of(error))
        finally:
            if not self.task.done():
                self._left = True
                _ending.add(self.task)
                self.task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[BulkResult]) -> None:
        _ending.discard(task)
        cause = None if task.cancelled() else task.exception()
        if cause is not None:
            why = "" if isinstance(cause, _ClientLeft) else f" ({cause!r})"
            log.warning(
                "a change of %s in %s ended behind %d messages, because its client closed the connection%s",
                *(self._call.query.group, self._call.topic, self._tried, why),
            )


def _line(value: object) -> bytes:
    return msgspec.json.encode(value) + b"\n"


async def move_messages(call: ApiCall) -> ApiAnswer:
    """Give every message that matches another time, or shift each. With `Accept: application/x-ndjson`, lines with the
    number of messages `tried` so far come before the outcome. When the client closes the connection before that, the
    change ends behind the thousand messages in progress, and the gateway logs how many were tried; the same request
    continues it. Without these lines, a change is finished whether or not its client waits.
    """
    target = call.json(MoveTarget)
    now = call.client.now_ms()
    if [target.at, target.delay, target.shift].count(None) != 2:
        raise error_of(Code.INVALID_ARGUMENT, "give one of at, delay and shift")
    at = parse_time(target.at, now)
    query: OwnerFilter = call.query
    where = where_of(query, now)
    return await _changed(
        call,
        lambda producer, progress: producer.move_where(
            where, at=at, delay=target.delay, shift=target.shift, everything=query.all, progress=progress
        ),
    )


async def edit_messages(call: ApiCall) -> ApiAnswer:
    """Change every message that matches; lines of progress as for `messages:move`."""
    change = call.json(MessageChange)
    now = call.client.now_ms()
    at, body = parse_time(change.at, now), decoded_body(change.body, change.body_base64)
    query: OwnerFilter = call.query
    where = where_of(query, now)
    return await _changed(
        call,
        lambda producer, progress: producer.edit_where(
            where,
            body=body,
            at=at,
            delay=change.delay,
            priority=change.priority,
            headers=change.headers,
            everything=query.all,
            progress=progress,
        ),
    )


async def cancel_messages(call: ApiCall) -> ApiAnswer:
    """Remove every message that matches; lines of progress as for `messages:move`."""
    query: OwnerFilter = call.query
    where = where_of(query, call.client.now_ms())
    return await _changed(
        call, lambda producer, progress: producer.cancel_where(where, everything=query.all, progress=progress)
    )
