"""The machine's own lateness: a process that only sleeps until each millisecond."""

from __future__ import annotations

import multiprocessing
import time
from array import array
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from types import TracebackType
from typing import Self

from bench.harness.figures import Figures, lateness_figures

# Until then the process of the sleeper has started.
START_SECONDS = 1.0
ANSWER_SECONDS = 30.0


def sleep_through(start_ns: int, ended: Callable[[int], bool]) -> array[int]:
    """How late, in microseconds, this process is at every millisecond from `start_ns` until one has `ended`.

    A millisecond that the process slept through counts with the late wake-up after it, as for a message due at that
    time.
    """
    late = array("q")
    target = start_ns
    while not ended(target):
        now = time.time_ns()
        if now < target:
            time.sleep((target - now) / 1e9)
            now = time.time_ns()
        while target <= now and not ended(target):
            late.append((now - target) // 1_000)
            target += 1_000_000
    return late


def _child(start_ns: int, end_ns: Synchronized[int], pipe: Connection) -> None:
    # A bench that ends early closes the pipe, and nobody reads the answer.
    with suppress(BrokenPipeError, KeyboardInterrupt):
        pipe.send_bytes(sleep_through(start_ns, lambda target: target >= end_ns.value).tobytes())


class Floor:
    """The bare sleeper of a lateness bench: from `start_ns` to `end_ns`, or until its result is read."""

    def __init__(self, start_ns: int, end_ns: int | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe(duplex=False)
        self._fixed = end_ns
        self._end_ns = context.Value("q", 2**62 if end_ns is None else end_ns)
        self._process = context.Process(target=_child, args=(start_ns, self._end_ns, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._pipe.close()

    def figures(self) -> Figures:
        """`floor_p50_ms` and so on, after the end of the measured time."""
        now_ns = time.time_ns()
        if self._fixed is None:
            self._end_ns.value = now_ns
        if not self._pipe.poll(max(0, (self._fixed or now_ns) - now_ns) / 1e9 + ANSWER_SECONDS):
            raise TimeoutError("the bare sleeper did not finish in time")
        late = array("q")
        late.frombytes(self._pipe.recv_bytes())
        return lateness_figures(late, "floor")
