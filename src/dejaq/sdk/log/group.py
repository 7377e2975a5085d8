"""A member of a group: the broker assigns buckets to it, and it commits what it has handled. And a worker, which is a
member that runs a function of the user for each message, or each batch, and commits behind it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Any, Protocol

from dejaq.domain.backoff import Backoff
from dejaq.errors import Code, Conflict, DejaqError, OutOfState, error_of
from dejaq.protocol.v1 import log_pb2
from dejaq.sdk.log.calls import LogCalls, Start
from dejaq.sdk.log.messages import LogBatch, LogMessage
from dejaq.sdk.log.stream import SHARE, WINDOW_BYTES, LogStream, positions_to_proto
from dejaq.sdk.log.transacting import GroupCommits
from dejaq.sdk.session.seeds import Seeds
from dejaq.sdk.session.settings import ClientSettings

log = logging.getLogger(__name__)

# Called with the buckets that a member gets or loses.
OnBuckets = Callable[[Sequence[int]], Awaitable[None] | None]


class BucketChange(Enum):
    """What happened to buckets of a member. Lost ones were its own until the session broke."""

    ASSIGNED = "assigned"
    REVOKED = "revoked"
    LOST = "lost"


class LogGroup(LogStream):
    """Reads the buckets that the broker assigns. Open it with `async with`, iterate over it, and `commit`.

    What was not committed is received again after a reconnect, or by the next member that gets the bucket. The broker
    sends about one window of messages; when a share of it was committed, it sends more.
    """

    def __init__(
        self,
        seeds: Seeds,
        settings: ClientSettings,
        calls: LogCalls,
        group: str,
        *,
        name: str,
        start: Start,
        uncommitted: bool,
        headers: Mapping[str, str] | None = None,
        on_assigned: OnBuckets | None,
        on_revoked: OnBuckets | None,
        window_bytes: int = WINDOW_BYTES,
        share: float = SHARE,
    ) -> None:
        super().__init__(
            seeds, settings, calls, uncommitted=uncommitted, headers=headers, window_bytes=window_bytes, share=share
        )
        self.group, self.name = group, name
        self._start = start
        self._defaults: dict[int, int] = {}
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        # The claim of each bucket, and what was committed last.
        self._claims: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        # What was handed out and uses credit until it is committed: the end and the bytes of each batch.
        self._uses: dict[int, deque[tuple[int, int]]] = {}
        # Each change with the claims that its buckets had.
        self._changes: asyncio.Queue[tuple[dict[int, int], BucketChange]] = asyncio.Queue()
        self._calling: asyncio.Task[None] | None = None

    async def _prepare(self) -> None:
        self._defaults = await self._calls.resolve(self._start, uncommitted=self._uncommitted)
        if len(self._defaults) != await self._calls.buckets():
            raise error_of(Code.INVALID_ARGUMENT, "a group begins in all buckets; give a start for each of them")
        self._calling = asyncio.ensure_future(self._call_back())

    async def _stopped(self) -> None:
        if self._calling is not None:
            self._calling.cancel()
            await asyncio.gather(self._calling, return_exceptions=True)

    def _describe(self, opening: log_pb2.LogOpen) -> None:
        opening.group, opening.member = self.group, self.name
        opening.positions.extend(positions_to_proto(self._defaults))
        self._give_up_seeking(OutOfState("the session broke; the group continues where it has committed"))
        self._lose(sorted(self._claims))

    def _lose(self, lost: list[int]) -> None:
        """Forget the buckets of a session that broke, and call `on_revoked`. Their credit ended with the session."""
        self._buffer.forget(lost)
        if self._current is not None and self._current.bucket in lost:
            self._current, self._row = None, 0
        for bucket in lost:
            del self._claims[bucket]
            self._committed.pop(bucket, None)
            self._uses.pop(bucket, None)
        if lost:
            self._changes.put_nowait((dict.fromkeys(lost, 0), BucketChange.LOST))

    def _told(self, event: log_pb2.LogEvent) -> None:
        if event.WhichOneof("event") == "assigned":
            for position in event.assigned.positions:
                self._begin(position.bucket, position.offset)
                self._committed[position.bucket] = position.offset
                self._claims[position.bucket] = event.assigned.claim
                # Nothing is handed out before the callback has run.
                self._buffer.held.add(position.bucket)
            buckets = [position.bucket for position in event.assigned.positions]
            self._changes.put_nowait((dict.fromkeys(buckets, event.assigned.claim), BucketChange.ASSIGNED))
            self._hold_back(self._paused & set(buckets))
        elif event.WhichOneof("event") == "revoked":
            leaving = {bucket: self._claims.get(bucket, 0) for bucket in event.revoked.buckets}
            self._buffer.held |= leaving.keys()
            self._changes.put_nowait((leaving, BucketChange.REVOKED))

    async def _call_back(self) -> None:
        """Run the callbacks, one at a time; then hand out messages of new buckets, or release those that are lost."""
        while True:
            claims, change = await self._changes.get()
            buckets = list(claims)
            callback = self._on_assigned if change is BucketChange.ASSIGNED else self._on_revoked
            try:
                answer = callback(buckets) if callback is not None else None
                if inspect.isawaitable(answer):
                    await answer
            except Exception:
                log.exception("the callback for buckets %s of group %s failed", buckets, self.group)
            if change is BucketChange.ASSIGNED:
                # A bucket may have another claim by now, whose callback comes later.
                same = {bucket for bucket, claim in claims.items() if self._claims.get(bucket) == claim}
                self._buffer.held -= same - self._paused
                self._buffer.wake()
            elif change is BucketChange.REVOKED:
                self._release(claims)

    def _release(self, claims: Mapping[int, int]) -> None:
        """Forget buckets and release them at the broker, except those that it has assigned again meanwhile."""
        held = [bucket for bucket, claim in claims.items() if claim and self._claims.get(bucket) == claim]
        self._use(self._buffer.forget(held))
        for bucket in held:
            del self._claims[bucket]
            self._committed.pop(bucket, None)
            self._return_uses(bucket)
        if self._current is not None and self._current.bucket in held:
            self._current, self._row = None, 0
        if held and self._link is not None and not self._link.ended:
            frame = self._connection.frame()
            frame.log.release.buckets.extend(held)
            frame.log.release.claims.extend(claims[bucket] for bucket in held)
            self._link.tell(frame)

    def _begin(self, bucket: int, offset: int, *, keep_current: bool = False) -> None:
        super()._begin(bucket, offset, keep_current=keep_current)
        if not keep_current:
            # A commit of an offset before these would never return their credit.
            self._return_uses(bucket)

    def _return_uses(self, bucket: int) -> None:
        for _, size in self._uses.pop(bucket, ()):
            self._use(size)

    def _taken(self, batch: LogBatch) -> None:
        self._uses.setdefault(batch.bucket, deque()).append((batch.end, batch.size))

    @property
    def buckets(self) -> list[int]:
        """The buckets that this member has now."""
        return sorted(self._claims)

    def claims(self) -> dict[int, int]:
        """The claim of each bucket that this member has now."""
        return dict(self._claims)

    async def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        """Commit everything that was handed out, or these offsets; each is the next one to read.

        Raises CLAIM_LOST when another member has a bucket by now; the other buckets are committed.
        """
        wanted = self._fresh() if offsets is None else dict(offsets)
        if not wanted:
            return
        frame = self._connection.frame()
        frame.log.commit.positions.extend(positions_to_proto(wanted))
        frame.log.commit.claims.extend(self._claims.get(bucket, 0) for bucket in sorted(wanted))
        answer, _ = await self._connection.ask(frame, self._connection.until())
        refused: dict[int, Code] = {}
        for (bucket, offset), code in zip(sorted(wanted.items()), answer.log.committed.codes, strict=True):
            if code == Code.OK:
                self._done(bucket, offset)
            else:
                refused[bucket] = Code(code)
        if refused:
            bucket, code = next(iter(refused.items()))
            raise error_of(code, details=f"buckets {', '.join(map(str, refused))} of group {self.group}")

    def _fresh(self) -> dict[int, int]:
        """The positions of this member's buckets that are not committed."""
        return {
            bucket: offset
            for bucket, offset in self.positions().items()
            if bucket in self._claims and self._committed.get(bucket) != offset
        }

    def _done(self, bucket: int, offset: int) -> None:
        if bucket not in self._claims:
            return
        self._committed[bucket] = offset
        uses = self._uses.get(bucket, deque())
        while uses and uses[0][0] <= offset:
            self._use(uses.popleft()[1])

    @property
    def commits(self) -> GroupCommits:
        """What a transaction commits."""
        return GroupCommits(self._calls.topic, self.group, self.claims, self._fresh, self._all_done)

    def _all_done(self, offsets: Mapping[int, int]) -> None:
        for bucket, offset in offsets.items():
            self._done(bucket, offset)

    async def committed(self) -> dict[int, int]:
        """What the group has committed of every bucket, also of buckets of other members."""
        found = next((one for one in await self._calls.groups() if one.name == self.group), None)
        return {} if found is None else dict(found.committed)


# Messages that are taken at one time when the function gets them one by one.
MESSAGES = 500
# How long to wait before asking the brokers again after the member stopped waiting for them.
OUTAGE_SECONDS = 1.0
LOG_RETRY = Backoff.exponential(first=0.5, longest=60.0, jitter=0.2)


class MakesMember(Protocol):
    """Makes a member of the worker's group."""

    def __call__(self, *, on_revoked: OnBuckets) -> LogGroup:
        """A member that is not open yet."""


@dataclass(slots=True)
class LogWorkerStats:
    """How many messages were handled, and how many calls have failed."""

    done: int = 0
    failed: int = 0


class LogWorker:
    """Runs `function` for the messages of a log, from `run` until `stop`, as a member of a group.

    The messages of a bucket are handled in order, one after the other. When the function raises an error, it is called
    again with the same message, after the time that the back-off policy says: nothing of that bucket is skipped.

    An async function runs in the event loop, any other function in a thread. Several workers of one group divide the
    buckets.
    """

    def __init__(
        self, function: Callable[[Any], object], *, member: MakesMember, batch: int, retry: Backoff, random: Random
    ) -> None:
        self._function = function
        self._loop: asyncio.AbstractEventLoop | None = None
        self.stats: LogWorkerStats = LogWorkerStats()
        self._make, self._batch, self._retry, self._random = member, batch, retry, random
        self._stopping = asyncio.Event()
        # The bucket whose message the function has now; set when it has none.
        self._bucket = -1
        self._idle = asyncio.Event()

    def stop(self) -> None:
        """Take no more messages; `run` returns when the running call has ended and was committed; from any thread."""
        if self._loop is None:
            self._stopping.set()
        else:
            self._loop.call_soon_threadsafe(self._stopping.set)

    async def run(self) -> None:
        """Work until `stop`; waits through any outage, and raises an error when the broker refuses the member."""
        self._loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            member = self._make(on_revoked=self._revoked)
            try:
                await member.open()
                await self._work(member)
            except DejaqError as error:
                if not error.retryable:
                    raise
                log.warning("the worker of %s has no broker: %s", member.group, error)
                await self._pause(OUTAGE_SECONDS)
            finally:
                await member.close()

    async def _work(self, member: LogGroup) -> None:
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            while not self._stopping.is_set():
                taking = asyncio.ensure_future(member.getmany(self._batch or MESSAGES))
                await asyncio.wait({taking, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not taking.done():
                    taking.cancel()
                    await asyncio.gather(taking, return_exceptions=True)
                    return
                claims = member.claims()
                for batch in taking.result():
                    await self._handle(member, batch, claims.get(batch.bucket, 0))
        finally:
            stopping.cancel()

    async def _handle(self, member: LogGroup, batch: LogBatch, claim: int) -> None:
        """Call the function until it returns, for a batch or each of its messages; then commit."""
        end = batch.base
        units: Sequence[LogBatch | LogMessage] = [batch] if self._batch else list(batch)
        self._bucket = batch.bucket
        self._idle.clear()
        try:
            for unit in units:
                if not await self._call(unit, lambda: member.claims().get(batch.bucket) == claim):
                    break
                count = len(unit) if isinstance(unit, LogBatch) else 1
                end += count
                self.stats.done += count
            if end > batch.base:
                await self._commit(member, batch.bucket, end)
        finally:
            self._bucket = -1
            self._idle.set()

    async def _commit(self, member: LogGroup, bucket: int, end: int) -> None:
        try:
            await member.commit({bucket: end})
        except Conflict as error:
            # Another member has the bucket by now, and gets these messages again.
            if error.code is not Code.CLAIM_LOST:
                raise

    async def _call(self, unit: LogBatch | LogMessage, ours: Callable[[], bool]) -> bool:
        """Call the function until it returns; False when the worker stops, or lost the bucket, before that."""
        attempt = 0
        while ours() and not self._stopping.is_set():
            attempt += 1
            try:
                if inspect.iscoroutinefunction(self._function):
                    await self._function(unit)
                else:
                    await asyncio.to_thread(self._function, unit)
                return True
            except Exception:
                self.stats.failed += 1
                log.exception("the function failed for attempt %d", attempt)
            await self._pause(self._retry.delay_ms(attempt, self._random.random()) / 1_000)
        return False

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _revoked(self, buckets: Sequence[int]) -> None:
        """Let the running call of a bucket that the member loses end and be committed; the broker waits for a while."""
        if self._bucket in buckets:
            await self._idle.wait()
