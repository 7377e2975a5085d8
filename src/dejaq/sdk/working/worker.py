"""A worker: runs a function of the user for each message as it becomes due.

When the function returns, the message is deleted; when it raises an error, the message is released, and is due again
when the back-off policy says. The lease is extended for as long as the function runs.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any, ParamSpec, Protocol, TypedDict, TypeVar

from dejaq import limits
from dejaq.domain.backoff import Backoff
from dejaq.domain.dead_letter import EXHAUSTED, check_reason, exhausted
from dejaq.errors import Code, DejaqError, Unavailable, error_of
from dejaq.sdk.blocking.lease import Lease as BlockingLease
from dejaq.sdk.blocking.portal import DEADLINES, Portal
from dejaq.sdk.consuming.consumer import Consumer
from dejaq.sdk.consuming.lease import Lease
from dejaq.sdk.working.codecs import Codec
from dejaq.sdk.working.threads import Threads
from dejaq.sdk.working.typed_function import TypedFunction
from dejaq.sdk.working.worker_lease import WatchedLease
from dejaq.sdk.working.worklog import WorkLog

# An async function gets a `Lease`, any other function a lease whose calls block.
Handler = Callable[[Lease], Awaitable[object]] | Callable[[BlockingLease], object]


Made = TypeVar("Made", covariant=True)
Parameters = ParamSpec("Parameters")


class TypedDecorator(Protocol[Made]):
    """A decorator that makes a function with arguments of any types into a worker."""

    def __call__(self, function: Callable[Parameters, object], /) -> Made:
        """Make the worker."""


class WorkerOptions(TypedDict, total=False):
    """The arguments of `client.worker`, except the topic and the codec."""

    concurrency: int
    retry: Backoff | str
    timeout: float | None
    grace: float
    name: str
    lease: float | timedelta
    prefetch: float
    max_in_flight: int | None
    max_messages: int | None
    weight: int
    rack: str
    rate: int


RETRY = Backoff.exponential()
GRACE_SECONDS = 30.0
# How long to wait before asking the brokers again after the consumer stopped waiting for them.
OUTAGE_SECONDS = 1.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Postpone(Exception):
    """Raised by a worker's function to get its message again after `delay` seconds, whatever the policy says."""

    def __init__(self, delay: float) -> None:
        self.delay = delay
        super().__init__(f"again in {delay:g} s")


class Reject(Exception):
    """Raised by a worker's function when no further attempt can succeed: the message becomes a dead letter with this
    reason.

    The dead letter keeps the error from which this one was raised (`raise Reject(...) from error`), or else this one.
    """

    def __init__(self, reason: str) -> None:
        check_reason(reason)
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class WorkerTerms:
    """The settings of a worker: how many messages at once, how long each may take, and when a failed one is delivered
    again.
    """

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
    """The outcomes of the messages so far."""

    done: int = 0
    failed: int = 0
    timed_out: int = 0
    # Moved to the dead letters, because the function said so, or the codec refused the body or the result.
    rejected: int = 0
    # Released by a stop that did not wait for them.
    interrupted: int = 0
    # The lease was lost, or no broker could be reached at the end: these messages are delivered again.
    lost: int = 0
    # How often no broker could be reached for longer than the client's deadline.
    outages: int = 0


class Worker:
    """Runs `function` with a lease for each message of a topic, from `run` until `stop`.

    An async function runs in the event loop, any other function in a thread with a lease whose calls block. An async
    function that exceeds the time-out is cancelled. A thread cannot be cancelled: its message is released, and the
    thread counts towards `concurrency` until the function returns.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        consumer: Callable[[], Consumer],
        topic: str,
        terms: WorkerTerms,
        random: Random,
        codec: Codec | None = None,
    ) -> None:
        self.function = function
        self._is_async = _is_async(function)
        self._call: Callable[[Any], Any] = function
        if codec is not None:
            typed = TypedFunction(function, codec, Reject)
            self._call = typed.call if self._is_async else typed.call_blocking
        self.topic = topic
        self.stats: WorkerStats = WorkerStats()
        self._make_consumer = consumer
        self._terms = terms
        self._random = random
        self._out = False
        self._stopping = asyncio.Event()
        self._log = WorkLog(topic=topic, worker=getattr(function, "__qualname__", type(function).__qualname__))

    def __call__(self, *arguments: Any) -> Any:
        """Call the function itself, for example in a unit test of it."""
        return self.function(*arguments)

    def stop(self) -> None:
        """Take no more messages; `run` returns when running functions have ended, or were released after the grace
        period.
        """
        self._stopping.set()

    async def run(self) -> None:
        """Work until `stop`; waits through any outage, and raises an error when the broker refuses the worker."""
        consumer = await self._opened()
        if consumer is None:
            return
        threads = Threads(self._terms.concurrency, name=f"dejaq-{self.topic}")
        try:
            await self._run(consumer, threads)
        finally:
            threads.close()
            await consumer.close()
        self._log.tell(logging.INFO, "stopped", done=self.stats.done, failed=self.stats.failed)

    async def _run(self, consumer: Consumer, threads: Threads) -> None:
        self._log.tell(logging.INFO, "started", consumer=consumer.name, concurrency=self._terms.concurrency)
        places = [asyncio.ensure_future(self._work(consumer, threads)) for _ in range(self._terms.concurrency)]
        stopping: asyncio.Future[Any] = asyncio.ensure_future(self._stopping.wait())
        # Not a `gather`, because nobody would read its error when the second signal cancels it.
        working = asyncio.ensure_future(asyncio.wait(places, return_when=asyncio.FIRST_EXCEPTION))
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                self._log.tell(logging.INFO, "stopping", grace_s=self._terms.grace)
                await consumer.stop()
                await asyncio.wait({working}, timeout=self._terms.grace)
            for place in places:
                if place.done():
                    place.result()
        finally:
            stopping.cancel()
            working.cancel()
            for place in places:
                place.cancel()
            await asyncio.gather(*places, return_exceptions=True)

    async def _opened(self) -> Consumer | None:
        """An open consumer, after any wait for a broker; None when the worker is stopped before."""
        while not self._stopping.is_set():
            consumer = self._make_consumer()
            try:
                await consumer.open()
            except Unavailable as error:
                self._outage(error)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), OUTAGE_SECONDS)
            else:
                self._out = False
                return consumer
        return None

    def _outage(self, error: DejaqError) -> None:
        if not self._out:
            self._out = True
            self.stats.outages += 1
            self._log.tell(logging.WARNING, "outage", reason=str(error))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Worker]:
        """Run the worker in the background of an `async with` block; stops it at the end of the block."""
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
                self._outage(error)
                await asyncio.sleep(OUTAGE_SECONDS)
                continue
            self._out = False
            await self._handle(lease, threads)

    async def _handle(self, lease: Lease, threads: Threads) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        watched = WatchedLease(lease)
        call: asyncio.Future[Any] | None = None
        if not self._is_async:
            portal = Portal("worker", loop=loop, seconds=DEADLINES * lease.held.settler.deadline)
            call = threads.call(self._call, BlockingLease(lease, portal))
        try:
            async with asyncio.timeout(self._terms.timeout) as bound:
                # A thread cannot be cancelled: leave it running.
                result = await (self._call(watched) if call is None else asyncio.shield(call))
                if inspect.isawaitable(result):
                    await result
                await watched.check_calls()
        except Postpone as wish:
            await self._release(lease, "postponed", delay_ms=round(wish.delay * 1_000), level=logging.INFO)
        except Reject as wish:
            await self._reject(lease, wish)
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if _cancelled():
                self.stats.interrupted += 1
                await self._release(lease, "interrupted", delay_ms=0, level=logging.WARNING)
                raise
            await self._failed(lease, error, timed_out=bound.expired() and isinstance(error, TimeoutError))
        else:
            await self._finish(lease, 1_000 * (loop.time() - started))
        if call is not None and not call.done():
            # The next message can start only when this thread is free.
            await asyncio.wait({call})
            call.exception()

    async def _failed(self, lease: Lease, error: BaseException, *, timed_out: bool) -> None:
        self.stats.timed_out += timed_out
        self.stats.failed += not timed_out
        if await self._was_last(lease):
            self._log.told_of(lease, logging.ERROR, "dead", error=error)
            why = f"timed out after {self._terms.timeout:g} s" if timed_out else error
            if not lease.settled:
                await self._settle(lease, lambda: lease.reject(EXHAUSTED, error=why))
            return
        delay_ms = self._terms.retry.delay_ms(lease.attempts, self._random.random())
        if timed_out:
            await self._release(lease, "timed out", delay_ms=delay_ms, level=logging.WARNING)
        else:
            await self._release(lease, "failed", delay_ms=delay_ms, level=logging.WARNING, error=error)

    async def _reject(self, lease: Lease, wish: Reject) -> None:
        self.stats.rejected += 1
        error = wish.__cause__ or wish
        self._log.told_of(lease, logging.WARNING, "rejected", error=error, reason=wish.reason)
        if not lease.settled:
            await self._settle(lease, lambda: lease.reject(wish.reason, error=error))

    async def _was_last(self, lease: Lease) -> bool:
        """Whether the message has had all its attempts, so that it can become a dead letter with its error."""
        try:
            terms = await lease.held.settler.transactor.terms(self.topic)
        except DejaqError:
            # The broker moves it too, at its next lease, but without the error.
            return False
        return exhausted(lease.attempts, terms.max_attempts)

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


class Crew:
    """Workers that run together until all have ended or `stop` is called; a second `stop` does not
    wait for functions.
    """

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = list(workers)
        self._tasks: list[asyncio.Future[None]] = []
        self._stopped = False

    def stop(self) -> None:
        """Stop the workers; the second call does not wait for running functions. Call it on the event loop."""
        for worker in self._workers:
            worker.stop()
        if self._stopped:
            for task in self._tasks:
                task.cancel()
        self._stopped = True

    async def run(self) -> None:
        """Run the workers; raises the first error that ended one of them."""
        self._tasks = [asyncio.ensure_future(worker.run()) for worker in self._workers]
        try:
            if self._tasks:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for worker in self._workers:
                worker.stop()
            ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        for fault in ended:
            if isinstance(fault, Exception):
                raise fault


async def run_until_signal(workers: Sequence[Worker]) -> None:
    """Run workers until all have ended, or SIGTERM or SIGINT stops them; after a second signal it does not wait."""
    loop = asyncio.get_running_loop()
    crew = Crew(workers)
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, crew.stop)
    try:
        await crew.run()
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)


def _cancelled() -> bool:
    """Whether the worker's own task is being cancelled, and not a task inside the function."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
