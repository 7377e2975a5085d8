"""The goals, checked against the records of a run. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench.records import Record

OURS = frozenset({"dejaq", "dejaq-natural"})
Value = float | int | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """One goal, the measured value, and whether the goal is met; None when it was not measured."""

    goal: str
    measured: str
    met: bool | None


def verdicts(records: Sequence[Record]) -> list[Verdict]:
    """Every goal in order."""
    return [*_throughput(records), *_accuracy(records), *_depth(records), *_burst(records), *_single(records)]


def _find(records: Sequence[Record], bench: str, system: str, **shape: Any) -> Record | None:
    for record in records:
        if record["bench"] == bench and record["system"] == system and "error" not in record:
            held = record.get("shape", {})
            if all(held.get(name) == value for name, value in shape.items()):
                return record
    return None


def _best_peer(
    records: Sequence[Record], figure: str, allowed: Callable[[Record], bool], **shape: Any
) -> tuple[str, float] | None:
    found = [
        (record["system"], record[figure])
        for record in records
        if record["bench"] == "throughput"
        and record["system"] not in OURS
        and allowed(record)
        and record.get(figure)
        and all(record.get("shape", {}).get(name) == value for name, value in shape.items())
    ]
    return max(found, key=lambda pair: pair[1]) if found else None


def _throughput(records: Sequence[Record]) -> Iterator[Verdict]:
    shape = {"body_bytes": 100, "producers": 1}
    wanted = {"create_per_s": 2.0, "lease_delete_per_s": 4.0, "end_to_end_per_s": 2.0}
    for system, factors in (("dejaq", wanted), ("dejaq-natural", dict.fromkeys(wanted, 1.0))):
        ours = _find(records, "throughput", system, **shape) or {}
        for figure, factor in factors.items():
            peer = _best_peer(records, figure, lambda record: bool(record["durable"]), **shape)
            goal = f"{system}: {figure} at least {factor:g} x the fastest durable peer"
            yield _ratio(goal, ours.get(figure), peer, factor)
        if system == "dejaq":
            for figure in wanted:
                peer = _best_peer(records, figure, lambda record: not record["durable"], **shape)
                yield _ratio(f"{system}: {figure} ahead of every lazy default", ours.get(figure), peer, 1.0)
            yield _at_most(
                "dejaq: broker CPU at most 3 us per message", ours.get("broker_cpu_us_per_message"), 3.0, "us"
            )


def _ratio(goal: str, ours: Value, peer: tuple[str, float] | None, factor: float) -> Verdict:
    if ours is None or peer is None:
        return Verdict(goal, "not measured", None)
    ratio = ours / peer[1]
    return Verdict(goal, f"{ratio:.2f} x ({ours:,.0f} against {peer[0]} {peer[1]:,.0f})", ratio >= factor)


def _at_most(goal: str, value: Value, bound: float, unit: str) -> Verdict:
    if value is None:
        return Verdict(goal, "not measured", None)
    return Verdict(goal, f"{value:,.2f} {unit}", value <= bound)


def _over_floor(goal: str, record: Record, label: str, allowed_ms: float) -> Verdict:
    value, floor = record.get(f"lateness_{label}_ms"), record.get(f"floor_{label}_ms")
    if value is None or floor is None:
        return Verdict(goal, "not measured", None)
    measured = f"{value:,.2f} ms, floor {floor:,.2f} ms: {value - floor:+,.2f} ms"
    return Verdict(goal, measured, value <= floor + allowed_ms)


def _never_early(records: Sequence[Record]) -> Verdict:
    counted = [record["early"] for record in records if record["system"] in OURS and record.get("early") is not None]
    if not counted:
        return Verdict("never early, in every lateness bench", "not measured", None)
    return Verdict("never early, in every lateness bench", f"{sum(counted)} early", sum(counted) == 0)


def _accuracy(records: Sequence[Record]) -> Iterator[Verdict]:
    yield _never_early(records)
    record = _find(records, "accuracy", "dejaq", due_per_s=10_000) or {}
    yield _at_most("accuracy at 10 k/s: p50 at most 1 ms", record.get("lateness_p50_ms"), 1.0, "ms")
    yield _over_floor("accuracy at 10 k/s: p99 at most floor + 3 ms", record, "p99", 3.0)
    yield _over_floor("accuracy at 10 k/s: p99.9 at most floor + 10 ms", record, "p999", 10.0)


def _depth(records: Sequence[Record]) -> Iterator[Verdict]:
    for per_s in (1_000, 4_000, 6_000):
        record = _find(records, "depth", "dejaq", due_per_s=per_s) or {}
        yield _over_floor(f"depth at {per_s // 1_000} k/s: p99 at most floor + 5 ms", record, "p99", 5.0)
    found = [record for record in records if record["bench"] == "depth" and record["system"] == "dejaq"]
    memory = max((record["rss_mb"] for record in found if record.get("rss_mb") is not None), default=None)
    start = max((record["first_delivery_s"] for record in found if record.get("first_delivery_s")), default=None)
    yield _at_most("depth: at most 1 GB in the broker", memory, 1_000.0, "MB")
    yield _at_most("depth: at most 5 s from a start to the first delivery", start, 5.0, "s")


def _burst(records: Sequence[Record]) -> Iterator[Verdict]:
    for messages, allowed in ((100_000, 50.0), (500_000, 100.0)):
        record = _find(records, "burst", "dejaq", burst_messages=messages) or {}
        yield _over_floor(f"burst of {messages:,}: p99 at most floor + {allowed:.0f} ms", record, "p99", allowed)


def _single(records: Sequence[Record]) -> Iterator[Verdict]:
    sends = (_find(records, "send_loop", "dejaq") or {}).get("send_per_s")
    goal = "plain send loop, 64 tasks: at least 20 k/s"
    if sends is None:
        yield Verdict(goal, "not measured", None)
    else:
        yield Verdict(goal, f"{sends:,.0f}/s", sends >= 20_000)
    latency = _find(records, "latency", "dejaq") or {}
    yield _at_most("latency: p50 at most 5 ms", latency.get("latency_p50_ms"), 5.0, "ms")
