"""How much of a topic by priority one consumer may hold: so little that something urgent soon overtakes it."""

from __future__ import annotations

from collections import deque

# Whatever its pace, a consumer may hold so many rows.
AHEAD_ROWS = 16
# And as many as it settled in this time, if that is more: so much work is ahead of what comes now.
AHEAD_MS = 100


class Ahead:
    """Counts what a consumer settled just now."""

    def __init__(self) -> None:
        self._settled: deque[tuple[int, int]] = deque()
        self._rows = 0

    def settled(self, rows: int, now: int) -> None:
        """Rows were settled."""
        self._settled.append((now, rows))
        self._rows += rows

    def rows_max(self, now: int) -> int:
        """How many rows the consumer may hold."""
        while self._settled and self._settled[0][0] <= now - AHEAD_MS:
            self._rows -= self._settled.popleft()[1]
        return max(AHEAD_ROWS, self._rows)
