"""A worker of a log: runs a function of the user for each message, or each batch, and commits behind it.

The messages of a bucket are handled in order, one after the other. When the function raises an error, it is called
again with the same message, after the time that the back-off policy says: nothing of that bucket is skipped.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from dejaq.domain.backoff import Backoff
from dejaq.errors import Code, Conflict, DejaqError
from dejaq.sdk.log.group import LogGroup, OnBuckets
from dejaq.sdk.log.messages import LogBatch, LogMessage

log = logging.getLogger("dejaq.worker")

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
