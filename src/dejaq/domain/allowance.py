"""How much may pass in a time: tokens that come in at a rate, up to one second's worth."""

from __future__ import annotations


class Allowance:
    """Tokens that come in at `rate` a second. Taking may overdraw them; then none is left until that is paid."""

    def __init__(self, rate: int, now_ms: int) -> None:
        self.rate = rate
        self._tokens = float(rate)
        self._at_ms = now_ms

    def left(self, now_ms: int) -> int:
        """How many whole tokens there are; 0 while overdrawn."""
        self._fill(now_ms)
        return max(int(self._tokens), 0)

    def take(self, count: int, now_ms: int) -> None:
        """Take tokens, be they there or not; a negative count gives some back."""
        self._fill(now_ms)
        self._tokens = min(self._tokens - count, float(self.rate))

    def wait_ms(self, now_ms: int) -> int:
        """How long until a whole token is there; 0 when there is one now."""
        self._fill(now_ms)
        return max(0, -int((self._tokens - 1) * 1_000 // self.rate))

    def _fill(self, now_ms: int) -> None:
        # A clock that was set back must not take tokens away.
        passed = max(0, now_ms - self._at_ms)
        self._at_ms = now_ms
        self._tokens = min(self._tokens + passed * self.rate / 1_000, float(self.rate))
