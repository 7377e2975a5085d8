"""From an empty directory to an audited lake: schedule with Spark, consume, query with SQL, audit.

Needs `pip install 'dejaq-mq[pipeline]'` and Java 17. It writes only to the given directory, or to a temporary
directory.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the usual name

import dejaq.sync
from dejaq.pipeline.spark.session import start

CAMPAIGN = 20_000


def schedule(spark: SparkSession, url: str) -> None:
    """1. A campaign is a DataFrame: half of it is due now, half of it over the coming day."""
    now = int(time.time() * 1_000)
    number = F.col("id")
    later = now + 3_600_000 + (number % 86_400) * 1_000
    rows = spark.range(CAMPAIGN).select(
        F.concat(F.lit("customer-"), number).alias("id"),
        F.when(number % 2 == 0, F.lit(now)).otherwise(later).alias("ts"),
        F.concat(F.lit("dear customer "), number).alias("body"),
    )
    rows.write.format("dejaq").option("dejaq.url", url).option("topic", "campaign").mode("append").save()
    print(f"1. {CAMPAIGN:,} messages scheduled from a DataFrame")


def consume(url: str) -> None:
    """2. A consumer processes the due messages."""
    done = 0
    with dejaq.sync.connect(url) as client, client.consumer("campaign", name="mailer", max_in_flight=5_000) as consumer:
        for batch in consumer.batches(1_000):
            done += len(batch)
            batch.delete()
            if done >= CAMPAIGN // 2:
                break
    print(f"2. {done:,} messages consumed")


def look_ahead(spark: SparkSession, url: str) -> None:
    """3. The pending messages are a table."""
    pending = spark.read.format("dejaq").option("dejaq.url", url).option("subscribe", "campaign").load()
    pending.createOrReplaceTempView("pending")
    hours = spark.sql(
        "SELECT date_trunc('hour', due) hour, count(*) messages FROM pending GROUP BY 1 ORDER BY 1"
    ).collect()
    print(f"3. {sum(row.messages for row in hours):,} messages are pending, over {len(hours)} hours")


def balance(url: str, work: Path) -> None:
    """4.

    The journal becomes a lake; the audit proves, by id, that no message was lost or duplicated; the report shows it.
    """
    command = [sys.executable, "-m", "dejaq", "pipeline", "report", "--live", "--url", url]
    command += ["--journal", str(work / "data" / "journal"), "--lake", str(work / "lake")]
    subprocess.run([*command, "--output", str(work / "report.html")], check=True)
    print(f"4. the audit found no fault; the report is {work / 'report.html'}")


def main() -> None:
    work = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="dejaq-tutorial-"))
    with dejaq.sync.Broker(work / "data") as broker:
        with dejaq.sync.connect(broker.url) as client:
            client.create_topic("campaign")
        spark = start()
        schedule(spark, broker.url)
        consume(broker.url)
        look_ahead(spark, broker.url)
        spark.stop()
        balance(broker.url, work)


if __name__ == "__main__":
    main()
