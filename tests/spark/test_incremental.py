"""Jobs that keep what they counted find the same as jobs that count everything, whatever happened to the lake since."""

from __future__ import annotations

import random
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dejaq.pipeline.intake.ingest import run
from dejaq.pipeline.jobs import audit as audits
from dejaq.pipeline.lake.commit import Commit
from dejaq.pipeline.lake.compaction import compact
from dejaq.pipeline.lake.lake import Lake
from dejaq.pipeline.reporting import findings
from dejaq.pipeline.reporting.partial import PARTIAL
from dejaq.pipeline.spark.snapshot import TableSnapshot
from tests.spark import oracle
from tests.spark.comparing import collected
from tests.spark.history import Event, Store, random_store, write_segments
from tests.spark.test_jobs import CREATED, DELETED, LEASED, RELEASED, TOO_SOON, record_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"


def _snapshot(spark: SparkSession, store: Store, rng: random.Random) -> TableSnapshot:
    """The end of a history: without one of its messages, with one that is not there, and with one twice."""
    there = sorted(store.pending)
    there = [*there[1:], rng.choice(there[1:]), ("mail", "from nowhere"), rng.choice(store.finished)]
    return TableSnapshot(spark.createDataFrame(there, "topic string, id string"), store.now + 1, store.now + 1)


def _found(lake: Lake, snapshot: TableSnapshot | None) -> list[dict[str, Any]]:
    return [one.figures | one.tables for one in (findings.audit(lake, snapshot), findings.traffic(lake))]


def assert_the_same_as_counted_anew(lake: Lake, snapshot: TableSnapshot | None, found: list[dict[str, Any]]) -> None:
    """Check what the jobs find with what they kept: against a count of everything, and against all rows at once."""
    kept = Path(lake.files.local or "") / PARTIAL
    aside = kept.with_name("aside")
    kept.rename(aside)
    try:
        assert found == _found(lake, snapshot)
    finally:
        shutil.rmtree(kept)
        aside.rename(kept)
    messages, releases = lake.read("messages"), lake.read("releases")
    whole = audits.early(messages, releases).unionByName(audits.contradictions(messages))
    if snapshot is not None:
        whole = whole.unionByName(audits.against(messages, snapshot.rows, snapshot.begun_ms, snapshot.ended_ms))
    assert found[0]["findings"] == collected(whole.orderBy("finding", "topic", "id"))


def assert_traffic_equals_oracle(traffic: dict[str, Any], events: Sequence[Event]) -> None:
    created = sorted(
        (event for event in events if event["kind"] == "created"),
        key=lambda event: (event["at_ms"], event["actor"], event["id"]),
    )
    again, _ = oracle.repeats(created)
    assert {(row["topic"], row["owner"]): row["duplicates"] for row in traffic["groups"] if row["duplicates"]} == again
    assert traffic["created"] == len(created)


def _with_faults(seed: int, origins: Sequence[str]) -> Store:
    """A random history with every fault that an audit finds, and with a message that began under another origin."""
    store = random_store(seed, steps=45, origins=origins)
    record_of(store, "deleted-twice", CREATED, LEASED, DELETED, DELETED)
    record_of(store, "created-twice", CREATED, CREATED)
    for _ in range(20):
        store.step()
    record_of(store, "from-nowhere", LEASED, DELETED)
    record_of(store, "early-once", CREATED, LEASED, RELEASED | TOO_SOON, LEASED | {"lease": 6}, DELETED | {"lease": 6})
    for _ in range(20):
        store.step()
    record_of(store, "early", CREATED, LEASED, DELETED | TOO_SOON)
    record_of(store, "created-twice", LEASED | {"lease": 9})
    return store


def _waves(journal: Path, stores: Sequence[Store], rng: random.Random) -> Iterator[list[Event]]:
    """The segments in an order in which some come after later ones, in three parts; yields the events so far."""
    paths: list[tuple[Path, list[Event]]] = []
    for store in stores:
        for origin in store.origins:
            own = [event for event in store.events if event["origin"] == origin]
            every = max(1, store.recorded[origin] // 3)
            for path in write_segments(journal.parent / "aside", own, cuts=range(every, store.recorded[origin], every)):
                first, last = (int(part) for part in path.stem.split("-")[-2:])
                paths.append((path, [event for event in own if first <= event["sequence"] <= last]))
    rng.shuffle(paths)
    journal.mkdir()
    there: list[Event] = []
    for wave in range(3):
        for path, events in paths[wave::3]:
            for one in (path, path.with_suffix(".json")):
                one.rename(journal / one.name)
            there += events
        yield there


def test_late_events_compaction_and_time_travel_change_no_result(lake: Lake, journal: Path) -> None:
    """A broker with a store of its own, and two that share one."""
    rng = random.Random(53)
    stores = [_with_faults(51, ("a",)), _with_faults(52, ("b", "c"))]
    snapshot = _snapshot(lake.spark, stores[0], rng)
    earlier: list[tuple[Commit, list[dict[str, Any]]]] = []
    for there in _waves(journal, stores, rng):
        taken = list(run(lake, journal))
        assert any(batch.late for batch in taken) == bool(earlier)
        found = _found(lake, snapshot)
        assert_traffic_equals_oracle(found[1], there)
        earlier.append((lake.head, found))
    assert {row["finding"] for row in found[0]["findings"]} == {"lost", "doubled", "early", "unexplained"}
    assert_the_same_as_counted_anew(lake, snapshot, found)
    newest = lake.head
    lake.head, known = earlier[1]
    assert _found(lake, snapshot) == known
    lake.head = newest
    with lake.writing():
        assert compact(lake)
    assert _found(lake, snapshot) == found


def test_a_lake_of_the_first_release_is_counted_before_and_after_it_is_taken_over(
    spark: SparkSession, tmp_path: Path, journal: Path
) -> None:
    with tarfile.open(FIXTURES / "lake-1.tar.gz") as kept:
        kept.extractall(tmp_path, filter="data")
    store = random_store(21, steps=40)
    write_segments(journal, store.events, cuts=(8, 12, 20))
    lake = Lake(spark, str(tmp_path / "lake"))
    assert_the_same_as_counted_anew(lake, None, _found(lake, None))
    list(run(lake, journal))
    found = _found(lake, None)
    assert_the_same_as_counted_anew(lake, None, found)
    assert found[0]["findings"] == []
    assert_traffic_equals_oracle(found[1], store.events)
