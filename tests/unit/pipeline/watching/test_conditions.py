"""When the facts of the last hour are an alarm, and when not."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the pipeline is not installed")

from dejaq.pipeline.lake.gaps import Gap
from dejaq.pipeline.watching.conditions import MINUTE_MS, of_facts, of_gaps, of_silence

START_MS = 1_800_000_000_000


def minutes(count: int = 60, topic: str = "mail", **last: int) -> list[dict[str, Any]]:
    """Quiet minutes; the values of the last whole minute are given."""
    quiet = {"created": 50, "delivered": 50, "late": 0, "early": 0}
    rows = [{"topic": topic, "minute_ms": START_MS + n * MINUTE_MS, **quiet} for n in range(count + 1)]
    rows[-2].update(last)
    return rows


def kinds(rows: list[dict[str, Any]], objective: float = 0.999) -> list[str]:
    return [condition.kind for condition in of_facts(rows, objective=objective)]


def test_quiet_minutes_are_no_alarm() -> None:
    assert kinds(minutes()) == []
    assert kinds([]) == []


def test_a_budget_that_burns_in_both_stretches_is_an_alarm_and_one_bad_minute_is_not() -> None:
    assert kinds(minutes(late=50)) == ["lateness"]
    # In a longer history one minute with three late deliveries is far from using up the budget.
    assert kinds(minutes(late=1)) == []
    rows = minutes()
    for row in rows[10:20]:
        row["late"] = 50
    # Over now: the hour was bad, the last five minutes were not.
    assert kinds(rows) == []
    assert kinds(minutes(late=50), objective=0.5) == []


def test_few_deliveries_are_no_basis() -> None:
    rows = [{**row, "delivered": 0} for row in minutes()]
    rows[-1].update(delivered=1, late=1)
    assert kinds(rows) == []


def test_an_early_delivery_is_an_alarm() -> None:
    (found,) = of_facts([*minutes(), *minutes(topic="other", early=2)], objective=0.999)
    assert (found.kind, found.subject) == ("early", "other")
    assert found.text == "2 deliveries of other were before their time"


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (minutes(created=5_000), ["spike"]),
        (minutes(created=140), []),
        (minutes(count=5, created=5_000), []),
    ],
    ids=["spike", "somewhat more", "no history"],
)
def test_a_minute_with_many_more_messages_is_a_spike(rows: list[dict[str, Any]], expected: list[str]) -> None:
    assert kinds(rows) == expected


def test_bursty_traffic_is_not_a_spike_each_time() -> None:
    rows = minutes(created=2_000)
    for row in rows[::6]:
        row["created"] = 2_000
    assert kinds(rows) == []


def test_records_that_retention_dropped_are_lost_and_others_may_still_come() -> None:
    found = of_gaps([Gap("b", 1, 5, dropped=True), Gap("a", 7, 9), Gap("b", 8, 8, dropped=True)])
    assert [(one.kind, one.subject) for one in found] == [("loss", "b")]
    assert "6 records" in found[0].text


def test_a_silent_journal_is_an_alarm_only_while_messages_are_due() -> None:
    assert of_silence(START_MS, START_MS + 70_000, 0, silent_ms=60_000) == []
    assert of_silence(START_MS, START_MS + 50_000, 3, silent_ms=60_000) == []
    (found,) = of_silence(START_MS, START_MS + 70_000, 3, silent_ms=60_000)
    assert found.name == "stopped/journal"
