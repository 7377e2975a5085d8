"""An hour's new events cost an hour's work: what the pipeline and the jobs read does not grow with the lake."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from dejaq.pipeline.intake.handovers import hand_overs
from dejaq.pipeline.intake.ingest import run
from dejaq.pipeline.jobs.accuracy import accuracy, histogram
from dejaq.pipeline.lake.lake import Lake
from dejaq.pipeline.reporting import findings
from tests.spark.comparing import collected
from tests.spark.history import START_MS, Event, Store, write_segments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HOUR_MS = 3_600_000
# The first begins ten minutes before midnight.
HOURS = 4
MESSAGES = 40


def _hour(store: Store, number: int) -> list[Event]:
    """An hour in which messages are created, delivered late by some milliseconds, and deleted; two stay pending."""
    begun = len(store.events)
    store.now = START_MS + (number + 1) * HOUR_MS
    ids = [f"h{number}-{row}" for row in range(MESSAGES)]

    def rows(kind: str, names: list[str], actor: str, **values: Any) -> None:
        store.now += 1_000
        store.record({"kind": kind, "topic": "mail", "id": name, "actor": actor, **values} for name in names)

    due = store.now + 5_000
    rows("created", ids, "shop", ts_ms=due, priority=0, body_bytes=10, body_crc=7)
    rows("leased", ids[2:], "w1", lease=number + 1, ts_ms=due, expires_ms=due + 30_000, attempts=1)
    rows("deleted", ids[2:], "w1", lease=number + 1, handed_us=due * 1_000 + 1_500 * (number + 1))
    return store.events[begun:]


def test_the_work_of_an_hour_does_not_grow_with_the_lake(
    lake: Lake, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(("store-1",), random.Random(3))
    read: Counter[tuple[str, str]] = Counter()
    step = ""
    whole = Lake.read_files

    def counted(self: Lake, table: str, files: list[str], *, named: bool = False) -> DataFrame:
        read[step, table] += sum(pq.read_metadata(f"{self.files.local}/{table}/{file}").num_rows for file in files)
        return whole(self, table, files, named=named)

    monkeypatch.setattr(Lake, "read_files", counted)
    jobs: dict[str, Callable[[Lake], findings.Findings]] = {
        "accuracy": findings.accuracy,
        "retries": findings.retries,
        "forecast": lambda lake: findings.forecast(lake, now_ms=store.now),
        "audit": findings.audit,
        "traffic": findings.traffic,
    }
    work: list[Counter[tuple[str, str]]] = []
    for number in range(HOURS):
        read = Counter()
        step = "ingest"
        write_segments(journal, _hour(store, number), cuts=())
        list(run(lake, journal))
        for name, job in jobs.items():
            step = name
            job(lake)
        work.append(read)
    second, last = work[1], work[-1]
    for table in (
        ("ingest", "events"),
        ("accuracy", "messages"),
        ("accuracy", "releases"),
        ("retries", "messages"),
        ("audit", "releases"),
        ("traffic", "events"),
    ):
        assert second[table] == last[table], table
        assert last[table] or "releases" in table
    # What is pending is looked through, two messages of each hour; and the facts of the day, one row for each minute.
    for step in ("ingest", "audit"):
        assert last[step, "messages"] - second[step, "messages"] <= 2 * 2 * (HOURS - 2)
    assert last["ingest", "facts"] - second["ingest", "facts"] <= HOURS - 2
    handed = hand_overs(lake.read("messages"), lake.read("releases"))
    found = findings.accuracy(lake, slo_ms=100.0).tables
    assert found["hours"] == collected(accuracy(handed, slo_ms=100.0))
    assert found["histogram"] == collected(histogram(handed))
    assert found["hours"][0]["max_ms"] < found["hours"][-1]["max_ms"]
    (topic,) = findings.retries(lake).tables["topics"]
    assert (topic["leased"], topic["retried"]) == (HOURS * (MESSAGES - 2), 0)
