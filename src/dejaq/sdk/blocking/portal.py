"""Runs coroutines on an event loop in another thread, for callers that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from typing import Generic, TypeVar

from dejaq.errors import Indefinite, OutOfState

Value = TypeVar("Value")
Inner = TypeVar("Inner")
Argument = TypeVar("Argument")
Other = TypeVar("Other")

# One call may need several requests, each of which ends after the client's deadline.
DEADLINES = 4
# How long a caller waits for an event loop that runs no callback.
STALL_SECONDS = 30.0
# How long a portal that closes waits for coroutines that still run on its loop.
STOP_SECONDS = 10.0


class Portal:
    """Runs calls of blocking code on one event loop.

    `what` names its owner in errors. A call waits at most `seconds`; a call that may take any time waits as long as the
    loop runs.
    """

    def __init__(self, what: str, *, seconds: float, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._what = what
        self._seconds = min(seconds, threading.TIMEOUT_MAX)
        self._loop = loop
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def is_open(self) -> bool:
        """Whether calls can be made."""
        return self._loop is not None and not self._closed

    def start(self) -> None:
        """Start an event loop in a thread of its own. A portal can be started once."""
        if self._closed:
            raise self._closed_error()
        if self._loop is not None:
            raise OutOfState(f"this {self._what} is open already")
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name=f"dejaq-sync-{self._what}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Cancel all coroutines that still run on the loop and end its thread.

        A stop of a closed portal changes nothing.
        """
        loop, thread = self._loop, self._thread
        if self._closed or loop is None or thread is None:
            self._closed = True
            return
        self._closed = True
        ending = asyncio.run_coroutine_threadsafe(_cancel_all(), loop)
        try:
            ending.result(STOP_SECONDS)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(STOP_SECONDS)
            if not thread.is_alive():
                loop.close()

    # Calls

    def run(self, work: Coroutine[object, object, Value]) -> Value:
        """Run a coroutine on the loop and return its result; an interrupt of the caller cancels the coroutine.

        The end of an async iteration is raised as StopIteration. Raises INDEFINITE when the time is up.
        """
        return self.result(self.submit(work), self._seconds)

    def follow(self, work: Coroutine[object, object, Value]) -> Value:
        """Run a coroutine that may take any time, such as one that waits for a message."""
        return self.result(self.submit(work), None)

    def submit(self, work: Coroutine[object, object, Value]) -> Future[Value]:
        """Start a coroutine on the loop."""
        try:
            loop = self._usable()
            if _running_loop() is loop:
                raise OutOfState(
                    f"this call blocks, and was made on the event loop of the {self._what} itself: call it in another "
                    "thread, or make it `async def` and await the calls of `dejaq`"
                )
            return asyncio.run_coroutine_threadsafe(work, loop)
        except BaseException:
            work.close()
            raise

    def result(self, future: Future[Value], seconds: float | None) -> Value:
        """Wait for a coroutine that was started here, at most so many seconds, or as long as the loop runs."""
        try:
            return self._wait(future, seconds)
        except StopAsyncIteration:
            raise StopIteration from None
        except CancelledError:
            raise self._closed_error() from None
        except BaseException:
            future.cancel()
            raise

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function on the loop, without waiting for it."""
        self._usable().call_soon_threadsafe(function)

    def _usable(self) -> asyncio.AbstractEventLoop:
        if self._closed or (self._loop is not None and self._loop.is_closed()):
            raise self._closed_error()
        if self._loop is None:
            raise OutOfState(f"this {self._what} is not open: use it as `with ... as {self._what}:`")
        return self._loop

    def _wait(self, future: Future[Value], seconds: float | None) -> Value:
        alive: threading.Event | None = None
        while True:
            try:
                return future.result(STALL_SECONDS if seconds is None else seconds)
            except TimeoutError:
                if future.done():
                    return future.result()
            if seconds is not None:
                raise Indefinite(f"no answer within {seconds:g} s; the call may have been done or not")
            if alive is not None and not alive.is_set():
                raise Indefinite(
                    f"the event loop of this {self._what} has not run for {STALL_SECONDS:g} s, so the call may have "
                    "been done or not; look for a callback that blocks, such as on_drift"
                )
            alive = threading.Event()
            self._usable().call_soon_threadsafe(alive.set)

    def _closed_error(self) -> OutOfState:
        return OutOfState(f"this {self._what} is closed; make another")


class Blocking(Generic[Inner]):
    """An object whose methods wait for those of an async one."""

    __slots__ = ("__weakref__", "_inner", "_portal")

    def __init__(self, inner: Inner, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal

    def __repr__(self) -> str:
        return repr(self._inner)


def each(items: AsyncIterator[Value], portal: Portal) -> Iterator[Value]:
    """The items of an async iterator; closes the iterator when the caller ends the iteration early."""
    try:
        while True:
            try:
                item = portal.follow(_next_of(items))
            except StopIteration:
                return
            yield item
    finally:
        if isinstance(items, AsyncGenerator) and portal.is_open:
            portal.submit(_closed(items))


def then(function: Callable[[Argument], Value], change: Callable[[Value], Other]) -> Callable[[Argument], Other]:
    """A function that calls another function and changes its result."""
    return lambda argument: change(function(argument))


async def _next_of(items: AsyncIterator[Value]) -> Value:
    return await anext(items)


async def _closed(items: AsyncGenerator[Value, None]) -> None:
    await items.aclose()


async def _cancel_all() -> None:
    loop = asyncio.get_running_loop()
    others = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await loop.shutdown_asyncgens()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
