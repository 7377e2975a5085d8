"""Finds code of a broker that blocks the event loop, from what the broker's watchdog logs in the process of a test.

The watchdog knows how long the loop did not answer. In a test that loop also runs clients and perhaps several brokers,
so what passes between two answers may be a hundred short steps. A test fails only when one of them was long.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from dejaq.testing.servers.process import BLOCK_CPU_MS_MAX

# The loop is also the test's own, whose code may block it.
_OF_BROKERS = ("/dejaq/broker/", "/dejaq/storage/", "/dejaq/journal/", "/dejaq/synchronization/")
# A broker that starts serves nobody yet. Only in tests does it share its loop with another one that does.
_STARTING = re.compile(r"broker/central\.py\", line \d+, in start\n")


class _LongSteps:
    """The steps of event loops that used the processor for longer than the limit, without garbage collections, which
    look at the objects of the test too.
    """

    def __init__(self) -> None:
        self._ended: deque[float] = deque(maxlen=100)
        self._collecting = self._collected = 0.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Measure every step of the loops of asyncio while the block is open."""
        run = asyncio.Handle._run

        def measured(handle: asyncio.Handle) -> None:
            began, collected = time.thread_time(), self._collected
            run(handle)
            if time.thread_time() - began - (self._collected - collected) > BLOCK_CPU_MS_MAX / 1_000:
                self._ended.append(time.monotonic())

        asyncio.Handle._run = measured  # type: ignore[method-assign, assignment]
        gc.callbacks.append(self._collection)
        try:
            yield
        finally:
            gc.callbacks.remove(self._collection)
            asyncio.Handle._run = run  # type: ignore[method-assign]

    def _collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = time.thread_time()
        else:
            self._collected += time.thread_time() - self._collecting

    def any_between(self, start: float, end: float) -> bool:
        """Whether one ended between these times of the monotonic clock."""
        return any(start <= ended <= end for ended in list(self._ended))


class _Blocks(logging.Handler):
    """Collects what was logged about long blocks."""

    def __init__(self, steps: _LongSteps) -> None:
        super().__init__()
        self._steps = steps
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record of the watchdog."""
        known = vars(record)
        files = known.get("files", ())
        of_broker = any(part in file for file in files for part in _OF_BROKERS)
        message = record.getMessage()
        long = of_broker and known["cpu_ms"] > BLOCK_CPU_MS_MAX and not _STARTING.search(message)
        answered = known.get("answered_at", 0.0)
        if long and self._steps.any_between(answered - known["lag_ms"] / 1_000, answered):
            self.found.append(message)


@contextmanager
def limited_blocks() -> Iterator[list[str]]:
    """What blocked the loop of a broker for more than the limit, while the block is open; a block around it does not
    find it too.
    """
    steps = _LongSteps()
    handler = _Blocks(steps)
    logger = logging.getLogger("dejaq.broker.loop.watchdog")
    outer = [one for one in logger.handlers if isinstance(one, _Blocks)]
    for one in outer:
        logger.removeHandler(one)
    logger.addHandler(handler)
    before = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        with steps.watched():
            yield handler.found
    finally:
        logger.removeHandler(handler)
        for one in outer:
            logger.addHandler(one)
        logger.setLevel(before)
