"""A pipeline that fails at any step leaves the lake unchanged, and the next run completes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dejaq.errors import PipelineError
from dejaq.pipeline.intake.ingest import run
from dejaq.pipeline.lake import lake as lakes
from dejaq.pipeline.lake.lake import Lake
from dejaq.pipeline.spark.snapshot import from_parquet
from tests.spark.comparing import assert_lake_equals_oracle
from tests.spark.history import random_store, write_segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Broken(Exception):
    pass


POINTS = [
    "pipeline.events_written",
    "pipeline.messages_written",
    "pipeline.releases_written",
    "pipeline.facts_written",
    "pipeline.before_commit",
    "pipeline.committed",
]


def test_a_failure_at_any_step_neither_loses_nor_duplicates_a_row(
    lake: Lake, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = random_store(21, steps=100)
    write_segments(journal, store.events, cuts=(store.sequence // 3,))
    next(run(lake, journal, events_max=1))
    for point in POINTS:

        def fail_at(name: str, wanted: str = point) -> None:
            if name == wanted:
                raise Broken(name)

        with monkeypatch.context() as patched:
            patched.setattr(lakes, "crash_at", fail_at)
            with pytest.raises(Broken):
                list(run(lake, journal))
        lake = Lake(lake.spark, lake.files.address)
        assert lake.head.version == (2 if point == "pipeline.committed" else 1)
    assert list(run(lake, journal)) == []
    assert_lake_equals_oracle(lake, store.events)


def test_a_lake_that_cannot_be_written_is_an_error_of_one_sentence(spark: SparkSession, journal: Path) -> None:
    write_segments(journal, random_store(1, steps=5).events, cuts=())
    with pytest.raises(PipelineError, match=r"the lake file:/proc/lake cannot be written: "):
        list(run(Lake(spark, "/proc/lake"), journal))


def test_an_unknown_kind_of_lake_address_is_an_error_of_one_sentence(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match='the lake nope://x/lake cannot be used: No FileSystem for scheme "nope"'):
        Lake(spark, "nope://x/lake")


def test_a_missing_lake_is_an_error_of_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="there is no lake at"):
        Lake.existing(spark, str(tmp_path))


def test_a_snapshot_without_ids_is_an_error_of_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(1).selectExpr("'mail' AS topic").write.parquet(str(tmp_path / "snapshot"))
    with pytest.raises(PipelineError, match="lacks the column id"):
        from_parquet(spark, str(tmp_path / "snapshot"), 0)
    with pytest.raises(PipelineError, match="does not exist"):
        from_parquet(spark, str(tmp_path / "none"), 0)


def test_a_missing_file_of_the_lake_is_an_error_of_one_sentence(lake: Lake, journal: Path) -> None:
    write_segments(journal, random_store(22, steps=60).events, cuts=(10,))
    next(run(lake, journal, events_max=1))
    root = lake.files.local
    assert root is not None
    for file in root.glob("messages/*/state=open/*/*.parquet"):
        file.unlink()
    with pytest.raises(PipelineError, match=r"^PIPELINE_FAILED: Spark could not write the lake file:/[^ ]+: [^\n]+$"):
        list(run(lake, journal))
