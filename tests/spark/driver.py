"""Spark drivers in processes of their own, so that they can be killed: `python -m tests.spark.driver NAME JSON`.

A driver reports each step in one line of JSON, and waits for a line on stdin after a report with `waits`.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from dejaq.cli.main import run
from dejaq.pipeline.spark.session import start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def campaign(spark: SparkSession, rows: int, now_ms: int) -> DataFrame:
    """Messages of which one half is due now, and the other half in an hour or later."""
    from pyspark.sql import functions as F

    number = F.col("id")
    return spark.range(0, rows, 1, 8).select(
        F.concat(F.lit("customer-"), number).alias("id"),
        (F.lit(now_ms) + F.when(number % 2 == 0, 0).otherwise(3_600_000 + number)).alias("ts"),
        F.concat(F.lit("dear customer "), number).alias("body"),
    )


def story(given: dict[str, Any]) -> None:
    """Write a campaign; after a line on stdin, read the messages that are left and run every job."""
    spark = start(given["master"], settings=given["settings"], brief=given["brief"])
    rows = campaign(spark, given["rows"], given["now_ms"])
    rows.write.format("dejaq").option("dejaq.url", given["url"]).option("topic", "campaign").mode("append").save()
    _say(waits="written")
    left = spark.read.format("dejaq").option("dejaq.url", given["url"]).option("subscribe", "campaign").load()
    expected = rows.where(f"ts > {given['now_ms']}").selectExpr("id", "ts", "CAST(body AS binary) AS body")
    found = left.select("id", "ts", "body")
    _say(read=found.count(), strange=found.exceptAll(expected).count(), missing=expected.exceptAll(found).count())
    lake = ["--lake", given["lake"], "--json"]
    live = ["--live", "--url", given["url"], *lake]
    # The commands use the running Spark session.
    assert run(["pipeline", "audit", "--journal", given["journal"], "--settle", "60", *live]) == 0
    for job in given["jobs"]:
        assert run(["pipeline", job, *lake]) == 0
    assert run(["pipeline", "report", "--output", given["report"], *live]) == 0
    spark.stop()


def stream(given: dict[str, Any]) -> None:
    """Write a directory of Parquet files to a topic, one file per micro-batch."""
    spark = start("local[2]", brief=True)
    follow(spark, given).awaitTermination()
    spark.stop()


def follow(spark: SparkSession, given: dict[str, Any]) -> Any:
    """Start the streaming query of `stream`."""
    files = spark.readStream.schema("id string, ts long, body string").option("maxFilesPerTrigger", "1")
    writer = files.parquet(given["source"]).writeStream.format("dejaq").trigger(availableNow=True)
    options = {"dejaq.url": given["url"], "topic": given["topic"], "checkpointLocation": given["checkpoint"]}
    return writer.options(**options).start()


def _say(**values: Any) -> None:
    print(json.dumps(values), flush=True)
    if "waits" in values:
        sys.stdin.readline()


if __name__ == "__main__":
    {"story": story, "stream": stream}[sys.argv[1]](json.loads(sys.argv[2]))
