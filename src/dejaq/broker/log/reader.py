"""One reader of a log at the broker: what it reads, how far it is, and how much may be sent to it.

A reader has a task of its own, so a slow client delays no other reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from dejaq.broker.log.encoding import EncodedBatches, encoded_frame
from dejaq.broker.log.filtering import HeaderFilter
from dejaq.domain.topic import Topic
from dejaq.errors import Code, Missing
from dejaq.protocol.spliced import BrokerSent, Spliced
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.storage.log.base import LogSlice, LogStorage, StoredBatch
from dejaq.timekeeper.clock import Clock

# What one push has about.
PUSH_BYTES = 512 * 1024
# How often a reader looks for batches whose rollback window has passed.
WINDOW_SECONDS = 0.1


@dataclass(slots=True)
class ReadPosition:
    """The next offset of a bucket, and what the client may do with it."""

    offset: int
    claim: int = 0
    paused: bool = False
    # The client does not know yet that it moved here.
    held: bool = False


class LogFeed:
    """Sends batches of its buckets while it has credit. `send` waits while the client is not reading."""

    def __init__(
        self,
        topic: Topic,
        storage: LogStorage,
        clock: Clock,
        encoded: EncodedBatches,
        *,
        committed: bool,
        wanted: HeaderFilter | None,
        credit: int,
        send: Callable[[BrokerSent], Awaitable[None]],
        sent: Callable[[int], None],
    ) -> None:
        self.topic = topic
        self.positions: dict[int, ReadPosition] = {}
        self._storage, self._clock, self._encoded = storage, clock, encoded
        self._committed, self._wanted, self._credit = committed, wanted, credit
        self._send, self._sent = send, sent
        # The buckets that may have more.
        self._ready: dict[int, None] = {}
        # Buckets that may have batches within their rollback windows; only a committed reader waits for these.
        self._unsettled: set[int] = set()
        self._wake = asyncio.Event()

    def give(self, positions: Iterable[tuple[int, int]], claim: int = 0) -> None:
        """Read these buckets too, each from an offset on."""
        for bucket, offset in positions:
            self.positions[bucket] = ReadPosition(offset, claim)
            self._ready[bucket] = None
            self._unsettled.add(bucket)
        self._wake.set()

    def take(self, buckets: Iterable[int]) -> None:
        """Send nothing more of these buckets."""
        for bucket in buckets:
            self.positions.pop(bucket, None)
            self._ready.pop(bucket, None)
            self._unsettled.discard(bucket)

    def seek(self, bucket: int, offset: int) -> ReadPosition:
        """Continue at another offset, from `go_on` with the returned position on."""
        before = self.positions[bucket]
        # Another object, so that a read in progress finds that it is not wanted any more.
        self.positions[bucket] = ReadPosition(offset, before.claim, before.paused, held=True)
        return self.positions[bucket]

    def go_on(self, bucket: int, position: ReadPosition) -> None:
        """The client knows that the bucket moved; nothing happens if it moved again or was taken away meanwhile."""
        if self.positions.get(bucket) is position:
            position.held = False
            self._ready[bucket] = None
            self._wake.set()

    def pause(self, buckets: Iterable[int], *, resume: bool) -> None:
        """Send nothing of these buckets until they are resumed."""
        for bucket in buckets:
            if bucket in self.positions:
                self.positions[bucket].paused = not resume
                self._ready[bucket] = None
        self._wake.set()

    def add_credit(self, size: int) -> None:
        """Send so many more bytes."""
        self._credit += size
        self._wake.set()

    def appended(self, buckets: Iterable[int], *, windows: bool) -> None:
        """These buckets have got batches, with rollback windows or without."""
        for bucket in buckets:
            if bucket in self.positions:
                self._ready[bucket] = None
                if windows:
                    self._unsettled.add(bucket)
                self._wake.set()

    async def run(self) -> None:
        """Send until cancelled; raises the storage's error when a bucket cannot be read."""
        loop, look_at = asyncio.get_running_loop(), 0.0
        while True:
            self._wake.clear()
            if self._credit <= 0 or not await self._send_next():
                await self._wait(WINDOW_SECONDS if self._unsettled and self._committed else None)
            if self._unsettled and self._committed and loop.time() >= look_at:
                await self._look_at_windows()
                look_at = loop.time() + WINDOW_SECONDS

    async def _look_at_windows(self) -> None:
        """Find the buckets whose windows have passed. The settings may have changed since a batch was appended."""
        looked_at, self._unsettled = self._unsettled, set()
        offsets = await self._storage.offsets(self.topic, self._clock.now_ms())
        for bucket in looked_at:
            position = self.positions.get(bucket)
            if position is None:
                continue
            if offsets[bucket].stable > position.offset:
                self._ready[bucket] = None
            if offsets[bucket].stable < offsets[bucket].next:
                self._unsettled.add(bucket)

    async def _wait(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _send_next(self) -> bool:
        """Send a push of batches of the next buckets that have some; whether there was something to do."""
        found: list[tuple[int, ReadPosition, LogSlice]] = []
        size = 0
        while self._ready and size < min(PUSH_BYTES, self._credit):
            bucket = next(iter(self._ready))
            del self._ready[bucket]
            position = self.positions.get(bucket)
            if position is None or position.paused or position.held:
                continue
            part = await self._read(bucket, position, max(min(PUSH_BYTES, self._credit) - size, 1))
            size += sum(len(batch.records) for batch in part.batches)
            if self._wanted is not None:
                part = await self._wanted.select(part, position.offset)
            if self.positions.get(bucket) is not position or position.paused:
                # It was taken away, moved or paused meanwhile.
                if bucket in self.positions:
                    self._ready[bucket] = None
                continue
            if part.next > position.offset:
                position.offset = part.next
                # Behind the others, so that every bucket has its turn.
                self._ready[bucket] = None
            found.append((bucket, position, part))
        # While other buckets were read, one of them may have moved: its client would take the batches for later ones.
        frames: list[bytes] = []
        count = 0
        for bucket, position, part in found:
            if self.positions.get(bucket) is position:
                frames += [self._frame(bucket, batch) for batch in part.batches]
                count += sum(batch.count for batch in part.batches)
                self._credit -= sum(len(batch.records) for batch in part.batches)
        if not frames:
            return bool(found)
        self._sent(count)
        await self._send(Spliced(carrier.BrokerFrame(), frames))
        return True

    def _frame(self, bucket: int, batch: StoredBatch) -> bytes:
        """What is selected for this reader is not kept for others."""
        if self._wanted is not None:
            return encoded_frame(bucket, batch)
        return self._encoded.frame(self.topic.number, bucket, batch)

    async def _read(self, bucket: int, position: ReadPosition, bytes_max: int) -> LogSlice:
        """The next batches of a bucket. What was removed meanwhile is skipped; the client sees that by the offsets."""
        for last in (False, True):
            try:
                return await self._storage.read(
                    self.topic,
                    bucket,
                    position.offset,
                    end=None,
                    bytes_max=bytes_max,
                    committed=self._committed,
                    now=self._clock.now_ms(),
                )
            except Missing as error:
                start = (await self._storage.offsets(self.topic, self._clock.now_ms()))[bucket].start
                if last or error.code is not Code.OFFSET_OUT_OF_RANGE or position.offset >= start:
                    raise
                position.offset = start
        raise AssertionError("the second try returns or raises")
