"""Sends create batches: each gets its name and its bucket, and is sent again until it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from itertools import compress
from random import Random

from dejaq.domain.batch import ranges_of_rows
from dejaq.domain.bodies.packing import NAMED_BYTES_MIN, digest_of
from dejaq.domain.ids import COUNTER_MAX, ProducerSession, generated_ids
from dejaq.errors import Code, DejaqError, Indefinite, Missing
from dejaq.protocol.spliced import create_frame
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.sdk.producing.naming import SequenceCounter, wants_new_session
from dejaq.sdk.producing.outgoing import Contents, OutgoingColumns
from dejaq.sdk.session.connection import BrokerAnswer, Connection
from dejaq.timekeeper.clock import Clock

# How many batches may be in transit at one time.
PIPELINE_MAX = 8
# (session, first counter, bucket) of a batch.
Name = tuple[ProducerSession, int, int]


class Numbering:
    """Names batches: a producer session, the next counter, and a bucket that changes from batch to batch."""

    def __init__(self, clock: Clock, random: Random) -> None:
        self.buckets = 1
        self._clock = clock
        self._random = random
        self._bucket = random.getrandbits(16)
        self._begin()

    def _begin(self) -> None:
        self.session = self._new_session()
        self._counters = SequenceCounter()

    def take(self, count: int) -> Name:
        """A unique name for a batch of `count` messages. Release it with `done`."""
        if self._counters.next + count - 1 > COUNTER_MAX:
            self._begin()
        first = self._counters.take(count)
        self._bucket = (self._bucket + 1) % self.buckets
        return self.session, first, self._bucket

    def alone(self, bucket: int) -> Name:
        """A name in a session of its own, for a batch that cannot have a name in the shared session."""
        return self._new_session(), 0, bucket

    def _new_session(self) -> ProducerSession:
        return ProducerSession(self._clock.now_ms(), self._random.getrandbits(32))

    def done(self, name: Name) -> None:
        """Release the name of a batch that is never sent again."""
        if name[0] == self.session:
            self._counters.done(name[1])

    def acknowledged(self, session: ProducerSession) -> int:
        """The counter below which no batch of a session is sent again."""
        return self._counters.acknowledged if session == self.session else 0

    def leave(self, session: ProducerSession) -> None:
        """Use this session for no further name."""
        if session == self.session:
            self._begin()


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch that was answered: its ids where they are generated, and the codes that are not OK."""

    prefix: str
    first: int
    count: int
    codes: dict[int, Code]

    def generated(self) -> list[str]:
        """The generated ids, one per row."""
        return generated_ids(self.prefix, self.first, self.count)


# What is called with a batch that was answered, or with its error.
Done = Callable[[Sent | Exception], None]


class Sender:
    """Sends create batches over a connection, several at a time."""

    def __init__(self, connection: Connection, numbering: Numbering) -> None:
        self._connection = connection
        self._numbering = numbering
        self._room = asyncio.Semaphore(PIPELINE_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        # Whether large bodies are first sent as digests, because the broker may have them.
        self.shares_bodies = False

    def begin(self, outgoing: OutgoingColumns, until: float, done: Done) -> None:
        """Create one batch as `create` does, without a task where the first try succeeds; `done` is called once, with
        what `create` would return or raise. The caller limits how many batches are in transit.
        """
        if self.shares_bodies:
            self._create_for(self.create(outgoing, until), done)
            return
        name = self._numbering.take(len(outgoing))
        contents = outgoing.contents()
        frame = self._named(outgoing, contents, name)
        fill(frame.create, outgoing, behind=True)

        def answered(answer: BrokerAnswer | Exception) -> None:
            self._numbering.done(name)
            if isinstance(answer, BrokerAnswer):
                done(_sent(outgoing, name, answer))
            elif isinstance(answer, DejaqError) and wants_new_session(answer):
                self._create_for(self._create_alone(outgoing, name, until), done)
            else:
                done(answer)

        self._connection.begin(create_frame(frame, contents.bodies, contents.ids), until, answered)

    def _create_for(self, creating: Coroutine[None, None, Sent], done: Done) -> None:
        """Create a batch in a task of its own."""

        async def create() -> None:
            try:
                sent = await creating
            except asyncio.CancelledError:
                done(Indefinite("the event loop ended before the answer; it may have been done or not"))
                raise
            except Exception as error:  # noqa: BLE001  the callers get it
                done(error)
            else:
                done(sent)

        task = asyncio.ensure_future(create())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def create(self, outgoing: OutgoingColumns, until: float, name: Name | None = None) -> Sent:
        """Create one batch, which must fit; rows with generated ids must be in order.

        A given name stays reserved by the caller. When another process has used the name, the batch gets another name.
        """
        async with self._room:
            taken = name or self._numbering.take(len(outgoing))
            try:
                return await self._create(outgoing, taken, until)
            except DejaqError as refused:
                if not wants_new_session(refused):
                    raise
            finally:
                if name is None:
                    self._numbering.done(taken)
            return await self._create_alone(outgoing, taken, until)

    async def _create_alone(self, outgoing: OutgoingColumns, refused: Name, until: float) -> Sent:
        """Create a batch whose name was refused under a name in a session of its own."""
        self._numbering.leave(refused[0])
        return await self._create(outgoing, self._numbering.alone(refused[2]), until)

    async def _create(self, outgoing: OutgoingColumns, name: Name, until: float) -> Sent:
        return _sent(outgoing, name, await self._ask(outgoing, outgoing.contents(), name, until))

    def _named(self, outgoing: OutgoingColumns, contents: Contents, name: Name) -> carrier.ClientFrame:
        """A frame with the name of a batch."""
        session, first, bucket = name
        frame = self._connection.frame()
        batch = frame.create
        batch.session = session.pack()
        batch.sequence = first
        batch.acknowledged = self._numbering.acknowledged(session)
        batch.check = contents.check
        if outgoing.ids is None:
            batch.bucket = bucket
        return frame

    async def _ask(self, outgoing: OutgoingColumns, contents: Contents, name: Name, until: float) -> BrokerAnswer:
        """Send a batch; with the digests of large bodies first when the broker may have the bodies."""
        frame = self._named(outgoing, contents, name)
        if self.shares_bodies and fill_with_digests(frame.create, outgoing):
            try:
                return await self._connection.request(frame, until)
            except Missing as refused:
                if refused.code is not Code.BODY_MISSING:
                    raise
            # Nothing was changed: send the same batch with its bodies.
            frame = self._named(outgoing, contents, name)
        fill(frame.create, outgoing, behind=True)
        return await self._connection.request(create_frame(frame, contents.bodies, contents.ids), until)


def _sent(outgoing: OutgoingColumns, name: Name, answer: BrokerAnswer) -> Sent:
    """The batch as it was answered."""
    session, first, bucket = name
    codes = answer.codes
    if codes and (outgoing.ids is None or answer.unsure):
        # The batch found its own earlier try, because the content is the same: for the caller this is a success.
        codes = {row: code for row, code in codes.items() if code is not Code.ALREADY_EXISTS}
    prefix = session.prefix(bucket) if outgoing.ids is None else ""
    return Sent(prefix=prefix, first=first, count=len(outgoing), codes=codes)


def fill_with_digests(batch: carrier.CreateBatch, outgoing: OutgoingColumns) -> bool:
    """Write the columns with digests instead of large bodies; returns False and writes nothing when there is no large
    body.
    """
    digests = [digest_of(body) if len(body) >= NAMED_BYTES_MIN else b"" for body in outgoing.bodies]
    if not any(digests):
        return False
    kept = [b"" if digest else body for body, digest in zip(outgoing.bodies, digests, strict=True)]
    fill(batch, replace(outgoing, bodies=kept))
    batch.digests.extend(digests)
    return True


def fill(batch: carrier.CreateBatch, outgoing: OutgoingColumns, *, behind: bool = False) -> None:
    """Write the columns into a batch of a frame without a second copy; bodies and ids may follow behind the frame."""
    if outgoing.relative is not None:
        _add_relative_rows(batch, outgoing.relative)
    batch.ts.extend(outgoing.ts)
    if not behind:
        batch.bodies.extend(outgoing.bodies)
        batch.ids.extend(outgoing.ids or ())
    if outgoing.priorities is not None:
        batch.priorities.extend(outgoing.priorities)
    if outgoing.headers is not None:
        batch.headers.extend(outgoing.headers)
    if outgoing.large:
        batch.large = True


def _add_relative_rows(batch: carrier.CreateBatch, relative: list[bool]) -> None:
    """Name the rows whose time is relative, as ranges; rows that follow those of the batch extend its last range."""
    first = len(batch.ts)
    for start, end in ranges_of_rows(compress(range(first, first + len(relative)), relative)):
        if batch.relative_rows and batch.relative_rows[-1] == start:
            batch.relative_rows[-1] = end
        else:
            batch.relative_rows.extend((start, end))
