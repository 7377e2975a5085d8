"""The goals of the store on PostgreSQL: a share of what a bare SKIP LOCKED table reaches in the same run. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.records import Record, peer_shape
from bench.workloads.names import WORKLOADS
from bench.workloads.verdicts import WorkloadVerdict, at_most, unmeasured

OURS = ("dejaq-postgres", "dejaq-postgres-natural")
PEER = "skip-locked"
SHARE = 0.7
OVER_FLOOR_MS = 6.0
# The figures of each workload that are compared with the table's.
_RATES = {
    "L1": ("create_per_s",),
    "L2": ("create_per_s",),
    "L6": ("send_per_s",),
    "L9": ("get_per_s", "move_per_s", "edit_per_s", "cancel_per_s"),
}


def postgres_verdicts(records: Sequence[Record]) -> Iterator[WorkloadVerdict]:
    """Every goal in the order of the workloads."""
    for workload in ("L1", "L2", "L4", "L6", "L9"):
        found = [one for one in records if one["bench"] == WORKLOADS[workload] and one["system"] in OURS]
        for record in found or [{"bench": WORKLOADS[workload], "shape": {}}]:
            if workload == "L4":
                yield _lateness(record)
            else:
                for figure in _RATES[workload]:
                    yield _share(workload, record, _peer_of(records, record), figure)


def _peer_of(records: Sequence[Record], ours: Record) -> Record:
    """The bare table with the same work."""
    return next(
        (
            one
            for one in records
            if (one["bench"], one["system"], peer_shape(one)) == (ours["bench"], PEER, peer_shape(ours))
        ),
        {},
    )


def _named(record: Record) -> str:
    """The work of a record, as far as it differs between the records of its bench."""
    shape = record.get("shape", {})
    parts = [f"{shape[name]:,} {name}" for name in ("buckets", "messages") if name in shape]
    parts += [f"{shape['pending']:,} pending"] if shape.get("pending") else []
    parts += [f"{shape['batch']:,} per call"] if "batch" in shape else []
    return ", ".join(["PostgreSQL", *parts])


def _share(workload: str, record: Record, peer: Record, figure: str) -> WorkloadVerdict:
    goal = f"{_named(record)}: {figure} at least {SHARE:g} x SKIP LOCKED"
    ours, theirs = record.get(figure), peer.get(figure)
    if ours is None or not theirs:
        return unmeasured(workload, goal)
    ratio = ours / theirs
    measured = f"{ratio:.2f} x ({ours:,.0f} against {theirs:,.0f})"
    return WorkloadVerdict(workload, goal, measured, ratio >= SHARE, f"{1 - ratio / SHARE:.0%} of the goal")


def _lateness(record: Record) -> WorkloadVerdict:
    rate = record.get("shape", {}).get("due_per_s")
    what = f"PostgreSQL, {rate:,} due per second" if rate else "PostgreSQL, due in random order"
    value, floor = record.get("lateness_p99_ms"), record.get("floor_p99_ms")
    over = None if value is None or floor is None else value - floor
    note = "" if over is None else f" over the floor ({value:,.2f} ms, floor {floor:,.2f} ms)"
    return at_most("L4", f"{what}: p99 at most {OVER_FLOOR_MS:g} ms over the floor", over, OVER_FLOOR_MS, " ms", note)
