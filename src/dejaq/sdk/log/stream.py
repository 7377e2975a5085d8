"""What lone readers and members of groups have in common: a session that gets batches, and the iteration over them."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Self

from dejaq import limits
from dejaq.errors import Code, DejaqError, OutOfState, error_of
from dejaq.protocol.status import error_from_proto
from dejaq.protocol.transport import Transport
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import log_pb2
from dejaq.sdk.log.buffer import LogBuffer
from dejaq.sdk.log.calls import LogCalls
from dejaq.sdk.log.messages import LogBatch, LogMessage
from dejaq.sdk.session.connection import Connection
from dejaq.sdk.session.link import Link, ask_once
from dejaq.sdk.session.seeds import Seeds
from dejaq.sdk.session.settings import ClientSettings

log = logging.getLogger(__name__)

# What the broker may send ahead, and the part of it that must be used before it sends more.
WINDOW_BYTES = 4 * 1024 * 1024
SHARE = 0.5
BATCH_MESSAGES = 10_000


@dataclass(frozen=True, eq=False, slots=True)
class MovingBucket:
    """A bucket that the broker is asked to continue at another offset, and who waits for that."""

    bucket: int
    offset: int
    # None: the stream drops what it has of a paused bucket, and the caller knows nothing of it.
    moved: asyncio.Future[None] | None


class LogStream:
    """Gets batches over a session of its own, which is opened again after it breaks."""

    def __init__(
        self,
        seeds: Seeds,
        settings: ClientSettings,
        calls: LogCalls,
        *,
        uncommitted: bool,
        headers: Mapping[str, str] | None,
        window_bytes: int,
        share: float,
    ) -> None:
        if not window_bytes > 0 or not 0 < share <= 1:
            raise error_of(Code.INVALID_ARGUMENT, "window_bytes is above 0, and share is above 0 and at most 1")
        self._calls, self._uncommitted, self._headers = calls, uncommitted, dict(headers or {})
        # The broker gives no more credit than this.
        self._window, self._share = min(window_bytes, limits.LOG_CREDIT_BYTES_MAX), share
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
        self._seeking: dict[int, MovingBucket] = {}
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
            self._give_up_seeking(OutOfState("the reader was closed"))
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
        opening.headers.update(self._headers)
        self._link = link
        self._describe(opening)
        # The credit of the session before is void.
        self._owed = 0
        await ask_once(link, frame)
        self._hold_back(self._paused)

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
        if not self._buffer.arrived(LogBatch.of(part)):
            self._use(len(part.records))

    def _lost(self, error: DejaqError) -> None:
        if error.retryable:
            log.warning("the reader of %s has no broker: %s", self._calls.topic, error)
        elif not self._closed:
            self._buffer.end(error)
            self._give_up_seeking(error)

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

    async def getone(self) -> LogMessage:
        """The next message; waits for it. Raises OUT_OF_STATE when the reader is closed."""
        if not self._closed:
            with suppress(StopAsyncIteration):
                return await anext(self)
        raise OutOfState("the reader is closed")

    async def getmany(self, max_messages: int = BATCH_MESSAGES, *, timeout: float | None = None) -> list[LogBatch]:
        """What was received, as batches with at most so many messages in all; waits for the first one.

        Empty when nothing came within `timeout` seconds, or when the reader is closed. A cancelled call loses nothing.
        """
        if max_messages < 1:
            raise error_of(Code.INVALID_ARGUMENT, "max_messages is at least 1")
        found: list[LogBatch] = []
        if self._closed:
            return found
        if self._current is not None and self._row < len(self._current):
            # What iteration has left of a batch.
            end = min(self._current.base + self._row + max_messages, self._current.end)
            found.append(self._current.part(self._current.base + self._row, end))
            self._row += len(found[0])
        else:
            try:
                async with asyncio.timeout(timeout):
                    first = await self._take(max_messages)
            except TimeoutError:
                return []
            found += [first] if first is not None else []
        while found and (room := max_messages - sum(map(len, found))):
            more = self._buffer.take_now(room)
            if more is None:
                break
            found.append(more)
        return found

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

    async def beginning_offsets(self) -> dict[int, int]:
        """The offset of the oldest message of each bucket of the reader."""
        offsets = await self._calls.offsets()
        return {bucket: offsets[bucket].start for bucket in sorted(self._buffer.handed)}

    async def offsets_for_times(self, times: Mapping[int, datetime | int]) -> dict[int, int]:
        """The first offset of a time in each of these buckets."""
        found = {at: await self._calls.offsets_for_time(at) for at in set(times.values())}
        return {bucket: found[at][bucket] for bucket, at in times.items()}

    async def seek_to_beginning(self, *buckets: int) -> None:
        """Continue with the oldest messages of these buckets, or of all."""
        for bucket, offset in (await self.beginning_offsets()).items():
            if not buckets or bucket in buckets:
                await self.seek(bucket, offset)

    async def seek_to_end(self, *buckets: int) -> None:
        """Continue with what is appended from now on to these buckets, or to all."""
        for bucket, offset in (await self.end_offsets()).items():
            if not buckets or bucket in buckets:
                await self.seek(bucket, offset)

    async def lag(self) -> int:
        """How many messages of the reader's buckets it has not handed out."""
        ends, positions = await self.end_offsets(), self.positions()
        return sum(max(end - positions.get(bucket, end), 0) for bucket, end in ends.items())

    async def seek(self, bucket: int, offset: int) -> None:
        """Continue at another offset of a bucket; when that fails, reading continues where it was."""
        await self._calls.resolve({bucket: offset})
        self.position(bucket)
        if self._link is None or self._link.ended:
            self._begin(bucket, offset)
            return
        moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._move(MovingBucket(bucket, offset, moved))
        await moved

    def _move(self, moving: MovingBucket) -> None:
        """Ask the broker to continue at another offset. What arrives before its answer is of the time before."""
        if self._link is None:
            return
        number = next(self._numbers)
        self._seeking[number] = moving
        self._buffer.moving.add(moving.bucket)
        frame = self._connection.frame()
        frame.log.seek.number = number
        frame.log.seek.position.bucket, frame.log.seek.position.offset = moving.bucket, moving.offset
        self._link.tell(frame)

    def _moved(self, event: log_pb2.LogMoved) -> None:
        moving = self._seeking.pop(event.number, None)
        if moving is None:
            return
        error = error_from_proto(event.error) if event.HasField("error") else None
        if error is None and moving.bucket not in self._buffer.handed:
            error = OutOfState(f"the reader lost bucket {moving.bucket} while it moved")
        if error is None:
            self._begin(moving.bucket, moving.offset, keep_current=moving.moved is None)
        answer_moving(moving, error)
        self._see_moving()

    def _see_moving(self) -> None:
        self._buffer.moving = {one.bucket for one in self._seeking.values()}
        self._buffer.wake()

    def _begin(self, bucket: int, offset: int, *, keep_current: bool = False) -> None:
        """Continue a bucket at an offset; what is here of it is dropped, and its credit returned."""
        if not keep_current and self._current is not None and self._current.bucket == bucket:
            self._current, self._row = None, 0
        self._use(self._buffer.begin(bucket, offset))

    def _give_up_seeking(self, error: DejaqError) -> None:
        given_up, self._seeking = self._seeking, {}
        for moving in given_up.values():
            answer_moving(moving, error)
        self._see_moving()

    async def pause(self, buckets: Iterable[int]) -> None:
        """Hand out nothing of these buckets until they are resumed."""
        chosen = set(buckets)
        self._paused |= chosen
        self._buffer.held |= chosen
        self._hold_back(chosen)

    def _hold_back(self, buckets: Iterable[int]) -> None:
        """Stop the broker, and drop what is here: it would hold credit that the other buckets need."""
        chosen = self._buffer.handed.keys() & set(buckets)
        if not chosen or self._link is None or self._link.ended:
            return
        self._tell_paused(chosen, resume=False)
        for bucket in chosen:
            self._move(MovingBucket(bucket, self._buffer.handed[bucket], None))

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


def answer_moving(moving: MovingBucket, error: DejaqError | None) -> None:
    """End the wait for a bucket that moved, or did not because of an error."""
    if moving.moved is None or moving.moved.done():
        return
    if error is None:
        moving.moved.set_result(None)
    else:
        moving.moved.set_exception(error)


def positions_to_proto(positions: Mapping[int, int]) -> list[log_pb2.LogPosition]:
    """Offsets by bucket in the form of the protocol."""
    return [log_pb2.LogPosition(bucket=bucket, offset=offset) for bucket, offset in sorted(positions.items())]
