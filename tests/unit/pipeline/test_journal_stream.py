"""The stream of the journal reads the segments of its directory, and those of brokers in directories below it."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the pipeline is not installed")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from dejaq.journal import names
from dejaq.journal.keys import SigningKey
from dejaq.journal.ledger import Ledger
from dejaq.journal.names import SegmentName
from dejaq.journal.retention import RetentionPolicy
from dejaq.protocol.v1.journal_pb2 import JournalRecord
from pyspark_dejaq.journal import HOLE_PATIENCE_S, JournalStreamReader
from pyspark_dejaq.options import OptionError, Options
from tests.unit.journal.records import created

FIXTURE = Path(__file__).parents[2] / "fixtures" / "journal-0.1.tar.gz"


def test_the_journals_of_several_brokers_are_one_stream(tmp_path: Path) -> None:
    for origin, folder, store in (("a", "one", "shop"), ("b", "two", "shop"), ("c", ".", "")):
        key = SigningKey.of(tmp_path / f"{origin}.key")
        ledger = Ledger.open(tmp_path / "journal" / folder, origin=origin, key=key, store=store)
        ledger.append([created(1, [f"{origin}-1"]), created(2, [f"{origin}-2"])], now_ms=0)
    reader = JournalStreamReader(Options.parse({"journal": str(tmp_path / "journal")}))
    start, end = reader.initialOffset(), reader.latestOffset({}, ReadAllAvailable())
    assert end == {"a": 2, "b": 2, "c": 2}
    rows = [
        row
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]
    assert [(row["store"], row["id"], row["ticket"]) for row in rows] == [
        ("shop", "a-1", 1),
        ("shop", "a-2", 2),
        ("shop", "b-1", 1),
        ("shop", "b-2", 2),
        ("c", "c-1", None),
        ("c", "c-2", None),
    ]


def test_events_have_their_caller_and_those_of_the_first_release_have_none(tmp_path: Path) -> None:
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path / "old", filter="data")
    directory = next((tmp_path / "old").rglob("*.parquet")).parent
    assert {row["principal"] for row in _rows(directory)} == {None}
    record = JournalRecord.FromString(created(1, ["m"]))
    record.principal = "user:corp/alice"
    ledger = Ledger.open(tmp_path / "new", origin="a", key=SigningKey.of(tmp_path / "key"))
    ledger.append([record.SerializeToString()], now_ms=0)
    assert [(row["id"], row["principal"]) for row in _rows(tmp_path / "new")] == [("m", "user:corp/alice")]


def _rows(directory: Path) -> list[dict[str, object]]:
    reader = JournalStreamReader(Options.parse({"journal": str(directory)}))
    start, end = reader.initialOffset(), reader.latestOffset({}, ReadAllAvailable())
    parts = reader.partitions(start, end)
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


class Journal:
    """Segments of one record each, which a test moves into a directory in any order."""

    def __init__(self, path: Path, *, origin: str = "a", count: int = 4) -> None:
        self.directory = path / "journal"
        self.directory.mkdir()
        self.origin = origin
        self.now = 0.0
        self._aside = path / "aside"
        ledger = Ledger.open(self._aside, origin=origin, key=SigningKey.of(path / "key"))
        for number in range(1, count + 1):
            ledger.append([created(number, [f"m-{number}"])], 0)

    def bring(self, *numbers: int) -> None:
        for number in numbers:
            stem = SegmentName(self.origin, number, number).stem
            for suffix in (".parquet", ".json"):
                shutil.copy(self._aside / (stem + suffix), self.directory)

    def drop(self, number: int) -> None:
        stem = SegmentName(self.origin, number, number).stem
        for suffix in (".parquet", ".json"):
            (self.directory / (stem + suffix)).unlink()

    def reader(self, **options: str) -> JournalStreamReader:
        given = Options.parse({"journal": str(self.directory), **options})
        return JournalStreamReader(given, clock=lambda: self.now)

    def later(self, seconds: float = 1.0) -> None:
        self.now += seconds


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path)


def ids(reader: JournalStreamReader, start: dict[str, int], end: dict[str, int]) -> list[str]:
    parts = reader.partitions(start, end)
    return [row["id"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def test_the_stream_waits_for_a_late_segment(journal: Journal) -> None:
    """P2: with segments 1, 2, 4, then 3, the stream continued after 4, and 3 was never delivered."""
    reader = journal.reader()
    journal.bring(1, 2, 4)
    end = reader.latestOffset({}, ReadAllAvailable())
    assert end == {"a": 2}
    assert ids(reader, {}, end) == ["m-1", "m-2"]
    journal.bring(3)
    journal.later()
    assert ids(reader, end, reader.latestOffset(end, ReadAllAvailable())) == ["m-3", "m-4"]


def test_the_stream_waits_for_a_late_first_segment(journal: Journal) -> None:
    """P2: the same at the beginning of an origin."""
    reader = journal.reader()
    journal.bring(2, 3)
    assert reader.latestOffset({}, ReadMaxRows(1)) == {}
    journal.bring(1)
    journal.later()
    assert reader.latestOffset({}, ReadAllAvailable()) == {"a": 3}


def test_a_gap_that_stays_fails_the_query(journal: Journal) -> None:
    """P2: the wait has a limit, and the error names the records."""
    reader = journal.reader()
    journal.bring(1, 3)
    assert reader.latestOffset({"a": 1}, ReadAllAvailable()) == {"a": 1}
    journal.later(HOLE_PATIENCE_S + 1)
    with pytest.raises(OptionError, match="does not have the records 2 to 2 of a; their segments are missing"):
        reader.latestOffset({"a": 1}, ReadAllAvailable())
    lenient = journal.reader(failOnDataLoss="false")
    assert ids(lenient, {"a": 1}, lenient.latestOffset({"a": 1}, ReadAllAvailable())) == ["m-3"]


def test_a_query_of_the_present_segments_fails_at_a_gap(journal: Journal) -> None:
    reader = journal.reader()
    journal.bring(1, 3)
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(OptionError, match="the records 2 to 2 of a"):
        reader.latestOffset({}, ReadAllAvailable())


def test_records_that_retention_has_dropped_fail_the_query_at_once(tmp_path: Path) -> None:
    directory = tmp_path / "journal"
    ledger = Ledger.open(directory, origin="a", key=SigningKey.of(tmp_path / "key"))
    for number in range(1, 5):
        ledger.append([created(number, [f"m-{number}"])], 1_000 * number)
    ledger.drop(RetentionPolicy(age_ms_max=1), 2_500)
    options = {"journal": str(directory)}
    reader = JournalStreamReader(Options.parse(options))
    assert reader.latestOffset({}, ReadAllAvailable()) == {"a": 4}
    with pytest.raises(OptionError, match="the records 2 to 2 of a; retention has dropped them"):
        reader.latestOffset({"a": 1}, ReadAllAvailable())
    assert ids(reader, {}, {"a": 4}) == ["m-3", "m-4"]


def test_a_missing_segment_is_skipped_only_without_fail_on_data_loss(journal: Journal) -> None:
    """P10: failOnDataLoss=false did not cover a file that was dropped after the batch was planned."""
    journal.bring(1, 2)
    for lenient in (False, True):
        reader = journal.reader(failOnDataLoss=str(not lenient).lower())
        first, second = reader.partitions({}, {"a": 2})
        journal.drop(1)
        if lenient:
            assert list(reader.read(first)) == []
            assert ids(reader, {}, reader.latestOffset({}, ReadMaxRows(1))) == ["m-2"]
        else:
            with pytest.raises(OptionError, match=r"the segment .* is gone"):
                list(reader.read(first))
            with pytest.raises(OptionError, match="the records 1 to 1 of a"):
                reader.partitions({}, {"a": 2})
        assert [row["id"] for batch in reader.read(second) for row in batch.to_pylist()] == ["m-2"]
        journal.bring(1)


def test_a_limit_takes_from_each_origin_in_turn(tmp_path: Path) -> None:
    for origin in ("a", "b"):
        (tmp_path / origin).mkdir()
        Journal(tmp_path / origin, origin=origin, count=3).bring(1, 2, 3)
    (tmp_path / "all").mkdir()
    for origin in ("a", "b"):
        (tmp_path / origin / "journal").rename(tmp_path / "all" / origin)
    reader = JournalStreamReader(Options.parse({"journal": str(tmp_path / "all")}))
    assert reader.latestOffset({}, ReadMaxRows(2)) == {"a": 1, "b": 1}


def test_a_directory_is_listed_again_when_a_file_is_missing(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """P2: a listing of a directory during writes may contain only the later of two files."""
    journal.bring(1, 2, 3)
    whole = names.named_files
    hidden = [SegmentName("a", 2, 2)]

    def listed(directory: Path, suffix: str) -> Iterator[SegmentName]:
        missed = hidden.copy()
        hidden.clear()
        return iter([name for name in whole(directory, suffix) if name not in missed])

    monkeypatch.setattr(names, "named_files", listed)
    assert sorted(name.first for name in names.found_segments(journal.directory)) == [1, 2, 3]
