"""The connector's writer with a broker and without Spark: a task that Spark tries again."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import dejaq.sync
from pyspark_dejaq.options import Options
from pyspark_dejaq.outcomes import OutcomeFiles
from pyspark_dejaq.writing import WriteError, write_rows


def ids(*names: str) -> pa.RecordBatch:
    return pa.record_batch({"id": list(names)})


def options(url: str, topic: str, **more: str) -> Options:
    return Options.parse({"dejaq.url": url, "topic": topic, "operation": "cancel", **more})


def test_an_unknown_id_is_not_found_however_often_the_task_is_tried(url: str, topic: str, tmp_path: Path) -> None:
    """P3: a second attempt took every NOT_FOUND for a cancel by the first attempt."""
    given = options(url, topic, outcomesPath=str(tmp_path))
    for _ in range(3):
        with pytest.raises(WriteError, match="1 rows were refused; the first is 'nobody': NOT_FOUND"):
            write_rows(given, "job-1", iter([ids("m-1", "nobody", "m-2")]))
        (file,) = tmp_path.iterdir()
        outcomes = {row["id"]: row["outcome"] for row in map(json.loads, file.read_text().splitlines())}
        assert outcomes == {"m-1": "OK", "nobody": "NOT_FOUND", "m-2": "OK"}
    with pytest.raises(WriteError, match="NOT_FOUND"):
        write_rows(given, "job-2", iter([ids("m-1")]))


def test_more_cancels_than_one_batch_name_covers_are_recognised(url: str, topic: str) -> None:
    many = [f"n-{number:05d}" for number in range(2_500)]
    with dejaq.sync.connect(url) as client, client.producer(topic, group="spark") as producer:
        producer.send_batch([b"x"] * len(many), delay=3_600, ids=many)
    for _ in range(2):
        assert write_rows(options(url, topic), "job-1", iter([ids(*many)])).rows == len(many)


def test_two_attempts_of_a_task_at_one_time_each_write_a_whole_file(url: str, topic: str, tmp_path: Path) -> None:
    """P9: with speculation both attempts wrote one temporary file, and one failed or left half of each output."""
    given = options(url, topic, outcomesPath=str(tmp_path))
    with OutcomeFiles(given, "task-0", attempt=1) as first, OutcomeFiles(given, "task-0", attempt=2) as second:
        first.add([("m-1", "OK", "")] * 3)
        second.add([("m-1", "OK", "")])
    (file,) = tmp_path.iterdir()
    assert len(file.read_text().splitlines()) in (1, 3)
