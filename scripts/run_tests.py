"""Run the whole test suite: the tests without Spark on several workers, and Spark's tests at the same time.

    python scripts/run_tests.py [--workers N] [--reports DIRECTORY]

Spark's tests share one session, so they run in one process, and most other tests wait most of the time: together they
use both cores. The output of Spark's tests is printed after that of the others.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

PYTEST = [sys.executable, "-m", "pytest"]


def report(folder: Path | None, name: str) -> list[str]:
    """Options that make pytest write a report, which `scripts/chaos_report.py` reads."""
    return [] if folder is None else [f"--junit-xml={folder / name}.xml", "-o", "junit_family=xunit1"]


def run_both(first: Sequence[str], second: Sequence[str]) -> int:
    """Run both commands at the same time, print the output of the first and then of the second; 0 if both succeed."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        beside = subprocess.Popen(second, stdout=output, stderr=subprocess.STDOUT)
        try:
            code = subprocess.run(first, check=False).returncode
            code = beside.wait() or code
        finally:
            beside.terminate()
            beside.wait()
        output.seek(0)
        print(output.read(), end="", flush=True)
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--reports", type=Path, default=None)
    options = parser.parse_args()
    workers = ["-n", str(options.workers), "--dist", "worksteal"]
    return run_both(
        [*PYTEST, *workers, "-m", "not spark", *report(options.reports, "core")],
        [*PYTEST, "-m", "spark", "tests/spark", *report(options.reports, "spark")],
    )


if __name__ == "__main__":
    sys.exit(main())
