"""Limits the calls that move large bodies, in total and per client; a call that does not progress loses its place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dejaq import limits
from dejaq.domain.context import CallContext
from dejaq.errors import Code, error_of
from dejaq.timekeeper.clock import Clock

# How long a client should wait when too many calls are running.
THROTTLED_MS = 200
# A body may take the time that one part may take, and the time of its bytes at this speed.
BYTES_PER_SECOND_MIN = 100_000


@dataclass(slots=True, eq=False)
class Slot:
    """The place that one call occupies."""

    what: str
    caller: str
    clock: Clock
    moved: float
    deadline: float

    @property
    def lost(self) -> bool:
        """Whether the call has not progressed for too long, or takes too long."""
        now = self.clock.monotonic()
        return now > self.deadline or now - self.moved > limits.PART_MS_MAX / 1_000

    def move(self) -> None:
        """Record that a part was transferred; raises UNAVAILABLE when it came too late."""
        if self.lost:
            raise error_of(Code.UNAVAILABLE, f"the {self.what} was too slow and lost its place; begin it again")
        self.moved = self.clock.monotonic()


class Slots:
    """The running calls of one kind."""

    def __init__(self, what: str, clock: Clock, *, total: int, each: int) -> None:
        self._what = what
        self._clock = clock
        self._total = total
        self._each = each
        self._taken: set[Slot] = set()

    def __len__(self) -> int:
        return len(self._taken)

    @contextmanager
    def take(self, context: CallContext, size: int = limits.LARGE_BODY_BYTES_MAX) -> Iterator[Slot]:
        """A place for a body of that size; raises OVERLOADED when none is free."""
        # Callers in this process have no address that distinguishes them.
        caller = "" if context.in_process else context.peer
        moving = [slot for slot in self._taken if not slot.lost]
        own = sum(slot.caller == caller for slot in moving)
        if len(moving) >= self._total or (caller and own >= self._each):
            whose = "" if len(moving) >= self._total else " of this client"
            raise error_of(
                Code.OVERLOADED, f"{len(moving)} {self._what}s{whose} are running", throttled_ms=THROTTLED_MS
            )
        now = self._clock.monotonic()
        deadline = now + limits.PART_MS_MAX / 1_000 + size / BYTES_PER_SECOND_MIN
        slot = Slot(self._what, caller, self._clock, moved=now, deadline=deadline)
        self._taken.add(slot)
        try:
            yield slot
        finally:
            self._taken.discard(slot)
