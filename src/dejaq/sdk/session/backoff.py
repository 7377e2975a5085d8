"""How long to wait before the next try."""

from __future__ import annotations

from random import Random

FIRST_SECONDS = 0.05
LONGEST_SECONDS = 1.0


class RetryDelays:
    """Waits that double up to a bound, each shortened at random so that clients do not all
    reconnect at the same time.
    """

    def __init__(self, random: Random, *, deadline: float) -> None:
        self._random = random
        # Several tries must fit into the deadline, even when it is short.
        self._longest = min(LONGEST_SECONDS, deadline / 4)
        self._first = min(FIRST_SECONDS, self._longest)
        self._next = self._first

    def seconds(self, at_least_ms: int = 0) -> float:
        """The next wait, at least as long as the broker asked for."""
        wait = self._next * (0.5 + self._random.random() / 2)
        self._next = min(self._next * 2, self._longest)
        return max(wait, at_least_ms / 1000)

    def reset(self) -> None:
        """Start again with the shortest wait."""
        self._next = self._first
