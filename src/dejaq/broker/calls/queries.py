"""Looks at messages without changing them: get, count, histogram and browse, each within a limit of size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from dejaq import limits
from dejaq.broker.calls.query_budget import QueryBudget
from dejaq.broker.delivery.progress import ProgressReports
from dejaq.domain.context import CallContext
from dejaq.domain.ids import valid_id, valid_ids
from dejaq.domain.message import Message, Status, UnleasedMessages
from dejaq.domain.topic import Topic
from dejaq.errors import Code, InvalidArgument, error_of
from dejaq.protocol.columns import add_unleased, messages_to_proto
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.storage.base import Filter, Page, ReadsColumns, Storage
from dejaq.timekeeper.clock import Clock

# How many bodies are read at once before their size is known.
CHUNK_ROWS = 64
# So many rows become a part of an answer at once; the event loop does other work between two parts.
PART_ROWS = 250
SMALL_BYTES = 4_096
BROWSE_PAGE_DEFAULT = 500
# Columns other than bodies and headers are small and bounded; this is a generous guess of them.
_ROW_BYTES = 256


class QueryCalls:
    """The read side of the `Carrier` service."""

    def __init__(
        self,
        *,
        storage: Storage,
        clock: Clock,
        find_topic: Callable[[str], Topic],
        reports: ProgressReports,
        budget: QueryBudget,
    ) -> None:
        self._budget = budget
        self._reports = reports
        self._storage = storage
        self._clock = clock
        self._find_topic = find_topic

    async def get(self, context: CallContext, request: carrier.GetRequest) -> carrier.MessageColumns:
        """The messages of these ids that are there; `asked` says which id each row answers."""
        topic = self._find_topic(request.topic)
        if len(request.ids) > limits.BATCH_COUNT_MAX:
            raise error_of(
                Code.BATCH_TOO_LARGE, f"{len(request.ids)} ids in one call; at most {limits.BATCH_COUNT_MAX}"
            )
        named = list(request.ids)
        asked: Sequence[int] = range(len(named))
        if not valid_ids(named):
            asked = [place for place, message_id in enumerate(named) if valid_id(message_id)]
        answer = carrier.MessageColumns()
        found: list[tuple[int, Message]] = []
        size = 0
        now = self._clock.now_ms()
        rows_min, rows_max = (
            self._storage.columns_rows(topic) if isinstance(self._storage, ReadsColumns) else (CHUNK_ROWS, PART_ROWS)
        )
        start, chunk_rows = 0, rows_min
        while start < len(asked):
            if start:
                await asyncio.sleep(0)
            places = asked[start : start + chunk_rows]
            start += chunk_rows
            ids = [named[place] for place in places]
            rows, others = await self._read(topic, ids, now)
            if rows is not None:
                add_unleased(answer, rows, ids=ids, places=places, now=now)
                size += rows.size + _ROW_BYTES * len(rows)
            found += [(places[item], message) for item, message in others]
            size += sum([_size(message) for _, message in others])
            if size > limits.BATCH_BYTES_MAX:
                raise error_of(
                    Code.BATCH_TOO_LARGE,
                    f"the messages have over {limits.BATCH_BYTES_MAX} bytes; ask for fewer",
                )
            chunk_rows = rows_max if size < SMALL_BYTES * start else rows_min
        if not found:
            return answer
        messages = await self._reports.added(topic, [message for _, message in found], now)
        rest = messages_to_proto(messages, now=now, asked=[place for place, _ in found])
        if rest.progress:
            answer.progress.extend([""] * len(answer.ids))
        answer.MergeFrom(rest)
        return answer

    async def _read(
        self, topic: Topic, ids: Sequence[str], now: int
    ) -> tuple[UnleasedMessages | None, Sequence[tuple[int, Message]]]:
        """Some messages as columns, where the storage has those, and the others with the positions of their ids."""
        if isinstance(self._storage, ReadsColumns):
            return await self._storage.get_columns(topic, ids, now)
        messages = await self._storage.get(topic, ids, now)
        return None, [(item, message) for item, message in enumerate(messages) if message is not None]

    async def count(self, context: CallContext, request: carrier.CountRequest) -> carrier.CountResponse:
        """How many messages match, exactly."""
        topic = self._find_topic(request.topic)
        where = filter_from_proto(request.filter)
        async with self._budget.query(context, "count"):
            return carrier.CountResponse(count=await self._storage.count(topic, where, self._clock.now_ms()))

    async def histogram(self, context: CallContext, request: carrier.HistogramRequest) -> carrier.HistogramResponse:
        """How many messages match in each step of time."""
        topic = self._find_topic(request.topic)
        where = filter_from_proto(request.filter)
        if not (request.filter.HasField("start") and request.filter.HasField("end")):
            raise InvalidArgument("a histogram needs a start and an end")
        step = request.step_ms
        if step < 1 or (where.end - where.start - 1) // step >= limits.HISTOGRAM_STEPS_MAX:
            raise error_of(
                Code.LIMIT_EXCEEDED,
                f"step_ms={step} does not cut {where.end - where.start} ms into at most "
                f"{limits.HISTOGRAM_STEPS_MAX} steps",
            )
        async with self._budget.query(context, "histogram"):
            steps = await self._storage.histogram(topic, where, step, self._clock.now_ms())
        return carrier.HistogramResponse(starts=[start for start, _ in steps], counts=[count for _, count in steps])

    async def browse(
        self, context: CallContext, request: carrier.BrowseRequest
    ) -> AsyncIterator[carrier.MessageColumns]:
        """Page after page of the messages that match."""
        topic = self._find_topic(request.topic)
        where = filter_from_proto(request.filter)
        if request.page_size > limits.BROWSE_PAGE_MAX:
            raise error_of(Code.LIMIT_EXCEEDED, f"page_size={request.page_size}; at most {limits.BROWSE_PAGE_MAX}")
        rows_max = request.page_size or BROWSE_PAGE_DEFAULT
        cursor: bytes | None = request.cursor or None
        while True:
            now = self._clock.now_ms()
            async with self._budget.query(context, "page"):
                page = await self._page(topic, where, cursor, rows_max, now)
                columns = await _columns(page, now)
            yield columns
            cursor = page.cursor
            if cursor is None:
                return

    async def _page(self, topic: Topic, where: Filter, cursor: bytes | None, rows_max: int, now: int) -> Page:
        """A page that fits into a frame, read in chunks so that large bodies never accumulate."""
        messages: list[Message] = []
        size = 0
        while True:
            limit = min(CHUNK_ROWS, rows_max - len(messages))
            if messages:
                average = max(1, size // len(messages))
                limit = min(rows_max - len(messages), (limits.BATCH_BYTES_MAX - size) // (2 * average))
            if limit < 1:
                return Page(messages, cursor)
            chunk = await self._storage.browse(topic, where, cursor, limit, now)
            fitting = _fitting(chunk.messages, limits.BATCH_BYTES_MAX - size)
            if fitting < len(chunk.messages):
                if messages:
                    return Page(messages, cursor)
                # Only the storage knows the cursor behind a row, so the smaller page is asked for again.
                return await self._storage.browse(topic, where, cursor, max(1, fitting), now)
            messages += chunk.messages
            size += sum(map(_size, chunk.messages))
            cursor = chunk.cursor
            if cursor is None:
                return Page(messages, None)


async def _columns(page: Page, now: int) -> carrier.MessageColumns:
    """A page as columns; other tasks run meanwhile."""
    columns = messages_to_proto(page.messages[:PART_ROWS], now=now, cursor=page.cursor)
    for start in range(PART_ROWS, len(page.messages), PART_ROWS):
        await asyncio.sleep(0)
        columns.MergeFrom(messages_to_proto(page.messages[start : start + PART_ROWS], now=now))
    return columns


def _size(message: Message) -> int:
    return len(message.body) + _ROW_BYTES + sum(len(key) + len(value) + 16 for key, value in message.headers.items())


def _fitting(messages: list[Message], budget: int) -> int:
    for place, message in enumerate(messages):
        budget -= _size(message)
        if budget < 0:
            return place
    return len(messages)


def filter_from_proto(proto: carrier.Filter) -> Filter:
    """The filter of a query, or INVALID_ARGUMENT."""
    status: Status | None = None
    if proto.status:
        try:
            status = Status(proto.status)
        except ValueError:
            raise InvalidArgument(f"{proto.status!r} is not a status; known: {', '.join(Status)}") from None
    start = max(0, proto.start) if proto.HasField("start") else 0
    end = proto.end if proto.HasField("end") else 2**63 - 1
    return Filter(
        start=start,
        end=max(start, end),
        status=status,
        owner=proto.owner or None,
        consumer=proto.consumer or None,
        priorities=_priorities(proto),
        headers=tuple(sorted(proto.headers.items())),
    )


def _priorities(proto: carrier.Filter) -> tuple[int, int] | None:
    if not (proto.HasField("priority_min") or proto.HasField("priority_max")):
        return None
    return (
        proto.priority_min if proto.HasField("priority_min") else limits.PRIORITY_MIN,
        proto.priority_max if proto.HasField("priority_max") else limits.PRIORITY_MAX,
    )
