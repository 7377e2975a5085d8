"""What lone readers and members of groups have in common: a session that gets batches, and the iteration over them."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import Self

from dejaq.errors import Code, DejaqError, OutOfState, error_of
from dejaq.protocol.status import error_from_proto
from dejaq.protocol.transport import Transport
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import log_pb2
from dejaq.sdk.log.buffer import LogBuffer
from dejaq.sdk.log.calls import LogCalls
from dejaq.sdk.log.messages import LogBatch, LogMessage
from dejaq.sdk.session.connection import Connection, ask_once
from dejaq.sdk.session.link import Link
from dejaq.sdk.session.seeds import Seeds
from dejaq.sdk.session.settings import ClientSettings

log = logging.getLogger(__name__)

# What the broker may send ahead, and the part of it that must be used before it sends more.
WINDOW_BYTES = 4 * 1024 * 1024
SHARE = 0.5
BATCH_MESSAGES = 10_000


class LogStream:
    """Gets batches over a session of its own, which is opened again after it breaks."""

    def __init__(
        self,
        seeds: Seeds,
        settings: ClientSettings,
        calls: LogCalls,
        *,
        uncommitted: bool,
        window_bytes: int,
        share: float,
    ) -> None:
        if not window_bytes > 0 or not 0 < share <= 1:
            raise error_of(Code.INVALID_ARGUMENT, "window_bytes is above 0, and share is above 0 and at most 1")
        self._calls, self._uncommitted = calls, uncommitted
        self._window, self._share = window_bytes, share
        self._buffer = LogBuffer(self._taken)
        self._connection = Connection(
            seeds,
            settings,
            enter=self._enter,
            on_event=self._event,
            on_lost=self._lost,
            role="log",
            topic=calls.topic,
        )
        self._link: Link | None = None
        # Bytes that were used and not reported to the broker yet.
        self._owed = 0
        self._current: LogBatch | None = None
        self._row = 0
        self._paused: set[int] = set()
        self._numbers = itertools.count(1)
        self._seeking: dict[int, tuple[int, asyncio.Future[None]]] = {}
        self._closed = False

    # Lifecycle

    async def open(self) -> None:
        """Connect and begin to read; raises NoBroker after the deadline, or the broker's refusal."""
        await self._prepare()
        await self._connection.open()

    async def _prepare(self) -> None:
        """Find out where reading begins."""

    async def close(self) -> None:
        """Stop reading and disconnect."""
        if not self._closed:
            self._closed = True
            self._buffer.end()
            await self._connection.close()
            await self._stopped()

    async def _stopped(self) -> None:
        """End what else is running."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # The session

    async def _enter(self, link: Link, transport: Transport) -> None:
        """Open the reader in a new session."""
        frame = self._connection.frame()
        opening = frame.log.open
        opening.topic, opening.uncommitted, opening.credit_bytes = self._calls.topic, self._uncommitted, self._window
        self._owed = 0
        self._link = link
        self._describe(opening)
        await ask_once(link, frame)
        for _, (_, moved) in self._seeking.items():
            if not moved.done():
                moved.set_result(None)
        self._seeking.clear()
        if self._paused:
            self._tell_paused(self._paused, resume=False)

    def _describe(self, opening: log_pb2.LogOpen) -> None:
        """Say what is to be read, in a new session."""
        raise NotImplementedError

    def _event(self, link: Link, frame: carrier.BrokerFrame) -> None:
        if frame.WhichOneof("event") != "log" or link is not self._link:
            return
        match frame.log.WhichOneof("event"):
            case "push":
                for part in frame.log.push.slices:
                    self._arrived(part)
            case "moved":
                self._moved(frame.log.moved)
            case _:
                self._told(frame.log)

    def _told(self, event: log_pb2.LogEvent) -> None:
        """Something that concerns members of groups."""

    def _arrived(self, part: log_pb2.LogSlice) -> None:
        if part.bucket in self._seeking or not self._buffer.arrived(LogBatch.of(part)):
            self._use(len(part.records))

    def _lost(self, error: DejaqError) -> None:
        if error.retryable:
            log.warning("the reader of %s has no broker: %s", self._calls.topic, error)
        elif not self._closed:
            self._buffer.end(error)

    def _taken(self, batch: LogBatch) -> None:
        """The caller has taken a batch, or a part of one."""
        self._use(batch.size)

    def _use(self, size: int) -> None:
        """Count bytes that the broker may send again."""
        self._owed += size
        if self._owed >= self._window * self._share and self._link is not None and not self._link.ended:
            frame = self._connection.frame()
            frame.log.credit.bytes = self._owed
            self._owed = 0
            self._link.tell(frame)

    # Iteration

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LogMessage:
        while self._current is None or self._row >= len(self._current):
            self._current, self._row = await self._take(BATCH_MESSAGES), 0
            if self._current is None:
                raise StopAsyncIteration
        self._row += 1
        return self._current.message(self._row - 1)

    async def batches(self, max_messages: int = BATCH_MESSAGES) -> AsyncIterator[LogBatch]:
        """The messages as batches of at most so many, each of one bucket, as columns."""
        if max_messages < 1:
            raise error_of(Code.INVALID_ARGUMENT, "a batch has at least one message")
        while (batch := await self._take(max_messages)) is not None:
            self._current, self._row = batch, len(batch)
            yield batch

    async def _take(self, count_max: int) -> LogBatch | None:
        if self._closed:
            return None
        self._connection.check_open()
        return await self._buffer.take(count_max)

    # Positions

    def position(self, bucket: int) -> int:
        """The offset behind the last message of a bucket that was handed out; OUT_OF_STATE for another bucket."""
        found = self.positions().get(bucket)
        if found is None:
            raise OutOfState(f"the reader does not have bucket {bucket}")
        return found

    def positions(self) -> dict[int, int]:
        """The same for every bucket of the reader."""
        found = dict(self._buffer.handed)
        if self._current is not None and self._current.bucket in found and self._row < len(self._current):
            found[self._current.bucket] = self._current.base + self._row
        return found

    async def end_offsets(self) -> dict[int, int]:
        """The offset at which each bucket of the reader ends at present, for this reader."""
        offsets = await self._calls.offsets()
        return {
            bucket: offsets[bucket].next if self._uncommitted else offsets[bucket].stable
            for bucket in sorted(self._buffer.handed)
        }

    async def lag(self) -> int:
        """How many messages of the reader's buckets it has not handed out."""
        ends, positions = await self.end_offsets(), self.positions()
        return sum(max(end - positions.get(bucket, end), 0) for bucket, end in ends.items())

    async def seek(self, bucket: int, offset: int) -> None:
        """Continue at another offset of a bucket."""
        await self._calls.resolve({bucket: offset})
        self.position(bucket)
        if self._current is not None and self._current.bucket == bucket:
            self._current, self._row = None, 0
        number, moved = next(self._numbers), asyncio.get_running_loop().create_future()
        held = bucket in self._buffer.held
        self._buffer.begin(bucket, offset)
        if held:
            self._buffer.held.add(bucket)
        if self._link is None or self._link.ended:
            return
        self._seeking[bucket] = number, moved
        frame = self._connection.frame()
        frame.log.seek.number = number
        frame.log.seek.position.bucket, frame.log.seek.position.offset = bucket, offset
        self._link.tell(frame)
        await moved

    def _moved(self, event: log_pb2.LogMoved) -> None:
        for bucket, (number, moved) in list(self._seeking.items()):
            if number == event.number:
                del self._seeking[bucket]
                if event.HasField("error"):
                    self._buffer.end(error_from_proto(event.error))
                if not moved.done():
                    moved.set_result(None)

    async def pause(self, buckets: Iterable[int]) -> None:
        """Hand out nothing of these buckets until they are resumed."""
        chosen = set(buckets)
        self._paused |= chosen
        self._buffer.held |= chosen
        self._tell_paused(chosen, resume=False)

    async def resume(self, buckets: Iterable[int]) -> None:
        """Hand out messages of these buckets again."""
        chosen = set(buckets)
        self._paused -= chosen
        self._buffer.held -= chosen
        self._buffer.wake()
        self._tell_paused(chosen, resume=True)

    def _tell_paused(self, buckets: Iterable[int], *, resume: bool) -> None:
        if self._link is not None and not self._link.ended:
            frame = self._connection.frame()
            frame.log.pause.buckets.extend(sorted(buckets))
            frame.log.pause.resume = resume
            self._link.tell(frame)


def positions_to_proto(positions: Mapping[int, int]) -> list[log_pb2.LogPosition]:
    """Offsets by bucket in the form of the protocol."""
    return [log_pb2.LogPosition(bucket=bucket, offset=offset) for bucket, offset in sorted(positions.items())]
