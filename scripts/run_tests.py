"""Run the whole test suite: the tests without Spark on several workers, and Spark's tests at the same time.

    python scripts/run_tests.py [--workers N] [--spark-workers N] [--reports DIRECTORY] [--strict]

Each worker of Spark's tests has one Spark session, and runs whole modules. All tests wait most of the time: together
they use both cores. The output of Spark's tests is printed after that of the others.

A few tests that failed run once more, alone and with the same seed, because most of them measure time on a machine that
many tests share. The suite passes if they pass then, and names them, so that somebody looks for the cause. With
`--strict`, or when more than a few failed, nothing runs again.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PYTEST = [sys.executable, "-m", "pytest"]
# More failures than this, of 7,000 tests, have a common cause, which is not chance.
FAILED_AGAIN_MAX = 10
TESTS_FAILED = 1


@dataclass(frozen=True)
class Half:
    """One part of the suite: the options that choose its tests, and the folder where pytest records what failed."""

    choice: Sequence[str]
    cache: Path

    def command(self, *options: str) -> list[str]:
        """Run these tests."""
        return [*PYTEST, "-o", f"cache_dir={self.cache}", *options, *self.choice]

    def failed(self) -> list[str]:
        """The tests that failed in the last run."""
        record = self.cache / "v" / "cache" / "lastfailed"
        return sorted(json.loads(record.read_text(encoding="utf-8"))) if record.exists() else []


def report(folder: Path | None, name: str) -> list[str]:
    """Options that make pytest write a report, which `scripts/chaos_report.py` reads."""
    return [] if folder is None else [f"--junit-xml={folder / name}.xml", "-o", "junit_family=xunit1"]


def run_both(first: Sequence[str], second: Sequence[str]) -> tuple[int, int]:
    """Run both commands at the same time, print the output of the first and then of the second; their exit codes."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        beside = subprocess.Popen(second, stdout=output, stderr=subprocess.STDOUT)
        try:
            code = subprocess.run(first, check=False).returncode
            codes = code, beside.wait()
        finally:
            beside.terminate()
            beside.wait()
        output.seek(0)
        print(output.read(), end="", flush=True)
    return codes


def run_failed_again(half: Half, options: Sequence[str]) -> int:
    """Run the failed tests of one half once more, alone; 0 if all pass now."""
    failed = half.failed()
    if not 0 < len(failed) <= FAILED_AGAIN_MAX:
        return TESTS_FAILED
    print(f"\nrunning {len(failed)} failed tests again, alone", flush=True)
    code = subprocess.run(half.command("--lf", "--lfnf=none", *options), check=False).returncode
    if code == 0:
        print("passed alone, failed beside other tests: look for the cause of each", *failed, sep="\n  ", flush=True)
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--spark-workers", type=int, default=2)
    parser.add_argument("--reports", type=Path, default=None)
    parser.add_argument("--strict", action="store_true", help="run no failed test again")
    options = parser.parse_args()
    seed = f"--randomly-seed={random.randrange(2**32)}"
    workers = ["-n", str(options.workers), "--dist", "worksteal"]
    spark_workers = ["-n", str(options.spark_workers), "--dist", "loadfile"]
    with tempfile.TemporaryDirectory() as folder:
        core = Half(["-m", "not spark"], Path(folder) / "core")
        spark = Half(["-m", "spark", "tests/spark"], Path(folder) / "spark")
        codes = run_both(
            core.command(seed, *workers, *report(options.reports, "core")),
            spark.command(seed, *spark_workers, *report(options.reports, "spark")),
        )
        left = [
            run_failed_again(half, [seed]) if code == TESTS_FAILED and not options.strict else code
            for half, code in zip((core, spark), codes, strict=True)
        ]
    return next((code for code in left if code), 0)


if __name__ == "__main__":
    sys.exit(main())
