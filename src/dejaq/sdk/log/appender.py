"""Appends messages: those that wait at the same time share a frame, and each batch is sent again until it is answered.

Only one batch of a bucket is in transit at one time, so the messages of a bucket are in the order of the calls, also
when a session breaks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from dejaq import limits
from dejaq.domain.ids import ProducerSession
from dejaq.errors import Code, DejaqError, error_of
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import log_pb2
from dejaq.sdk.log.messages import AppendedBatch
from dejaq.sdk.session.connection import Connection
from dejaq.sdk.session.link import Link
from dejaq.sdk.session.seeds import Seeds
from dejaq.sdk.session.settings import ClientSettings

LINGER_SECONDS = 0.001
_FRAMES_MAX = 8
_FRAME_BYTES = 1024 * 1024
# The broker remembers 1,024 names: an unanswered batch that is repeated must be among these.
BATCHES_PER_FRAME_MAX = 256
NAMES_BEHIND_MAX = 512
_SEQUENCE_MAX = 2**32 - 1


@dataclass(eq=False, slots=True)
class WaitingBatch:
    """Messages of one bucket that go into one batch, and who waits for it."""

    bucket: int
    bodies: list[bytes] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    headers: list[bytes] = field(default_factory=list)
    size: int = 0
    # An explicit batch: nothing else may share it.
    closed: bool = False
    # The single messages that it was divided into, because the broker refused one of them and so the whole batch.
    divided: list[WaitingBatch] = field(default_factory=list)
    done: asyncio.Future[AppendedBatch] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def add(self, body: bytes, key: bytes, headers: bytes) -> int:
        """Add a message; its row."""
        row = len(self.bodies)
        if key and not self.keys:
            self.keys = [b""] * row
        if headers and not self.headers:
            self.headers = [b""] * row
        self.bodies.append(body)
        if self.keys or key:
            self.keys.append(key)
        if self.headers or headers:
            self.headers.append(headers)
        self.size += len(body) + len(key) + len(headers) + 8
        return row

    def divide(self) -> None:
        """Make a batch of each message."""
        for row, body in enumerate(self.bodies):
            one = WaitingBatch(self.bucket, closed=True)
            one.add(body, self.keys[row] if self.keys else b"", self.headers[row] if self.headers else b"")
            self.divided.append(one)

    async def offset_of(self, row: int) -> int:
        """Wait until a message is durable; its offset, or the broker's refusal of this message."""
        try:
            return (await asyncio.shield(self.done)).base + row
        except DejaqError:
            if not self.divided:
                raise
        return (await asyncio.shield(self.divided[row].done)).base

    def fits(self, size: int) -> bool:
        """Whether a message of so many bytes may be added."""
        return not self.closed and len(self.bodies) < limits.BATCH_COUNT_MAX and self.size + size < _FRAME_BYTES


class Appender:
    """The batches of one log that wait or are in transit, over one session."""

    def __init__(self, seeds: Seeds, settings: ClientSettings, topic: str, *, timeout_ms: int) -> None:
        self._topic, self._timeout_ms = topic, timeout_ms
        self._settings, self._seeds = settings, seeds
        self._connection = Connection(seeds, settings, enter=_nothing, on_event=_ignore, role="log", topic=topic)
        self._opening: asyncio.Task[None] | None = None
        self._waiting: dict[int, list[WaitingBatch]] = {}
        self._in_transit: set[int] = set()
        self._frames = 0
        # The session and the first sequence of every frame that is not answered.
        self._unanswered: set[tuple[bytes, int]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._alarm: asyncio.TimerHandle | None = None
        self._begin_session()

    def _begin_session(self) -> None:
        clock, random = self._settings.clock, self._seeds.random
        self._session = ProducerSession(clock.now_ms(), random.getrandbits(32)).pack()
        self._sequence = 0

    async def open(self) -> None:
        """Connect, once; a later call tries again when it failed."""
        opening = self._opening
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception() is not None)):
            opening = self._opening = asyncio.ensure_future(self._connection.open())
        await asyncio.shield(opening)

    def add(self, bucket: int, body: bytes, key: bytes, headers: bytes) -> tuple[WaitingBatch, int]:
        """Put a message into the batch that its bucket sends next; that batch and the row."""
        waiting = self._waiting.setdefault(bucket, [])
        size = len(body) + len(key) + len(headers)
        if not waiting or not waiting[-1].fits(size):
            waiting.append(WaitingBatch(bucket))
        batch = waiting[-1]
        row = batch.add(body, key, headers)
        if self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._linger_over)
        return batch, row

    def add_batch(
        self, bucket: int, bodies: Sequence[bytes], keys: Sequence[bytes], headers: Sequence[bytes]
    ) -> WaitingBatch:
        """Send these messages as one batch."""
        batch = WaitingBatch(bucket, list(bodies), list(keys), list(headers), closed=True)
        batch.size = sum(map(len, batch.bodies)) + sum(map(len, batch.keys)) + sum(map(len, batch.headers))
        batch.size += 8 * len(batch.bodies)
        self._waiting.setdefault(bucket, []).append(batch)
        self._send_waiting()
        return batch

    def _linger_over(self) -> None:
        self._alarm = None
        self._send_waiting()

    def _send_waiting(self) -> None:
        while self._frames < _FRAMES_MAX and self._behind() <= NAMES_BEHIND_MAX:
            chosen: list[WaitingBatch] = []
            size = 0
            for bucket in [bucket for bucket in self._waiting if bucket not in self._in_transit]:
                batch = self._waiting[bucket][0]
                if len(chosen) >= BATCHES_PER_FRAME_MAX or (chosen and size + batch.size > _FRAME_BYTES):
                    break
                del self._waiting[bucket][0]
                if not self._waiting[bucket]:
                    del self._waiting[bucket]
                chosen.append(batch)
                size += batch.size
            if not chosen:
                return
            self._frames += 1
            self._in_transit.update(batch.bucket for batch in chosen)
            if self._sequence + len(chosen) > _SEQUENCE_MAX:
                self._begin_session()
            session, first = self._session, self._sequence
            self._sequence += len(chosen)
            self._unanswered.add((session, first))
            task = asyncio.ensure_future(self._send(chosen, session, first))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _behind(self) -> int:
        """How many names were used since that of the oldest unanswered batch."""
        oldest = min((first for session, first in self._unanswered if session == self._session), default=self._sequence)
        return self._sequence - oldest

    async def _send(self, batches: list[WaitingBatch], session: bytes, first: int) -> None:
        try:
            answer = await self._ask(batches, session, first)
            for place, batch in enumerate(batches):
                codes = answer.appended.codes
                if place < len(codes) and codes[place] == Code.BODY_TOO_LARGE and not batch.closed:
                    # One message is too large; the others are of other callers.
                    batch.divide()
                    self._waiting.setdefault(batch.bucket, [])[:0] = batch.divided
                _settle(batch, answer.appended, place, f"{session.hex()}/{first + place}")
        except DejaqError as error:
            for batch in batches:
                if not batch.done.done():
                    batch.done.set_exception(error)
        except BaseException as error:
            for batch in batches:
                batch.done.cancel()
            if not isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self._frames -= 1
            self._unanswered.discard((session, first))
            self._in_transit.difference_update(batch.bucket for batch in batches)
            self._send_waiting()

    async def _ask(self, batches: list[WaitingBatch], session: bytes, first: int) -> log_pb2.LogEvent:
        await self.open()
        frame = self._connection.frame()
        append = frame.log.append
        append.topic, append.session, append.sequence = self._topic, session, first
        if self._timeout_ms:
            append.client_ms, append.timeout_ms = self._connection.broker_clock.now_ms(), self._timeout_ms
        for batch in batches:
            records = log_pb2.LogRecords(bodies=batch.bodies, keys=batch.keys, headers=batch.headers)
            append.batches.add(bucket=batch.bucket, records=records.SerializeToString())
        answer, _ = await self._connection.ask(frame, self._connection.until())
        return answer.log

    async def flush(self) -> None:
        """Wait until everything that was appended is answered."""
        while self._waiting or self._tasks:
            self._linger_over()
            if self._tasks:
                await asyncio.wait(set(self._tasks))

    async def close(self) -> None:
        """Finish what is in transit, and disconnect."""
        if self._opening is None and not self._waiting:
            return
        await self.flush()
        if self._opening is not None:
            await asyncio.gather(self._opening, return_exceptions=True)
        await self._connection.close()


def _settle(batch: WaitingBatch, answer: log_pb2.LogAppended, place: int, name: str) -> None:
    if batch.done.done():
        return
    code = Code(answer.codes[place]) if place < len(answer.codes) else Code.INTERNAL
    if code is Code.OK:
        done = AppendedBatch(batch.bucket, answer.bases[place], len(batch.bodies), answer.ts[place], name)
        batch.done.set_result(done)
    else:
        batch.done.set_exception(error_of(code))


async def _nothing(link: Link, transport: object) -> None:
    """A session for appends needs no preparation."""


def _ignore(link: Link, frame: carrier.BrokerFrame) -> None:
    """The broker sends nothing by itself."""
