"""Each job on a lake with known rows."""

from __future__ import annotations

import math
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from dejaq.pipeline.intake.handovers import hand_overs
from dejaq.pipeline.intake.ingest import run
from dejaq.pipeline.jobs import forecast as forecasts
from dejaq.pipeline.jobs.accuracy import BINS_MS, EARLY_BIN, accuracy, histogram
from dejaq.pipeline.jobs.retries import attempts_histogram, consumers, counted, poison_candidates, retries
from dejaq.pipeline.lake.lake import Lake
from dejaq.pipeline.reporting import findings
from dejaq.pipeline.reporting.plots import png
from dejaq.pipeline.reporting.report import page
from dejaq.pipeline.spark.snapshot import TableSnapshot
from tests.spark import oracle
from tests.spark.comparing import collected
from tests.spark.history import START_MS, Store, random_store, write_segments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def store() -> Store:
    return random_store(11, steps=260)


@pytest.fixture(scope="module")
def filled(spark: SparkSession, store: Store, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    home = tmp_path_factory.mktemp("jobs")
    write_segments(home / "journal", store.events, cuts=())
    lake = Lake(spark, str(home / "lake"))
    list(run(lake, home / "journal"))
    return lake


@pytest.fixture(scope="module")
def expected_rows(store: Store) -> tuple[list[oracle.Row], list[oracle.Row]]:
    return oracle.rows_of_events(store.events)


def table(spark: SparkSession, rows: list[dict[str, Any]], like: DataFrame) -> DataFrame:
    """Rows as a table with the columns of another table; missing values are null."""
    full = [{**dict.fromkeys(like.columns), **row} for row in rows]
    return spark.createDataFrame([tuple(row[name] for name in like.columns) for row in full], like.schema)


def test_accuracy_by_topic_and_hour(filled: Lake, expected_rows: tuple[list[oracle.Row], list[oracle.Row]]) -> None:
    handed = hand_overs(filled.read("messages"), filled.read("releases"))
    expected: dict[tuple[str, int], list[float]] = {}
    for row in oracle.hand_overs(*expected_rows):
        hour = row["handed_us"] // (HOUR_MS * 1000) * HOUR_MS
        expected.setdefault((row["topic"], hour), []).append(row["lateness_ms"])
    found = {(row["topic"], row["hour_ms"]): row for row in collected(accuracy(handed, slo_ms=50))}
    assert found.keys() == expected.keys()
    for key, row in found.items():
        values = sorted(value for value in expected[key] if value is not None)
        assert row["delivered"] == len(expected[key])
        assert row["unknown"] == len(expected[key]) - len(values)
        assert row["p50_ms"] == oracle.percentile(values, 0.5)
        assert row["p99_ms"] == oracle.percentile(values, 0.99)
        assert row["max_ms"] == values[-1]
        assert row["late"] == sum(value > 50 for value in values)
        assert row["early"] == sum(value < 0 for value in values)
        assert row["breached"] == (row["p99_ms"] > 50 or row["early"] > 0)


def test_the_histogram_counts_every_hand_over_once(
    filled: Lake, expected_rows: tuple[list[oracle.Row], list[oracle.Row]]
) -> None:
    handed = hand_overs(filled.read("messages"), filled.read("releases"))
    expected: Counter[tuple[str, int]] = Counter()
    for row in oracle.hand_overs(*expected_rows):
        if row["lateness_ms"] is not None:
            below = [edge for edge in BINS_MS if edge <= row["lateness_ms"]]
            expected[row["topic"], max(below, default=EARLY_BIN)] += 1
    assert {(row["topic"], row["from_ms"]): row["count"] for row in collected(histogram(handed))} == expected


def snapshot_of(spark: SparkSession, store: Store) -> DataFrame:
    return spark.createDataFrame(list(store.pending), "topic string, id string")


def found_by(
    lake: Lake, snapshot: DataFrame | None = None, *, begun_ms: int = 0, ended_ms: int = 0
) -> list[tuple[str, str, str]]:
    taken = None if snapshot is None else TableSnapshot(snapshot, begun_ms, ended_ms)
    return [(row["finding"], row["topic"], row["id"]) for row in findings.audit(lake, taken).tables["findings"]]


def test_the_audit_balances_against_the_live_timeline(spark: SparkSession, filled: Lake, store: Store) -> None:
    later = store.now + 1
    assert found_by(filled, snapshot_of(spark, store), begun_ms=later, ended_ms=later) == []
    rows = {row["topic"]: row for row in findings.audit(filled).tables["balance"]}
    ended = Counter(event["topic"] for event in store.events if event["kind"] in oracle.ENDINGS)
    for topic, row in rows.items():
        assert row["created"] == sum(e["kind"] == "created" for e in store.events if e["topic"] == topic)
        assert row["deleted"] + row["cancelled"] + row["dead_lettered"] == ended[topic]
        assert row["pending"] == sum(name == topic for name, _ in store.pending)
        assert row["difference"] == 0


def test_the_audit_lists_lost_messages_and_messages_that_were_never_created(
    spark: SparkSession, filled: Lake, store: Store
) -> None:
    later = store.now + 1
    (lost_topic, lost_id), *rest = sorted(store.pending)
    done_topic, done_id = next(key for key in store.finished if key not in store.pending)
    there = [*rest, rest[0], ("mail", "from nowhere"), (done_topic, done_id)]
    snapshot = spark.createDataFrame(there, "topic string, id string")
    found = found_by(filled, snapshot, begun_ms=later, ended_ms=later)
    assert sorted(found) == sorted(
        [
            ("lost", lost_topic, lost_id),
            ("doubled", *rest[0]),
            ("unexplained", "mail", "from nowhere"),
            ("unexplained", done_topic, done_id),
        ]
    )


def test_the_audit_does_not_judge_messages_that_changed_during_the_snapshot(
    spark: SparkSession, filled: Lake, store: Store
) -> None:
    # The snapshot takes as long as the whole history, so it may contain any part of it.
    some = sorted(store.pending)[::2]
    snapshot = spark.createDataFrame(some, "topic string, id string")
    assert found_by(filled, snapshot, begun_ms=START_MS, ended_ms=store.now + 1) == []


def record_of(store: Store, message_id: str, *events: dict[str, Any]) -> None:
    """Generate several events of one message, one after another."""
    for event in events:
        store.now += 10
        store.record([{"topic": "mail", "id": message_id, "actor": "w1", **event}])


CREATED = {"kind": "created", "ts_ms": START_MS, "body_bytes": 1, "body_crc": 1, "priority": 0}
LEASED = {"kind": "leased", "lease": 5, "ts_ms": START_MS, "expires_ms": START_MS + 30_000, "attempts": 1}
DELETED = {"kind": "deleted", "lease": 5, "handed_us": (START_MS + 3) * 1000}
RELEASED = {"kind": "released", "lease": 5, "ts_ms": START_MS + 500}
TOO_SOON = {"handed_us": START_MS * 1000 - 1}


def test_the_audit_finds_planted_faults_and_no_others(lake: Lake, journal: Path) -> None:
    store = Store(("store-1",), random.Random(0))
    record_of(store, "fine", CREATED, LEASED, DELETED)
    record_of(store, "deleted-twice", CREATED, LEASED, DELETED, DELETED)
    record_of(store, "created-twice", CREATED, CREATED)
    record_of(store, "from-nowhere", LEASED, DELETED)
    record_of(store, "early", CREATED, LEASED, DELETED | TOO_SOON)
    record_of(store, "early-once", CREATED, LEASED, RELEASED | TOO_SOON, LEASED | {"lease": 6}, DELETED | {"lease": 6})
    record_of(store, "again", CREATED, LEASED, DELETED, CREATED, LEASED | {"lease": 7}, DELETED | {"lease": 7})
    write_segments(journal, store.events, cuts=())
    list(run(lake, journal))
    assert found_by(lake) == [
        ("doubled", "mail", "created-twice"),
        ("doubled", "mail", "deleted-twice"),
        ("early", "mail", "early"),
        ("early", "mail", "early-once"),
        ("unexplained", "mail", "from-nowhere"),
    ]


def test_a_message_that_continues_under_a_new_origin_is_accounted_for(lake: Lake, journal: Path) -> None:
    store, restored = Store(("store-1",), random.Random(0)), Store(("store-2",), random.Random(0), now=START_MS + 1_000)
    record_of(store, "m1", CREATED)
    record_of(restored, "m1", LEASED, DELETED)
    write_segments(journal, store.events, cuts=())
    write_segments(journal, restored.events, cuts=())
    list(run(lake, journal))
    later = restored.now + 1
    empty = lake.spark.range(0).selectExpr("'' AS topic", "'' AS id")
    assert found_by(lake, empty, begun_ms=later, ended_ms=later) == []


def test_the_forecast_counts_due_messages_and_estimates_new_ones(spark: SparkSession, filled: Lake) -> None:
    now = START_MS + HOUR_MS
    minute = now // 60_000 * 60_000
    messages = filled.read("messages")
    pending = [("a", now - 5_000), ("a", now + 10), ("a", now + 61_000), ("b", now + 59 * 60_000)]
    due = forecasts.due_by_minute(spark.createDataFrame(pending, "topic string, due_ms long"), now_ms=now, hours=1)
    past = [
        {
            "topic": "a",
            "id": str(number),
            "created_ms": now - 600_000 + number * 1000,
            "scheduled_ms": now - 600_000 + number * 1000 + (0 if number % 2 else 120_000),
            "moves": 0,
            "edits": 0,
            "releases": 0,
        }
        for number in range(600)
    ]
    expected = forecasts.expected_by_minute(table(spark, past, messages), now_ms=now, hours=1)
    service = spark.createDataFrame([("a", 2_000.0)], "topic string, service_ms double")
    rows = {
        (row["topic"], row["minute_ms"]): row
        for row in collected(forecasts.forecast(due, expected, service, lateness_ms=1_000))
    }
    assert rows["a", minute]["due"] == 2
    assert rows["a", minute + 60_000]["due"] == 1
    assert rows["b", minute + 59 * 60_000]["due"] == 1
    # Sixty messages per minute were created; half of them were due at once, the others two minutes later.
    assert rows["a", minute]["expected"] == pytest.approx(30)
    assert rows["a", minute + 120_000]["expected"] == pytest.approx(60)
    # Sixty messages of two seconds each keep two consumers busy.
    assert rows["a", minute + 120_000]["consumers"] == 2
    assert rows["b", minute + 59 * 60_000]["consumers"] == 1


def test_a_burst_in_one_second_needs_consumers_for_that_second(spark: SparkSession) -> None:
    due = spark.createDataFrame([("a", START_MS, 100, 100)], "topic string, minute_ms long, due long, peak_second long")
    expected = spark.createDataFrame([], "topic string, minute_ms long, expected double")
    service = spark.createDataFrame([], "topic string, service_ms double")
    (row,) = collected(forecasts.forecast(due, expected, service, lateness_ms=0, service_ms=50))
    assert row["consumers"] == math.ceil(100 * 50 / 1000)


def test_the_pending_timeline_has_the_time_of_each_message(filled: Lake, store: Store) -> None:
    found = sorted(
        (row["topic"], row["due_ms"]) for row in collected(forecasts.pending_timeline(filled.read("messages")))
    )
    assert found == sorted((m.topic, m.until if m.lease else m.ts) for m in store.pending.values())


def test_retries_attempts_and_poison_candidates(
    filled: Lake, expected_rows: tuple[list[oracle.Row], list[oracle.Row]]
) -> None:
    messages = filled.read("messages")
    counts = collected(counted(messages.withColumn("file", F.lit("one"))))
    rows = {row["topic"]: row for row in retries(counts)}
    for topic, row in rows.items():
        mine = [message for message in expected_rows[0] if message["topic"] == topic]
        assert row["leased"] == sum(message["attempts"] > 0 for message in mine)
        assert row["retried"] == sum(message["attempts"] > 1 for message in mine)
        assert row["expiries"] == sum(message["expiries"] for message in mine)
        assert row["attempts_max"] == max(message["attempts"] for message in mine)
    most = max(message["attempts"] for message in expected_rows[0])
    suspects = {(row["topic"], row["id"]) for row in collected(poison_candidates(messages, attempts_min=most))}
    assert suspects == {(m["topic"], m["id"]) for m in expected_rows[0] if m["attempts"] >= most}
    tries = {(row["topic"], row["attempts"]): row["count"] for row in attempts_histogram(counts)}
    assert tries == Counter((m["topic"], m["attempts"]) for m in expected_rows[0] if m["attempts"] > 0)


def test_a_slow_consumer_and_one_whose_leases_expire_are_found(spark: SparkSession, filled: Lake) -> None:
    def settled(actor: str, held_ms: int) -> dict[str, Any]:
        return {
            "kind": "deleted",
            "topic": "t",
            "actor": actor,
            "at_ms": START_MS + held_ms,
            "handed_us": START_MS * 1000,
        }

    events = [settled("quick", 5) for _ in range(20)] + [settled("slow", 500) for _ in range(5)]
    events += [settled("lossy", 5), {"kind": "expired", "topic": "t", "actor": "lossy", "at_ms": START_MS}]
    rows = {row["consumer"]: row for row in collected(consumers(table(spark, events, filled.read("events"))))}
    assert {name for name, row in rows.items() if row["slow"]} == {"slow", "lossy"}
    assert rows["slow"]["held_p50_ms"] == 500
    assert rows["lossy"]["expired"] == 1


def test_traffic_by_group_and_content_sent_again(filled: Lake, store: Store) -> None:
    found = findings.traffic(filled).tables
    rows = {(row["topic"], row["owner"]): row for row in found["groups"]}
    created = sorted(
        (event for event in store.events if event["kind"] == "created"),
        key=lambda event: (event["at_ms"], event["actor"], event["id"]),
    )
    again, copies = oracle.repeats(created)
    assert rows.keys() == {(event["topic"], event["actor"]) for event in created}
    for (topic, owner), row in rows.items():
        sizes = [event["body_bytes"] for event in created if (event["topic"], event["actor"]) == (topic, owner)]
        assert (row["created"], row["bytes"], row["size_max"]) == (len(sizes), sum(sizes), max(sizes))
        # From 256 bytes on, a size is known to seven binary digits behind the first.
        assert row["size_p50"] == pytest.approx(oracle.percentile(sorted(sizes), 0.5), rel=0.01)
        assert row["size_p50"] <= oracle.percentile(sorted(sizes), 0.5)
        # P11: a message that another group sent before also counts as a repeat.
        assert row["duplicates"] == again[topic, owner]
    assert {
        (row["topic"], row["body_crc"], row["body_bytes"], row["hour_ms"]): (row["copies"], row["repeated"])
        for row in found["duplicates"]
    } == copies
    ids = {(event["topic"], event["id"], event["body_crc"]) for event in created}
    assert all((row["topic"], row["example_id"], row["body_crc"]) in ids for row in found["duplicates"])


def test_arrivals_are_counted_by_hour_and_forecast_with_their_errors(filled: Lake, store: Store) -> None:
    found = findings.forecast(filled, now_ms=store.now, hours=3)
    hour_ms = 3_600_000
    end_ms = max(filled.head.newest_ms.values()) // hour_ms * hour_ms
    created = Counter(
        event["topic"] for event in store.events if event["kind"] == "created" and event["at_ms"] < end_ms
    )
    assert {row["topic"]: row["hours_tested"] for row in found.tables["arrival_errors"]} == dict.fromkeys(created, 0)
    assert [(row["topic"], row["hour_ms"]) for row in found.tables["arrivals"]] == [
        (topic, end_ms + ahead * hour_ms)
        for topic in sorted(created, key=lambda name: (-created[name], name))
        for ahead in range(3)
    ]
    for row in found.tables["arrivals"]:
        # A history of a few hours: their mean, and no interval.
        first = min(e["at_ms"] for e in store.events if e["kind"] == "created" and e["topic"] == row["topic"])
        hours = (end_ms - first // hour_ms * hour_ms) // hour_ms
        assert row["arrivals"] == pytest.approx(created[row["topic"]] / hours, abs=0.06)
        assert (row["low"], row["high"]) == (None, None)
    assert len(found.tables["assumptions"]) == 4


def test_the_report_is_one_page_that_escapes_what_it_shows(filled: Lake, store: Store) -> None:
    found = [
        findings.audit(filled),
        findings.accuracy(filled),
        findings.forecast(filled, now_ms=store.now),
        findings.retries(filled),
        findings.traffic(filled),
    ]
    evil = '<script>alert("x")</script>'
    found[0].tables["balance"][0]["topic"] = evil
    text = page(found, lake=f"/lake/{evil}", made_ms=store.now, newest_ms=store.now)
    # The data and the script; tests/acceptance/test_report_page.py opens a page in a browser.
    assert text.count("<script") == 2
    assert text.count("&lt;script&gt;") == 1
    assert text.count('"job":') == len(found)
    assert text.replace("http://www.w3.org/2000/svg", "").count("://") == 0


def test_an_empty_selection_is_also_drawn(filled: Lake) -> None:
    for job in (findings.audit, findings.accuracy, findings.retries, findings.traffic):
        assert png(job(filled, topics=["none"]).draw()).startswith(b"\x89PNG")
    assert png(findings.forecast(filled, now_ms=0, topics=["none"]).draw()).startswith(b"\x89PNG")
