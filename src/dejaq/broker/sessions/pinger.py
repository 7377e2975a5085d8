"""What live clients measured of their way to this broker: latency and the offset of their clocks."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite


@dataclass(frozen=True, slots=True)
class PingReport:
    """One client's last report."""

    latency_ms: float = 0.0
    clock_offset_ms: float = 0.0


class Pinger:
    """The last reading of every session."""

    def __init__(self) -> None:
        self._readings: dict[int, PingReport] = {}

    def report(self, session: int, latency_ms: float, clock_offset_ms: float) -> None:
        """Take a client's report; one that is not a number counts as none."""
        if isfinite(latency_ms) and isfinite(clock_offset_ms):
            self._readings[session] = PingReport(latency_ms, clock_offset_ms)

    def forget(self, session: int) -> None:
        """Drop what a session reported that is over."""
        self._readings.pop(session, None)

    def reading(self, session: int) -> PingReport:
        """The last report of a session, zeros before the first."""
        return self._readings.get(session, PingReport())

    def worst(self) -> PingReport:
        """The largest latency and the largest offset, either way, of all sessions."""
        readings = list(self._readings.values())
        return PingReport(
            max((reading.latency_ms for reading in readings), default=0.0),
            max((reading.clock_offset_ms for reading in readings), key=abs, default=0.0),
        )
