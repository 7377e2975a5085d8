"""`dejaq export` writes a topic's messages, as they were at one instant, to Parquet files."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the pipeline is not installed")

import pyarrow.parquet as pq

import dejaq.sync
from dejaq.cli.main import run
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.testing.servers.process import BrokerProcess
from pyspark_dejaq.columns import ARROW_SCHEMA
from pyspark_dejaq.exporting import STATEMENT, ExportStatement, export_range, planned, remove_expired
from pyspark_dejaq.frames import FrameFiles
from pyspark_dejaq.options import OptionError

BASE_MS = 1_900_000_000_000
COUNT = 2_500


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("broker") / "data")
    process.start()
    asyncio.run(process.ready())
    with dejaq.sync.connect(process.url) as client:
        client.create_topic("mail", buckets=16)
        client.create_topic("empty", buckets=4)
        with client.producer("mail", group="shop") as producer:
            producer.send_batch(
                [f"body {number}".encode() for number in range(COUNT)],
                at=[BASE_MS + number for number in range(COUNT)],
                ids=[f"m-{number}" for number in range(COUNT)],
                priorities=[number % 3 for number in range(COUNT)],
                headers=[{"n": str(number)} if number % 5 == 0 else None for number in range(COUNT)],
            )
            producer.send(b"generated", at=BASE_MS + COUNT)
    yield process
    process.close()


def exported(broker: BrokerProcess, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["export", *arguments, "--url", broker.url, "--processes", "2", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_every_message_is_in_one_file_with_all_it_has(
    broker: BrokerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = exported(broker, capsys, "mail", str(tmp_path / "out"), "--files", "4")
    assert (answer["rows"], answer["files"]) == (COUNT + 1, 4)
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 4
    table = pq.read_table(tmp_path / "out")
    assert table.schema.equals(ARROW_SCHEMA)
    rows = table.to_pylist()
    by_time = sorted(rows, key=lambda row: row["ts"])
    assert [row["ts"] for row in by_time] == [BASE_MS + number for number in range(COUNT + 1)]
    assert by_time[-1]["body"] == b"generated"
    for number in (0, 1, 5, COUNT - 1):
        row = by_time[number]
        assert row["body"] == f"body {number}".encode()
        assert (row["priority"], row["topic"], row["owner"], row["status"]) == (number % 3, "mail", "shop", "waiting")
        assert dict(row["headers"]) == ({"n": str(number)} if number % 5 == 0 else {})
        assert row["id"] == f"m-{number}"
    statement = json.loads((tmp_path / "out" / STATEMENT).read_text())
    assert (statement["complete"], statement["rows"], statement["expires_ms"]) == (True, COUNT + 1, 0)


def test_only_the_wanted_columns_are_written(
    broker: BrokerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported(broker, capsys, "mail", str(tmp_path), "--column", "id", "--column", "ts")
    table = pq.read_table(tmp_path)
    assert (table.column_names, table.num_rows) == (["id", "ts"], COUNT + 1)


def test_an_empty_topic_has_files_with_the_columns(
    broker: BrokerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exported(broker, capsys, "empty", str(tmp_path))["rows"] == 0
    assert pq.read_table(tmp_path).column_names[:2] == ["id", "topic"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["missing"], 1, "missing"),
        (["mail", "--column", "nope"], 2, "a message has no column 'nope'"),
        (["mail", "--files", "0"], 2, "--files"),
    ],
)
def test_a_wrong_export_is_refused_and_leaves_nothing(
    broker: BrokerProcess,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    topic, *options = arguments
    assert run(["export", topic, str(tmp_path / "out"), *options, "--url", broker.url]) == code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_directory_with_files_is_left_alone(
    broker: BrokerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("keep")
    assert run(["export", "mail", str(tmp_path), "--url", broker.url]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_directory_that_cannot_be_written_is_an_error_of_one_sentence(
    broker: BrokerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", "mail", "/proc/export", "--url", broker.url]) == 1
    assert "/proc/export cannot be written" in capsys.readouterr().err


def test_a_broker_that_ends_leaves_no_half_file(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path / "data")
    process.start()
    asyncio.run(process.ready())
    try:
        with dejaq.sync.connect(process.url) as client:
            client.create_topic("mail", buckets=4)
        (part, *_) = planned(process.url, "mail", timeout=2)
    finally:
        process.close()
    with pytest.raises(dejaq.DejaqError, match=r"exporting topic 'mail' from .* ended early; export it again"):
        export_range(part, str(tmp_path), (), durable=False)
    assert list(tmp_path.glob("*parquet*")) == []


def test_on_the_machine_of_the_broker_an_export_reads_its_files(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    runs = FrameFiles.runs

    def counted(files: FrameFiles, scan: carrier.ScanColumns) -> list[bytes]:
        found = runs(files, scan)
        read.append(len(found))
        return found

    def rows(name: str) -> list[dict[str, Any]]:
        (tmp_path / name).mkdir()
        for part in planned(broker.url, "mail", files=3):
            export_range(part, str(tmp_path / name), (), durable=False)
        found: list[dict[str, Any]] = pq.read_table(tmp_path / name).to_pylist()
        return sorted(found, key=lambda row: str(row["id"]))

    monkeypatch.setattr(FrameFiles, "runs", counted)
    from_files = rows("files")
    assert sum(read) > 0
    monkeypatch.setattr(FrameFiles, "of", lambda opened: None)
    read.clear()
    assert rows("sent") == from_files
    assert not read


def test_only_exports_whose_time_is_over_are_removed(tmp_path: Path) -> None:
    for name, expires_ms in (("old", 900), ("new", 1_100), ("kept", 0)):
        (tmp_path / name).mkdir()
        ExportStatement("mail", 1, expires_ms).put(tmp_path / name)
    (tmp_path / "other").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / STATEMENT).write_text("{")
    assert remove_expired(tmp_path, now_ms=1_000) == [tmp_path / "old"]
    assert sorted(os.listdir(tmp_path)) == ["damaged", "kept", "new", "other"]
    assert remove_expired(tmp_path / "none", now_ms=1_000) == []


def test_an_unknown_column_is_an_option_error() -> None:
    with pytest.raises(OptionError, match="a message has no column 'nope'; it has id, topic"):
        planned("dejaq://127.0.0.1:1", "mail", columns=["nope"])
