"""The measurements of a consumer: how many messages, how late, and when the last one was deleted."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized

from bench.harness.payload import lateness_us


@dataclass(slots=True)
class Tally:
    """Counts for one consumer; `delivered` is shared by all consumers of a run, so that they stop together."""

    delivered: Synchronized[int]
    target: int
    deadline_ns: int
    timed: bool
    # Evaluated only at the end, so that measuring costs almost nothing while messages arrive. Joined, because the
    # garbage collector does not search bytes, but would search lists of them.
    seen: list[tuple[int, int, bytes]] = field(default_factory=list)
    count: int = 0
    first_ns: int = 0
    last_ns: int = 0

    def taken(self, bodies: Sequence[bytes]) -> None:
        """Record that user code has these messages now."""
        now_ns = time.time_ns()
        if not self.first_ns:
            self.first_ns = now_ns
        if self.timed:
            self.seen.append((now_ns, len(bodies), b"".join(bodies)))

    def deleted(self, count: int) -> None:
        """Record that so many messages are deleted."""
        self.last_ns = time.time_ns()
        self.count += count
        with self.delivered.get_lock():
            self.delivered.value += count

    def late_us(self) -> array[int]:
        """How late each message was when user code had it."""
        late = array("q")
        for now_ns, count, joined in self.seen:
            size = len(joined) // count
            bodies = [joined[start : start + size] for start in range(0, len(joined), size)]
            late.extend(lateness_us(bodies, now_ns // 1_000))
        return late

    def done(self) -> bool:
        """Whether all messages are delivered, or the time is over."""
        return self.delivered.value >= self.target or time.time_ns() > self.deadline_ns
