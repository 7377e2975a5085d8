"""A worker: runs a function of the user's for each message as it becomes due.

What the function returns from is deleted; what it raises on is released, due again when the back-off policy says. The
lease is extended for as long as the function runs.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

from dejaq import limits
from dejaq.domain.backoff import Backoff
from dejaq.errors import Code, DejaqError, Unavailable, error_of
from dejaq.sdk.consumer import Consumer
from dejaq.sdk.lease import Lease
from dejaq.sdk.threads import Threads
from dejaq.sdk.worklog import WorkLog

Handler = Callable[[Lease], Any]

RETRY = Backoff.exponential()
GRACE_SECONDS = 30.0
# How long to leave a broker alone that the consumer has given up to wait for.
OUTAGE_SECONDS = 1.0


class Postpone(Exception):
    """Raised by a worker's function to get its message again after `delay` seconds, whatever the policy says."""

    def __init__(self, delay: float) -> None:
        self.delay = delay
        super().__init__(f"again in {delay:g} s")


@dataclass(frozen=True, slots=True)
class Terms:
    """How a worker works: how many messages at once, how long each may take, when one that failed comes again."""

    concurrency: int = 8
    retry: Backoff = RETRY
    timeout: float | None = None
    grace: float = GRACE_SECONDS

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= limits.WORKER_CONCURRENCY_MAX:
            raise error_of(
                Code.INVALID_ARGUMENT, f"concurrency={self.concurrency} is not 1 to {limits.WORKER_CONCURRENCY_MAX}"
            )
        if self.timeout is not None and not 0 < self.timeout < math.inf:
            raise error_of(Code.INVALID_ARGUMENT, f"timeout={self.timeout} is not a number of seconds above 0")
        if not 0 <= self.grace < math.inf:
            raise error_of(Code.INVALID_ARGUMENT, f"grace={self.grace} is not a number of seconds")


@dataclass(slots=True)
class WorkerStats:
    """What became of the messages so far."""

    done: int = 0
    failed: int = 0
    timed_out: int = 0
    # Released at a stop that did not wait for them.
    interrupted: int = 0
    # The lease was lost, or the broker out of reach at the end: they are delivered again.
    lost: int = 0
    # How often no broker was to be reached for longer than the client's deadline.
    outages: int = 0


class Worker:
    """Runs `function` with a lease for each message of a topic, from `run` until `stop`.

    An async function runs in the event loop, any other in a thread. One that outlasts the time-out is cancelled; a
    thread cannot be, so its message is released and its place stays taken until it returns.
    """

    def __init__(
        self, function: Handler, *, consumer: Callable[[], Consumer], topic: str, terms: Terms, random: Random
    ) -> None:
        self.function = function
        self.topic = topic
        self.stats = WorkerStats()
        self._make_consumer = consumer
        self._terms = terms
        self._random = random
        self._is_async = _is_async(function)
        self._out = False
        self._stopping = asyncio.Event()
        self._log = WorkLog(topic=topic, worker=getattr(function, "__qualname__", type(function).__qualname__))

    def __call__(self, lease: Lease) -> Any:
        """Call the function itself, as a test of it does."""
        return self.function(lease)

    def stop(self) -> None:
        """Take no more messages; `run` returns when those under way are done, or released after the grace period."""
        self._stopping.set()

    async def run(self) -> None:
        """Work until `stop`; raises what the broker refuses it with, and sits out any outage."""
        threads = Threads(self._terms.concurrency, name=f"dejaq-{self.topic}")
        async with self._make_consumer() as consumer:
            self._log.tell(logging.INFO, "started", consumer=consumer.name, concurrency=self._terms.concurrency)
            places = [asyncio.ensure_future(self._work(consumer, threads)) for _ in range(self._terms.concurrency)]
            stopping: asyncio.Future[Any] = asyncio.ensure_future(self._stopping.wait())
            try:
                working: asyncio.Future[list[None]] = asyncio.gather(*places)
                await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not working.done():
                    self._log.tell(logging.INFO, "stopping", grace_s=self._terms.grace)
                    await consumer.stop()
                    await asyncio.wait({working}, timeout=self._terms.grace)
                if working.done():
                    working.result()
            finally:
                stopping.cancel()
                for place in places:
                    place.cancel()
                await asyncio.gather(*places, return_exceptions=True)
                threads.close()
        self._log.tell(logging.INFO, "stopped", done=self.stats.done, failed=self.stats.failed)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Worker]:
        """Work in the background of a block; stopped at its end."""
        task = asyncio.ensure_future(self.run())
        try:
            yield self
        finally:
            self.stop()
            await task

    async def _work(self, consumer: Consumer, threads: Threads) -> None:
        while True:
            try:
                lease = await anext(consumer)
            except StopAsyncIteration:
                return
            except Unavailable as error:
                if not self._out:
                    self._out = True
                    self.stats.outages += 1
                    self._log.tell(logging.WARNING, "outage", reason=str(error))
                await asyncio.sleep(OUTAGE_SECONDS)
                continue
            self._out = False
            await self._handle(lease, threads)

    async def _handle(self, lease: Lease, threads: Threads) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        call: asyncio.Future[Any] | None = None if self._is_async else threads.call(self.function, lease)
        try:
            async with asyncio.timeout(self._terms.timeout) as bound:
                # A thread cannot be cancelled, only left alone.
                result = await (self.function(lease) if call is None else asyncio.shield(call))
                if inspect.isawaitable(result):
                    await result
        except Postpone as wish:
            await self._release(lease, "postponed", delay_ms=round(wish.delay * 1_000), level=logging.INFO)
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if _cancelled():
                self.stats.interrupted += 1
                await self._release(lease, "interrupted", delay_ms=0, level=logging.WARNING)
                raise
            await self._failed(lease, error, timed_out=bound.expired() and isinstance(error, TimeoutError))
        else:
            await self._finish(lease, 1_000 * (loop.time() - started))
        if call is not None and not call.done():
            # Its thread is the place of the next message.
            await asyncio.wait({call})
            call.exception()

    async def _failed(self, lease: Lease, error: BaseException, *, timed_out: bool) -> None:
        self.stats.timed_out += timed_out
        self.stats.failed += not timed_out
        delay_ms = self._terms.retry.delay_ms(lease.attempts, self._random.random())
        if timed_out:
            await self._release(lease, "timed out", delay_ms=delay_ms, level=logging.WARNING)
        else:
            await self._release(lease, "failed", delay_ms=delay_ms, level=logging.WARNING, error=error)

    async def _finish(self, lease: Lease, took_ms: float) -> None:
        if not lease.settled:
            await self._settle(lease, lease.delete)
        elif not lease.expires_ms:
            self._lost(lease, None)
        if not lease.settled or not lease.expires_ms:
            return
        self.stats.done += 1
        self._log.told_of(lease, logging.INFO, "done", ms=took_ms)

    async def _release(
        self, lease: Lease, event: str, *, delay_ms: int, level: int, error: BaseException | None = None
    ) -> None:
        self._log.told_of(lease, level, event, error=error, again_ms=delay_ms)
        if not lease.settled:
            await self._settle(lease, lambda: lease.release(delay=delay_ms / 1_000))

    async def _settle(self, lease: Lease, change: Callable[[], Awaitable[None]]) -> None:
        try:
            await change()
        except DejaqError as error:
            self._lost(lease, error)

    def _lost(self, lease: Lease, error: DejaqError | None) -> None:
        self.stats.lost += 1
        reason = "the lease has ended" if error is None else str(error)
        self._log.told_of(lease, logging.WARNING, "lost", reason=reason)


async def run_until_signal(workers: Sequence[Worker]) -> None:
    """Run workers until all have ended, or SIGTERM or SIGINT stops them; a second signal waits for no function."""
    loop = asyncio.get_running_loop()
    tasks = [asyncio.ensure_future(worker.run()) for worker in workers]
    told = False

    def stop() -> None:
        nonlocal told
        for worker, task in zip(workers, tasks, strict=True):
            worker.stop()
            if told:
                task.cancel()
        told = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        for worker in workers:
            worker.stop()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for fault in ended:
        if isinstance(fault, Exception):
            raise fault


def _cancelled() -> bool:
    """Whether it is the worker's own task that is being cancelled, and not something in the function."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _is_async(function: Handler) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
