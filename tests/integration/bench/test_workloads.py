"""The realistic workloads run from the command line with small sizes, on a real broker, and give their figures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from dejaq.testing.waiting import wait_until
from tests.memory_disk import memory_folder

# The first test waits for the whole run.
pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).resolve().parents[3]
WORKLOADS = ("L1", "L6", "L9", "L11", "L13", "L14", "L15", "connections")
SIZES = (
    "reminders=2000",
    "single_sends=300",
    "by_id_pending=3000",
    "by_id_batched=1000",
    "slow_messages=3000",
    # Leases are extended once in this time, and a busy machine may be late with it.
    "slow_seconds=5",
    "slow_lease_seconds=10",
    "uptime_messages=4000",
    "uptime_rounds=2",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the results and the data of the servers are."""
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def run(folder: Path) -> tuple[list[dict[str, Any]], str]:
    """The records, and what the run wrote."""
    results = folder / "results.json"
    command = [sys.executable, "-m", "bench", "run", "--plan", "smoke", "--benches", ",".join(WORKLOADS)]
    command += ["--systems", "dejaq-natural", "--results", str(results)]
    for size in SIZES:
        command += ["--set", size]
    environment = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=True)
    return json.loads(results.read_text())["records"], done.stderr


def test_every_workload_gives_its_figures(run: tuple[list[dict[str, Any]], str]) -> None:
    records, shown = run
    found = {record["bench"]: record for record in records}
    assert {name: record["error"] for name, record in found.items() if "error" in record} == {}, shown
    assert found["reminders"]["create_per_s"] > 0
    assert found["single_sends"]["settings"]["messages"] == 300
    assert found["single_sends"]["ack_p999_ms"] > 0
    by_batch = {one["shape"]["batch"]: one for one in records if one["bench"] == "by_id"}
    for kind in ("get", "move", "edit", "cancel"):
        assert by_batch[1][f"{kind}_per_s"] > 0
        assert by_batch[1_000][f"{kind}_per_s"] > 0
    slow = found["slow_work"]
    assert (slow["held_leases"], slow["lost_leases"], slow["redelivered"]) == (50, 0, 0)
    assert found["uptime"]["start_last_s"] > 0
    assert len(found["uptime"]["samples"]) == 1
    by_work = {one["shape"]["work"]: one for one in records if one["bench"] == "one_at_a_time"}
    assert by_work["latency"]["latency_p50_ms"] > 0
    assert by_work["transactions"]["transactions_per_s"] > 0
    service = found["ordinary"]
    assert (service["undelivered"], service["redelivered"]) == (0, 0)
    assert service["settings"]["topics"] > 0
    assert {one["shape"]["sessions"] for one in records if one["bench"] == "connections"} == {False, True}


def test_the_run_leaves_no_broker_and_no_data(run: tuple[list[dict[str, Any]], str], folder: Path) -> None:
    assert brokers_of(folder) == []
    assert [path.name for path in folder.iterdir()] == ["results.json"]


def test_a_run_that_is_terminated_stops_its_broker_and_removes_the_data(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "run", "--plan", "smoke", "--benches", "L13", "--set", "slow_seconds=90"]
    command += [
        "--set",
        "slow_seconds_max=90",
        "--systems",
        "dejaq-natural",
        "--results",
        str(tmp_path / "results.json"),
    ]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    running = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: brokers_of(tmp_path), within=60, what="the broker of the run")
        running.terminate()
        assert running.wait(60) == 128 + signal.SIGTERM
    finally:
        running.kill()
        running.wait()
    wait_until(lambda: not brokers_of(tmp_path), within=10, what="the end of the broker")
    assert list(tmp_path.iterdir()) == []


def test_a_bench_of_postgresql_that_is_terminated_stops_its_server_and_removes_the_data() -> None:
    """The server and its data stayed, and with them the memory where they were on a disk in memory."""

    def servers() -> list[psutil.Process]:
        found = [one for one in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(one.info["cmdline"] or [])]
        return [one for one in found if one.pid != running.pid]

    with memory_folder() as folder:
        # Its server may run as another user.
        folder.chmod(0o755)
        command = [sys.executable, "-m", "bench.postgres_cost", "--connections", "1", "--messages", "10_000_000"]
        environment = {**os.environ, "TMPDIR": str(folder)}
        running = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
        try:
            wait_until(lambda: servers() and list(folder.rglob("postmaster.pid")), within=60, what="the server")
            running.terminate()
            assert running.wait(60) == 128 + signal.SIGTERM
        finally:
            running.kill()
            running.wait()
        wait_until(lambda: not servers(), within=10, what="the end of the server")
        assert list(folder.iterdir()) == []


def brokers_of(folder: Path) -> list[psutil.Process]:
    """The brokers of a run: each has a folder below the run's folder on its command line."""
    commands = [(one, one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"])]
    return [one for one, words in commands if "serve" in words and any(str(folder) in word for word in words)]
