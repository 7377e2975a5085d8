"""The pipeline on a large journal, killed several times: the rate and the memory of every commit, then the audit.

    python -m bench.lake_kills --journal synthetic/journal --kills 3
    python -m bench.lake_kills --journal synthetic/journal --master cluster --kills 2

`dejaq pipeline run` is a process of its own, and is killed with SIGKILL some seconds after a commit, in the middle of
the next one; then it is started again. `--master cluster` starts a standalone cluster of two workers, of which an
executor is killed as well. `bench.lake_journal` writes the journal. Figures go to `bench/results/lake_kills.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.spark.standalone import Cluster, environment, standalone

from bench.figures import keep
from bench.lake import GOAL_EVENTS_PER_S, _cpu_s, _memory

DEJAQ = str(Path(sys.executable).with_name("dejaq"))


def main() -> None:
    """Ingest through kills, audit, keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--batch-events", type=int, default=10_000_000)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--kills", type=int, default=2, help="how often the driver is killed")
    parser.add_argument("--kill-after-s", type=float, default=15.0, help="how long after a commit")
    parser.add_argument("--name", default="lake_kills", help="the name under which the figures are kept")
    arguments = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="dejaq-lake-"))
    try:
        with _cluster(arguments.master, home) as cluster:
            keep(arguments.name, _measure(arguments, home / "lake", cluster))
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def _cluster(master: str, home: Path) -> Iterator[Cluster | None]:
    if master != "cluster":
        yield None
        return
    with standalone(home / "cluster", 2, memory_mb=3_072) as cluster:
        yield cluster


def _measure(arguments: argparse.Namespace, lake: Path, cluster: Cluster | None) -> dict[str, Any]:
    where = ["--master", arguments.master] if cluster is None else ["--master", cluster.url, *cluster.conf]
    command = [DEJAQ, "pipeline", "run", "--journal", str(arguments.journal), "--lake", str(lake), *where]
    command += ["--batch-events", str(arguments.batch_events), "--json"]
    commits: list[dict[str, Any]] = []
    kills = 0
    begun = time.monotonic()
    with _memory() as memory:
        while True:
            driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
            cpu_s = _cpu_s()
            assert driver.stdout is not None
            for line in driver.stdout:
                found = json.loads(line)
                if "seconds" not in found:
                    continue
                spent_s = _cpu_s() - cpu_s
                found |= {
                    # Not known where a process was killed: its time is gone with it.
                    "cpu_us_per_event": round(spent_s / max(1, found["events"]) * 1e6, 2) if spent_s > 0 else None,
                    "memory_mb": round(max(memory)),
                    "load": round(os.getloadavg()[0], 1),
                }
                memory[:] = [0.0]
                cpu_s = _cpu_s()
                commits.append(found)
                print(found, file=sys.stderr, flush=True)
                if kills < arguments.kills and len(commits) % 2 == 0:
                    kills += 1
                    time.sleep(arguments.kill_after_s)
                    if cluster is not None and kills % 2:
                        executor = cluster.executors()[0]
                        print(f"killing the executor {executor}", file=sys.stderr, flush=True)
                        os.kill(executor, signal.SIGKILL)
                    else:
                        print("killing the driver", file=sys.stderr, flush=True)
                        driver.kill()
                        break
            if driver.wait() == 0:
                break
            assert driver.returncode == -signal.SIGKILL, "the pipeline failed"
    seconds = time.monotonic() - begun
    audited = time.monotonic()
    audit = subprocess.run(
        [DEJAQ, "pipeline", "audit", "--lake", str(lake), *where, "--json"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env=environment(),
    )
    told = json.loads(audit.stdout.splitlines()[-1]) if audit.stdout else {}
    return {
        "master": arguments.master,
        "events": sum(one["events"] for one in commits),
        "kills": kills,
        "ingest_s": round(seconds, 1),
        "events_per_s_of_commits": round(
            sum(one["events"] for one in commits) / sum(one["seconds"] for one in commits)
        ),
        "goal_events_per_s": GOAL_EVENTS_PER_S,
        "commits": commits,
        "audit_s": round(time.monotonic() - audited, 1),
        "audit_exit_code": audit.returncode,
        "audit": told.get("figures", told),
        "lake_files": sum(1 for _ in lake.rglob("*.parquet")),
        "lake_bytes": sum(path.stat().st_size for path in lake.rglob("*.parquet")),
    }


if __name__ == "__main__":
    main()
