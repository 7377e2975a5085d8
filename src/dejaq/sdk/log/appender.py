"""Appends messages: those that wait at the same time share a frame, and each batch is sent again until it is answered.

Only one batch of a bucket is in transit at one time, so the messages of a bucket are in the order of the calls, also
when a session breaks. Messages without a key that wait at the same time share a batch of one bucket; the next ones go
to the next bucket.

While nothing is in transit, messages are sent at the end of the turn of the event loop in which they were appended.
While something is, they wait for its answer, or for `LINGER_SECONDS`, and share what is sent then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
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
    """Messages of one bucket that go into one batch, and the answers that their callers wait for."""

    bucket: int
    bodies: list[bytes] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    headers: list[bytes] = field(default_factory=list)
    size: int = 0
    sent: bool = False
    # An explicit batch: nothing else may share it.
    closed: bool = False
    # The offset of each message, which its caller waits for; or the place of the whole batch.
    rows: list[asyncio.Future[int]] = field(default_factory=list)
    done: asyncio.Future[AppendedBatch] | None = None

    def add(self, body: bytes, key: bytes, headers: bytes) -> None:
        """Add a message."""
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

    def divide(self) -> list[WaitingBatch]:
        """A batch of each message."""
        found = []
        for row, body in enumerate(self.bodies):
            one = WaitingBatch(self.bucket, closed=True, rows=[self.rows[row]])
            one.add(body, self.keys[row] if self.keys else b"", self.headers[row] if self.headers else b"")
            found.append(one)
        return found

    def answer(self, place: AppendedBatch) -> None:
        """Give every caller its place."""
        if self.done is not None and not self.done.done():
            self.done.set_result(place)
        for offset, row in enumerate(self.rows, place.base):
            if not row.done():
                row.set_result(offset)

    def refuse(self, error: DejaqError | None) -> None:
        """Give every caller the error, or cancel the calls."""
        for one in (*self.rows, *((self.done,) if self.done is not None else ())):
            if one.done():
                continue
            if error is None:
                one.cancel()
            else:
                one.set_exception(error)

    def fits(self, size: int) -> bool:
        """Whether a message of so many bytes may be added."""
        return not self.closed and len(self.bodies) < limits.BATCH_COUNT_MAX and self.size + size < _FRAME_BYTES


class Appender:
    """The batches of one log that wait or are in transit, over one session."""

    def __init__(
        self,
        seeds: Seeds,
        settings: ClientSettings,
        topic: str,
        *,
        timeout_ms: int,
        on_refused: Callable[[Code], None] = lambda _: None,
    ) -> None:
        self._topic, self._timeout_ms, self._on_refused = topic, timeout_ms, on_refused
        self._settings, self._seeds = settings, seeds
        self._connection = Connection(seeds, settings, enter=_nothing, on_event=_ignore, role="log", topic=topic)
        self._opening: asyncio.Task[None] | None = None
        self._waiting: dict[int, deque[WaitingBatch]] = {}
        self._in_transit: set[int] = set()
        self._frames = 0
        # The session and the first sequence of every frame that is not answered.
        self._unanswered: set[tuple[bytes, int]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._alarm: asyncio.Handle | None = None
        # The bucket of the next messages without a key, while a batch of them waits.
        self._turn = seeds.random.getrandbits(16)
        self._shared: WaitingBatch | None = None
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

    def next_bucket(self, buckets: int) -> int:
        """The bucket of messages without a key: one that nothing waits for, where there is one."""
        for _ in range(buckets):
            self._turn += 1
            chosen = self._turn % buckets
            if chosen not in self._in_transit and chosen not in self._waiting:
                break
        return chosen

    def add_anywhere(self, buckets: int, body: bytes, headers: bytes) -> tuple[int, asyncio.Future[int]]:
        """Put a message without a key into the batch that such messages share; its bucket, and its offset later."""
        batch = self._shared
        if batch is None or batch.sent or not batch.fits(len(body) + len(headers)):
            batch = self._shared = self._last(self.next_bucket(buckets), len(body) + len(headers))
        return batch.bucket, self._put(batch, body, b"", headers)

    def add(self, bucket: int, body: bytes, key: bytes, headers: bytes) -> asyncio.Future[int]:
        """Put a message into the batch that its bucket sends next; its offset later."""
        return self._put(self._last(bucket, len(body) + len(key) + len(headers)), body, key, headers)

    def _last(self, bucket: int, size: int) -> WaitingBatch:
        """The batch of a bucket that takes a message of so many bytes."""
        waiting = self._waiting.setdefault(bucket, deque())
        if not waiting or not waiting[-1].fits(size):
            waiting.append(WaitingBatch(bucket))
        return waiting[-1]

    def _put(self, batch: WaitingBatch, body: bytes, key: bytes, headers: bytes) -> asyncio.Future[int]:
        loop = asyncio.get_running_loop()
        row: asyncio.Future[int] = loop.create_future()
        batch.add(body, key, headers)
        batch.rows.append(row)
        if self._alarm is None:
            alone = not self._frames
            self._alarm = (
                loop.call_soon(self._linger_over) if alone else loop.call_later(LINGER_SECONDS, self._linger_over)
            )
        return row

    def add_batch(
        self, bucket: int, bodies: Sequence[bytes], keys: Sequence[bytes], headers: Sequence[bytes]
    ) -> asyncio.Future[AppendedBatch]:
        """Send these messages as one batch; its place later."""
        done: asyncio.Future[AppendedBatch] = asyncio.get_running_loop().create_future()
        batch = WaitingBatch(bucket, list(bodies), list(keys), list(headers), closed=True, done=done)
        batch.size = sum(map(len, batch.bodies)) + sum(map(len, batch.keys)) + sum(map(len, batch.headers))
        batch.size += 8 * len(batch.bodies)
        self._waiting.setdefault(bucket, deque()).append(batch)
        self._send_waiting()
        return done

    def _linger_over(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
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
                self._waiting[bucket].popleft()
                batch.sent = True
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
                    self._waiting.setdefault(batch.bucket, deque()).extendleft(reversed(batch.divide()))
                else:
                    if place < len(codes) and codes[place] != Code.OK:
                        self._on_refused(Code(codes[place]))
                    _settle(batch, answer.appended, place, f"{session.hex()}/{first + place}")
        except DejaqError as error:
            self._on_refused(error.code)
            for batch in batches:
                batch.refuse(error)
        except BaseException as error:
            for batch in batches:
                batch.refuse(None)
            if not isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self._frames -= 1
            self._unanswered.discard((session, first))
            self._in_transit.difference_update(batch.bucket for batch in batches)
            # What waited while this was in transit.
            self._linger_over()

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

    async def append_named(self, batch: WaitingBatch, name: str) -> AppendedBatch:
        """Append one batch under a name of the caller, beside what waits; BATCH_NAME_TAKEN when another one has it."""
        session, _, sequence = name.rpartition("/")
        try:
            number = int(sequence)
            answer = await self._ask([batch], bytes.fromhex(session), number)
        except ValueError:
            raise error_of(Code.INVALID_ARGUMENT, f"{name!r} is not the name of a batch") from None
        batch.done = asyncio.get_running_loop().create_future()
        _settle(batch, answer.appended, 0, name)
        return await batch.done

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
    code = Code(answer.codes[place]) if place < len(answer.codes) else Code.INTERNAL
    if code is Code.OK:
        batch.answer(AppendedBatch(batch.bucket, answer.bases[place], len(batch.bodies), answer.ts[place], name))
    else:
        batch.refuse(error_of(code))


async def _nothing(link: Link, transport: object) -> None:
    """A session for appends needs no preparation."""


def _ignore(link: Link, frame: carrier.BrokerFrame) -> None:
    """The broker sends nothing by itself."""
