"""The dead letters of a topic: look at them, send them back, or remove them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

from dejaq.domain import dead_letter
from dejaq.domain.message import Message
from dejaq.domain.topic import TopicSettings
from dejaq.errors import Code, Missing
from dejaq.protocol.columns import outcomes_from_proto
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import errors_pb2
from dejaq.sdk.bulk import BULK_ROWS, BulkResult, OnProgress
from dejaq.sdk.queries import Queries, filter_of
from dejaq.sdk.seeds import Seeds
from dejaq.sdk.settings import ClientSettings
from dejaq.sdk.times import At

_Change = Callable[[str, Sequence[str]], Awaitable[dict[int, Code]]]


class DeadLetters:
    """Messages of one topic that were leased too often or rejected. Make it with `client.dead_letters`.

    They are ordinary messages of the dead-letter topic. Here they are found by where they came from, also when several
    topics share one dead-letter topic, and changed whoever owns them.
    """

    def __init__(
        self,
        seeds: Seeds,
        settings: ClientSettings,
        queries: Queries,
        topic: str,
        settings_of: Callable[[str], Awaitable[TopicSettings]],
    ) -> None:
        self.topic = topic
        self._seeds = seeds
        self._settings = settings
        self._queries = queries
        self._settings_of = settings_of

    async def where(self) -> str:
        """The name of the dead-letter topic; of a topic that is gone, the one it has by default."""
        try:
            chosen = (await self._settings_of(self.topic)).dead_letter
        except Missing:
            chosen = ""
        return chosen or f"{self.topic}.dead"

    async def count(
        self,
        *,
        start: At | None = None,
        end: At | None = None,
        reason: str | None = None,
        group: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """How many there are that died from `start` to before `end`, for this reason, with this owner and headers."""
        where = self._filter(start, end, reason, group, headers)
        try:
            return await self._queries.count(await self.where(), where)
        except Missing:
            await self._settings_of(self.topic)
            return 0

    async def browse(
        self,
        *,
        start: At | None = None,
        end: At | None = None,
        reason: str | None = None,
        group: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[list[Message]]:
        """Pages of them in the order they died; the headers that begin with `dejaq-dead-` tell their history."""
        where = self._filter(start, end, reason, group, headers)
        try:
            async for page in self._queries.browse(await self.where(), where):
                yield page
        except Missing:
            # Nothing has died yet, unless there is no such topic either.
            await self._settings_of(self.topic)

    async def redrive(
        self,
        ids: Sequence[str] | None = None,
        *,
        to: str | None = None,
        progress: OnProgress | None = None,
        start: At | None = None,
        end: At | None = None,
        reason: str | None = None,
        group: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> BulkResult:
        """Move them back, due now and without attempts: those of `ids`, or all that match. `to`: another topic."""
        target = to or self.topic

        async def move(grave: str, chosen: Sequence[str]) -> dict[int, Code]:
            request = carrier.RedriveRequest(topic=grave, target=target, ids=chosen)
            return await self._call("Carrier.Redrive", request, len(chosen))

        return await self._each(ids, move, progress, self._filter(start, end, reason, group, headers))

    async def purge(
        self,
        ids: Sequence[str] | None = None,
        *,
        progress: OnProgress | None = None,
        start: At | None = None,
        end: At | None = None,
        reason: str | None = None,
        group: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> BulkResult:
        """Remove them for good: those of `ids`, or all that match."""

        async def remove(grave: str, chosen: Sequence[str]) -> dict[int, Code]:
            request = carrier.PurgeRequest(topic=grave, ids=chosen)
            return await self._call("Carrier.Purge", request, len(chosen))

        return await self._each(ids, remove, progress, self._filter(start, end, reason, group, headers))

    def _filter(
        self,
        start: At | None,
        end: At | None,
        reason: str | None,
        group: str | None,
        headers: Mapping[str, str] | None,
    ) -> carrier.Filter:
        told = {dead_letter.TOPIC: self.topic} | ({dead_letter.REASON: reason} if reason is not None else {})
        return filter_of(start, end, group=group, headers=dict(headers or {}) | told)

    async def _each(
        self, ids: Sequence[str] | None, change: _Change, progress: OnProgress | None, where: carrier.Filter
    ) -> BulkResult:
        result = BulkResult()
        grave = await self.where()
        total = len(ids) if ids is not None else None
        async for page in self._ids(grave, ids, where):
            for begin in range(0, len(page), BULK_ROWS):
                chosen = page[begin : begin + BULK_ROWS]
                result.add(chosen, await change(grave, chosen))
                if progress is not None:
                    progress(result.matched, total)
        return result

    async def _ids(self, grave: str, ids: Sequence[str] | None, where: carrier.Filter) -> AsyncIterator[list[str]]:
        if ids is not None:
            yield list(ids)
            return
        try:
            async for page in self._queries.browse(grave, where):
                yield [message.id for message in page]
        except Missing:
            await self._settings_of(self.topic)

    async def _call(
        self, method: str, request: carrier.RedriveRequest | carrier.PurgeRequest, count: int
    ) -> dict[int, Code]:
        answer = await self._seeds.call(method, request, errors_pb2.Outcomes, patience=self._settings)
        return outcomes_from_proto(answer, count=count).codes
