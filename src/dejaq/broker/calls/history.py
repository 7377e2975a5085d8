"""The life of one message id: from the outbox, the exported segments, and the journals of the other brokers.

A search begins with the newest events. It takes one step of bounded time per call and answers with a cursor, because a
journal may have thousands of segments. Segments are searched in threads.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from dejaq import limits
from dejaq.broker.context import bound
from dejaq.broker.sessions.broker_context import BrokerContext
from dejaq.domain.context import CallContext
from dejaq.domain.ids import valid_id
from dejaq.domain.naming.topic_name import check_asked_topic
from dejaq.errors import Code, DejaqError, InvalidArgument, error_of
from dejaq.protocol.v1 import history_pb2

if TYPE_CHECKING:
    from dejaq.journal.history import Wanted
    from dejaq.journal.names import SegmentName

log = logging.getLogger(__name__)

# How long one call searches segments, and how long a call waits for another broker's answer.
STEP_SECONDS = 1.0
PEER_SECONDS = 5.0
# The most that one read of the outbox returns; the event loop waits for it.
OUTBOX_BYTES = 256 * 1024
# How often the outbox is read again when the exporter moved its records into a segment meanwhile.
OUTBOX_TRIES = 5


class HistoryCalls:
    """The call `History`, for clients and for other brokers."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._places = asyncio.Semaphore(limits.HISTORIES_MAX)

    async def history(self, context: CallContext, request: history_pb2.HistoryRequest) -> history_pb2.HistoryResponse:
        """A page of what every broker of the cluster knows; brokers are searched one after the other, by name."""
        self._check(request)
        position = _position(request.cursor)
        cluster = self._broker.cluster
        brokers = sorted({*cluster.members, cluster.own})
        broker = next((name for name in brokers if name >= position.broker), "")
        if broker != position.broker:
            position = history_pb2.HistoryPosition(broker=broker)
        step = history_pb2.HistoryRequest(
            topic=request.topic, id=request.id, count=request.count, cursor=position.SerializeToString()
        )
        if broker == cluster.own:
            answer = await self.here(context, step)
        else:
            answer = await self._elsewhere(context, broker, step)
        if not answer.cursor:
            following = next((name for name in brokers if name > broker), "")
            if following:
                answer.cursor = history_pb2.HistoryPosition(broker=following).SerializeToString()
        return answer

    async def _elsewhere(
        self, context: CallContext, broker: str, request: history_pb2.HistoryRequest
    ) -> history_pb2.HistoryResponse:
        connections = self._broker.cluster.connections
        try:
            return await connections.call(
                broker, "Peer.History", request, history_pb2.HistoryResponse, bound(context, PEER_SECONDS)
            )
        except DejaqError as error:
            log.info("the journal of broker %s was not searched: %s", broker, error)
            return history_pb2.HistoryResponse(notes=[f"the journal of broker {broker} was not searched: {error}"])

    async def here(self, context: CallContext, request: history_pb2.HistoryRequest) -> history_pb2.HistoryResponse:
        """A page of what the journal of this broker knows."""
        self._check(request)
        position = _position(request.cursor)
        config, place = self._broker.config, self._broker.recorder.place
        if place.directory is None or config.data is None:
            return history_pb2.HistoryResponse(notes=[f"broker {config.name}: {place.note}"])
        # pyarrow takes long to import, and is only there when there is a journal.
        async with self._places:
            search = await asyncio.to_thread(_prepare, place.directory, Path(config.data), request)
            return await self._searched(search, position, request.count or limits.HISTORY_EVENTS_MAX)

    async def _searched(
        self, search: _Search, position: history_pb2.HistoryPosition, count: int
    ) -> history_pb2.HistoryResponse:
        answer = history_pb2.HistoryResponse(notes=self._silent(search.wanted.topic))
        if not position.origin:
            before, events = await self._outbox(search)
            answer.events.extend(reversed(events))
            position = history_pb2.HistoryPosition(broker=position.broker, origin=search.own, before=before)
        until = asyncio.get_running_loop().time() + STEP_SECONDS
        while (name := search.next_segment(position)) is not None:
            if len(answer.events) >= count or asyncio.get_running_loop().time() >= until:
                answer.cursor = position.SerializeToString()
                return answer
            events = await asyncio.to_thread(search.in_segment, name)
            answer.events.extend(reversed(events))
            position = history_pb2.HistoryPosition(broker=position.broker, origin=name.origin, before=name.first)
        return answer

    async def _outbox(self, search: _Search) -> tuple[int, list[history_pb2.HistoryEvent]]:
        """The events that are not exported yet, and the sequence before which the segments have the others."""
        last = search.last_exported()
        for _ in range(OUTBOX_TRIES):
            first, events = await self._read_outbox(search, last)
            exported = await asyncio.to_thread(search.look_again)
            # Records that were exported between the two readings are in a segment, and no longer in the outbox.
            if first == last + 1 or exported == last:
                return last + 1, events
            last = exported
        return last + 1, events

    async def _read_outbox(self, search: _Search, after: int) -> tuple[int, list[history_pb2.HistoryEvent]]:
        target = int(self._broker.storage.journal_stats().get("journal_sequence", 0))
        first = 0
        events: list[history_pb2.HistoryEvent] = []
        while after < target:
            records = await self._broker.storage.journal(after, OUTBOX_BYTES)
            if not records:
                break
            begin, end, found = await asyncio.to_thread(search.in_records, records)
            first, after = first or begin, end
            events += found
        return first or after + 1, events

    def _silent(self, name: str) -> list[str]:
        topic = self._broker.catalog.named(name)
        return [f"no journal is kept of {name}"] if topic is not None and not topic.settings.journal else []

    def _check(self, request: history_pb2.HistoryRequest) -> None:
        check_asked_topic(request.topic)
        if not valid_id(request.id):
            raise error_of(Code.INVALID_ID)
        if request.count > limits.HISTORY_EVENTS_MAX:
            raise error_of(Code.LIMIT_EXCEEDED, f"count={request.count}; at most {limits.HISTORY_EVENTS_MAX}")


def _position(cursor: bytes) -> history_pb2.HistoryPosition:
    try:
        position = history_pb2.HistoryPosition()
        position.ParseFromString(cursor)
        return position
    except DecodeError:
        raise InvalidArgument("the cursor is not one that a broker gave") from None


def _prepare(directory: Path, home: Path, request: history_pb2.HistoryRequest) -> _Search:
    from dejaq.journal.history import Wanted
    from dejaq.journal.origin import origin_of

    search = _Search(directory, origin_of(home / "origin"), Wanted(request.topic, request.id))
    search.look_again()
    return search


class _Search:
    """One step of a search in the directory of this broker's journal. Its methods run in threads."""

    def __init__(self, directory: Path, own: str, wanted: Wanted) -> None:
        self._directory = directory
        self.own = own
        self.wanted = wanted
        self._segments: dict[str, list[SegmentName]] = {}

    def look_again(self) -> int:
        """List the segments; returns the last sequence that was exported."""
        from dejaq.journal.history import segments_of

        self._segments = segments_of(self._directory)
        return self.last_exported()

    def last_exported(self) -> int:
        """The last sequence that was exported when the segments were listed."""
        names = self._segments.get(self.own)
        return names[0].last if names else 0

    def next_segment(self, position: history_pb2.HistoryPosition) -> SegmentName | None:
        """The newest segment that has not been searched; the origins before the current one follow it, by name."""
        names = self._segments.get(position.origin, [])
        place = bisect_right(names, -position.before, key=lambda name: -name.last)
        if place < len(names):
            return names[place]
        others = sorted(origin for origin in self._segments if origin != self.own)
        following = [origin for origin in others if position.origin == self.own or origin > position.origin]
        return self._segments[following[0]][0] if following else None

    def in_segment(self, name: SegmentName) -> list[history_pb2.HistoryEvent]:
        """The events of a segment."""
        from dejaq.journal.history import events_in_segment

        return events_in_segment(self._directory, name, self.wanted)

    def in_records(self, records: list[bytes]) -> tuple[int, int, list[history_pb2.HistoryEvent]]:
        """The first and the last sequence of some records, and the events in them."""
        from dejaq.journal.history import events_in_records
        from dejaq.protocol.v1.journal_pb2 import JournalRecord

        begin = JournalRecord.FromString(records[0]).sequence
        end = JournalRecord.FromString(records[-1]).sequence
        return begin, end, events_in_records(records, self.own, self.wanted)
