"""The terms of a subscription, and how far ahead of the present its leases reach."""

from __future__ import annotations

from dataclasses import dataclass

from dejaq import limits
from dejaq.domain.topic import Topic
from dejaq.domain.transitions import check_lease
from dejaq.errors import Code, InvalidArgument, error_of
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.timekeeper.alarms import Alarms

# Among so many leasers, a window in which there are at most `FEW_ROWS` is twice as long, among twice as many three
# times, up to this factor.
LEASERS_PER_WINDOW, WINDOW_FACTOR_MAX, FEW_ROWS = 64, 4, 16
# On a storage that other brokers use too, lease calls of a fleet take up to some hundred milliseconds. There the window
# is up to this many times as long, and messages are gone for at least this part of it before their time.
SHARED_FACTOR_MAX, SHARED_LEAD = 6, 0.4
# A full lease of so many rows says that more is coming than one lease can take.
MANY_ROWS = 512
# A consumer that was opened less than `YOUNG_MS` ago may be closed soon, and returns then what it has not handed over.
# If there are more than `YOUNG_ROWS` messages in its window, its leases reach ahead by a quarter of the time since then
# and by at least `YOUNG_REACH_MS`.
YOUNG_MS, YOUNG_ROWS, YOUNG_REACH_MS = 2_000, 64, 125


@dataclass(frozen=True, slots=True)
class Flow:
    """The terms of a subscription."""

    credit_rows: int
    credit_bytes: int
    lease_ms: int
    prefetch_ms: int
    # How far the window may grow when more is coming than one lease can take.
    prefetch_ms_max: int = 0
    # The most messages per second; 0 for no limit.
    rate: int = 0

    @property
    def lead_ms(self) -> int:
        """How long before its time a message is gone for; the rest of the window gathers more into one lease."""
        return self.prefetch_ms - self.prefetch_ms // 4


def flow_of(proto: carrier.Subscribe, topic: Topic, prefetch_ms_max: int) -> Flow:
    """The terms that a client asks for, within the limits of the topic and of the broker."""
    code = check_lease(proto.lease_ms, max_lease_ms=topic.settings.max_lease_ms)
    if code is not Code.OK:
        raise error_of(
            code,
            f"a lease of {proto.lease_ms} ms is not from {limits.LEASE_MS_MIN} to {topic.settings.max_lease_ms} ms",
        )
    if not 1 <= proto.credit_rows <= limits.CREDIT_ROWS_MAX:
        raise InvalidArgument(f"credit_rows={proto.credit_rows} is not from 1 to {limits.CREDIT_ROWS_MAX}")
    if proto.prefetch_ms > limits.PREFETCH_MS_MAX:
        raise InvalidArgument(f"prefetch_ms={proto.prefetch_ms} is above {limits.PREFETCH_MS_MAX}")
    if proto.weight > limits.WEIGHT_MAX:
        raise InvalidArgument(f"weight={proto.weight} is above {limits.WEIGHT_MAX}")
    if proto.rate > limits.CONSUMER_RATE_MAX:
        raise InvalidArgument(f"rate={proto.rate} is above {limits.CONSUMER_RATE_MAX}")
    if len(proto.rack) > limits.RACK_CHARS_MAX or not proto.rack.isprintable():
        raise InvalidArgument(f"a rack is at most {limits.RACK_CHARS_MAX} printable characters")
    return Flow(
        credit_rows=proto.credit_rows,
        credit_bytes=proto.credit_bytes or limits.CREDIT_BYTES_DEFAULT,
        lease_ms=proto.lease_ms,
        prefetch_ms=0 if topic.by_priority else min(proto.prefetch_ms, prefetch_ms_max),
        prefetch_ms_max=0 if topic.by_priority else prefetch_ms_max,
        rate=proto.rate,
    )


class LookAhead:
    """How far ahead the leases of one consumer reach: further before a spike, and less far just after it was opened."""

    def __init__(self, flow: Flow, alarms: Alarms, now_ms: int, *, shared: bool = False) -> None:
        """With `shared`, other brokers use the storage too."""
        self._flow, self._alarms, self._opened_ms, self._shared = flow, alarms, now_ms, shared
        self._window_ms = flow.prefetch_ms
        # Whether more than `YOUNG_ROWS` messages were in the window just after it was opened.
        self._dense = False

    def set_flow(self, flow: Flow) -> None:
        """Begin with the window of these terms."""
        self._flow, self._window_ms = flow, flow.prefetch_ms

    def reach_ms(self, now: int) -> int:
        """How far a lease call looks ahead."""
        if self._is_careful(now):
            return min(self._window_ms, max(YOUNG_REACH_MS, (now - self._opened_ms) // 4))
        return self._window_ms

    def lead_ms(self, now: int) -> int:
        """How long before its time a message is gone for."""
        if self._is_careful(now):
            return min(self._flow.lead_ms, self.reach_ms(now) // 2)
        if self._shared:
            return max(self._flow.lead_ms, int(SHARED_LEAD * min(self._window_ms, self._shortest_ms)))
        return self._flow.lead_ms

    def probes(self, now: int) -> bool:
        """Whether a lease call is to find out first whether there are more than `YOUNG_ROWS` messages."""
        return not self._dense and self._flow.prefetch_ms > YOUNG_REACH_MS and self._is_young(now)

    def found_many(self) -> None:
        """A call that probes has found as many messages as it may lease."""
        self._dense = True

    def adapt(self, window_ms: int, *, got: int, asked: int) -> bool:
        """Look further ahead while leases come back full, so that a spike is on the consumer before it is due.

        Returns whether the window has grown. Calls overlap: only a call that covered the present window shows that a
        smaller window is enough.
        """
        if got >= asked:
            if got < MANY_ROWS:
                return False
            wider = min(2 * window_ms, max(self._shortest_ms, self._flow.prefetch_ms_max))
            if wider > self._window_ms:
                self._window_ms = wider
                return True
        elif window_ms >= self._window_ms:
            least = self._shortest_ms if got <= FEW_ROWS else self._flow.prefetch_ms
            self._window_ms = max(self._window_ms // 2, least)
        return False

    def found_nothing(self) -> None:
        """Nothing was due when it was checked."""
        self._window_ms = max(self._window_ms // 2, self._shortest_ms)

    def _is_careful(self, now: int) -> bool:
        return self._dense and self._is_young(now)

    def _is_young(self, now: int) -> bool:
        return now < self._opened_ms + YOUNG_MS

    @property
    def _shortest_ms(self) -> int:
        """The window of a consumer that has few messages.

        Among many consumers, each lease call would find one message; in a longer window it finds some.
        """
        factor_max = SHARED_FACTOR_MAX if self._shared else WINDOW_FACTOR_MAX
        factor = min(1 + self._alarms.count // LEASERS_PER_WINDOW, factor_max)
        return min(factor * self._flow.prefetch_ms, max(self._flow.prefetch_ms, self._flow.prefetch_ms_max))
