"""Snapshots that clients opened: named, few, and closed when nobody reads from them any more, or for too long."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from dejaq import limits
from dejaq.broker.calls.queries import filter_from_proto
from dejaq.directories import directory_identity, machine
from dejaq.domain.batch import Portion, StoredFrames, StoredRuns
from dejaq.domain.context import CallContext
from dejaq.domain.topic import Topic
from dejaq.errors import Code, InvalidArgument, error_of
from dejaq.protocol.columns import add_frames, add_stored, portion_to_proto
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.storage.base import Filter, Share, SharesRuns, Snapshot, Storage
from dejaq.timekeeper.clock import Clock

SWEEP_SECONDS = 30.0
# How much longer than a portion took the scans rest before the next: they take a tenth of the time.
_PAUSE_SHARE = 9.0
# What is said of runs in files that the caller reads itself; it holds them in memory at once.
_FRAMED_BYTES, _FRAMES = 4 * 1024 * 1024, 2_000
# Runs go together until a message has about so many bytes or rows, while nobody waits for deliveries.
_MESSAGE_BYTES = 1024 * 1024
_MESSAGE_ROWS = 20_000

_Portion = Portion | StoredRuns | StoredFrames


@dataclass(slots=True)
class _Open:
    snapshot: Snapshot
    topic: str
    buckets: int
    used: float
    opened: float
    readers: int = 0
    # The buckets that were read to their end: of all of them, nobody is likely to come back.
    done: set[int] = field(default_factory=set)

    @property
    def finished(self) -> bool:
        """Whether it was read whole and nobody reads it now."""
        return not self.readers and len(self.done) == self.buckets


class Snapshots:
    """The scan side of the `Carrier` service."""

    def __init__(
        self,
        *,
        storage: Storage,
        clock: Clock,
        find_topic: Callable[[str], Topic],
        delivers: Callable[[], bool] = lambda: False,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._find_topic = find_topic
        # Whether any consumer is subscribed, so that a scan must not get in its way.
        self._delivers = delivers
        self._open: dict[str, _Open] = {}
        # What was answered to the first who gave a name, by topic and name; also of snapshots that have ended.
        self._named: dict[tuple[str, str], carrier.SnapshotResponse] = {}
        self._naming = asyncio.Lock()
        self._run = secrets.token_hex(8)
        self._turn = asyncio.Lock()
        self._machine = machine()

    async def open(self, context: CallContext, request: carrier.SnapshotRequest) -> carrier.SnapshotResponse:
        """Take a view of a topic and give it a name; callers that share a name are given one view."""
        taken = await self._shared(request) if request.name else await self._take(request.topic)
        if not self._machine or request.machine != self._machine:
            return taken
        answer = carrier.SnapshotResponse()
        answer.CopyFrom(taken)
        held = self._open.get(taken.snapshot)
        path = held.snapshot.frames_path if held is not None and isinstance(held.snapshot, SharesRuns) else None
        if path is not None:
            with suppress(OSError):
                answer.frame_directory_identity = directory_identity(path)
                answer.frame_directory = str(path.absolute())
        return answer

    async def _shared(self, request: carrier.SnapshotRequest) -> carrier.SnapshotResponse:
        """The view of a name."""
        if len(request.name) > limits.SNAPSHOT_NAME_CHARS_MAX:
            raise InvalidArgument(f"the name of a snapshot has at most {limits.SNAPSHOT_NAME_CHARS_MAX} characters")
        if request.run != self._run:
            raise error_of(
                Code.NOT_FOUND, "the broker was started since the first snapshot of this name could be opened"
            )
        shared = (request.topic, request.name)
        async with self._naming:
            known = self._named.get(shared)
            if known is None:
                known = self._named[shared] = await self._take(request.topic)
                while len(self._named) > limits.SNAPSHOT_NAMES_MAX:
                    del self._named[next(iter(self._named))]
            held = self._open.get(known.snapshot)
            if held is None:
                raise error_of(
                    Code.NOT_FOUND, f"the snapshot {request.name!r} has ended; begin another under a new name"
                )
            held.used = self._clock.monotonic()
            return known

    async def _take(self, name_of_topic: str) -> carrier.SnapshotResponse:
        topic = self._find_topic(name_of_topic)
        self._make_room()
        if len(self._open) >= limits.SNAPSHOTS_MAX:
            raise error_of(
                Code.LIMIT_EXCEEDED, f"{limits.SNAPSHOTS_MAX} snapshots are open; close one or wait until one ends"
            )
        snapshot = await self._storage.snapshot(topic, self._clock.now_ms())
        name = secrets.token_hex(16)
        now = self._clock.monotonic()
        self._open[name] = _Open(snapshot, topic.name, topic.settings.buckets, used=now, opened=now)
        return carrier.SnapshotResponse(
            snapshot=name,
            buckets=topic.settings.buckets,
            at_ms=snapshot.at,
            messages=snapshot.count,
            keep_ms=limits.SNAPSHOT_IDLE_MS_MAX,
            run=self._run,
        )

    async def close(self, context: CallContext, request: carrier.CloseSnapshotRequest) -> carrier.CloseSnapshotResponse:
        """Let a snapshot go; closing one that is gone is no error."""
        held = self._open.pop(request.snapshot, None)
        if held is not None:
            held.snapshot.close()
        return carrier.CloseSnapshotResponse()

    async def scan(self, context: CallContext, request: carrier.ScanRequest) -> AsyncIterator[carrier.ScanColumns]:
        """The messages of some buckets of a snapshot."""
        held = self._open.get(request.snapshot)
        if held is None:
            raise error_of(Code.NOT_FOUND, "no such snapshot: it was closed, or not read from for too long")
        if not request.first_bucket <= request.end_bucket <= held.buckets:
            raise InvalidArgument(
                f"buckets {request.first_bucket} to {request.end_bucket} are not within the topic's {held.buckets}"
            )
        buckets = range(request.first_bucket, request.end_bucket)
        held.readers += 1
        try:
            portions = _portions(held.snapshot, request)
            while (columns := await self._next(portions)) is not None:
                yield columns
            held.done.update(buckets)
        finally:
            held.readers -= 1
            held.used = self._clock.monotonic()

    async def _next(self, portions: AsyncIterator[_Portion]) -> carrier.ScanColumns | None:
        """The next portions; while somebody waits for deliveries, all scans together pause longer than they work."""
        async with self._turn:
            begun = self._clock.monotonic()
            columns = await self._gathered(portions)
            if self._delivers():
                await self._clock.sleep(_PAUSE_SHARE * (self._clock.monotonic() - begun))
            return columns

    async def _gathered(self, portions: AsyncIterator[_Portion]) -> carrier.ScanColumns | None:
        """One portion of columns, or as many of runs as go together; None at the end."""
        gathered, size, rows, framed = carrier.ScanColumns(), 0, 0, 0
        async for portion in portions:
            if isinstance(portion, Portion):
                columns = portion_to_proto(portion)
                columns.MergeFrom(gathered)
                return columns
            if isinstance(portion, StoredFrames):
                add_frames(gathered, portion)
                framed += sum(portion.lengths)
            else:
                add_stored(gathered, portion)
                size += sum(map(len, portion.runs))
                rows += portion.count
            full = framed >= _FRAMED_BYTES or len(gathered.frame_files) >= _FRAMES
            if full or size >= _MESSAGE_BYTES or rows >= _MESSAGE_ROWS or self._delivers():
                break
        return gathered if size or framed else None

    def topic_of(self, snapshot: str) -> str | None:
        """The topic of an open snapshot."""
        held = self._open.get(snapshot)
        return held.topic if held is not None else None

    @property
    def open_count(self) -> int:
        """How many are open."""
        return len(self._open)

    def close_all(self) -> None:
        """Let every snapshot go, before the storage is closed."""
        for held in self._open.values():
            held.snapshot.close()
        self._open.clear()

    async def run(self) -> None:
        """Close what its reader has left, again and again, until cancelled."""
        while True:
            await self._clock.sleep(SWEEP_SECONDS)
            self._sweep()

    def _sweep(self) -> None:
        """Close what nobody has read from for too long, also where a reader stands still, and what is too old."""
        now = self._clock.monotonic()
        for name, held in list(self._open.items()):
            idle_ms_max = limits.SNAPSHOT_READ_MS_MAX if held.finished else limits.SNAPSHOT_IDLE_MS_MAX
            idle_ms, age_ms = 1_000 * (now - held.used), 1_000 * (now - held.opened)
            if idle_ms > idle_ms_max or age_ms > limits.SNAPSHOT_AGE_MS_MAX:
                self._drop(name)

    def _make_room(self) -> None:
        """Close what nobody reads from any more; when every place is taken, also what is least likely to be read."""
        self._sweep()
        now = self._clock.monotonic()
        if len(self._open) < limits.SNAPSHOTS_MAX:
            return
        idle = [name for name, held in self._open.items() if not held.readers]
        chosen = min(idle, key=lambda name: (not self._open[name].finished, self._open[name].used), default=None)
        if chosen is not None:
            held = self._open[chosen]
            # A reader that stopped early, as for the first rows of a table, does not close its snapshot.
            if held.finished or now - held.used > limits.SNAPSHOT_IDLE_MS_MIN / 1_000:
                self._drop(chosen)

    def _drop(self, name: str) -> None:
        self._open.pop(name).snapshot.close()


def _portions(snapshot: Snapshot, request: carrier.ScanRequest) -> AsyncIterator[_Portion]:
    """What a scan asks for."""
    buckets, where = range(request.first_bucket, request.end_bucket), filter_from_proto(request.filter)
    bodies = not request.without_bodies
    if request.shares and _is_whole(where) and isinstance(snapshot, SharesRuns):
        share = Share(request.share, request.shares)
        return snapshot.scan_shared(buckets, share, bodies=bodies, framed=request.frames and bodies)
    scan = snapshot.scan_stored if request.runs else snapshot.scan
    return scan(buckets, where, bodies=bodies)


def _is_whole(where: Filter) -> bool:
    """Whether every message matches."""
    return where.start <= 0 and where.end > limits.TS_MS_MAX and replace(where, start=0, end=Filter().end) == Filter()
