"""Log topics in Spark: reads by offsets and by time, streams through kills, and appends that nothing repeats."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

import dejaq.sync
from dejaq.pipeline.intake.logs import keep_log
from dejaq.pipeline.lake.lake import Lake
from dejaq.testing.servers.process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BUCKETS = 4


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("broker") / "data")
    process.start()
    asyncio.run(process.ready())
    yield process
    process.close()


@pytest.fixture
def log(broker: BrokerProcess, request: pytest.FixtureRequest) -> str:
    name: str = request.node.name[:100]
    with dejaq.sync.connect(broker.url) as client:
        client.create_topic(name, kind="log", buckets=BUCKETS)
    return name


def _append(broker: BrokerProcess, log: str, first: int, count: int) -> None:
    with dejaq.sync.connect(broker.url) as client:
        numbers = range(first, first + count)
        client.log(log).append_batch([b"body %d" % n for n in numbers], keys=[b"key %d" % (n % 7) for n in numbers])


def _read(spark: SparkSession, broker: BrokerProcess, log: str, **options: str) -> DataFrame:
    return spark.read.format("dejaq").option("dejaq.url", broker.url).option("subscribe", log).options(**options).load()


def test_rows_that_are_appended_are_read_again(spark: SparkSession, broker: BrokerProcess, log: str) -> None:
    rows = spark.range(3_000).selectExpr(
        "cast(concat('body ', id) AS binary) AS body",
        "cast(concat('key ', id % 7) AS binary) AS key",
        "map('number', cast(id AS string)) AS headers",
    )
    rows.write.format("dejaq").option("dejaq.url", broker.url).option("topic", log).mode("append").save()
    found = _read(spark, broker, log).persist()
    assert found.count() == 3_000
    assert found.select("body", "key").exceptAll(rows.select("body", "key")).count() == 0
    assert found.where("headers['number'] != substring(cast(body AS string), 6)").count() == 0
    # The offsets of a bucket are dense, and all messages with one key are in one bucket.
    by_bucket = found.groupBy("bucket").agg({"offset": "max", "*": "count"}).collect()
    assert all(row["max(offset)"] + 1 == row["count(1)"] for row in by_bucket)
    assert found.groupBy("key").agg({"bucket": "min"}).count() == found.select("key", "bucket").distinct().count()
    assert found.where("timestamp > current_timestamp() - interval 1 hour").count() == 3_000
    found.unpersist()


def test_a_batch_reads_between_offsets_and_times(spark: SparkSession, broker: BrokerProcess, log: str) -> None:
    with dejaq.sync.connect(broker.url) as client:
        places = [client.log(log).append(b"%d" % n, bucket=1) for n in range(20)]
        (middle_ms,) = [one.ts_ms for one in client.log(log).tail(100) if one.offset == places[10].offset]
    window = _read(spark, broker, log, startingOffsets='{"1": 5}', endingOffsets='{"1": 12}')
    assert sorted(row.offset for row in window.where("bucket = 1").collect()) == list(range(5, 12))
    before = _read(spark, broker, log, endingTimestamp=str(middle_ms)).count()
    after = _read(spark, broker, log, startingTimestamp=str(middle_ms)).count()
    assert before + after == 20
    assert 0 < after <= 10 or before <= 10
    assert _read(spark, broker, log, includeBody="false").where("body IS NOT NULL").count() == 0
    with pytest.raises(Exception, match="the topic was made again, or the offset does not exist yet"):
        _read(spark, broker, log, endingOffsets='{"1": 21}').count()
    with pytest.raises(Exception, match="names bucket '9'"):
        _read(spark, broker, log, startingOffsets='{"9": 0}').count()


def test_a_stream_copies_a_log_to_a_log_exactly_once_through_kills(
    spark: SparkSession, broker: BrokerProcess, log: str, tmp_path: Path
) -> None:
    """The query is stopped with the commit of its last micro-batch lost, so that this batch is written again; then the
    broker is killed while the query runs.
    """
    copy = f"{log}-copy"
    with dejaq.sync.connect(broker.url) as client:
        client.create_topic(copy, kind="log", buckets=2)
    checkpoint = tmp_path / "checkpoint"

    def run_query(**options: str) -> list[int]:
        source = spark.readStream.format("dejaq").option("dejaq.url", broker.url).option("subscribe", log)
        rows = source.options(**options).load().select("body", "key", "headers")
        sink = rows.writeStream.format("dejaq").option("dejaq.url", broker.url).option("topic", copy)
        query = sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        return [progress["numInputRows"] for progress in query.recentProgress]

    _append(broker, log, 0, 500)
    counts = run_query(maxOffsetsPerTrigger="200")
    assert sum(counts) == 500
    assert max(counts) <= 200
    # As a driver that was killed between its write and its commit leaves it.
    commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        path.unlink(missing_ok=True)
    broker.kill()
    asyncio.run(broker.restart())
    _append(broker, log, 500, 300)
    assert sum(run_query()) > 300
    bodies = [bytes(row.body) for row in _read(spark, broker, copy).select("body").collect()]
    assert sorted(bodies) == sorted(b"body %d" % n for n in range(800))


def test_a_log_is_kept_in_the_lake_exactly_once(
    lake: Lake, broker: BrokerProcess, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages and the position are one commit, so a run that fails before it is repeated without a trace."""
    _append(broker, log, 0, 300)
    counts = [kept.messages for kept in keep_log(lake, broker.url, log, messages_max=200)]
    assert sum(counts) == 300
    assert len(counts) == 2
    _append(broker, log, 300, 100)
    with monkeypatch.context() as failing:
        failing.setattr(lake.files, "write_new", _full_disk)
        with pytest.raises(OSError, match="disk"):
            list(keep_log(lake, broker.url, log))
    again = Lake(lake.spark, lake.files.address)
    (kept,) = keep_log(again, broker.url, log)
    assert kept.messages == 100
    assert list(keep_log(again, broker.url, log)) == []
    rows = again.read("log_messages").where(f"topic = '{log}'").collect()
    assert sorted(bytes(row.body) for row in rows) == sorted(b"body %d" % n for n in range(400))
    assert len({(row.bucket, row.offset) for row in rows}) == 400
    # The same with another engine.
    table = DeltaTable(str(again.files.local / "log_messages")) if again.files.local else None
    assert table is not None
    assert table.to_pyarrow_dataset().count_rows() == 400


def _full_disk(name: str, content: bytes) -> None:
    raise OSError("disk")


def test_a_stream_does_not_read_a_timeline(spark: SparkSession, broker: BrokerProcess) -> None:
    with dejaq.sync.connect(broker.url) as client:
        client.create_topic("plain-timeline")
    source = spark.readStream.format("dejaq").option("dejaq.url", broker.url).option("subscribe", "plain-timeline")
    with pytest.raises(Exception, match="timeline, which is read as a batch"):
        source.load().writeStream.format("noop").start().awaitTermination()
