"""Look up the installed packages in PyPI's database of vulnerabilities, with pip-audit.

The number of audited packages is printed: pip-audit itself ends without an error when it has audited nothing. Where the
database cannot be reached, it says so and the exit code is 0; with `--required` it is 1.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from importlib.metadata import distributions

PROJECT = "dejaq-mq"
# A release that has known vulnerabilities: an answer without them is not one of the database.
CANARY = ("jinja2", "2.4.1")
SECONDS_MAX = 300
# Vulnerabilities that do not concern this project: the last day on which that is assumed, and the reason.
EXCEPTIONS: dict[str, tuple[date, str]] = {}


@dataclass(frozen=True, slots=True)
class Answer:
    """What pip-audit found for some pins: the packages with the ids of their vulnerabilities, and those not audited."""

    audited: Mapping[str, Sequence[str]]
    skipped: Sequence[str]


def installed() -> dict[str, str]:
    """Every package of this virtual environment with its version: the pinned ones, and what they need."""
    found = {re.sub(r"[-_.]+", "-", one.name).lower(): one.version for one in distributions()}
    return {name: version for name, version in found.items() if name != PROJECT}


def ask(wanted: Mapping[str, str]) -> Answer:
    """Run pip-audit for these pins; what is not in the database is skipped."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("".join(f"{name}=={version}\n" for name, version in wanted.items()))
        file.flush()
        command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner=off"]
        done = subprocess.run(
            [*command, "--format=json", f"--requirement={file.name}"],
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    try:
        entries = json.loads(done.stdout)["dependencies"]
    except ValueError:
        return Answer({}, list(wanted))
    return Answer(
        audited={one["name"]: [each["id"] for each in one["vulns"]] for one in entries if "vulns" in one},
        skipped=[one["name"] for one in entries if "vulns" not in one],
    )


def audit(
    wanted: Mapping[str, str],
    look_up: Callable[[Mapping[str, str]], Answer],
    today: date,
    exceptions: Mapping[str, tuple[date, str]],
    *,
    required: bool,
) -> tuple[int, list[str]]:
    """The exit code and the lines to print."""
    name, version = CANARY
    if not look_up({name: version}).audited.get(name):
        text = f"pip-audit: the database of vulnerabilities cannot be reached: 0 of {len(wanted)} packages were audited"
        return int(required), [text]
    answer = look_up(wanted)
    lines, failed = [], False
    for package, found in sorted(answer.audited.items()):
        for vulnerability in found:
            until, reason = exceptions.get(vulnerability, (date.min, ""))
            failed |= until < today
            state = f"accepted until {until}: {reason}" if until >= today else "not accepted"
            lines.append(f"pip-audit: {package} {wanted.get(package, '')} has {vulnerability} ({state})")
    missing = sorted(set(wanted) - set(answer.audited))
    if missing:
        failed = True
        lines.append(f"pip-audit: not audited: {', '.join(missing)}")
    lines.append(f"pip-audit: {len(answer.audited)} of {len(wanted)} packages were audited")
    return int(failed), lines


def main() -> int:
    """Audit every package that is installed here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--required", action="store_true", help="Fail when the database cannot be reached.")
    required = parser.parse_args().required
    code, lines = audit(installed(), ask, datetime.now(UTC).date(), EXCEPTIONS, required=required)
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
