"""Runs a plan: benches one after the other; in each bench the systems alternate and are repeated."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from bench.benches.catalog import RUNS
from bench.harness.stage import Outcome
from bench.plan import Plan
from bench.records import Record, figures_of, record_of
from bench.systems.base import System
from bench.systems.catalog import system_named


@dataclass(slots=True)
class Series:
    """The repeats of one shape of one bench on one system."""

    shape: dict[str, Any]
    runs: list[dict[str, Any]] = field(default_factory=list)
    actual: dict[str, Any] = field(default_factory=dict)
    extras: dict[str, Any] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        """Keep one repeat; values that are not figures are kept from the last repeat."""
        self.runs.append(dict(outcome.figures))
        self.actual, self.extras = outcome.actual, outcome.extras


def available(names: Sequence[str]) -> list[System]:
    """The systems that can run here; prints a line for each that cannot."""
    found = []
    for name in names:
        try:
            system = system_named(name)
        except ImportError as error:
            say(f"{name}: left out, its client is missing: {error}")
            continue
        reason = system.missing()
        if reason is None:
            found.append(system)
        else:
            say(f"{name}: left out, {reason}; scripts/install_bench.sh installs what Debian has")
    return found


def run_plan(plan: Plan, systems: Sequence[System], benches: Sequence[str]) -> Iterator[list[Record]]:
    """Yields the records of each bench when it is done, so that the results of hours are kept."""
    for bench in benches:
        wanted = plan.systems_of(bench)
        yield _run_bench(
            bench, plan, [system for system in systems if bench in system.benches and system.name in wanted]
        )


def _run_bench(bench: str, plan: Plan, systems: Sequence[System]) -> list[Record]:
    repeats = max((plan.repeats_of(bench, system.name) for system in systems), default=0)
    series: dict[tuple[str, str], Series] = {}
    errors: dict[str, str] = {}
    for repeat in range(repeats):
        for system in systems:
            if system.name in errors or repeat >= plan.repeats_of(bench, system.name):
                continue
            started = time.monotonic()
            try:
                for outcome in RUNS[bench](system, plan.of_repeat(system.name, repeat)):
                    key = (system.name, str(outcome.shape))
                    series.setdefault(key, Series(outcome.shape)).add(outcome)
                    say(f"{bench} {repeat + 1}/{repeats} {system.name} {_shown(outcome)}")
            except Exception as error:  # noqa: BLE001 - one system's failure is its record, and the rest runs
                # The last line of a traceback has the error.
                errors[system.name] = str(error).strip().splitlines()[-1] if str(error).strip() else repr(error)
                say(f"{bench} {repeat + 1}/{repeats} {system.name} FAILED: {errors[system.name]}")
            say(f"{bench} {repeat + 1}/{repeats} {system.name} took {time.monotonic() - started:.1f} s")
    at = datetime.now(UTC).isoformat(timespec="seconds")
    by_name = {system.name: system for system in systems}
    records = [_record(bench, by_name[name], one, plan, at) for (name, _), one in series.items()]
    return records + [
        {
            "bench": bench,
            "system": name,
            "durable": by_name[name].durable,
            "version": by_name[name].version(),
            "settings": {**by_name[name].settings, "plan": plan.name},
            "shape": {"failed": True},
            "measured_at": at,
            "error": text,
        }
        for name, text in errors.items()
    ]


def _record(bench: str, system: System, series: Series, plan: Plan, at: str) -> Record:
    return record_of(
        bench=bench,
        system=system.name,
        durable=system.durable,
        version=system.version(),
        settings={**system.settings, **series.shape, **series.actual, "plan": plan.name},
        shape=series.shape,
        runs=series.runs,
        measured_at=at,
        extras=series.extras,
    )


def _shown(outcome: Outcome) -> str:
    shape = " ".join(f"{name}={value}" for name, value in outcome.shape.items())
    figures = " ".join(f"{name}={value:,}" for name, value in figures_of(dict(outcome.figures)).items())
    return f"[{shape}] {figures}"


def say(text: str) -> None:
    """Print a line of progress to stderr."""
    print(f"bench: {text}", file=sys.stderr, flush=True)
