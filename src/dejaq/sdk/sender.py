"""Create batches on their way: each gets its name and its bucket, and is repeated until it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from dejaq.domain.bodies import NAMED_BYTES_MIN, digest_of
from dejaq.domain.ids import COUNTER_MAX, ProducerSession, generated_ids
from dejaq.errors import Code, Missing
from dejaq.protocol.spliced import create_frame
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.sdk.connection import Answer, Connection
from dejaq.sdk.outgoing import Outgoing
from dejaq.timekeeper.clock import Clock

# How many batches may be on their way at one time.
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
        self.session = ProducerSession(self._clock.now_ms(), self._random.getrandbits(32))
        self._next = 0

    def take(self, count: int) -> Name:
        """The name of a batch of `count` messages; nobody else gets it."""
        if self._next + count - 1 > COUNTER_MAX:
            self._begin()
        first = self._next
        self._next += count
        self._bucket = (self._bucket + 1) % self.buckets
        return self.session, first, self._bucket


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch that was answered: the ids it got where they are generated, and the codes that are not OK."""

    prefix: str
    first: int
    count: int
    codes: dict[int, Code]

    def generated(self) -> list[str]:
        """The generated ids, one a row."""
        return generated_ids(self.prefix, self.first, self.count)


class Sender:
    """Sends create batches over a connection, several at a time."""

    def __init__(self, connection: Connection, numbering: Numbering) -> None:
        self._connection = connection
        self._numbering = numbering
        self._room = asyncio.Semaphore(PIPELINE_MAX)
        # Whether large bodies are named first, because the broker may have them.
        self.shares_bodies = False

    async def create(self, outgoing: Outgoing, until: float, name: Name | None = None) -> Sent:
        """Create one batch, which must fit; rows with generated ids must stand in order."""
        async with self._room:
            session, first, bucket = name or self._numbering.take(len(outgoing))

            def named(frame: carrier.ClientFrame) -> carrier.ClientFrame:
                frame.create.session = session.pack()
                frame.create.sequence = first
                if outgoing.ids is None:
                    frame.create.bucket = bucket
                return frame

            answer = await self._ask(outgoing, named, until)
        codes = answer.codes
        if outgoing.ids is None or answer.unsure:
            # Found by its own earlier try: to the caller that is a plain success.
            codes = {row: code for row, code in codes.items() if code is not Code.ALREADY_EXISTS}
        return Sent(prefix=session.prefix(bucket), first=first, count=len(outgoing), codes=codes)

    async def _ask(
        self, outgoing: Outgoing, named: Callable[[carrier.ClientFrame], carrier.ClientFrame], until: float
    ) -> Answer:
        """Send a batch; large bodies by their digests first, where the broker may have them."""
        frame = named(self._connection.frame())
        if self.shares_bodies and fill_with_digests(frame.create, outgoing):
            try:
                return await self._connection.request(frame, until)
            except Missing as refused:
                if refused.code is not Code.BODY_MISSING:
                    raise
            # Nothing was changed: the same batch, with its bodies.
            frame = named(self._connection.frame())
        fill(frame.create, outgoing, behind=True)
        return await self._connection.request(create_frame(frame, outgoing.bodies, outgoing.ids), until)


def fill_with_digests(batch: carrier.CreateBatch, outgoing: Outgoing) -> bool:
    """Write the columns with digests in the place of large bodies; False, and nothing written, when there is none."""
    digests = [digest_of(body) if len(body) >= NAMED_BYTES_MIN else b"" for body in outgoing.bodies]
    if not any(digests):
        return False
    kept = [b"" if digest else body for body, digest in zip(outgoing.bodies, digests, strict=True)]
    fill(batch, replace(outgoing, bodies=kept))
    batch.digests.extend(digests)
    return True


def fill(batch: carrier.CreateBatch, outgoing: Outgoing, *, behind: bool = False) -> None:
    """Write the columns into a frame's own batch, so that none is copied twice; bodies and ids may come behind it."""
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
