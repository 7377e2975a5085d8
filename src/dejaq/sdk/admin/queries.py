"""Queries about the messages on a timeline; any broker can answer them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from typing import TypedDict

from dejaq import limits
from dejaq.domain.message import Message, Status
from dejaq.errors import Code, DejaqError, Unavailable, error_of
from dejaq.protocol.columns import messages_from_proto
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.sdk.gathering import Gathering
from dejaq.sdk.session.seeds import Seeds
from dejaq.sdk.session.settings import ClientSettings
from dejaq.sdk.times import At, to_ms

PAGE_SIZE = 1_000
GET_COUNT = 1_000


def filter_of(
    start: At | None = None,
    end: At | None = None,
    status: Status | str | None = None,
    group: str | None = None,
    consumer: str | None = None,
    priorities: tuple[int, int] | None = None,
    headers: Mapping[str, str] | None = None,
) -> carrier.Filter:
    """A filter for `start <= ts < end` and for each other condition that is given."""
    if status is not None:
        try:
            status = Status(status)
        except ValueError:
            known = ", ".join(Status)
            raise error_of(Code.INVALID_ARGUMENT, f"{status!r} is not a status; known: {known}") from None
    low, high = priorities or (None, None)
    for bound in (low, high):
        if bound is not None and not limits.PRIORITY_MIN <= bound <= limits.PRIORITY_MAX:
            raise error_of(Code.INVALID_PRIORITY, details=str(bound))
    return carrier.Filter(
        priority_min=low,
        priority_max=high,
        headers=headers,
        start=None if start is None else to_ms(start),
        end=None if end is None else to_ms(end),
        status=status or "",
        owner=group or "",
        consumer=consumer or "",
    )


class Conditions(TypedDict, total=False):
    """The conditions of a query."""

    start: At | None
    end: At | None
    status: Status | str | None
    group: str | None
    consumer: str | None
    priorities: tuple[int, int] | None
    headers: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Some messages of a topic in order of time, and the cursor of the next page, which is empty after the last."""

    messages: tuple[Message, ...]
    cursor: bytes


def _check_size(page_size: int) -> None:
    if not 1 <= page_size <= limits.BROWSE_PAGE_MAX:
        raise error_of(Code.INVALID_ARGUMENT, f"page_size={page_size}; it is 1 to {limits.BROWSE_PAGE_MAX}")


@dataclass(frozen=True, slots=True)
class _Get:
    """A call for messages of one topic."""

    topic: str
    ids: Sequence[str]


class Queries:
    """Get, count, histogram and browse; they lease nothing and change nothing."""

    def __init__(self, seeds: Seeds, settings: ClientSettings) -> None:
        self._seeds = seeds
        self._settings = settings
        self._gets: Gathering[_Get, list[Message | None]] = Gathering(
            self._get_soon, weigh=lambda get: len(get.ids), weight_max=GET_COUNT, shape=lambda get: get.topic
        )
        self._tasks: set[asyncio.Task[None]] = set()

    async def get(self, topic: str, ids: Sequence[str]) -> list[Message | None]:
        """The messages, in the order of `ids`; None for an id that no message has. Calls of one moment are sent as
        one.
        """
        if len(ids) <= GET_COUNT:
            return await self._gets.ask(_Get(topic, ids))
        parts = [ids[start : start + GET_COUNT] for start in range(0, len(ids), GET_COUNT)]
        return [message for part in parts for message in await self._gets.ask(_Get(topic, part))]

    def _get_soon(self, gets: Sequence[_Get], done: Callable[[list[list[Message | None]] | Exception], None]) -> None:
        task = asyncio.ensure_future(self._get_for(gets, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _get_for(
        self, gets: Sequence[_Get], done: Callable[[list[list[Message | None]] | Exception], None]
    ) -> None:
        try:
            found = await self._get_all(gets)
        except asyncio.CancelledError:
            done(Unavailable("the event loop ended before the answer"))
            raise
        except Exception as error:  # noqa: BLE001  its caller gets it
            done(error)
        else:
            done(found)

    async def _get_all(self, gets: Sequence[_Get]) -> list[list[Message | None]]:
        """The messages of calls on one topic, which are one call to a broker; or one for each when they are too large
        together.
        """
        ids = [message_id for get in gets for message_id in get.ids]
        request = carrier.GetRequest(topic=gets[0].topic, ids=ids)
        try:
            answer = await self._seeds.call("Carrier.Get", request, carrier.MessageColumns, patience=self._settings)
        except DejaqError as error:
            if len(gets) == 1 or error.code is not Code.BATCH_TOO_LARGE:
                raise
            return [(await self._get_all([get]))[0] for get in gets]
        found: list[Message | None] = [None] * len(ids)
        for asked, message in zip(answer.asked, messages_from_proto(answer, topic=gets[0].topic), strict=True):
            found[asked] = message
        ends = list(accumulate(len(get.ids) for get in gets))
        return [found[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    async def count(self, topic: str, where: carrier.Filter) -> int:
        """How many messages match, exactly."""
        request = carrier.CountRequest(topic=topic, filter=where)
        answer = await self._seeds.call("Carrier.Count", request, carrier.CountResponse, patience=self._settings)
        return answer.count

    async def histogram(self, topic: str, where: carrier.Filter, step: float | timedelta) -> list[tuple[int, int]]:
        """(start of the step in epoch ms, count) for each step that has messages."""
        seconds = step.total_seconds() if isinstance(step, timedelta) else step
        step_ms = round(seconds * 1_000)
        if step_ms < 1:
            raise error_of(Code.INVALID_ARGUMENT, f"a step of {step} s; the shortest is 0.001 s")
        request = carrier.HistogramRequest(topic=topic, filter=where, step_ms=step_ms)
        answer = await self._seeds.call(
            "Carrier.Histogram", request, carrier.HistogramResponse, patience=self._settings
        )
        return list(zip(answer.starts, answer.counts, strict=True))

    async def page(self, topic: str, where: carrier.Filter, cursor: bytes, size: int) -> MessagePage:
        """One page of messages in order of (ts, id), and the cursor of the next page."""
        _check_size(size)
        request = carrier.BrowseRequest(topic=topic, filter=where, page_size=size, cursor=cursor)
        patience = self._seeds.patience(self._settings)
        while True:
            transport = self._seeds.first()
            pages = transport.stream("Carrier.Browse", request, carrier.MessageColumns)
            try:
                async for page in pages:
                    return MessagePage(tuple(messages_from_proto(page, topic=topic)), page.cursor)
                return MessagePage((), b"")
            except DejaqError as error:
                await patience.after(error, transport)
            finally:
                # The broker would read further pages until the garbage collector ends the stream.
                if isinstance(pages, AsyncGenerator):
                    await pages.aclose()

    async def browse(
        self, topic: str, where: carrier.Filter, page_size: int = PAGE_SIZE
    ) -> AsyncIterator[list[Message]]:
        """Pages of messages in order of (ts, id); an outage between two pages only delays the next page."""
        _check_size(page_size)
        request = carrier.BrowseRequest(topic=topic, filter=where, page_size=page_size)
        patience = self._seeds.patience(self._settings)
        while True:
            transport = self._seeds.first()
            pages = transport.stream("Carrier.Browse", request, carrier.MessageColumns)
            try:
                async for page in pages:
                    patience.reset()
                    messages = messages_from_proto(page, topic=topic)
                    if messages:
                        yield messages
                    if not page.cursor:
                        return
                    request.cursor = page.cursor
                return
            except DejaqError as error:
                await patience.after(error, transport)
