"""Runs blocking functions in daemon threads, which never prevent the program from ending."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

Call = Callable[[], None]


class Threads:
    """Up to `count` daemon threads, started as needed. The program would wait for an executor's threads at its end."""

    def __init__(self, count: int, *, name: str) -> None:
        self._count = count
        self._name = name
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._started = 0
        self._busy = 0

    def call(self, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """Call a function in a thread; the future belongs to the running event loop."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def work() -> None:
            try:
                result, error = context.run(function, *arguments), None
            except BaseException as raised:  # noqa: BLE001 - whatever it is, it is the caller's to judge
                result, error = None, raised
            # An event loop that has ended needs no answer.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._answered, answer, result, error)

        self._busy += 1
        if self._busy > self._started < self._count:
            self._started += 1
            threading.Thread(target=self._serve, name=f"{self._name}-{self._started}", daemon=True).start()
        self._calls.put(work)
        return answer

    def close(self) -> None:
        """Let the threads end, each after its current function."""
        for _ in range(self._started):
            self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def _answered(self, answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._busy -= 1
        if answer.done():
            return
        if isinstance(error, StopIteration):
            # A future cannot carry StopIteration.
            error = RuntimeError("the function raised StopIteration")
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)
