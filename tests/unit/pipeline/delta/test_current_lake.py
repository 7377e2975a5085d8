"""`dejaq pipeline run` starts Spark only if there is something to do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

pytest.importorskip("pyspark", reason="the pipeline is not installed")

from dejaq.cli.main import run
from dejaq.pipeline.delta.publishing import DeltaLogs
from dejaq.pipeline.lake.commit import Commit
from dejaq.pipeline.lake.files import LocalFiles
from dejaq.pipeline.lake.ranges import Ranges
from dejaq.pipeline.spark import session
from tests.spark.history import random_store, write_segments
from tests.unit.pipeline.delta.tables import IDENTITY


class SparkWanted(Exception):
    pass


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object, **__: object) -> NoReturn:
        raise SparkWanted

    monkeypatch.setattr(session, "session", start)


def lake_at(root: Path, commit: Commit) -> None:
    files = LocalFiles(root)
    files.make("_commits")
    files.write_new(f"_commits/{commit.version:012d}.json", commit.to_json())


@pytest.fixture
def current(tmp_path: Path) -> Commit:
    """A lake that has all records of the journal."""
    store = random_store(3, steps=30)
    write_segments(tmp_path / "journal", store.events, cuts=(10,))
    commit = Commit(
        version=1, written_ms=1, identity=IDENTITY, events=7, records={"store-1": Ranges(((1, store.sequence),))}
    )
    lake_at(tmp_path / "lake", commit)
    DeltaLogs(LocalFiles(tmp_path / "lake")).publish([commit])
    return commit


def run_pipeline(root: Path) -> int:
    return run(["pipeline", "run", "--journal", str(root / "journal"), "--lake", str(root / "lake"), "--json"])


def test_nothing_new_is_reported_without_spark(
    current: Commit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_pipeline(tmp_path) == 0
    state = json.loads(capsys.readouterr().out)
    assert (state["version"], state["events"], state["taken_in"], state["gaps"]) == (1, 7, 0, {})
    assert state["lake"] == f"file:{tmp_path}/lake"


@pytest.mark.parametrize("why", ["segments", "unpublished", "format", "no lake"])
def test_spark_starts_when_there_is_work(
    current: Commit, tmp_path: Path, capsys: pytest.CaptureFixture[str], why: str
) -> None:
    lake = tmp_path / "lake"
    if why == "segments":
        lake_at(lake, replace(current, version=2, records={"store-1": Ranges(((1, 10),))}))
        DeltaLogs(LocalFiles(lake)).publish([replace(current, version=2)])
    elif why == "unpublished":
        lake_at(lake, replace(current, version=2))
    elif why == "format":
        path = lake / "_commits" / f"{1:012d}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
    else:
        (lake / "_commits" / f"{1:012d}.json").unlink()
    assert run_pipeline(tmp_path) == 1
    assert "SparkWanted" in capsys.readouterr().err


def test_a_gap_is_still_reported(current: Commit, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (first, second) = sorted((tmp_path / "journal").glob("store-1-*.json"))
    first.unlink()
    lacking = replace(current, version=2, records={"store-1": Ranges(((11, int(second.stem[-20:])),))})
    lake_at(tmp_path / "lake", lacking)
    DeltaLogs(LocalFiles(tmp_path / "lake")).publish([lacking])
    assert run_pipeline(tmp_path) == 0
    assert json.loads(capsys.readouterr().out)["gaps"] == {"store-1": [[1, 10]]}
