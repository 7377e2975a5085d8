"""The segments that enter the lake, and the errors about segments that cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the pipeline is not installed")

import pyarrow as pa
import pyarrow.parquet as pq

from dejaq.errors import PipelineError
from dejaq.journal.keys import SigningKey
from dejaq.journal.ledger import Ledger
from dejaq.journal.schema import SCHEMA
from dejaq.pipeline.intake.events import touched_by_segments
from dejaq.pipeline.intake.segments import Segment, batches, check, journal_directory, new_segments
from dejaq.pipeline.lake.ranges import Ranges
from tests.spark.history import random_store, write_manifest, write_segments
from tests.unit.journal.records import created, deleted


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return write_segments(tmp_path, random_store(1, steps=40).events, cuts=(5, 10))


def found(tmp_path: Path, **known: Ranges) -> list[Segment]:
    return new_segments(tmp_path, {origin.replace("_", "-"): ranges for origin, ranges in known.items()})


def rewritten(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path)
    write_manifest(path, events=table.num_rows)


def test_only_new_segments_with_a_manifest_are_read(tmp_path: Path, paths: list[Path]) -> None:
    assert [segment.path for segment in found(tmp_path)] == paths
    paths[1].with_suffix(".json").unlink()
    assert [segment.path for segment in found(tmp_path)] == [paths[0], paths[2]]
    assert [segment.path for segment in found(tmp_path, store_1=Ranges(((1, 5),)))] == [paths[2]]


def test_valid_segments_pass_the_check(tmp_path: Path, paths: list[Path]) -> None:
    for segment in found(tmp_path):
        check(segment)


def test_the_statistics_of_a_segment_are_read_without_its_rows(tmp_path: Path) -> None:
    key = SigningKey.of(tmp_path / "journal.key")
    ledger = Ledger.open(tmp_path / "journal", origin="store-1", key=key)
    ledger.append([created(1, ["a", "b"]), deleted(2, 3)], now_ms=0)
    (segment,) = new_segments(tmp_path / "journal", {})
    checked = check(segment)
    assert (checked.at_ms.known, checked.handed_us.known, checked.kind.known) == (True, True, True)
    assert (checked.kind.least, checked.kind.greatest) == ("created", "deleted")
    touched = touched_by_segments([checked])
    assert touched is not None
    assert (touched.gave_back, touched.dropped) == (False, False)
    assert list(touched.minutes) == ["2023-11-14"]


def test_a_segment_of_a_shared_store_names_it_and_origins_are_ordered_by_time(tmp_path: Path) -> None:
    for origin, times in (("a", (10, 30, 5)), ("b", (20, 40))):
        key = SigningKey.of(tmp_path / f"{origin}.key")
        ledger = Ledger.open(tmp_path / "journal" / origin, origin=origin, key=key, store="shop")
        for sequence, now_ms in enumerate(times, start=1):
            ledger.append([created(sequence, ["m"])], now_ms=now_ms)
    segments = new_segments(tmp_path / "journal", {})
    assert {check(segment).store for segment in segments} == {"shop"}
    # A clock that was set back does not change the order of the records of its origin.
    assert [(s.origin, s.name.first) for s in segments] == [("a", 1), ("b", 1), ("a", 2), ("a", 3), ("b", 2)]


def test_late_segments_are_a_batch_of_their_own(tmp_path: Path, paths: list[Path]) -> None:
    segments, known = found(tmp_path, store_1=Ranges(((6, 10),))), {"store-1": Ranges(((6, 10),))}
    first, second = batches(segments, known, events_max=10**6)
    assert (first.late, [s.path for s in first.segments]) == (True, [paths[0]])
    assert (second.late, [s.path for s in second.segments]) == (False, [paths[2]])


def test_segments_that_repeat_some_records_are_refused(tmp_path: Path, paths: list[Path]) -> None:
    with pytest.raises(PipelineError, match="repeats records that are in the lake already"):
        found(tmp_path, store_1=Ranges(((1, 7),)))


def test_two_segments_with_one_record_are_refused(tmp_path: Path, paths: list[Path]) -> None:
    write_segments(tmp_path, [e for e in random_store(1, steps=40).events if 5 <= e["sequence"] <= 10], cuts=())
    with pytest.raises(PipelineError, match="both have record 5"):
        found(tmp_path)


def test_a_damaged_segment_is_reported_with_the_next_step(tmp_path: Path, paths: list[Path]) -> None:
    content = bytearray(paths[0].read_bytes())
    content[len(content) // 2] ^= 1
    paths[0].write_bytes(bytes(content))
    with pytest.raises(PipelineError, match=r"is damaged: .* run `dejaq audit verify"):
        check(found(tmp_path)[0])


def test_a_missing_segment_is_reported(tmp_path: Path, paths: list[Path]) -> None:
    paths[0].unlink()
    with pytest.raises(PipelineError, match="is missing although its manifest is there"):
        check(found(tmp_path)[0])


def test_a_segment_that_is_no_parquet_is_reported(tmp_path: Path, paths: list[Path]) -> None:
    paths[0].write_bytes(b"hello")
    write_manifest(paths[0], events=1)
    with pytest.raises(PipelineError, match="is not a Parquet file"):
        check(found(tmp_path)[0])


def test_missing_columns_are_named(tmp_path: Path, paths: list[Path]) -> None:
    rewritten(paths[0], pq.read_table(paths[0]).drop_columns(["topic", "lease"]))
    with pytest.raises(PipelineError, match="it lacks the columns topic, lease"):
        check(found(tmp_path)[0])


def test_wrong_types_are_named(tmp_path: Path, paths: list[Path]) -> None:
    table = pq.read_table(paths[0])
    place = SCHEMA.get_field_index("at_ms")
    rewritten(paths[0], table.set_column(place, "at_ms", table["at_ms"].cast(pa.string())))
    with pytest.raises(PipelineError, match="its at_ms is string and not int64"):
        check(found(tmp_path)[0])


def test_a_wrong_number_of_events_is_reported(tmp_path: Path, paths: list[Path]) -> None:
    write_manifest(paths[0], events=1)
    with pytest.raises(PipelineError, match="its manifest says 1"):
        check(found(tmp_path)[0])


def test_an_invalid_manifest_is_reported(tmp_path: Path, paths: list[Path]) -> None:
    paths[0].with_suffix(".json").write_text("{}")
    with pytest.raises(PipelineError, match="is not a manifest; run `dejaq audit verify"):
        found(tmp_path)


def test_a_missing_journal_is_reported(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="cannot be read: No such file or directory"):
        found(tmp_path / "none")
    with pytest.raises(PipelineError, match="is not a directory of this machine"):
        journal_directory("s3a://bucket/journal")
    assert journal_directory("file:///a%20b/c") == Path("/a b/c")
