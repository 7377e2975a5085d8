"""How fast one consumer is: what it settles a second, and how long messages wait in it for user code."""

from __future__ import annotations

import math

# The past counts less and less; after this long about a third.
MEMORY_MS = 2_000


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
