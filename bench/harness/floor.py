"""The machine's own lateness: a bare process that sleeps to each millisecond and does nothing else."""

from __future__ import annotations

import multiprocessing
import time
from array import array
from multiprocessing.connection import Connection

from bench.harness.figures import Figures, lateness_figures


def sleep_through(start_ns: int, end_ns: int) -> array[int]:
    """How late, in microseconds, this process is at every millisecond of the span.

    A millisecond that was slept through counts with the wake-up that came too late for it, as a message due then would.
    """
    late = array("q")
    target = start_ns
    while target < end_ns:
        now = time.time_ns()
        if now < target:
            time.sleep((target - now) / 1e9)
            now = time.time_ns()
        while target <= now and target < end_ns:
            late.append((now - target) // 1_000)
            target += 1_000_000
    return late


def _child(start_ns: int, end_ns: int, pipe: Connection) -> None:
    pipe.send_bytes(sleep_through(start_ns, end_ns).tobytes())


class Floor:
    """The bare sleeper beside a lateness bench, over the same span."""

    def __init__(self, start_ns: int, end_ns: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe(duplex=False)
        self._end_ns = end_ns
        self._process = context.Process(target=_child, args=(start_ns, end_ns, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def figures(self) -> Figures:
        """`floor_p50_ms` and so on, once the span is over."""
        wait = max(0, self._end_ns - time.time_ns()) / 1e9 + 30
        if not self._pipe.poll(wait):
            self._process.kill()
            raise TimeoutError("the bare sleeper did not come back")
        late = array("q")
        late.frombytes(self._pipe.recv_bytes())
        self._process.join()
        return lateness_figures(late, "floor")
