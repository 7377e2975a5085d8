"""Run the fault tests, keep their results in docs/reliability.json, and write the figures of docs/reliability.md.

python scripts/chaos_report.py                   the sizes of `make test`, some minutes
python scripts/chaos_report.py --full            the full sizes, hours
python scripts/chaos_report.py --full R5 R13     only these; the last results of the others are kept
python scripts/chaos_report.py --read FILE ...   run nothing: read reports of `make test REPORTS=directory`
python scripts/chaos_report.py --write           run nothing: write the page again
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/reliability.md"
RESULTS = ROOT / "docs/reliability.json"
BEGIN, END = "<!-- figures -->", "<!-- end -->"
TESTS = (
    "tests/chaos",
    "tests/fuzz",
    "tests/conformance",
    "tests/integration/storage",
    "tests/spark/test_kill.py",
    "tests/spark/test_story.py",
)
# Test modules whose tests have no number in their names.
NUMBERS = {"tests.conformance.test_model": 8, "tests.conformance.test_planted_bugs": 19}
SUBJECTS = {
    1: "kill -9 under load",
    2: "power cuts: the commit log on a simulated disk; a broker on a file system that loses what was not synced",
    3: "a sync precedes every ack, by strace",
    4: "kill -9 at the named points",
    5: "partitions: a broker cut off from storage, etcd or clients, wholly, one way or in half; an isolated primary",
    6: "a broker that is paused for longer than its membership",
    7: "clocks that jump and drift",
    8: "the store compared with the memory model",
    9: "one order of effects explains each history, in runs of R1",
    10: "idempotent create through kills",
    11: "bit flips and truncation",
    12: "disk full, failing, slow",
    13: "etcd: loss of one and of the quorum; PostgreSQL: crash and failover under Patroni",
    14: "hostile clients",
    15: "fuzzing",
    17: "opening the data directory of an older release",
    18: "kill -9 of Spark's driver and executor, and of the broker under them",
    19: "planted bugs are found",
}


@dataclass(slots=True)
class Tally:
    """The results of the tests of one number at one size; `when` and `where` they last ran."""

    number: int
    size: str
    when: str
    where: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    figures: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


def run(report: Path, numbers: set[int], *, full: bool) -> bool:
    """Run the tests one after the other, so that they do not disturb each other's clocks; returns whether all tests
    ran.
    """
    # The newer form of the report cannot contain the figures.
    options = ["-o", f"timeout={36_000 if full else 300}", "-o", "junit_family=xunit1"]
    modules = [module.rpartition(".")[2] for module, number in NUMBERS.items() if number in numbers]
    chosen = " or ".join([*(f"_r{number}_" for number in sorted(numbers)), *modules])
    command = [sys.executable, "-m", "pytest", "-q", *options, "-k", chosen]
    environment = {**os.environ, "DEJAQ_CHAOS": "full" if full else "ci"}
    ended = subprocess.run([*command, f"--junit-xml={report}", *TESTS], cwd=ROOT, env=environment, check=False)
    return ended.returncode in (0, 1)


def read(reports: list[Path], numbers: set[int], *, size: str) -> list[Tally]:
    """The results of these numbers in reports of pytest."""
    where = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    tallies: dict[int, Tally] = {}
    for report in reports:
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            shown = _numbers(case.get("name", ""), case.get("classname", ""))
            for number in numbers.intersection(shown):
                fresh = Tally(number, size, f"{datetime.now(UTC):%Y-%m-%d}", where)
                # The figure of a test is listed once, with the first number in the test's name.
                _count(tallies.setdefault(number, fresh), case, figures=number == shown[0])
    return list(tallies.values())


def _numbers(name: str, module: str) -> list[int]:
    """The numbers with which a test's name begins."""
    match = re.match(r"test((?:_r\d+)+)_", name)
    if match is None:
        return [NUMBERS[module]] if module in NUMBERS else []
    numbers = [int(number) for number in re.findall(r"\d+", match[1])]
    # A test of R19 also has the number of the test that must find the planted bug.
    return [19] if 19 in numbers else numbers


def _count(tally: Tally, case: ElementTree.Element, *, figures: bool) -> None:
    skipped = case.find("skipped")
    if case.find("failure") is not None or case.find("error") is not None:
        tally.failed += 1
    elif skipped is not None:
        tally.skipped += 1
        if (reason := skipped.get("message", "")) not in tally.reasons:
            tally.reasons.append(reason)
    else:
        tally.passed += 1
    tally.seconds = round(tally.seconds + float(case.get("time", "0")), 1)
    if figures:
        texts = [entry.get("value") for entry in case.iter("property") if entry.get("name") == "figure"]
        tally.figures += [text.splitlines()[0] for text in texts if text]


def page(tallies: list[Tally]) -> str:
    """The generated part of the page."""
    places = sorted({f"on {tally.when} on {tally.where}" for tally in tallies})
    lines = [
        f"Run {'; '.join(places)}.",
        "",
        "| id | subject | size | passed | failed | skipped or known to fail | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for tally in tallies:
        counts = f"{tally.passed} | {tally.failed} | {tally.skipped} | {tally.seconds:.0f}"
        lines.append(f"| R{tally.number} | {SUBJECTS.get(tally.number, '')} | {tally.size} | {counts} |")
    figures = [f"- R{tally.number}, {tally.size}: `{text}`" for tally in tallies for text in tally.figures]
    reasons = [
        f"- R{tally.number}, {tally.size}, skipped or known to fail: `{text}`"
        for tally in tallies
        for text in tally.reasons
    ]
    return "\n".join([*lines, "", *figures, *reasons])


def kept() -> list[Tally]:
    """The results so far."""
    return [Tally(**one) for one in json.loads(RESULTS.read_text())] if RESULTS.exists() else []


def merged(before: list[Tally], fresh: list[Tally]) -> list[Tally]:
    """The last result of each number at each size."""
    found = {(tally.number, tally.size): tally for tally in [*before, *fresh]}
    return [found[key] for key in sorted(found)]


def write(tallies: list[Tally]) -> None:
    """Keep the results, and write the page from them."""
    RESULTS.write_text(json.dumps([asdict(tally) for tally in tallies], indent=1) + "\n")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{page(tallies)}\n\n{END}{after}")
    print(f"wrote {PAGE.relative_to(ROOT)}")


def main() -> int:
    """Run, read and write; returns 1 when a test failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("numbers", nargs="*", metavar="R5", help="only these numbers; without numbers, all")
    parser.add_argument("--full", action="store_true", help="the full sizes")
    parser.add_argument(
        "--read", action="append", type=Path, metavar="FILE", help="a report of pytest, instead of a run"
    )
    parser.add_argument("--write", action="store_true", help="run nothing, write the page from the kept results")
    told = parser.parse_args()
    numbers = {int(number.lstrip("Rr")) for number in told.numbers} or set(SUBJECTS)
    fresh: list[Tally] = []
    with tempfile.TemporaryDirectory() as scratch:
        reports = told.read or []
        if not reports and not told.write:
            reports = [Path(scratch) / "report.xml"]
            if not run(reports[0], numbers, full=told.full):
                print("the run ended early; its results are not kept", file=sys.stderr)
                return 2
        fresh = read(reports, numbers, size="full" if told.full else "CI")
    write(merged(kept(), fresh))
    return 1 if any(tally.failed for tally in fresh) else 0


if __name__ == "__main__":
    sys.exit(main())
