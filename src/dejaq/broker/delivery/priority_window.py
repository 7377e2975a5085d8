"""How much of a topic by priority one consumer may hold: so little that something urgent soon overtakes it."""

from __future__ import annotations

from collections import deque

# Whatever its pace, a consumer may hold so many rows.
WINDOW_ROWS_MIN = 16
# And as many as it settled in so long, if that is more: so much work is ahead of what comes now.
STRETCH_MS = 100
# The best interval within this time counts, so that a pause of the machine does not reset the window.
MEMORY_MS = 1_000


class PriorityWindow:
    """Counts what a consumer settled just now."""

    def __init__(self) -> None:
        # (stretch, rows settled in it), oldest first.
        self._stretches: deque[tuple[int, int]] = deque()

    def settled(self, rows: int, now: int) -> None:
        """Rows were settled."""
        stretch = now // STRETCH_MS
        if self._stretches and self._stretches[-1][0] >= stretch:
            last, before = self._stretches.pop()
            self._stretches.append((last, before + rows))
        else:
            self._stretches.append((stretch, rows))

    def rows_max(self, now: int) -> int:
        """How many rows the consumer may hold."""
        while self._stretches and self._stretches[0][0] <= (now - MEMORY_MS) // STRETCH_MS:
            self._stretches.popleft()
        return max([WINDOW_ROWS_MIN, *[rows for _, rows in self._stretches]])
