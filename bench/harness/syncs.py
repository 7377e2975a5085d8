"""How often a server syncs, counted by strace in a separate run, so that strace slows no measured run."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psutil

from bench.harness.orders import Consume, Produce
from bench.harness.payload import Load
from bench.harness.stage import Stage, staged
from bench.harness.strace import SYNCS, total_calls
from bench.systems.base import System

WORK_SECONDS = 60.0


def syncs_per_1000(system: System, messages: int, body_bytes: int) -> float | None:
    """Syncs per thousand messages that are created, leased and deleted; None when strace cannot count them."""
    if shutil.which("strace") is None:
        return None
    with staged(system) as stage, tempfile.TemporaryDirectory(prefix="dejaq-bench-") as folder:
        summary = Path(folder) / "summary"
        tracer = _attach(stage.server.pid, summary)
        if tracer is None:
            return None
        try:
            deleted = _pass_through(stage, messages, body_bytes)
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.wait(30)
        calls = total_calls(summary.read_text())
        return round(1_000 * calls / deleted, 2) if deleted else None


def _attach(pid: int, summary: Path) -> subprocess.Popen[bytes] | None:
    root = psutil.Process(pid)
    targets = [str(process.pid) for process in (root, *root.children(recursive=True))]
    command = ["strace", "-f", "-c", "-q", "-e", f"trace={','.join(SYNCS)}", "-o", str(summary)]
    tracer = subprocess.Popen(
        [*command, *(word for target in targets for word in ("-p", target))],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and tracer.poll() is None:
        if _traced(pid):
            return tracer
        time.sleep(0.01)
    return None


def _traced(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return "TracerPid:\t0\n" not in status


def _pass_through(stage: Stage, messages: int, body_bytes: int) -> int:
    with stage.crew() as crew:
        load = Load(count=messages, body_bytes=body_bytes)
        created = crew.work(Produce(load, seconds_max=WORK_SECONDS / 2), seconds_max=WORK_SECONDS)[0]
        order = Consume(target=created.count, seconds_max=WORK_SECONDS / 2)
        return crew.work(order, seconds_max=WORK_SECONDS)[0].count
