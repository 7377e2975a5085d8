"""The conditions of alarms, as plain functions over the facts of the last hour and the gaps of the lake.

A condition is evaluated on what the lake contains, by the times of the journal, so a pipeline that starts again finds
the same conditions. Only `stopped` compares with the wall clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

from dejaq.pipeline.lake.gaps import Gap

MINUTE_MS = 60_000
HOUR_MINUTES = 60
# A budget that is used this many times faster than planned would be used up after two days of thirty.
BURN_RATE_MAX = 14.4
_SHORT_MINUTES = 5
# With fewer deliveries a single late one would be an alarm.
_DELIVERIES_MIN = 20
# A spike is so many messages in a minute, so many times the mean, and so many deviations above it.
_SPIKE_MESSAGES_MIN, _SPIKE_FACTOR, _SPIKE_DEVIATIONS = 100, 3.0, 6.0
_SPIKE_HISTORY_MINUTES_MIN = 10
KINDS = ("lateness", "early", "loss", "spike", "stopped")

Minute = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that a person should know of: its kind, the topic or origin concerned, and a sentence."""

    kind: str
    subject: str
    text: str

    @property
    def name(self) -> str:
        """What distinguishes it from other conditions."""
        return f"{self.kind}/{self.subject}"


def of_facts(minutes: Iterable[Minute], *, objective: float) -> list[Condition]:
    """The conditions of each topic. `objective` is the share of deliveries that must be less than a second late."""
    by_topic: dict[str, list[Minute]] = defaultdict(list)
    for minute in minutes:
        by_topic[minute["topic"]].append(minute)
    newest = max((minute["minute_ms"] for rows in by_topic.values() for minute in rows), default=0)
    found: list[Condition] = []
    for topic, rows in sorted(by_topic.items()):
        found += _lateness(topic, rows, newest, objective)
        early = sum(row["early"] for row in _since(rows, newest, _SHORT_MINUTES))
        if early:
            found.append(Condition("early", topic, f"{early:,} deliveries of {topic} were before their time"))
        found += _spike(topic, rows, newest)
    return found


def _since(rows: Sequence[Minute], newest_ms: int, minutes: int) -> list[Minute]:
    return [row for row in rows if row["minute_ms"] > newest_ms - minutes * MINUTE_MS]


def _lateness(topic: str, rows: Sequence[Minute], newest_ms: int, objective: float) -> list[Condition]:
    """The budget burns when both a long and a short stretch show it: neither one bad minute nor a past hour."""
    shares = []
    for stretch in (HOUR_MINUTES, _SHORT_MINUTES):
        chosen = _since(rows, newest_ms, stretch)
        delivered, late = (sum(row[name] for row in chosen) for name in ("delivered", "late"))
        if delivered < _DELIVERIES_MIN:
            return []
        shares.append(late / delivered)
    budget = max(1.0 - objective, 1e-9)
    if min(shares) / budget < BURN_RATE_MAX:
        return []
    text = (
        f"{shares[1]:.1%} of the deliveries of {topic} in the last {_SHORT_MINUTES} minutes and {shares[0]:.1%} in the "
        f"last hour were late by a second or more; the objective allows {budget:.2%}"
    )
    return [Condition("lateness", topic, text)]


def _spike(topic: str, rows: Sequence[Minute], newest_ms: int) -> list[Condition]:
    """Whether the last whole minute has many more messages than the minutes before it."""
    created = {row["minute_ms"]: row["created"] for row in rows}
    last_ms = newest_ms - MINUTE_MS
    first_ms = max(min(created), last_ms - HOUR_MINUTES * MINUTE_MS)
    before = [created.get(ms, 0) for ms in range(first_ms, last_ms, MINUTE_MS)]
    now = created.get(last_ms, 0)
    if len(before) < _SPIKE_HISTORY_MINUTES_MIN or now < _SPIKE_MESSAGES_MIN:
        return []
    mean, spread = fmean(before), pstdev(before)
    if now <= _SPIKE_FACTOR * mean or now <= mean + _SPIKE_DEVIATIONS * spread:
        return []
    text = f"{now:,} messages of {topic} were created in one minute; the mean of the hour before is {mean:,.0f}"
    return [Condition("spike", topic, text)]


def of_gaps(missing: Sequence[Gap]) -> list[Condition]:
    """Records that the lake cannot get any more, by origin."""
    lost: dict[str, int] = defaultdict(int)
    for gap in missing:
        if gap.dropped:
            lost[gap.origin] += gap.records
    return [
        Condition("loss", origin, f"retention dropped {records:,} records of {origin} before they were in the lake")
        for origin, records in sorted(lost.items())
    ]


def of_silence(newest_ms: int, now_ms: int, overdue: int, *, silent_ms: int) -> list[Condition]:
    """A journal that stopped: nothing new for some time although messages are due."""
    if not overdue or now_ms - newest_ms < silent_ms:
        return []
    text = (
        f"the journal has had nothing new for {(now_ms - newest_ms) // 1000:,} s, although {overdue:,} messages "
        "are due; the broker, its journal or the consumers have stopped"
    )
    return [Condition("stopped", "journal", text)]
