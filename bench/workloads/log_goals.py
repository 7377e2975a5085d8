"""The goals of logs (L16 and L17), judged on the records of a run. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bench.records import Record
from bench.workloads.verdicts import WorkloadVerdict, at_least, at_most, unmeasured

OURS = "dejaq-log"
REDIS = "redis-streams"
KAFKAS = ("kafka", "kafka-flush")
# How much later a timeline may be beside a log than alone.
BESIDE_MS = 3.0


def log_verdicts(records: Sequence[Record]) -> Iterator[WorkloadVerdict]:
    """Every goal of logs."""
    small, large = _of(records, OURS, 100), _of(records, OURS, 1_024)
    yield _times(records, "append of 100 B", small, "append_per_s", REDIS, 3.0)
    for peer in KAFKAS:
        yield _times(records, "append of 100 B", small, "append_per_s", peer, 1.0)
    yield _times(records, "append of 1 KB", large, "append_per_s", REDIS, 2.0)
    yield at_least("L16", "one reader, 1 M per second", small.get("read_per_s"), 1e6, "/s")
    yield at_least("L16", "four readers, 2 M per second", small.get("read_by_four_per_s"), 2e6, "/s")
    yield at_least("L16", "both at once, 600,000 per second", small.get("both_per_s"), 6e5, "/s")
    for figure, goal in (("append", 1.0), ("read", 0.25)):
        cpu = small.get(f"{figure}_cpu_us_per_message")
        yield at_most("L16", f"{figure}: at most {goal:g} us of the broker's processor time", cpu, goal, " us")
    single = _find(records, "log", OURS, work="single appends").get("single_per_s")
    yield at_least("L16", "single appends, 64 in flight: 60,000 per second", single, 6e4, "/s")
    late = _find(records, "log", OURS, work="latency").get("latency_p50_ms")
    yield at_most("L16", "from the append to user code: p50 at most 1 ms", late, 1.0, " ms")
    yield _beside(records)


def _find(records: Sequence[Record], bench: str, system: str, **shape: Any) -> Record:
    for record in records:
        held = record.get("shape", {})
        if (record["bench"], record["system"]) == (bench, system) and shape.items() <= held.items():
            return record
    return {}


def _of(records: Sequence[Record], system: str, body_bytes: int) -> Record:
    return _find(records, "log", system, work="batches", body_bytes=body_bytes)


def _times(
    records: Sequence[Record], what: str, ours: Record, figure: str, peer: str, factor: float
) -> WorkloadVerdict:
    goal = f"{what}: {figure} at least {factor:g} x {peer}"
    theirs = _of(records, peer, ours.get("shape", {}).get("body_bytes", 0)).get(figure)
    mine = ours.get(figure)
    if mine is None or not theirs:
        return unmeasured("L16", goal)
    measured = f"{mine / theirs:.2f} x ({mine:,.0f} against {theirs:,.0f})"
    return WorkloadVerdict(
        "L16", goal, measured, mine >= factor * theirs, f"{1 - mine / theirs / factor:.0%} of the goal"
    )


def _beside(records: Sequence[Record]) -> WorkloadVerdict:
    goal = f"a timeline beside a log: p99 at most {BESIDE_MS:g} ms later than alone"
    found = [record for record in records if record["bench"] == "log_beside" and record["system"] == OURS]
    late = {record["shape"].get("appended_per_s"): record.get("lateness_p99_ms") for record in found}
    alone, beside = late.get(0), next((value for rate, value in late.items() if rate), None)
    if alone is None or beside is None:
        return unmeasured("L17", goal)
    return at_most("L17", goal, beside - alone, BESIDE_MS, " ms", f" ({beside:,.2f} ms beside, {alone:,.2f} ms alone)")
