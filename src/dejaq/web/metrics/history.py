"""Rates and lateness over time: the differences between metrics that were read one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from dejaq.web.metrics.scraping import BOUNDS_MS, EVENTS, TopicCounters

# Twenty minutes in steps of five seconds, and twelve hours in minutes.
FINE_MS, FINE_KEPT = 5_000, 240
COARSE_MS, COARSE_KEPT = 60_000, 720
TOPICS_MAX = 100
# Rates are means of this time.
RATE_MS = 15_000
_Step = tuple[int, TopicCounters]


@dataclass(slots=True)
class TopicHistory:
    """The steps of one topic in which something was counted."""

    fine: deque[_Step] = field(default_factory=lambda: deque(maxlen=FINE_KEPT))
    coarse: deque[_Step] = field(default_factory=lambda: deque(maxlen=COARSE_KEPT))

    def add(self, now_ms: int, counted: TopicCounters) -> None:
        """Add what was counted until now."""
        for steps, length in ((self.fine, FINE_MS), (self.coarse, COARSE_MS)):
            start = now_ms // length * length
            if not steps or steps[-1][0] != start:
                steps.append((start, TopicCounters()))
            steps[-1][1].add(counted)


@dataclass(frozen=True, slots=True)
class TopicRates:
    """Messages per second by what happened to them, and the lateness in milliseconds that 99 % do not exceed (None when
    none was pushed).
    """

    created: float
    leased: float
    deleted: float
    edited: float
    cancelled: float
    released: float
    expired: float
    dead_lettered: float
    redriven: float
    discarded: float
    p99_ms: float | None


@dataclass(frozen=True, slots=True)
class LatenessOverTime:
    """How many messages of each step were late by how much, and percentiles of each step in milliseconds."""

    step_ms: int
    bounds_ms: tuple[int, ...]
    starts: list[int]
    counts: list[list[int]]
    p50_ms: list[float | None]
    p99_ms: list[float | None]
    p999_ms: list[float | None]


class MetricsHistory:
    """What was counted of every topic in the last hours."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicHistory] = {}
        self._last: dict[str, dict[str, TopicCounters]] = {}
        self.began_ms: int | None = None
        self.read_ms: int | None = None
        # Why the metrics cannot be read now; empty when they can.
        self.problem = "no metrics have been read yet"

    def add(self, now_ms: int, brokers: dict[str, dict[str, TopicCounters]]) -> None:
        """Add what the brokers have counted so far."""
        summed: dict[str, TopicCounters] = {}
        for broker, topics in brokers.items():
            before = self._last.get(broker)
            if before is not None:
                for topic, counters in topics.items():
                    summed.setdefault(topic, TopicCounters()).add(counters.since(before.get(topic)))
        self._last = {broker: topics for broker, topics in {**self._last, **brokers}.items() if topics}
        for topic, counted in summed.items():
            if counted.is_quiet:
                continue
            if topic not in self._topics and len(self._topics) >= TOPICS_MAX:
                quietest = min(self._topics, key=lambda name: self._topics[name].coarse[-1][0])
                del self._topics[quietest]
            self._topics.setdefault(topic, TopicHistory()).add(now_ms, counted)
        self.began_ms = now_ms if self.began_ms is None else self.began_ms
        self.read_ms = now_ms
        self.problem = ""

    def rates(self, topics: Collection[str]) -> dict[str, TopicRates]:
        """The rates of these topics; a topic of which nothing was counted lately is absent."""
        found = {}
        now = self.read_ms or 0
        for name in topics:
            history = self._topics.get(name)
            recent = _sum(history.fine, now - RATE_MS) if history is not None else None
            if recent is not None and not recent.is_quiet:
                rates = {event: recent.events.get(event, 0) * 1_000 / RATE_MS for event in EVENTS}
                found[name] = TopicRates(**rates, p99_ms=percentile(recent.late, 0.99))
        return found

    def lateness(self, topics: Collection[str], *, fine: bool) -> LatenessOverTime:
        """The lateness of these topics together, in steps of five seconds or of minutes."""
        length, kept = (FINE_MS, FINE_KEPT) if fine else (COARSE_MS, COARSE_KEPT)
        first = (self.read_ms or 0) // length * length - length * (kept - 1)
        steps: dict[int, TopicCounters] = {}
        for name in topics:
            history = self._topics.get(name)
            if history is None:
                continue
            for start, counted in history.fine if fine else history.coarse:
                if start >= first and any(counted.late):
                    steps.setdefault(start, TopicCounters()).add(counted)
        starts = sorted(steps)
        late = [steps[start].late for start in starts]
        return LatenessOverTime(
            step_ms=length,
            bounds_ms=BOUNDS_MS,
            starts=starts,
            counts=[[round(value) for value in row] for row in late],
            p50_ms=[percentile(row, 0.5) for row in late],
            p99_ms=[percentile(row, 0.99) for row in late],
            p999_ms=[percentile(row, 0.999) for row in late],
        )


def _sum(steps: Iterable[_Step], since_ms: int) -> TopicCounters:
    total = TopicCounters()
    for start, counted in steps:
        if start > since_ms:
            total.add(counted)
    return total


def percentile(late: Collection[float], share: float) -> float | None:
    """The lateness in milliseconds that a share of the messages does not exceed, interpolated within its bucket."""
    total = sum(late)
    if total <= 0:
        return None
    wanted, seen = share * total, 0.0
    bounds = [0, *BOUNDS_MS, BOUNDS_MS[-1]]
    for count, (low, high) in zip(late, pairwise(bounds), strict=True):
        if seen + count >= wanted and count > 0:
            return round(low + (high - low) * (wanted - seen) / count, 3)
        seen += count
    return float(BOUNDS_MS[-1])
