"""The parts of the blocking client that open and close objects; all other parts are generated."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

from dejaq.sdk.blocking.portal import Blocking
from dejaq.sdk.client import Client as AsyncClient
from dejaq.sdk.working.worker import STOP_SIGNALS, Crew
from dejaq.sdk.working.worker import Worker as AsyncWorker

SignalHandler = Callable[[int, FrameType | None], object] | int | signal.Handlers | None


class OpenedClient(Blocking[AsyncClient]):
    """Opens the client together with its event loop."""

    __slots__ = ()

    def open(self, *, deadline: float | None = None) -> None:
        """Make sure that a broker answers; raises NoBroker when none does within `deadline`.

        When a broker answered that it cannot serve, its own error is raised.
        """
        self._portal.start()
        try:
            self._portal.run(self._opened(deadline))
        except BaseException:
            self._portal.stop()
            raise

    async def _opened(self, deadline: float | None) -> None:
        try:
            await self._inner.open(deadline=deadline)
        except BaseException:
            await self._inner.close()
            raise

    def close(self) -> None:
        """Close the producers and consumers that are still open, and disconnect. A second close changes nothing."""
        if not self._portal.is_open:
            return
        try:
            self._portal.follow(self._inner.close())
        finally:
            self._portal.stop()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run_workers(self) -> None:
        """Run the workers of this client until SIGTERM or Ctrl-C, then let running calls finish; a second signal does
        not wait.

        Signals are only seen when the main thread calls this.
        """
        crew = Crew(self._inner._workers)
        with _signals_call(lambda: self._portal.call_soon(crew.stop)):
            self._portal.follow(crew.run())


class RunningWorker(Blocking[AsyncWorker]):
    """Runs a worker on the client's event loop."""

    __slots__ = ()

    def __call__(self, *arguments: object) -> object:
        """Call the function itself, for example in a unit test of it."""
        result: object = self._inner(*arguments)
        return result

    def stop(self) -> None:
        """Take no more messages; `run` returns when running functions have ended, or were released after the grace
        period.
        """
        self._portal.call_soon(self._inner.stop)

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Run the worker in the background of a `with` block; stops it at the end of the block."""
        work = self._portal.submit(self._inner.run())
        try:
            yield self
        finally:
            self.stop()
            self._portal.result(work, None)


@contextmanager
def _signals_call(stop: Callable[[], object]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: Mapping[signal.Signals, SignalHandler] = {
        number: signal.signal(number, lambda _number, _frame: stop()) for number in STOP_SIGNALS
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
