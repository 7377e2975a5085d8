"""The workloads by their numbers; each is a bench of its own."""

from __future__ import annotations

from collections.abc import Sequence

WORKLOADS = {
    "L1": "reminders",
    "L2": "generated_ids",
    "L3": "next_minute",
    "L4": "falling_due",
    "L5": "watched",
    "L6": "single_sends",
    "L7": "fleet",
    "L8": "topics",
    "L9": "by_id",
    "L10": "large_backlog",
    "L11": "one_at_a_time",
    "L12": "priority",
    "L13": "slow_work",
    "L14": "uptime",
    "L15": "ordinary",
    "L16": "log",
    "L17": "log_beside",
}
GROUP = "workloads"


def expanded(names: Sequence[str]) -> list[str]:
    """Bench names in the order given, with `workloads` and numbers such as `L4` replaced by the benches they mean."""
    found: list[str] = []
    for name in names:
        found += WORKLOADS.values() if name == GROUP else [WORKLOADS.get(name.upper(), name)]
    return list(dict.fromkeys(found))
