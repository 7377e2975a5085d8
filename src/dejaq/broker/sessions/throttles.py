"""How much each client may change in each topic that bounds it."""

from __future__ import annotations

from dejaq.domain.allowance import Allowance
from dejaq.domain.topic import Topic
from dejaq.errors import Code, error_of
from dejaq.timekeeper.clock import Clock

# Beyond this many, the allowances that are full again are forgotten.
_KEPT_MAX = 1_000


class Throttles:
    """The allowances of clients, by topic and by the client's name, however many sessions it has."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._allowances: dict[tuple[int, str], Allowance] = {}

    def take(self, topic: Topic, client: str, rows: int) -> int:
        """Count a change to so many messages; how long the client should wait before its next, in ms.

        A client that has not waited is refused with OVERLOADED, which says how long to wait.
        """
        rate = topic.settings.client_rate
        if not rate:
            return 0
        now = self._clock.now_ms()
        key = (topic.number, client)
        allowance = self._allowances.get(key)
        if allowance is None or allowance.rate != rate:
            self._forget_idle(now)
            allowance = self._allowances[key] = Allowance(rate, now)
        wait = allowance.wait_ms(now)
        if wait:
            raise error_of(
                Code.OVERLOADED,
                f"client {client!r} is above its {rate} messages per second in topic {topic.name!r}; nothing changed",
                throttled_ms=wait,
            )
        allowance.take(rows, now)
        return allowance.wait_ms(now)

    def _forget_idle(self, now: int) -> None:
        if len(self._allowances) >= _KEPT_MAX:
            self._allowances = {key: kept for key, kept in self._allowances.items() if kept.left(now) < kept.rate}
