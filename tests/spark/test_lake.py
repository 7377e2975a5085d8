"""The lake equals the oracle, wherever the journal was cut into segments and in whatever order the segments arrived."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections import defaultdict
from collections.abc import Generator, Sequence
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dejaq.pipeline.intake import ingest
from dejaq.pipeline.intake.ingest import run
from dejaq.pipeline.intake.segments import ROW_BITS
from dejaq.pipeline.lake.compaction import compact
from dejaq.pipeline.lake.lake import COMMITS_KEPT, Lake
from dejaq.pipeline.reporting import findings
from tests.spark.comparing import assert_lake_equals_oracle, assert_other_engines_read_the_same, collected
from tests.spark.history import START_MS, Event, Store, random_store, write_segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIXTURES = Path(__file__).parents[1] / "fixtures"


def _bring(path: Path, journal: Path) -> None:
    """Move a segment and its manifest to the directory that the pipeline reads."""
    journal.mkdir(exist_ok=True)
    for file in (path, path.with_suffix(".json")):
        shutil.copy(file, journal / file.name)


def test_batches_in_order_equal_the_oracle_and_do_not_rewrite_other_days(lake: Lake, journal: Path) -> None:
    """The first batch fills the lake, the second changes due messages, the third deletes a topic."""
    store = random_store(7, steps=60)
    cuts = [store.sequence]
    assert any((message.ts - START_MS) // 86_400_000 > 40 for message in store.pending.values())
    for _ in range(30):
        store.now += 100
        store.lease()
        store.settle()
    cuts.append(store.sequence)
    pending = sum(message.topic == "mail" for message in store.pending.values())
    assert pending > 0
    store.drop("mail")
    parts = []
    for path in write_segments(journal.parent / "aside", store.events, cuts=cuts):
        _bring(path, journal)
        (result,) = run(lake, journal)
        assert not result.late
        parts.append(dict(lake.head.partitions("messages")))
    assert list(run(lake, journal)) == []
    before, after, _ = parts
    assert any(name.startswith("state=open/") and after.get(name) == before[name] for name in before)
    done = [name for name in before if name.startswith("state=done/")]
    assert all(set(before[name]) <= set(after[name]) for name in done)
    assert sum(row["outcome"] == "dropped" for row in collected(lake.read("messages"))) == pending
    assert_lake_equals_oracle(lake, store.events)


def test_segments_without_statistics_are_read(lake: Lake, journal: Path) -> None:
    store = random_store(10, steps=80)
    write_segments(journal, store.events, cuts=(20,), statistics=False)
    (result,) = run(lake, journal)
    assert (result.segments, result.events) == (2, len(store.events))
    assert_lake_equals_oracle(lake, store.events)


def test_a_batch_is_cut_by_its_number_of_events_and_compaction_keeps_every_row(lake: Lake, journal: Path) -> None:
    store = random_store(5, steps=60)
    write_segments(journal, store.events, cuts=(10, 20, 30))
    most = len([event for event in store.events if event["sequence"] <= 20])
    result = list(run(lake, journal, events_max=most))
    assert result[0].segments == 2
    assert sum(batch.segments for batch in result) == 4
    assert all(batch.events <= most for batch in result)
    crowded = [len(found) for found in lake.head.partitions("events").values()]
    with lake.writing():
        done = compact(lake)
    assert max(crowded) > 1
    assert {"events", "messages"} <= {one.table for one in done}
    assert {len(found) for table in lake.head.tables.values() for found in table.values()} == {1}
    assert_only_what_the_newest_commits_need_is_left(lake)
    assert_lake_equals_oracle(lake, store.events)
    assert_other_engines_read_the_same(lake)


def test_a_lake_that_is_compacted_beside_every_batch_has_each_row_once(
    lake: Lake, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "FILES_MAX", dict.fromkeys(ingest.FILES_MAX, 1))
    store = random_store(6, steps=70)
    write_segments(journal, store.events, cuts=(15, 30, 45))
    result = list(run(lake, journal, events_max=1))
    assert len(result) == 4
    assert lake.head.version > 5
    assert_lake_equals_oracle(lake, store.events)
    assert_other_engines_read_the_same(lake)


def assert_only_what_the_newest_commits_need_is_left(lake: Lake) -> None:
    with lake.writing():
        for _ in range(COMMITS_KEPT):
            lake.commit(lake.head)
        needed = lake.files.list("_commits")
    assert len(needed) == COMMITS_KEPT
    for table in ("events", "messages", "facts"):
        assert set(lake.files.list(table)) - {"_delta_log"} == lake.head.batches(table)
    stale = Path(lake.files.local or "") / "messages" / "batch=999-orphan"
    stale.mkdir()
    with lake.writing():
        pass
    assert not stale.exists()


def test_segments_give_the_same_lake_in_whatever_order_they_arrive(lake: Lake, journal: Path) -> None:
    """Every order of three segments, of one broker or of two brokers that share a store.

    Each order has a store of its own with the same history, so that one lake contains all of them at once.
    """
    alone, shared = _with_dropped_topics(("a",)), _with_dropped_topics(("a", "b"))
    events, waves = [], defaultdict(list)
    for store, cut in (
        (alone, {"a": (10, alone.sequence - 2)}),
        (shared, {"a": (shared.recorded["a"] // 2,), "b": ()}),
    ):
        for number, order in enumerate(permutations(range(3))):
            copy = [_renamed(event, f"{len(cut)}-{number}") for event in store.events]
            paths = []
            for origin in cut:
                own = [event for event in copy if event["origin"].startswith(origin)]
                paths += write_segments(journal.parent / "aside", own, cuts=cut[origin])
            for wave, place in enumerate(order):
                waves[wave].append(paths[place])
            events += copy
    late = []
    for paths in waves.values():
        for path in paths:
            _bring(path, journal)
        late.append([result.late for result in run(lake, journal)])
    assert late == [[False], [True, False], [True, False]]
    rows = collected(lake.read("messages"))
    assert "dropped" in {row["outcome"] for row in rows}
    assert all(row["born"] is not None for row in rows), "each row has its creation, whichever broker recorded it"
    assert_lake_equals_oracle(lake, events)


def test_events_wait_for_earlier_ones_of_other_brokers(
    lake: Lake, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch ends at one ticket of the store, so that no message is added up a second time.

    The run ends after its first batch, as if it were killed; the next one adds what waits, and the rest.
    """
    store = random_store(12, steps=50, origins=("a", "b"))
    for origin in store.origins:
        own = [event for event in store.events if event["origin"] == origin]
        write_segments(journal, own, cuts=range(4, store.recorded[origin], 4))
    _write_in_turns(journal, store)
    monkeypatch.setattr(ingest, "again", None)
    most = len(store.events) * 2 // 3
    first = run(lake, journal, events_max=most)
    assert not next(first).late
    assert isinstance(first, Generator)
    first.close()
    waiting = collected(lake.read("held"))
    (bound,) = lake.head.held_from.values()
    assert waiting
    assert min(row["ticket"] for row in waiting) >= bound
    assert max(row["last_order"] for row in collected(lake.read("messages"))) >> ROW_BITS < bound
    assert_other_engines_read_the_same(lake)
    (rest,) = run(lake, journal, events_max=most)
    assert rest.events
    assert not lake.head.files("held")
    assert_lake_equals_oracle(lake, store.events)


def _write_in_turns(journal: Path, store: Store) -> None:
    """Let the manifests say that the brokers wrote their segments in turns."""
    for path in journal.glob("*.json"):
        values = json.loads(path.read_text())
        written = [
            event["ticket"]
            for event in store.events
            if event["origin"] == values["origin"] and event["sequence"] == values["last"]
        ]
        path.write_text(json.dumps(values | {"created_ms": START_MS + written[0]}))


def _with_dropped_topics(origins: Sequence[str]) -> Store:
    """A history in which topics are deleted, and created again under the same names."""
    store = random_store(11, steps=40, origins=origins)
    store.drop("mail")
    for _ in range(30):
        store.step()
    store.drop("billing")
    store.create()
    return store


def _renamed(event: Event, name: str) -> Event:
    return event | {"origin": f"{event['origin']}-{name}", "store": f"{event['store']}-{name}"}


def test_a_second_writer_is_refused(lake: Lake, journal: Path) -> None:
    from dejaq.errors import PipelineError

    other = Lake(lake.spark, lake.files.address)
    with lake.writing(), pytest.raises(PipelineError, match="another pipeline writes"), other.writing():
        pass


def test_a_commit_after_a_concurrent_commit_changes_nothing(lake: Lake, journal: Path) -> None:
    from dejaq.errors import PipelineError

    store = random_store(9, steps=20)
    write_segments(journal, store.events, cuts=())
    other = Lake(lake.spark, lake.files.address)
    list(run(lake, journal))
    with pytest.raises(PipelineError, match="is there already"):
        other.commit(other.head)
    assert len(collected(Lake(lake.spark, lake.files.address).read("events"))) == len(store.events)


def test_a_lake_of_an_earlier_release_is_read_and_continued(spark: SparkSession, tmp_path: Path, journal: Path) -> None:
    """The lake was made from the first and the third of these segments, when the key of a row contained its origin."""
    with tarfile.open(FIXTURES / "lake-1.tar.gz") as kept:
        kept.extractall(tmp_path, filter="data")
    store = random_store(21, steps=40)
    write_segments(journal, store.events, cuts=(8, 12, 20))
    lake = Lake(spark, str(tmp_path / "lake"))
    assert {row["store"] for row in collected(lake.read("messages"))} == {"store-1"}
    assert not lake.is_published
    assert [result.late for result in run(lake, journal)] == [True, False]
    assert_lake_equals_oracle(lake, store.events)
    assert_other_engines_read_the_same(lake)


def test_a_lake_of_the_first_release_continues_with_its_journal(spark: SparkSession, tmp_path: Path) -> None:
    """The lake has the first half of the journal; 0.1.0 wrote both (`scripts/make_journal_fixture.py`)."""
    with tarfile.open(FIXTURES / "journal-0.1.tar.gz") as kept:
        kept.extractall(tmp_path, filter="data")
    lake = Lake(spark, str(tmp_path / "lake"))
    assert [result.late for result in run(lake, tmp_path / "journal")] == [False]
    expected = json.loads((tmp_path / "expected.json").read_text())["messages"]
    assert_other_engines_read_the_same(lake)
    outcomes = {row["id"]: row["outcome"] for row in collected(lake.read("messages")) if row["topic"] != "dead"}
    assert outcomes == expected
    found = findings.audit(lake)
    assert not found.failed
