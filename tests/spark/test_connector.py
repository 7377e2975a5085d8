"""The format `dejaq` on a real Spark, with a broker in a process of its own."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import dejaq.sync
from dejaq import limits
from dejaq.testing.servers.process import BrokerProcess
from dejaq.testing.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOUR_MS = 3_600_000
BASE_MS = 1_900_000_000_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("broker") / "data")
    process.start()
    asyncio.run(process.ready())
    yield process
    process.close()


@pytest.fixture
def topic(broker: BrokerProcess, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"[^0-9A-Za-z._-]", "-", request.node.name)[:100]
    with dejaq.sync.connect(broker.url) as client:
        client.create_topic(name, buckets=16)
    return name


def _rows(spark: SparkSession, count: int) -> DataFrame:
    from pyspark.sql import functions as F

    number = F.col("id")
    return spark.range(count).select(
        F.concat(F.lit("m-"), number).alias("id"),
        (F.lit(BASE_MS) + number * 1_000).alias("ts"),
        F.concat(F.lit("body "), number).cast("binary").alias("body"),
        (number % 3).cast("int").alias("priority"),
    )


def _write(rows: DataFrame, broker: BrokerProcess, topic: str, **options: str) -> None:
    writer = rows.write.format("dejaq").option("dejaq.url", broker.url).option("topic", topic)
    writer.options(**options).mode("append").save()


def _read(spark: SparkSession, broker: BrokerProcess, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("dejaq").option("dejaq.url", broker.url).option("subscribe", topic)
    return reader.options(**options).load()


def test_rows_are_read_as_they_were_written(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    rows = _rows(spark, 5_000)
    _write(rows, broker, topic, group="campaign")
    found = _read(spark, broker, topic)
    assert found.count() == 5_000
    assert found.select("id", "ts", "body", "priority").exceptAll(rows).count() == 0
    one = found.where("id = 'm-7'").first()
    assert one is not None
    assert (one.topic, one.status, one.attempts, one.owner, one.headers) == (topic, "waiting", 0, "campaign", {})
    assert one.due.timestamp() * 1_000 == BASE_MS + 7_000


def test_a_second_write_of_the_same_rows_adds_nothing(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    """G5: create is idempotent by id."""
    rows = _rows(spark, 1_000)
    _write(rows, broker, topic)
    _write(rows, broker, topic)
    assert _read(spark, broker, topic).count() == 1_000


def test_generated_ids_headers_and_leases_are_read(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    with dejaq.sync.connect(broker.url) as client:
        with client.producer(topic, group="g") as producer:
            ids = list(producer.send_batch([b"x"] * 300, at=[BASE_MS + n for n in range(300)]).ids)
            producer.send(b"due", id="due", delay=0, headers={"a": "b"})
        with client.consumer(topic, name="w", lease=30.0) as consumer:
            lease = next(iter(consumer))
            found = {row.id: row for row in _read(spark, broker, topic).collect()}
            lease.delete()
    assert set(found) == {*ids, "due"}
    assert (found["due"].status, found["due"].attempts, found["due"].headers) == ("processing", 1, {"a": "b"})


def test_options_select_messages(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    _write(_rows(spark, 100), broker, topic)
    window = {"startingTimestamp": str(BASE_MS + 10_000), "endingTimestamp": str(BASE_MS + 20_000)}
    assert _read(spark, broker, topic, **window).count() == 10
    assert _read(spark, broker, topic, statuses="available").count() == 0
    assert _read(spark, broker, topic, ids="m-1, m-99, none").count() == 2
    assert _read(spark, broker, topic, includeBody="false").where("body IS NOT NULL").count() == 0
    assert _read(spark, broker, topic, minPartitions="3").rdd.getNumPartitions() == 3


def test_filters_are_pushed_down_where_spark_allows_it(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    _write(_rows(spark, 100), broker, topic)
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "true")
    try:
        where = f"ts >= {BASE_MS + 10_000} AND ts < {BASE_MS + 20_000} AND status = 'waiting'"
        assert _read(spark, broker, topic).where(where).count() == 10
        assert _read(spark, broker, topic).where("id = 'm-5'").count() == 1
        assert _read(spark, broker, topic).where("id IN ('m-5', 'm-6') AND priority > 100").count() == 0
        assert _read(spark, broker, topic).where("id IN ('m-5', 'm-6') AND id IN ('m-6', 'm-7')").count() == 1
        assert _read(spark, broker, topic, ids="m-5").where("id = 'm-6'").count() == 0
        assert _read(spark, broker, topic).where("status IN ('available', 'waiting')").count() == 100
        assert _read(spark, broker, topic, statuses="available").where("status = 'waiting'").count() == 0
        due = f"due > timestamp_millis({BASE_MS + 97_000}) AND due <= timestamp_millis({BASE_MS + 99_000})"
        assert _read(spark, broker, topic).where(due).count() == 2
        first = _read(spark, broker, topic).where(f"ts = {BASE_MS + 5_000}").first()
        assert first is not None
        assert first.id == "m-5"
        assert _read(spark, broker, topic).count() == 100
    finally:
        spark.conf.unset(setting)


def test_a_temp_view_serves_sql(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    _write(_rows(spark, 90), broker, topic)
    options = f"`dejaq.url` '{broker.url}', subscribe '{topic}'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW pending USING dejaq OPTIONS ({options})")
    counts = {row.priority: row.n for row in spark.sql("SELECT priority, count(*) n FROM pending GROUP BY 1").collect()}
    assert counts == {0: 30, 1: 30, 2: 30}
    with dejaq.sync.connect(broker.url) as client, client.producer(topic, group="spark") as producer:
        assert producer.cancel([f"m-{number}" for number in range(60)]).ok
    # P7: the view always showed the topic as at its first use.
    assert spark.sql("SELECT * FROM pending").count() == 30


def test_move_and_cancel_by_id(spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    """Each row that cannot be changed is reported with its reason; the others are changed."""
    _write(_rows(spark, 10), broker, topic, group="g")
    moves = spark.createDataFrame([("m-1", BASE_MS + HOUR_MS), ("gone", BASE_MS)], "id string, ts long")
    _write(moves, broker, topic, group="g", operation="move", mode="collect", badRowsPath=str(tmp_path / "bad"))
    bad = [json.loads(line) for file in (tmp_path / "bad").iterdir() for line in file.read_text().splitlines()]
    assert [(row["id"], row["reason"].split(":")[0]) for row in bad] == [("gone", "NOT_FOUND")]
    cancels = spark.createDataFrame([("m-1",), ("gone",)], "id string")
    outcomes = str(tmp_path / "outcomes")
    paths = {"badRowsPath": str(tmp_path / "bad"), "outcomesPath": f"file:{outcomes}"}
    _write(cancels, broker, topic, group="g", operation="cancel", mode="collect", **paths)
    reported = {row.id: (row.operation, row.outcome) for row in spark.read.json(outcomes).collect()}
    assert reported == {"m-1": ("cancel", "OK"), "gone": ("cancel", "NOT_FOUND")}
    with pytest.raises(Exception, match="the first is 'm-2': NOT_OWNER"):
        _write(
            spark.createDataFrame([("m-2", BASE_MS)], "id string, ts long"),
            broker,
            topic,
            group="stranger",
            operation="move",
        )
    assert {row.id for row in _read(spark, broker, topic).collect()} == {f"m-{n}" for n in range(10) if n != 1}


def test_invalid_rows_are_reported_and_the_others_are_written(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    rows = spark.createDataFrame(
        [
            ("good", BASE_MS, "x", None),
            (None, BASE_MS, "x", 0),
            ("bad id", BASE_MS, "x", 0),
            ("late", None, "x", 0),
            ("empty", 1, None, 0),
            ("huge", 1, "x" * (limits.BODY_BYTES_MAX + 1), 0),
            ("urgent", 1, "x", 2**40),
        ],
        "id string, ts long, body string, priority long",
    )
    with pytest.raises(Exception, match="rows were refused; the first is"):
        _write(rows, broker, topic)
    _write(rows, broker, topic, mode="collect", badRowsPath=str(tmp_path / "bad"))
    bad = [json.loads(line) for file in (tmp_path / "bad").iterdir() for line in file.read_text().splitlines()]
    assert {row["id"] for row in bad} == {None, "bad id", "empty", "huge", "late", "urgent"}
    assert [row.id for row in _read(spark, broker, topic).collect()] == ["good"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subscribe": "no-such-topic"}, "no-such-topic"),
        ({}, "needs .option\\('subscribe'"),
        ({"subscribe": "t", "statuses": "sleeping"}, "statuses='sleeping' is not one of"),
        ({"subscribe": "t", "colour": "red"}, "option 'colour' is unknown"),
        ({"subscribe": "t", "startingTimestamp": "soon"}, "neither epoch milliseconds nor an ISO 8601 time"),
        ({"subscribe": "t", "dejaq.url": "dejaq://127.0.0.1:1", "timeout": "1"}, "NO_BROKER|UNAVAILABLE"),
    ],
)
def test_an_invalid_read_is_an_error_of_one_sentence(
    spark: SparkSession, broker: BrokerProcess, options: dict[str, str], sentence: str
) -> None:
    reader = spark.read.format("dejaq").option("dejaq.url", broker.url)
    with pytest.raises(Exception, match=sentence):
        reader.options(**options).load().count()


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ("id string, ts long", "needs a column 'body'"),
        ("id string, body string", "needs a column 'ts'"),
        ("id int, ts long, body string", "column 'id' is int; it must be string"),
        ("id string, ts long, body string, colour string", "column 'colour' is unknown"),
        ("id string, ts string, body string", "column 'ts' is string; it must be integral or timestamp"),
        ("id string, ts long, body int", "column 'body' is int; it must be binary or string"),
        ("id string, ts long, body string, headers map<string,int>", "column 'headers' is map<string,int>"),
    ],
)
def test_an_invalid_write_is_an_error_of_one_sentence(
    spark: SparkSession, broker: BrokerProcess, topic: str, columns: str, sentence: str
) -> None:
    with pytest.raises(Exception, match=sentence):
        _write(spark.createDataFrame([], columns), broker, topic)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"topic": "no-such-topic"}, "no-such-topic"),
        ({"topic": "t", "dejaq.url": "dejaq://127.0.0.1:1", "timeout": "1"}, "no broker at dejaq://127.0.0.1:1"),
        ({"topic": "t", "mode": "collect"}, "needs .option\\('badRowsPath'"),
        ({"topic": "t", "mode": "collect", "badRowsPath": "s3a://x/y"}, "is not a path of the executors' machines"),
    ],
)
def test_an_impossible_write_is_refused_before_any_task(
    spark: SparkSession, broker: BrokerProcess, options: dict[str, str], sentence: str
) -> None:
    writer = _rows(spark, 1).write.format("dejaq").option("dejaq.url", broker.url)
    with pytest.raises(Exception, match=sentence):
        writer.options(**options).mode("append").save()


def test_a_stream_is_written_once_though_its_batches_are_replayed(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    """R18: the same micro-batch written twice, with its messages consumed in between, adds nothing."""
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    _rows(spark, 500).select("id", "ts", "body").write.parquet(str(source))

    def run() -> None:
        stream = spark.readStream.schema("id string, ts long, body binary").parquet(str(source))
        query = (
            stream.writeStream.format("dejaq")
            .option("dejaq.url", broker.url)
            .option("topic", topic)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    assert _read(spark, broker, topic).count() == 500
    with dejaq.sync.connect(broker.url) as client, client.producer(topic, group="spark") as producer:
        assert producer.cancel([f"m-{n}" for n in range(500)]).ok
    for commit in (checkpoint / "commits").iterdir():
        commit.unlink()  # A driver that is killed before the commit leaves this state.
    run()
    assert _read(spark, broker, topic).count() == 0


def test_the_journal_is_followed_by_sequence(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    assert broker.data is not None
    journal = broker.data / "journal"
    with dejaq.sync.connect(broker.url) as client, client.producer(topic, group="g") as producer:
        producer.send_batch([b"x"] * 100, at=[BASE_MS] * 100, ids=[f"j-{n}" for n in range(100)])
        producer.cancel(["j-3"])

    def events() -> list[tuple[str, str]]:
        stream = spark.readStream.format("dejaq").option("journal", str(journal)).option("subscribe", topic)
        query = (
            stream.option("maxOffsetsPerTrigger", "50")
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "events"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [(row.kind, row.id) for row in spark.read.parquet(str(tmp_path / "events")).collect()]

    expected = sorted([("created", f"j-{n}") for n in range(100)] + [("cancelled", "j-3")])
    wait_until(lambda: list(journal.glob("*.json")), within=20, what="a segment")
    deadline = time.monotonic() + 30
    found: list[tuple[str, str]] = []
    while sorted(found) != expected and time.monotonic() < deadline:
        found = events()
    assert sorted(found) == expected


def test_a_write_continues_after_a_kill_of_the_broker(spark: SparkSession, tmp_path: Path) -> None:
    """G1, G5: after kill -9 in the middle of a write, every row exists once."""
    process = BrokerProcess(tmp_path / "data")
    process.start()
    asyncio.run(process.ready())
    try:
        with dejaq.sync.connect(process.url) as client:
            client.create_topic("t")

        def interrupt() -> None:
            with dejaq.sync.connect(process.url, deadline=30) as client:
                wait_until(lambda: client.count("t") > 5_000, within=60, what="the write has started")
            process.kill()
            asyncio.run(process.restart())

        interruption = threading.Thread(target=interrupt)
        interruption.start()
        _write(_rows(spark, 100_000), process, "t")
        interruption.join(timeout=60)
        with dejaq.sync.connect(process.url) as client:
            assert client.count("t") == 100_000
        assert process.log().count("serves at") == 2
        # A broker that does not return is an error of one sentence, in the middle of a read and before a write.
        rows = _read(spark, process, "t", timeout="10").select("id").toLocalIterator()
        next(rows)
        process.kill()
        with pytest.raises(
            Exception, match=r"reading topic 't' from dejaq://[0-9.:]+ ended early; load it and run the query again"
        ):
            list(rows)
        with pytest.raises(Exception, match=r"no broker at dejaq://[0-9.:]+ answered within 1 s"):
            _write(_rows(spark, 10), process, "t", timeout="1")
    finally:
        process.close()


def test_rows_are_compressed_as_the_topic_says(spark: SparkSession, broker: BrokerProcess) -> None:
    """Spark compresses a body like a producer, and consumers read the original body."""
    with dejaq.sync.connect(broker.url) as client:
        client.create_topic("packed", buckets=4, compression="zstd")
        text = "many words that are said again and again " * 50
        rows = spark.createDataFrame([("a", 0, text.encode()), ("b", 0, b"small")], "id string, ts bigint, body binary")
        _write(rows, broker, "packed")
        with client.consumer("packed", name="c", max_messages=2) as consumer:
            stored = {lease.id: (lease.body, len(lease.raw_body)) for lease in consumer}
    assert stored["b"] == (b"small", 5)
    assert stored["a"][0] == text.encode()
    assert stored["a"][1] < len(text) // 10


def test_an_export_has_the_rows_of_a_read_and_is_removed_at_the_end(
    spark: SparkSession, broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    from pyspark_dejaq.exporting import ExportStatement, export

    _write(_rows(spark, 500), broker, topic)
    abandoned = tmp_path / "abandoned"
    abandoned.mkdir()
    ExportStatement(topic, 1, 2).put(abandoned)
    read = spark.read.format("dejaq").option("dejaq.url", broker.url).option("subscribe", topic).load()
    expected = sorted(map(repr, read.collect()))
    with export(spark, broker.url, topic, tmp_path, files=3) as made:
        frame = made.frame()
        assert (made.rows, len(made.files)) == (500, 3)
        assert [(field.name, field.dataType) for field in frame.schema] == [(f.name, f.dataType) for f in read.schema]
        assert sorted(map(repr, frame.collect())) == expected
        assert frame.select("ts").where("ts % 2 = 0").count() == 500
        assert {"topic", "due"}.isdisjoint(pq.read_schema(made.files[0].path).names)
    with export(spark, broker.url, topic, tmp_path, columns=["due", "topic"]) as made:
        assert sorted(map(repr, made.frame().collect())) == sorted(map(repr, read.select("due", "topic").collect()))
    assert list(tmp_path.iterdir()) == []


def test_a_topic_of_many_messages_is_compared_through_tasks_and_a_small_one_by_the_driver(
    spark: SparkSession, broker: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dejaq.pipeline.spark import snapshot

    _write(_rows(spark, 300), broker, topic)
    small = snapshot.from_broker(spark, broker.url, [topic]).rows
    monkeypatch.setattr(snapshot, "ROWS_FEW", 299)
    large = snapshot.from_broker(spark, broker.url, [topic]).rows
    assert small.schema.names == large.schema.names == ["topic", "id", "due_ms"]
    assert small.count() == 300
    assert sorted(map(tuple, small.collect())) == sorted(map(tuple, large.collect()))
    planned = [rows._jdf.queryExecution().analyzed().toString() for rows in (small, large)]
    assert ["RelationV2" in plan for plan in planned] == [False, True]
