"""A rate limit: tokens arrive at a rate, up to the tokens of one second."""

from __future__ import annotations


class Allowance:
    """Tokens that arrive at `rate` per second.

    The balance may become negative; then no token is left until it is positive again.
    """

    def __init__(self, rate: int, now_ms: int) -> None:
        self.rate = rate
        self._tokens = float(rate)
        self._at_ms = now_ms

    def left(self, now_ms: int) -> int:
        """The number of whole tokens; 0 while the balance is negative."""
        self._fill(now_ms)
        return max(int(self._tokens), 0)

    def take(self, count: int, now_ms: int) -> None:
        """Consume tokens; the balance may become negative. A negative count returns tokens."""
        self._fill(now_ms)
        self._tokens = min(self._tokens - count, float(self.rate))

    def wait_ms(self, now_ms: int) -> int:
        """The time until a whole token is available; 0 if there is one now."""
        self._fill(now_ms)
        return max(0, -int((self._tokens - 1) * 1_000 // self.rate))

    def _fill(self, now_ms: int) -> None:
        # A clock that was set back must not remove tokens.
        passed = max(0, now_ms - self._at_ms)
        self._at_ms = now_ms
        self._tokens = min(self._tokens + passed * self.rate / 1_000, float(self.rate))
