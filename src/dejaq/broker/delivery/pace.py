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
# A consumer that is behind may hold as many messages as it settles within `WAIT_MS`, and so many at least; one more for
# each message that user code got within `WAIT_MS`, one less for each other one that it got less than `FRESH_MS` ago;
# and twice as many if nothing was settled for so long, or `GROW_WAITING_MS` when messages wait there.
LATE_ROWS, WAIT_MS, FRESH_MS = 64, 100, 250
GROW_MS, GROW_WAITING_MS = 250, 1_000
# A lease call for fewer late messages than half of these waits so long after the last one.
REFILL_MS = 100


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
    """How many messages its consumer may hold while it is behind: as many as user code gets within `WAIT_MS`.

    A consumer is behind when the messages that it leases are late, or when they wait there for user code. It returns
    what user code has not seen when it closes: those were leased in vain, by it and perhaps by the next consumer.
    """

    def __init__(self, now_ms: int) -> None:
        self._rows = self._least = LATE_ROWS
        # Whether the last lease was late; not known at first. Whether settled messages had waited for user code, and
        # whether this was so a moment ago.
        self.late, self._waiting, self._waits = True, False, False
        # Whether there is no room for a lease call.
        self.full = False
        self._changed_ms = self._counted_ms = now_ms
        self._counted = self._leased_ms = self._look_ms = 0

    @property
    def bounded(self) -> bool:
        """Whether the consumer is behind."""
        return self.late or self._waits

    def leased(self, last_ms: int, now_ms: int, *, full: bool = False) -> None:
        """A lease found messages up to this time, or would have found them; there may be more if it was `full`."""
        self.late, self._leased_ms = last_ms < now_ms - LATE_MS, now_ms
        if full and not self.bounded:
            self._rows = min(2 * self._rows, limits.CREDIT_ROWS_MAX)

    def settled(self, rows: int, wait_ms: float, taken_ms: float, *, held: int, now_ms: int) -> None:
        """Rows were settled that user code got `wait_ms` after they were there and due, and had for `taken_ms`.

        So many rows are `held` still.
        """
        self._counted += rows
        passed_ms = now_ms - self._counted_ms
        if passed_ms >= WAIT_MS:
            self._least = max(self._counted * WAIT_MS // passed_ms, LATE_ROWS)
            self._counted, self._counted_ms = 0, now_ms
        self._waiting = wait_ms >= WAIT_MS
        self._waits = self._waiting and taken_ms < FRESH_MS
        self._changed_ms = now_ms
        if self._waits:
            self._rows = min(self._rows, held) - rows
        elif not self._waiting and self._rows < 2 * (held + rows) + LATE_ROWS:
            self._rows += rows
        self._rows = min(max(self._rows, self._least), limits.CREDIT_ROWS_MAX)

    def room(self, held: int, now_ms: int) -> int:
        """How many rows to lease, 0 while they would be too few for a lease call.

        A consumer that is not behind gets all of its messages, but also in steps: others may return a thousand late
        ones at once.
        """
        if not self.bounded:
            self.full = False
            return max(self._rows - held, LATE_ROWS)
        grow_ms = GROW_WAITING_MS if self._waiting else GROW_MS
        if now_ms >= self._changed_ms + grow_ms:
            self._rows = min(2 * self._rows, limits.CREDIT_ROWS_MAX)
            self._changed_ms = now_ms
        growth_ms = self._changed_ms + grow_ms
        left = self._rows - held
        refill_ms = self._leased_ms + REFILL_MS
        self.full = left <= 0 or (left < min(self._rows // 2, 2 * LATE_ROWS) and now_ms < refill_ms)
        self._look_ms = growth_ms if left <= 0 else min(growth_ms, refill_ms)
        return 0 if self.full else left

    def next_look(self) -> int | None:
        """When there may be room, if nothing is settled until then; None where this is not what the consumer lacks."""
        return self._look_ms if self.full else None
