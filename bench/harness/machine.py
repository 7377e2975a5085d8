"""The facts of the machine of a run that influence its figures."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

PACKAGES = (
    "grpcio",
    "protobuf",
    "rocksdict",
    "redis",
    "hiredis",
    "nats-py",
    "pika",
    "asyncpg",
    "psycopg",
    "procrastinate",
    "celery",
)


def machine_facts() -> dict[str, Any]:
    """Cores, memory, system, disk and the duration of a sync; no names of hosts or people."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_mb": round(psutil.virtual_memory().total / 1e6),
        "system": f"{platform.system()} {platform.release()}",
        "distribution": _distribution(),
        "python": platform.python_version(),
        "filesystem": _filesystem(Path(tempfile.gettempdir())),
        "fsync_p50_us": _sync_us(),
        "load_average": round(os.getloadavg()[0], 2),
        "packages": _packages(),
    }


def _packages() -> dict[str, str]:
    """The client libraries that were used."""
    found = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return "unknown"


def _filesystem(path: Path) -> str:
    mounts = [part for part in psutil.disk_partitions(all=True) if path.is_relative_to(part.mountpoint)]
    return max(mounts, key=lambda part: len(part.mountpoint)).fstype if mounts else "unknown"


def _sync_us(samples: int = 101) -> float:
    """The median time of an fdatasync after a small write."""
    times = []
    with tempfile.NamedTemporaryFile(prefix="dejaq-bench-") as file:
        for _ in range(samples):
            os.write(file.fileno(), b"x" * 4_096)
            start = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - start)
    return round(sorted(times)[samples // 2] * 1e6, 1)
