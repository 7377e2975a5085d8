"""Every table of the lake is a Delta table: version n of each is the lake at commit n, whatever was killed when."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the pipeline is not installed")
pa = pytest.importorskip("pyarrow")
ds = pytest.importorskip("pyarrow.dataset")
deltalake = pytest.importorskip("deltalake", reason="the engines of the tests are not installed")
duckdb = pytest.importorskip("duckdb", reason="the engines of the tests are not installed")
polars = pytest.importorskip("polars", reason="the engines of the tests are not installed")

from dejaq.errors import PipelineError  # noqa: E402
from dejaq.pipeline.delta import actions  # noqa: E402
from dejaq.pipeline.delta import log as logs  # noqa: E402
from dejaq.pipeline.delta.publishing import DeltaLogs  # noqa: E402
from dejaq.pipeline.lake.commit import Commit  # noqa: E402
from dejaq.pipeline.lake.files import LocalFiles  # noqa: E402
from dejaq.pipeline.lake.tables import TABLES  # noqa: E402
from tests.unit.pipeline.delta.tables import SmallLake, event  # noqa: E402

DAY, NEXT = "day=2026-11-15", "day=2026-11-16"

# The tables that every lake has.
ALWAYS = [table.name for table in TABLES.values() if not table.optional]


class Killed(BaseException):
    pass


@pytest.fixture
def lake(tmp_path: Path) -> SmallLake:
    """Three commits: two files of events, a third day, then the first file replaced."""
    made = SmallLake(tmp_path)
    made.commit("events", added={DAY: [event(1), event(2)]})
    made.commit("events", added={NEXT: [event(3, id="ümlaut", ts_ms=7)]})
    made.commit("events", dropped=[made.files("events")[0]], added={DAY: [event(1), event(2), event(4)]})
    return made


def by_deltalake(root: Path, table: str, version: int | None = None) -> list[dict[str, Any]]:
    found = deltalake.DeltaTable(str(root / table), version=version).to_pyarrow_table().to_pylist()
    return _shown(found)


def by_polars(root: Path, table: str, version: int | None = None) -> list[dict[str, Any]]:
    return _shown(polars.read_delta(str(root / table), version=version).to_dicts())


def by_duckdb(root: Path, table: str, version: int | None = None) -> list[dict[str, Any]]:
    rows = deltalake.DeltaTable(str(root / table), version=version).to_pyarrow_dataset()
    connection = duckdb.connect()
    connection.register("rows", rows)
    return _shown(connection.sql("SELECT * FROM rows").to_arrow_table().to_pylist())


def _shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kept = [{name: value for name, value in row.items() if name not in ("batch", "day")} for row in rows]
    return sorted(kept, key=lambda row: row["sequence"])


def expected(lake: SmallLake, version: int) -> list[dict[str, Any]]:
    names = TABLES["events"].columns
    rows = [dict.fromkeys(names) | row for row in lake.rows[version - 1]["events"]]
    return sorted(rows, key=lambda row: row["sequence"])


def published(lake: SmallLake) -> DeltaLogs:
    found = DeltaLogs(LocalFiles(lake.root))
    for commit in lake.commits:
        found.publish([commit])
    return found


def assert_whole(lake: SmallLake) -> None:
    for table in ALWAYS:
        assert deltalake.DeltaTable(str(lake.root / table)).version() == lake.head.version
    assert by_deltalake(lake.root, "events") == expected(lake, lake.head.version)


@pytest.mark.parametrize("read", [by_deltalake, by_polars, by_duckdb])
def test_every_engine_reads_every_version(lake: SmallLake, read: Any) -> None:
    published(lake)
    for version in (1, 2, 3):
        assert read(lake.root, "events", version) == expected(lake, version)
    assert read(lake.root, "events") == expected(lake, 3)


def test_a_table_that_did_not_change_has_the_same_version(lake: SmallLake) -> None:
    published(lake)
    for table in ALWAYS:
        found = deltalake.DeltaTable(str(lake.root / table))
        assert found.version() == 3
        assert found.transaction_version("dejaq.lake") == 3
    assert deltalake.DeltaTable(str(lake.root / "facts")).to_pyarrow_table().num_rows == 0


def test_the_log_says_what_the_files_contain(lake: SmallLake) -> None:
    published(lake)
    table = deltalake.DeltaTable(str(lake.root / "events"))
    assert table.metadata().partition_columns == ["batch", "day"]
    found = {row["partition"]["day"]: row for row in _actions(table)}
    row = found["2026-11-15"]
    assert (row["num_records"], row["min"]["sequence"], row["max"]["sequence"]) == (3, 1, 4)
    assert (row["null_count"]["ts_ms"], row["min"]["ts_ms"]) == (3, None)
    row = found["2026-11-16"]
    assert (row["max"]["id"], row["max"]["ts_ms"], row["null_count"]["ts_ms"]) == ("ümlaut", 7, 0)


def _actions(table: Any) -> list[dict[str, Any]]:
    return list(pa.table(table.get_add_actions()).to_pylist())


def test_statistics_and_partitions_let_an_engine_skip_files(lake: SmallLake) -> None:
    published(lake)
    rows = deltalake.DeltaTable(str(lake.root / "events")).to_pyarrow_dataset()
    assert len(list(rows.get_fragments(ds.field("day") == "2026-11-16"))) == 1
    assert len(list(rows.get_fragments(ds.field("sequence") > 4))) == 0


def test_no_other_program_writes_to_a_table(lake: SmallLake) -> None:
    """A program that does not know our feature is refused by the protocol, also when it would remove files."""
    published(lake)
    table = deltalake.DeltaTable(str(lake.root / "events"))
    for change in (
        table.delete,
        lambda: table.optimize.compact(),
        lambda: table.vacuum(0, dry_run=False, enforce_retention_duration=False),
    ):
        with pytest.raises(deltalake.exceptions.CommitFailedError, match="dejaqSingleWriter"):
            change()
    assert_whole(lake)


POINTS = ["pipeline.delta_created", *(f"pipeline.delta_{table}" for table in ALWAYS)]


@pytest.mark.parametrize("hit", range(1, 4 * 3 + 4 + 1))
def test_a_kill_at_any_point_is_repaired_by_the_next_writer(
    lake: SmallLake, monkeypatch: pytest.MonkeyPatch, hit: int
) -> None:
    """Until then each table is at a commit: the newest or one before; at its least version the lake is as it was."""
    hits = 0

    def crash_at(name: str) -> None:
        nonlocal hits
        hits += 1
        if hits == hit:
            raise Killed(name)

    with monkeypatch.context() as patched:
        patched.setattr(logs, "crash_at", crash_at)
        logs_of = DeltaLogs(LocalFiles(lake.root))
        killed = -1
        for commit in lake.commits:
            try:
                logs_of.publish([commit])
            except Killed:
                killed = commit.version
                break
        assert killed > 0
    versions = []
    for table in ALWAYS:
        if (lake.root / table / "_delta_log").exists():
            found = deltalake.DeltaTable(str(lake.root / table)).version()
            assert killed - 1 <= found <= killed
            versions.append(found)
    least = min(versions)
    if least:
        assert by_deltalake(lake.root, "events", least) == expected(lake, least)
    DeltaLogs(LocalFiles(lake.root)).publish(lake.commits)
    assert_whole(lake)
    for version in range(1, lake.head.version + 1):
        assert by_deltalake(lake.root, "events", version) == expected(lake, version)


def test_publishing_again_changes_nothing(lake: SmallLake) -> None:
    published(lake)
    before = _content(lake.root)
    DeltaLogs(LocalFiles(lake.root)).publish(lake.commits)
    assert _content(lake.root) == before


def _content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.glob("*/_delta_log/*")}


@pytest.mark.parametrize("point", [None, "pipeline.delta_begun"])
def test_a_log_begins_in_the_middle_of_a_lake(
    lake: SmallLake, monkeypatch: pytest.MonkeyPatch, point: str | None
) -> None:
    """So that a lake of an earlier release, whose first commits are gone, is taken over."""

    def crash_at(name: str) -> None:
        if name == point:
            raise Killed(name)

    if point is not None:
        with monkeypatch.context() as patched:
            patched.setattr(logs, "crash_at", crash_at)
            with pytest.raises(Killed):
                DeltaLogs(LocalFiles(lake.root)).publish(lake.commits[-1:])
        assert by_deltalake(lake.root, "events") == expected(lake, 3)
    DeltaLogs(LocalFiles(lake.root)).publish(lake.commits[-1:])
    assert_whole(lake)
    lake.commit("events", added={NEXT: [event(9)]})
    DeltaLogs(LocalFiles(lake.root)).publish(lake.commits[-1:])
    assert_whole(lake)
    assert by_polars(lake.root, "events") == expected(lake, 4)


@pytest.mark.parametrize("damage", ["removed", "garbage", "foreign", "ahead", "hole"])
def test_a_log_that_is_not_the_lakes_is_written_again(lake: SmallLake, damage: str) -> None:
    published(lake)
    log = lake.root / "events" / "_delta_log"
    newest = log / f"{3:020d}.json"
    if damage == "removed":
        for path in log.iterdir():
            path.unlink()
        log.rmdir()
    elif damage == "garbage":
        newest.write_bytes(newest.read_bytes()[:40])
    elif damage == "foreign":
        (log / f"{4:020d}.json").write_text(json.dumps({"commitInfo": {"engineInfo": "other"}}))
    elif damage == "ahead":
        for version in (4, 5):
            (log / f"{version:020d}.json").write_bytes(newest.read_bytes())
    else:
        (log / f"{2:020d}.json").unlink()
    DeltaLogs(LocalFiles(lake.root)).publish(lake.commits)
    assert_whole(lake)


def test_a_version_that_appears_meanwhile_is_an_error(lake: SmallLake) -> None:
    found = DeltaLogs(LocalFiles(lake.root))
    found.publish(lake.commits[:2])
    (lake.root / "events" / "_delta_log" / f"{3:020d}.json").write_text("{}")
    with pytest.raises(PipelineError, match="is there already: another pipeline writes to this lake"):
        found._logs[0].publish(lake.commits[2])
    DeltaLogs(LocalFiles(lake.root)).publish(lake.commits)
    assert_whole(lake)


def test_a_long_log_has_checkpoints_and_loses_what_is_no_longer_kept(tmp_path: Path) -> None:
    lake = SmallLake(tmp_path)
    found = DeltaLogs(LocalFiles(tmp_path))
    for number in range(1, 46):
        lake.commit("events", added={DAY: [event(number)]})
        found.publish([lake.head])
    log = tmp_path / "events" / "_delta_log"
    assert {int(path.name[:20]) for path in log.glob("*.checkpoint.parquet")} == {20, 40}
    assert by_deltalake(tmp_path, "events", 5) == expected(lake, 5)
    found.clear_away(30)
    assert min(int(path.name[:20]) for path in log.glob("*.json")) == 20
    found.clear_away(43)
    assert {int(path.name[:20]) for path in log.glob("*.json")} == {40, 41, 42, 43, 44, 45}
    assert by_deltalake(tmp_path, "events", 43) == expected(lake, 43)
    again = DeltaLogs(LocalFiles(tmp_path))
    lake.commit("events", added={DAY: [event(46)]})
    again.publish([lake.head])
    assert_whole(lake)


def test_a_new_column_is_declared_and_is_null_in_older_files(lake: SmallLake, monkeypatch: pytest.MonkeyPatch) -> None:
    published(lake)
    widened = actions.schema_string

    def schema_string(table: Any) -> str:
        schema = json.loads(widened(table))
        schema["fields"].append({"name": "extra", "type": "string", "nullable": True, "metadata": {}})
        return json.dumps(schema)

    lake.commit("events", added={NEXT: [event(9)]})
    monkeypatch.setattr(actions, "schema_string", schema_string)
    DeltaLogs(LocalFiles(lake.root)).publish([lake.head])
    rows = by_deltalake(lake.root, "events")
    assert [row["extra"] for row in rows] == [None] * 5
    assert "extra" not in by_deltalake(lake.root, "events", 3)[0]


def test_names_with_special_characters_are_found(tmp_path: Path) -> None:
    lake = SmallLake(tmp_path)
    lake.commit("events", added={DAY: [event(1)]})
    path = tmp_path / "events" / lake.files("events")[0]
    odd = path.with_name("a b%20c+ü#.parquet")
    path.rename(odd)
    commit = Commit(
        version=1,
        written_ms=5,
        identity=lake.head.identity,
        tables={"events": {DAY: (str(odd.relative_to(tmp_path / "events")),)}},
    )
    DeltaLogs(LocalFiles(tmp_path)).publish([commit])
    for read in (by_deltalake, by_polars, by_duckdb):
        assert read(tmp_path, "events") == expected(lake, 1)
