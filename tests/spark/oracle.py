"""The expected content of the lake for given events, computed in plain Python, event by event."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from tests.spark.history import Event

Row = dict[str, Any]
ENDINGS = ("deleted", "cancelled", "dead_lettered")
COUNTS = {
    "moved": "moves",
    "edited": "edits",
    "extended": "extensions",
    "expired": "expiries",
    "released": "releases",
    "recalled": "recalls",
}
LATE_MS = 1_000


def _blank(event: Event, born: int | None) -> Row:
    return {
        "store": event["store"],
        "topic": event["topic"],
        "id": event["id"],
        "born": born,
        "owner": event["actor"] if event["kind"] == "created" else None,
        "priority": None,
        "created_ms": None,
        "scheduled_ms": None,
        "first_lease_ms": None,
        "attempts": 0,
        "outcome": "pending",
        "finished_ms": None,
        "handed_us": None,
        "lateness_ms": None,
        "delivered": False,
        "body_bytes": None,
        "body_crc": None,
        **dict.fromkeys(COUNTS.values(), 0),
        "lease_until_ms": None,
        "last_ms": None,
    }


class Life:
    def __init__(self, event: Event, born: int | None) -> None:
        self.row = _blank(event, born)
        self.lease: int | None = None
        self.due: int | None = None

    def take(self, event: Event) -> Row | None:
        """Add an event; returns the release that it is, if user code released the message."""
        kind, row = event["kind"], self.row
        row["last_ms"] = max(row["last_ms"] or 0, event["at_ms"])
        if kind == "created":
            row["created_ms"] = event["at_ms"]
        if kind in ("created", "moved", "edited", "released", "expired") and event["ts_ms"] is not None:
            row["scheduled_ms"] = event["ts_ms"]
        if kind in ("created", "edited"):
            for name in ("priority", "body_bytes", "body_crc"):
                row[name] = row[name] if event[name] is None else event[name]
        if kind in COUNTS:
            row[COUNTS[kind]] += 1
        if kind == "leased":
            self.lease, self.due = event["lease"], event["ts_ms"]
            row["attempts"] += 1
            row["first_lease_ms"] = row["first_lease_ms"] or event["at_ms"]
        if kind == "recalled":
            row["attempts"] -= 1
        if kind in ("leased", "extended", "expired"):
            row["lease_until_ms"] = event["expires_ms"]
        if kind in ("released", "recalled", "moved", "edited") or (kind == "expired" and event["ts_ms"] is not None):
            row["lease_until_ms"] = None
        if kind in ENDINGS:
            row["outcome"], row["finished_ms"] = kind, event["at_ms"]
        if not event["handed_us"]:
            return None
        matched = self.lease == event["lease"]
        assert self.due is not None or not matched
        row["handed_us"] = event["handed_us"]
        row["lateness_ms"] = (event["handed_us"] - (self.due or 0) * 1000) / 1000 if matched else None
        row["delivered"] = kind in ("deleted", "dead_lettered")
        if kind != "released":
            return None
        return {
            "topic": row["topic"],
            "id": row["id"],
            "born": row["born"],
            "consumer": event["actor"],
            "lease": event["lease"],
            "due_ms": self.due if matched else None,
            "handed_us": event["handed_us"],
            "lateness_ms": row["lateness_ms"],
            "released_ms": event["at_ms"],
        }


def place(event: Event) -> int:
    """The position of an event's record in the history of its store."""
    return int(event["sequence"] if event["ticket"] is None else event["ticket"])


def rows_of_events(events: Iterable[Event]) -> tuple[list[Row], list[Row]]:
    """The expected rows of messages and of releases."""
    current: dict[tuple[str, str, str], Life] = {}
    unassigned: dict[tuple[str, str, str], Life] = {}
    lives: list[Life] = []
    releases = []
    for event in sorted(events, key=lambda e: (e["store"], place(e), e["row"])):
        key = (event["store"], event["topic"], event["id"])
        if event["kind"] == "topic_dropped":
            for (store, topic, _), ended in current.items():
                if (store, topic) == key[:2] and ended.row["outcome"] == "pending":
                    ended.row["outcome"], ended.row["finished_ms"] = "dropped", event["at_ms"]
            continue
        life = current.get(key)
        if event["kind"] == "created":
            life = current[key] = Life(event, place(event))
            lives.append(life)
        elif life is None or life.row["outcome"] != "pending":
            life = unassigned.get(key)
            if life is None or life.row["outcome"] != "pending":
                life = unassigned[key] = Life(event, None)
                lives.append(life)
        release = life.take(event)
        if release is not None:
            releases.append(release)
    return [life.row for life in lives], releases


def hand_overs(messages: Iterable[Row], releases: Iterable[Row]) -> list[Row]:
    """Every time at which user code got a message."""
    return [*(row for row in messages if row["delivered"]), *releases]


def facts(events: Sequence[Event]) -> dict[tuple[str, int], Row]:
    """The expected facts of each topic and minute."""
    found: dict[tuple[str, int], Row] = defaultdict(lambda: defaultdict(int))
    late: dict[tuple[str, int], list[float]] = defaultdict(list)
    for event in events:
        row = found[event["topic"], event["at_ms"] // 60_000 * 60_000]
        row[event["kind"]] += 1
        if event["kind"] == "created":
            row["created_bytes"] += event["body_bytes"]
    for hand_over in hand_overs(*rows_of_events(events)):
        key = (hand_over["topic"], hand_over["handed_us"] // 60_000_000 * 60_000)
        found[key]["delivered"] += 1
        if hand_over["lateness_ms"] is not None:
            late[key].append(hand_over["lateness_ms"])
    for key, row in found.items():
        values = sorted(late[key])
        row["late"] = sum(value >= LATE_MS for value in values)
        row["early"] = sum(value < 0 for value in values)
        row["lateness_max_ms"] = values[-1] if values else None
        row["lateness_p50_ms"] = percentile(values, 0.5)
        row["lateness_p99_ms"] = percentile(values, 0.99)
    return found


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value with at least this share of the values at or below it."""
    return values[max(0, math.ceil(share * len(values)) - 1)] if values else None


def repeats(
    created: Iterable[Event],
) -> tuple[Counter[tuple[str, str]], dict[tuple[str, int, int, int], tuple[int, int]]]:
    """Of creations in the order of their times: how many repeat a content of their hour or the hour before.

    By topic and group; and by content and hour, with the copies of that hour, where any of them is a repeat.
    """
    hour_ms = 3_600_000
    last: dict[tuple[str, int, int], int] = {}
    by_group: Counter[tuple[str, str]] = Counter()
    copies: Counter[tuple[str, int, int, int]] = Counter()
    repeated: Counter[tuple[str, int, int, int]] = Counter()
    for event in created:
        if not event["body_bytes"]:
            continue
        content, hour = (event["topic"], event["body_crc"], event["body_bytes"]), event["at_ms"] // hour_ms * hour_ms
        copies[*content, hour] += 1
        if last.get(content, -hour_ms) >= hour - hour_ms:
            by_group[event["topic"], event["actor"]] += 1
            repeated[*content, hour] += 1
        last[content] = hour
    return by_group, {key: (copies[key], count) for key, count in repeated.items()}
