"""Run the fault tests and write what they showed into docs/reliability.md, between its two marks.

python scripts/chaos_report.py           the sizes of `make test`, a few minutes
python scripts/chaos_report.py --full    the full sizes, hours
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/reliability.md"
BEGIN, END = "<!-- figures -->", "<!-- end -->"
TESTS = (
    "tests/chaos",
    "tests/fuzz",
    "tests/conformance",
    "tests/integration/storage",
    "tests/spark/test_kill.py",
    "tests/spark/test_story.py",
)
# Tests that carry no number in their name, by their module.
NUMBERS = {"tests.conformance.test_model": 8, "tests.conformance.test_planted_bugs": 19}
SUBJECTS = {
    1: "kill -9 under load",
    3: "a sync precedes every ack, by strace",
    4: "kill -9 at the named points",
    5: "partitions: a broker from storage, from etcd, from its clients, one way and half; an isolated primary",
    6: "a broker paused beyond its time",
    7: "clocks that jump and stray",
    8: "the store against the memory model",
    9: "one order of effects explains each history",
    10: "idempotent create through kills",
    11: "bit flips and truncation",
    12: "disk full, failing, slow",
    13: "etcd: loss of one and of the quorum; PostgreSQL: crash and failover under Patroni",
    14: "hostile clients",
    15: "fuzzing",
    17: "the data directory of an older release",
    18: "kill -9 of Spark's driver and executor, and of the broker under them",
    19: "planted bugs are found",
}


@dataclass(slots=True)
class Tally:
    """What the tests of one number showed."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    figures: list[str] = field(default_factory=list)
    reasons: set[str] = field(default_factory=set)


def run(report: Path, *, full: bool) -> None:
    """Run the tests one after the other, so that they do not disturb each other's clocks."""
    # The newer form of the report has no place for the figures.
    options = ["-o", f"timeout={36_000 if full else 300}", "-o", "junit_family=xunit1"]
    command = [sys.executable, "-m", "pytest", "-q", *options]
    environment = {**os.environ, "DEJAQ_CHAOS": "full" if full else "ci"}
    subprocess.run([*command, f"--junit-xml={report}", *TESTS], cwd=ROOT, env=environment, check=False)


def read(report: Path) -> dict[int, Tally]:
    """The tallies by number."""
    tallies: dict[int, Tally] = defaultdict(Tally)
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        for number in _numbers(case.get("name", ""), case.get("classname", "")):
            _count(tallies[number], case)
    return tallies


def _numbers(name: str, module: str) -> list[int]:
    """What a test is about: the numbers that its name begins with."""
    match = re.match(r"test((?:_r\d+)+)_", name)
    if match is None:
        return [NUMBERS[module]] if module in NUMBERS else []
    numbers = [int(number) for number in re.findall(r"\d+", match[1])]
    # A planted bug's test names the test that must find it.
    return [19] if 19 in numbers else numbers


def _count(tally: Tally, case: ElementTree.Element) -> None:
    skipped = case.find("skipped")
    if case.find("failure") is not None or case.find("error") is not None:
        tally.failed += 1
    elif skipped is not None:
        tally.skipped += 1
        tally.reasons.add(skipped.get("message", ""))
    else:
        tally.passed += 1
    tally.seconds += float(case.get("time", "0"))
    tally.figures += [
        (entry.get("value") or "").splitlines()[0] for entry in case.iter("property") if entry.get("name") == "figure"
    ]


def page(tallies: dict[int, Tally], *, full: bool) -> str:
    """The part of the page that is generated."""
    size = "full" if full else "CI"
    where = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    lines = [
        f"Sizes: {size}. Run on {datetime.now(UTC):%Y-%m-%d} on {where}.",
        "",
        "| id | what | passed | failed | skipped or known to fail | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for number, tally in sorted(tallies.items()):
        counts = f"{tally.passed} | {tally.failed} | {tally.skipped} | {tally.seconds:.0f}"
        lines.append(f"| R{number} | {SUBJECTS.get(number, '')} | {counts} |")
    figures = [f"- R{number}: {text}" for number, tally in sorted(tallies.items()) for text in tally.figures]
    reasons = [
        f"- R{number}, skipped or known to fail: {text}"
        for number, tally in sorted(tallies.items())
        for text in tally.reasons
    ]
    return "\n".join([*lines, "", *figures, *reasons])


def main() -> int:
    """Run, read and write; 1 when a test failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="the full sizes")
    full = parser.parse_args().full
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        run(report, full=full)
        tallies = read(report)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{page(tallies, full=full)}\n\n{END}{after}")
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 1 if any(tally.failed for tally in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
