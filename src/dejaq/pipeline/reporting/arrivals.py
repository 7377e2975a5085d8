"""The forecast of arrivals from the facts of a lake, as rows, with the error of each topic's method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql import functions as F

from dejaq.pipeline.intake.segments import DAY_MS, day_name
from dejaq.pipeline.jobs.arrivals import COVERAGE, HISTORY_HOURS_MAX, NAIVE, ArrivalsForecast, forecast_arrivals
from dejaq.pipeline.lake.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HOUR_MS = 3_600_000
# Only the busiest topics are forecast one by one.
TOPICS_MAX = 100

ASSUMPTIONS = (
    "the pending messages of the coming minutes are those of the lake, or of the broker with --live; none is moved",
    "messages that do not exist yet are created at the rate of the last day and with its lead times",
    "a consumer takes one message after another, for the time per message that was measured, or as --service-ms says",
    f"arrivals continue as before; of the hours of the back-test, {COVERAGE:.0%} were between low and high",
)


@dataclass(frozen=True, slots=True)
class ForecastRows:
    """One row per topic and coming hour, and one row per topic with the errors of the back-test."""

    hours: list[dict[str, Any]]
    errors: list[dict[str, Any]]


def arrivals(lake: Lake, *, topics: Sequence[str], hours: int) -> ForecastRows:
    """Forecast how many messages will be created in each of the hours after the newest event of the lake."""
    newest_ms = max(lake.head.newest_ms.values(), default=0)
    # The hour of the newest event is not over, so it is forecast and not counted.
    end_ms = newest_ms - newest_ms % HOUR_MS
    counted = _counted(lake, topics, end_ms)
    rows: list[dict[str, Any]] = []
    errors: list[dict[str, Any]] = []
    for topic in sorted(counted, key=lambda name: (-sum(counted[name].values()), name))[:TOPICS_MAX]:
        by_hour = counted[topic]
        first_ms = min(by_hour)
        past = np.array([by_hour.get(ms, 0) for ms in range(first_ms, end_ms, HOUR_MS)], dtype=np.float64)
        found = forecast_arrivals(past, hours)
        rows += [_hour(topic, end_ms + ahead * HOUR_MS, found, ahead) for ahead in range(hours)]
        errors.append(error_row(topic, found))
    return ForecastRows(rows, errors)


def _counted(lake: Lake, topics: Sequence[str], end_ms: int) -> dict[str, dict[int, int]]:
    """How many messages were created, by topic and hour. Reads the facts of four weeks, however long the lake is."""
    first_ms = end_ms - HISTORY_HOURS_MAX * HOUR_MS
    days = [f"day={day_name(number)}" for number in range(max(0, first_ms // DAY_MS), end_ms // DAY_MS + 1)]
    facts: DataFrame = lake.read("facts", days)
    if topics:
        facts = facts.where(F.col("topic").isin(*topics))
    hour = (F.col("minute_ms") - F.pmod(F.col("minute_ms"), F.lit(HOUR_MS))).alias("hour_ms")
    chosen = facts.where((F.col("minute_ms") >= first_ms) & (F.col("minute_ms") < end_ms))
    found: dict[str, dict[int, int]] = {}
    for row in chosen.groupBy("topic", hour).agg(F.sum("created").alias("created")).collect():
        found.setdefault(row.topic, {})[row.hour_ms] = row.created
    return found


def _hour(topic: str, hour_ms: int, found: ArrivalsForecast, ahead: int) -> dict[str, Any]:
    low, high = float(found.low[ahead]), float(found.high[ahead])
    known = math.isfinite(high)
    return {
        "topic": topic,
        "hour_ms": hour_ms,
        "arrivals": round(float(found.expected[ahead]), 1),
        "low": round(low, 1) if known else None,
        "high": round(high, 1) if known else None,
    }


def error_row(topic: str, found: ArrivalsForecast) -> dict[str, Any]:
    """The error of a topic's method in the back-test, and those of the naive forecasts."""
    last_hour, day_before = (found.errors.get(name) for name in NAIVE)
    return {
        "topic": topic,
        "method": found.method,
        "hours_tested": found.tested,
        "error_share": found.errors.get(found.method),
        "last_hour_error_share": last_hour,
        "day_before_error_share": day_before,
    }
