"""Watches the event loop: how late it is, what blocks it, and whether it is slow all the time.

A thread asks the loop to answer and measures how long the answer takes; that is the lag. When it takes too long, the
thread records where the loop's thread is. Processor time is measured besides: an answer that is late although the loop
used little of it was delayed by other processes, or by another thread that holds the interpreter lock.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import FrameType

from dejaq.broker.metrics import Distribution

log = logging.getLogger(__name__)

PERIOD_SECONDS = 0.05
# The lag of so many seconds decides whether the loop is slow.
SLOW_SECONDS = 10.0
SLOW_LAGS_MIN = 10
# The same place of the program is logged again only after this time; so many places are remembered.
QUIET_SECONDS = 60.0
PLACES_MAX = 100
FRAMES_SHOWN = 12
# During one long block the stack is read so often; the place that is seen most is logged.
SAMPLES_MAX = 100
LAG_BOUNDS_MS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 250.0, 1_000.0, 5_000.0)
# In these modules the loop waits for events, or is between two callbacks.
_IDLE = frozenset({"selectors.py", "base_events.py", "runners.py"})


class Watchdog:
    """Watches the loop that it was made in, from `start` to `stop`.

    It logs warnings. If the loop is also that of the user's program, it logs at the level INFO: the program may have
    blocked it.
    """

    def __init__(
        self,
        *,
        block_ms: int,
        lag_ms_max: int,
        report: Callable[[str, str | None], None] = lambda name, what: None,
        shares_loop: bool = False,
    ) -> None:
        self._level = logging.INFO if shares_loop else logging.WARNING
        self._block_ms = block_ms
        self._lag_ms_max = lag_ms_max
        self._report = report
        self.lag = Distribution(LAG_BOUNDS_MS)
        self._recent: deque[tuple[float, float]] = deque()
        # Long garbage collections: the generation, and how long it took.
        self._pauses: deque[tuple[int, float]] = deque(maxlen=PLACES_MAX)
        self._slow = False
        # When each place was logged last, and the processor time that it used then.
        self._logged: dict[str, tuple[float, float]] = {}
        self._stopping = threading.Event()
        self._answered = threading.Event()
        self._answered_at = self._answered_cpu = self._collecting_since = 0.0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch the running loop; does nothing when `block_ms` is 0."""
        if not self._block_ms:
            return
        self._loop = asyncio.get_running_loop()
        self._ident, self._native = threading.get_ident(), threading.get_native_id()
        self._cpu_clock = time.pthread_getcpuclockid(self._ident)
        gc.callbacks.append(self._collected)
        self._thread = threading.Thread(target=self._run, name="dejaq-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._stopping.set()
            self._answered.set()
            self._thread.join()
            self._thread = None
            gc.callbacks.remove(self._collected)

    # In the thread

    def _run(self) -> None:
        while not self._stopping.wait(PERIOD_SECONDS):
            try:
                self._ask()
            except RuntimeError:
                # The loop is closed: the program is ending.
                return

    def _ask(self) -> None:
        """Ask the loop once, and wait for its answer."""
        self._answered.clear()
        began, began_cpu = time.monotonic(), time.clock_gettime(self._cpu_clock)
        self._loop.call_soon_threadsafe(self._answer)
        stacks: list[traceback.StackSummary] = []
        while not self._answered.wait(self._block_ms / 1_000):
            if self._stopping.is_set():
                return
            if not self._loop.is_running():
                # The program runs the loop from time to time, and does something else now. That blocks nobody.
                while not (self._answered.wait(PERIOD_SECONDS) or self._loop.is_closed()):
                    pass
                return
            stack = self._stack()
            if stack is not None and len(stacks) < SAMPLES_MAX:
                stacks.append(stack)
        if self._stopping.is_set():
            return
        lag_ms = (self._answered_at - began) * 1_000
        self.lag.observe(lag_ms)
        self._judge(lag_ms)
        if stacks:
            self._describe(_most_frequent(stacks), lag_ms, (self._answered_cpu - began_cpu) * 1_000)
        while self._pauses:
            log.log(
                self._level,
                "a garbage collection of generation %d stopped the broker for %.0f ms",
                *self._pauses.popleft(),
            )

    def _stack(self) -> traceback.StackSummary | None:
        """Where the loop's thread is; None where it runs no callback, and only the processor is missing."""
        frame: FrameType | None = sys._current_frames().get(self._ident)
        if frame is None or Path(frame.f_code.co_filename).name in _IDLE:
            return None
        return traceback.StackSummary.extract(traceback.walk_stack(frame), limit=FRAMES_SHOWN, lookup_lines=False)

    def _describe(self, stack: traceback.StackSummary, lag_ms: float, cpu_ms: float) -> None:
        """Log what blocked the loop."""
        new = self._new(f"{stack[0].filename}:{stack[0].lineno}", cpu_ms)
        stack.reverse()
        log.log(
            self._level if new else logging.DEBUG,
            "the event loop was blocked for %.0f ms, with %.0f ms of processor time, mostly in:\n%s",
            lag_ms,
            cpu_ms,
            "".join(stack.format()).rstrip(),
            extra={
                "answered_at": self._answered_at,
                "lag_ms": lag_ms,
                "cpu_ms": cpu_ms,
                "files": [frame.filename for frame in stack],
            },
        )

    def _new(self, place: str, cpu_ms: float) -> bool:
        """Whether a place is to be logged: it used the processor, and was not logged just now with about as much.

        Without processor time, the machine or another thread is the cause more often than the place.
        """
        now = time.monotonic()
        when, before_ms = self._logged.get(place, (-QUIET_SECONDS, 0.0))
        if cpu_ms < self._block_ms / 2 or (now - when < QUIET_SECONDS and cpu_ms < 2 * before_ms):
            return False
        if len(self._logged) >= PLACES_MAX:
            self._logged.clear()
        self._logged[place] = (now, cpu_ms)
        return True

    def _judge(self, lag_ms: float) -> None:
        """Report whether the loop is slow all the time."""
        now = time.monotonic()
        self._recent.append((now, lag_ms))
        while self._recent[0][0] < now - SLOW_SECONDS:
            self._recent.popleft()
        if not self._lag_ms_max:
            return
        typical = median(lag for _, lag in self._recent) if len(self._recent) >= SLOW_LAGS_MIN else 0.0
        slow = typical > (self._lag_ms_max / 2 if self._slow else self._lag_ms_max)
        if slow != self._slow:
            self._slow = slow
            sentence = f"the event loop is slow: it answers after {typical:.0f} ms" if slow else None
            self._loop.call_soon_threadsafe(self._report, "event_loop", sentence)

    # On the loop

    def _answer(self) -> None:
        self._answered_at, self._answered_cpu = time.monotonic(), time.thread_time()
        self._answered.set()

    # In the thread that collects

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        """Record a long garbage collection: it stops every thread, whichever thread it runs in."""
        if phase == "start":
            self._collecting_since = time.monotonic()
            return
        took_ms = (time.monotonic() - self._collecting_since) * 1_000
        if took_ms >= self._block_ms:
            # The watchdog logs it: this may be in the middle of anything, such as a handler of logs.
            self._pauses.append((info["generation"], took_ms))


def _most_frequent(stacks: list[traceback.StackSummary]) -> traceback.StackSummary:
    """The first of the stacks whose innermost place is the most frequent one."""
    places = Counter((stack[0].filename, stack[0].lineno) for stack in stacks)
    (place, _), *_ = places.most_common(1)
    return next(stack for stack in stacks if (stack[0].filename, stack[0].lineno) == place)
