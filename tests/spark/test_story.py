"""A campaign from a DataFrame to an audited lake on a real cluster, while the broker and the driver are killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dejaq.sync
from dejaq.testing.servers.process import BrokerProcess
from dejaq.testing.waiting import wait_until
from tests.chaos.sizes import size
from tests.spark.driver import follow
from tests.spark.standalone import Cluster, environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


JOBS = ("accuracy", "forecast", "retries", "traffic")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data")
    process.start()
    asyncio.run(process.ready())
    yield process
    process.close()


def driver(name: str, given: dict[str, Any]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.spark.driver", name, json.dumps(given)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a driver with its JVM, which would continue for a moment and write to the next driver's checkpoint."""
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert process.stdout is not None
    # The JVM has inherited the pipe, so it closes when both processes have ended.
    process.stdout.read()


def wait_for(broker: BrokerProcess, topic: str, count: int) -> None:
    with dejaq.sync.connect(broker.url, deadline=120) as client:
        wait_until(lambda: client.count(topic) >= count, within=300, what=f"{count} messages", poll=0.01)


def consume(broker: BrokerProcess, topic: str, count: int) -> None:
    with dejaq.sync.connect(broker.url) as client, client.consumer(topic, name="w", max_in_flight=10_000) as consumer:
        done = 0
        for batch in consumer.batches(2_000):
            done += len(batch)
            batch.delete()
            if done >= count:
                return


def test_r18_a_campaign_on_a_cluster_balances_though_broker_and_driver_are_killed(
    broker: BrokerProcess, cluster: Cluster, tmp_path: Path, record_property: Callable[[str, str], None]
) -> None:
    begun = time.monotonic()
    rows = size("R18_ROWS", ci=20_000, full=1_000_000)
    assert broker.data is not None
    with dejaq.sync.connect(broker.url) as client:
        client.create_topic("campaign", buckets=16)
    given = {
        "master": cluster.url,
        "settings": cluster.settings,
        "brief": rows < 100_000,
        "url": broker.url,
        "rows": rows,
        "now_ms": int(time.time() * 1_000),
        "journal": str(broker.data / "journal"),
        "lake": str(tmp_path / "lake"),
        "report": str(tmp_path / "report.html"),
        # The report runs each job once more.
        "jobs": list(JOBS) if rows > 100_000 else [],
    }
    killed = driver("story", given)
    wait_for(broker, "campaign", rows // 10)
    broker.kill()
    asyncio.run(broker.restart())
    wait_for(broker, "campaign", rows // 3)
    kill(killed)
    assert broker.data is not None
    with dejaq.sync.connect(broker.url) as client:
        assert rows // 3 <= client.count("campaign") < rows
    read, audit, *jobs, report = _run_story(given, broker, rows)
    half = rows // 2
    assert read == {"read": half, "strange": 0, "missing": 0}
    found = {name: audit[name] for name in ("created", "deleted", "pending", "on_timeline")}
    assert found == {"created": rows, "deleted": half, "pending": half, "on_timeline": half}
    assert {audit[name] for name in ("lost", "doubled", "early", "unexplained")} == {0}
    assert [job["job"] for job in jobs] == given["jobs"]
    assert {"audit", *JOBS} <= report.keys()
    assert report["audit"]["balanced"]
    assert broker.log().count("serves at") == 2
    record_property(
        "figure",
        f"{rows} rows written on two workers through a kill of the broker and of the driver, {half} consumed, {half} "
        f"read back, 0 lost, doubled, early or unexplained; {time.monotonic() - begun:.0f} s",
    )


def _run_story(given: dict[str, Any], broker: BrokerProcess, rows: int) -> list[dict[str, Any]]:
    """Run the same campaign once more without kills; half of it is consumed before the rest is read."""
    again = driver("story", given)
    try:
        assert again.stdin is not None
        assert again.stdout is not None
        assert json.loads(again.stdout.readline()) == {"waits": "written"}
        consume(broker, "campaign", rows // 2)
        out, _ = again.communicate("\n", timeout=1_200)
    finally:
        again.kill()
    assert again.returncode == 0, out
    # The batches that `--journal` takes in are printed before the audit.
    lines = [json.loads(line) for line in out.splitlines()]
    return [line for line in lines if "version" not in line]


def test_r18_a_stream_whose_driver_is_killed_writes_each_row_once(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    files, each = size("R18_FILES", ci=8, full=100), 500
    source, now_ms = tmp_path / "source", int(time.time() * 1_000)
    source.mkdir()
    for number in range(files):
        ids = [f"m-{number}-{row}" for row in range(each)]
        rows = pa.table({"id": ids, "ts": [now_ms] * each, "body": ["x"] * each})
        pq.write_table(rows, source / f"{number:05d}.parquet")
    assert broker.data is not None
    with dejaq.sync.connect(broker.url) as client:
        client.create_topic("t")
    given = {
        "source": str(source),
        "url": broker.url,
        "topic": "t",
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    killed = driver("stream", given)
    wait_for(broker, "t", 2 * each)
    kill(killed)
    assert broker.data is not None
    with dejaq.sync.connect(broker.url) as client:
        there = client.count("t")
    # The output of the killed driver is overwritten when its last micro-batch is replayed.
    consume(broker, "t", there)
    follow(spark, given).awaitTermination()
    assert broker.data is not None
    with dejaq.sync.connect(broker.url) as client:
        assert there + client.count("t") == files * each
    assert there < files * each
