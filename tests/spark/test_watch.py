"""`dejaq pipeline watch` through kills of driver, executor and broker: no gap, no repeat, one alarm."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import dejaq.sync
from dejaq.pipeline.lake.lake import Lake, local_head
from dejaq.pipeline.reporting import findings
from dejaq.pipeline.reporting.rows import rows_of
from dejaq.testing.servers.process import BrokerProcess
from dejaq.testing.waiting import wait_until
from tests.pace import measured
from tests.spark.standalone import Cluster, environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEJAQ = str(Path(sys.executable).with_name("dejaq"))
SECONDS_MAX = 120
# The facts of an event are in the lake so long after it at most.
BEHIND_S_MAX = 10.0


@contextmanager
def _watching(
    broker: BrokerProcess, lake: Path, log: Path, cluster: Cluster | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """The pipeline in a process of its own."""
    command = [
        DEJAQ,
        "pipeline",
        "watch",
        "--journal",
        str(lake.parent / "data" / "journal"),
        "--lake",
        str(lake),
        "--json",
    ]
    command += ["--url", broker.url, "--alarm-topic", "alarms", "--interval", "1"]
    command += ["--master", "local[2]"] if cluster is None else ["--master", cluster.url, *cluster.conf]
    with log.open("ab") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment(), start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _took_in(lake: Path, process: subprocess.Popen[bytes], events: int) -> None:
    def done() -> bool:
        return _events(lake) >= events or process.poll() is not None

    wait_until(done, within=SECONDS_MAX, what=f"{events} events")


def _events(lake: Path) -> int:
    head = local_head(str(lake))
    return head.events if head is not None else 0


def _work(broker: BrokerProcess, name: str) -> None:
    """Fifty messages that are delivered two seconds after their time, and deleted."""
    with dejaq.sync.connect(broker.url) as client, client.producer("mail", group="g") as producer:
        producer.send_batch([b"x"] * 50, ids=[f"{name}-{n}" for n in range(50)], at=int(time.time() * 1000) - 2_000)
        with client.consumer("mail", name="w") as consumer:
            for _, lease in zip(range(50), consumer, strict=False):
                lease.delete()


def test_kills_of_driver_executor_and_broker_leave_no_gap_no_repeat_and_one_alarm(
    spark: SparkSession, tmp_path: Path, cluster: Cluster
) -> None:
    lake, log = tmp_path / "lake", tmp_path / "watch.log"
    broker = BrokerProcess(tmp_path / "data")
    broker.start()
    asyncio.run(broker.ready())
    try:
        with dejaq.sync.connect(broker.url) as client:
            client.create_topic("mail")
            client.create_topic("alarms", journal=False)
        _work(broker, "first")
        wait_until(lambda: not cluster.executors(), within=SECONDS_MAX, what="an idle cluster")
        with _watching(broker, lake, log, cluster) as process:
            _took_in(lake, process, 150)
            lost, *_ = cluster.executors()
            _work(broker, "second")
            # While the second part is taken in.
            os.kill(lost, signal.SIGKILL)
            _took_in(lake, process, 300)
            assert process.poll() is None, log.read_text()
            assert lost not in cluster.executors()
            _work(broker, "third")
            os.killpg(process.pid, signal.SIGKILL)
        broker.kill()
        asyncio.run(broker.restart())
        _work(broker, "fourth")
        with _watching(broker, lake, log) as process:
            _took_in(lake, process, 600)
            parts = 4

            async def behind() -> float:
                """How long after the last event of a further part the commit was made that has its facts."""
                nonlocal parts
                parts += 1
                _work(broker, f"part-{parts}")
                begun = time.monotonic()
                _took_in(lake, process, 150 * parts)
                return time.monotonic() - begun

            behind_s = asyncio.run(measured(behind, lambda seconds: seconds <= BEHIND_S_MAX))
            assert process.poll() is None, log.read_text()
            assert behind_s[-1] <= BEHIND_S_MAX, f"the facts were behind by {behind_s} s"
            state = lake / "_results" / "alarms.json"
            wait_until(
                lambda: state.exists() and not json.loads(state.read_text())["unsent"],
                within=SECONDS_MAX,
                what="the alarm",
            )
        found = Lake(spark, str(lake))
        messages = found.read("messages")
        assert messages.count() == messages.select("id").distinct().count() == 50 * parts
        assert messages.where("outcome = 'deleted'").count() == 50 * parts
        audit = findings.audit(found)
        assert not audit.failed, audit.figures
        assert sum(row["created"] for row in rows_of(found.read("facts"))) == 50 * parts
        with dejaq.sync.connect(broker.url) as client:
            alarms = [message for page in client.browse("alarms") for message in page]
        assert [one.headers for one in alarms] == [{"alarm": "lateness", "state": "firing"}]
    finally:
        broker.close()
