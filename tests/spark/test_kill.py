"""R18: the driver and an executor are killed in the middle of a batch; the lake still equals the oracle."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from dejaq.pipeline.intake.ingest import run
from dejaq.pipeline.lake.lake import Lake
from dejaq.testing.waiting import wait_until
from tests.chaos.sizes import size
from tests.spark.comparing import assert_lake_equals_oracle
from tests.spark.history import random_store, write_segments
from tests.spark.standalone import Cluster, environment

DEJAQ = str(Path(sys.executable).with_name("dejaq"))
POINTS = ("events_written", "messages_written", "facts_written", "before_commit", "committed")
SECONDS_MAX = 300


def dejaq(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [DEJAQ, "pipeline", *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
        env={**environment(), **settings},
    )


def test_r18_a_killed_driver_loses_and_duplicates_nothing(lake: Lake, journal: Path) -> None:
    cycles = size("R18", ci=1, full=20)
    rng = random.Random(18)
    store = random_store(41, steps=60 + 20 * cycles)
    every = max(1, store.sequence // (3 * cycles + 1))
    write_segments(journal, store.events, cuts=range(every, store.sequence, every))
    common = ("--journal", str(journal), "--lake", lake.files.address, "--batch-events", "1")
    for _ in range(cycles):
        # In the second batch of this run, so that the lake already has rows that could be damaged.
        point = f"pipeline.{rng.choice(POINTS)}:2"
        assert dejaq("run", *common, DEJAQ_CRASH_AT=point).returncode == -signal.SIGKILL
    again = Lake(lake.spark, lake.files.address)
    assert again.head.version >= 1
    list(run(again, journal))
    assert_lake_equals_oracle(again, store.events)


def test_r18_on_a_cluster_the_work_of_a_killed_executor_is_done_again(
    lake: Lake, journal: Path, cluster: Cluster
) -> None:
    store = random_store(42, steps=90)
    every = store.sequence // 4
    write_segments(journal, store.events, cuts=range(every, store.sequence, every))
    wait_until(lambda: not cluster.executors(), within=60, what="an idle cluster")
    command = [DEJAQ, "pipeline", "run", "--journal", str(journal), "--lake", lake.files.address]
    command += ["--master", cluster.url, *cluster.conf, "--batch-events", "1", "--json"]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    try:
        assert driver.stdout is not None
        first = json.loads(driver.stdout.readline())
        executors = cluster.executors()
        assert len(executors) == 2
        os.kill(executors[0], signal.SIGKILL)
        wait_until(lambda: executors[0] not in cluster.executors(), within=30, what="the executor's end")
        out, err = driver.communicate(timeout=SECONDS_MAX)
    finally:
        driver.kill()
    assert driver.returncode == 0, err
    *batches, state = map(json.loads, out.splitlines())
    assert first["version"] == 1
    assert len(batches) >= 3
    assert state["events"] == len(store.events)
    assert_lake_equals_oracle(Lake(lake.spark, lake.files.address), store.events)
