"""How fast one consumer is: what it settles a second, how long messages wait in it for user code, and how many late
messages it may hold therefore.
"""

from __future__ import annotations

import math

from dejaq import limits

# The past counts less and less; after this long about a third.
MEMORY_MS = 2_000
# A lease whose last message was due so long ago is late.
LATE_MS = 250
# A consumer may hold so many late messages at first; so many more for each message that user code got within
# `WAIT_MS`; and twice as many if nothing was settled for so long, or `GROW_WAITING_MS` when messages wait there.
LATE_ROWS, LATE_ROWS_PER_ROW, WAIT_MS = 128, 4, 100
GROW_MS, GROW_WAITING_MS = 250, 1_000


class Pace:
    """Counts what is settled, and reads as a rate."""

    def __init__(self, now_ms: int) -> None:
        self.rate = 0.0
        self.wait_ms = 0.0
        # Whether anything was settled between the last two readings.
        self.settling = False
        self._rows = 0
        self._waited_ms = 0.0
        self._at_ms = now_ms

    def settled(self, rows: int, wait_ms: float) -> None:
        """Rows were settled that user code got `wait_ms` after they were there and due."""
        self._rows += rows
        self._waited_ms += rows * max(wait_ms, 0.0)

    def read(self, now_ms: int) -> None:
        """Bring `rate` and `wait_ms` up to date."""
        passed = now_ms - self._at_ms
        if passed <= 0:
            return
        share = 1 - math.exp(-passed / MEMORY_MS)
        self.rate += (1_000 * self._rows / passed - self.rate) * share
        self.settling = self._rows > 0
        if self._rows:
            self.wait_ms += (self._waited_ms / self._rows - self.wait_ms) * max(share, 0.5)
        self._rows, self._waited_ms, self._at_ms = 0, 0.0, now_ms


class LateRows:
    """How many late messages its consumer may hold: few at first, and more as long as user code gets them at once.

    A consumer that is behind has all that it holds at once, and returns what user code has not seen when it closes.
    Every message that waits there is leased in vain then, by it and perhaps by the next consumer.
    """

    def __init__(self, now_ms: int) -> None:
        self._rows = LATE_ROWS
        # Whether the last lease was late; not known at first. Whether settled messages had waited for user code.
        self.late, self._waiting = True, False
        # Whether there is no room for a lease call.
        self.full = False
        self._changed_ms = now_ms

    def leased(self, last_ms: int, now_ms: int) -> None:
        """A lease found messages up to this time, or would have found them."""
        self.late = last_ms < now_ms - LATE_MS

    def settled(self, rows: int, wait_ms: float, now_ms: int) -> None:
        """Rows were settled that user code got `wait_ms` after they were there and due."""
        self._waiting = wait_ms >= WAIT_MS
        self._changed_ms = now_ms
        if not self._waiting:
            self._rows = min(self._rows + LATE_ROWS_PER_ROW * rows, limits.CREDIT_ROWS_MAX)

    def room(self, held: int, now_ms: int) -> int | None:
        """How many rows to lease, 0 while they would be too few for a lease call; None for no bound."""
        if not self.late:
            self.full = False
            return None
        if now_ms >= self._growth_ms:
            self._rows = min(2 * self._rows, limits.CREDIT_ROWS_MAX)
            self._changed_ms = now_ms
        left = self._rows - held
        self.full = left < min(self._rows // 2, LATE_ROWS)
        return 0 if self.full else left

    def next_growth(self) -> int | None:
        """When it may hold more if nothing is settled until then; None without a bound."""
        return self._growth_ms if self.late else None

    @property
    def _growth_ms(self) -> int:
        return self._changed_ms + (GROW_WAITING_MS if self._waiting else GROW_MS)
