"""The dead letters of a topic: read them, send them back, or remove them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

from dejaq.domain import dead_letter
from dejaq.domain.message import Message
from dejaq.domain.naming.topic_name import is_short
from dejaq.errors import Code, Missing
from dejaq.protocol.columns import outcomes_from_proto
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import errors_pb2
from dejaq.sdk.admin.cluster import TopicInfo
from dejaq.sdk.admin.queries import Queries, filter_of
from dejaq.sdk.changing.bulk import BULK_ROWS, BulkResult, OnProgress
from dejaq.sdk.results import Results
from dejaq.sdk.session.seeds import Seeds
from dejaq.sdk.session.settings import ClientSettings
from dejaq.sdk.times import At

_Change = Callable[[str, Sequence[str]], Awaitable[dict[int, Code]]]


class DeadLetters:
    """Messages of one topic that were leased too often or rejected. Create it with `client.dead_letters`.

    They are ordinary messages of the dead-letter topic. This class finds them by their original topic, also when
    several topics share one dead-letter topic, and changes them whichever group owns them.
    """

    def __init__(
        self,
        seeds: Seeds,
        settings: ClientSettings,
        queries: Queries,
        topic: str,
        describe: Callable[[str], Awaitable[TopicInfo]],
    ) -> None:
        self.topic = topic
        self._seeds = seeds
        self._settings = settings
        self._queries = queries
        self._describe = describe

    async def where(self) -> str:
        """The name of the dead-letter topic; for a deleted topic, the default name."""
        try:
            chosen = (await self._describe(self.topic)).settings.dead_letter
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
        """The number of dead letters that failed from `start` to before `end`, with this reason, owner and headers."""
        where = await self._filter(start, end, reason, group, headers)
        try:
            return await self._queries.count(await self.where(), where)
        except Missing:
            await self._describe(self.topic)
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
        """Pages of dead letters, oldest first; the headers that begin with `dejaq-dead-` describe their history."""
        where = await self._filter(start, end, reason, group, headers)
        try:
            async for page in self._queries.browse(await self.where(), where):
                yield page
        except Missing:
            # The dead-letter topic does not exist before the first dead letter. A missing original topic is an error.
            await self._describe(self.topic)

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
        results: bool = False,
    ) -> BulkResult:
        """Move dead letters to `to` or back, due now, with zero attempts: those in `ids`, or all that match.

        With `ids` it raises when any of them is refused, and the error lists all that were, as `failed`; the others are
        moved. With `results=True`, and for a filter, the result counts the refusals instead.
        """
        target = to or self.topic

        async def move(grave: str, chosen: Sequence[str]) -> dict[int, Code]:
            request = carrier.RedriveRequest(topic=grave, target=target, ids=chosen)
            return await self._call("Carrier.Redrive", request, len(chosen))

        where = await self._filter(start, end, reason, group, headers)
        return await self._each(ids, move, progress, where, raises=not results)

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
        results: bool = False,
    ) -> BulkResult:
        """Remove dead letters permanently: those in `ids`, or all that match. Raises as `redrive` does."""

        async def remove(grave: str, chosen: Sequence[str]) -> dict[int, Code]:
            request = carrier.PurgeRequest(topic=grave, ids=chosen)
            return await self._call("Carrier.Purge", request, len(chosen))

        where = await self._filter(start, end, reason, group, headers)
        return await self._each(ids, remove, progress, where, raises=not results)

    async def _filter(
        self,
        start: At | None,
        end: At | None,
        reason: str | None,
        group: str | None,
        headers: Mapping[str, str] | None,
    ) -> carrier.Filter:
        if is_short(self.topic):
            # Dead letters have the full name of their topic.
            self.topic = (await self._describe(self.topic)).name
        told = {dead_letter.TOPIC: self.topic} | ({dead_letter.REASON: reason} if reason is not None else {})
        return filter_of(start, end, group=group, headers=dict(headers or {}) | told)

    async def _each(
        self,
        ids: Sequence[str] | None,
        change: _Change,
        progress: OnProgress | None,
        where: carrier.Filter,
        *,
        raises: bool,
    ) -> BulkResult:
        result = BulkResult()
        refused: dict[int, Code] = {}
        grave = await self.where()
        total = len(ids) if ids is not None else None
        async for page in self._ids(grave, ids, where):
            for begin in range(0, len(page), BULK_ROWS):
                chosen = page[begin : begin + BULK_ROWS]
                codes = await change(grave, chosen)
                refused.update({begin + row: code for row, code in codes.items()})
                result.add(chosen, codes)
                if progress is not None:
                    progress(result.matched, total)
        if raises and ids is not None:
            # The ids that were given are one page.
            Results(len(ids), refused, ids).raise_for_failures()
        return result

    async def _ids(self, grave: str, ids: Sequence[str] | None, where: carrier.Filter) -> AsyncIterator[list[str]]:
        if ids is not None:
            yield list(ids)
            return
        try:
            async for page in self._queries.browse(grave, where):
                yield [message.id for message in page]
        except Missing:
            await self._describe(self.topic)

    async def _call(
        self, method: str, request: carrier.RedriveRequest | carrier.PurgeRequest, count: int
    ) -> dict[int, Code]:
        answer = await self._seeds.call(method, request, errors_pb2.Outcomes, patience=self._settings)
        return outcomes_from_proto(answer, count=count).codes
