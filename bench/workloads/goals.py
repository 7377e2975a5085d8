"""The goals of the realistic workloads, judged on the records of a run: met, or missed by how much. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bench.records import Record, peer_shape
from bench.workloads.log_goals import log_verdicts
from bench.workloads.names import WORKLOADS
from bench.workloads.postgres_goals import postgres_verdicts
from bench.workloads.verdicts import WorkloadVerdict, at_least, at_most, unmeasured

OURS = ("dejaq", "dejaq-natural")
CLUSTER = "dejaq-cluster"
PEER = "redis-always"
# Memory, start and export count as flat when they grow by less than this.
FLAT_PERCENT = 5.0
FLAT_FACTOR = 1.2
# Differences below these are within what one measurement differs from the next.
FLAT_SECONDS = 0.5
CLIFF_FACTOR = 1.5
MB_AT_TEN_MILLION = 1_000.0


def workload_verdicts(records: Sequence[Record]) -> list[WorkloadVerdict]:
    """Every goal in the order of the workloads."""
    good = [record for record in records if "error" not in record]
    return [
        *_reminders(good),
        *_falling_due(good),
        *_watched(good),
        *_single_sends(good),
        *_fleet(good),
        *_topics(good),
        *_by_id(good),
        *_large_backlog(good),
        *_one_at_a_time(good),
        *_priority(good),
        *_slow_work(good),
        *_uptime(good),
        *_ordinary(good),
        *log_verdicts(good),
        *_connections(good),
        *postgres_verdicts(good),
    ]


def _ours(records: Sequence[Record], workload: str) -> list[Record]:
    return [record for record in records if record["bench"] == WORKLOADS[workload] and record["system"] in OURS]


def _shape(record: Record) -> dict[str, Any]:
    return dict(record.get("shape", {}))


def _peer_of(records: Sequence[Record], ours: Record) -> Record | None:
    """The peer with the same work."""
    for record in records:
        same = record["bench"] == ours["bench"] and peer_shape(record) == peer_shape(ours)
        if same and record["system"] == PEER:
            return record
    return None


def _times_peer(
    records: Sequence[Record], workload: str, what: str, ours: Record, figure: str, factor: float
) -> WorkloadVerdict:
    goal = f"{what}: {figure} at least {factor:g} x Redis"
    peer = _peer_of(records, ours)
    mine, theirs = ours.get(figure), peer.get(figure) if peer else None
    if mine is None or not theirs:
        return WorkloadVerdict(workload, goal, "not measured", None)
    ratio = mine / theirs
    measured = f"{ratio:.2f} x ({mine:,.0f} against {theirs:,.0f})"
    return WorkloadVerdict(workload, goal, measured, ratio >= factor, f"{1 - ratio / factor:.0%} of the goal")


def _reminders(records: Sequence[Record]) -> Iterator[WorkloadVerdict]:
    for workload, name, factor in (("L1", "own ids", 2.0), ("L2", "generated ids", 3.0), ("L3", "next minute", 2.0)):
        found = _ours(records, workload)
        if not found:
            yield unmeasured(workload, f"{name}: create_per_s at least {factor:g} x Redis")
        for record in found:
            shape = _shape(record)
            what = f"{name}, {shape.get('buckets')} buckets"
            if shape.get("pending"):
                # A slow system may not have reached the planned number in time.
                reached = record.get("settings", {}).get("pending", shape["pending"])
                what += f", {reached:,} pending"
            yield _times_peer(records, workload, what, record, "create_per_s", factor)
            if workload == "L1":
                cpu = record.get("create_cpu_us_per_message")
                yield at_most(workload, f"{what}: broker CPU at most 4 us per message", cpu, 4.0, " us")


def _falling_due(records: Sequence[Record]) -> Iterator[WorkloadVerdict]:
    for record in _ours(records, "L4") or [{"shape": {}}]:
        rate = _shape(record).get("due_per_s")
        what = f"{rate:,} due per second" if rate else "due in random order"
        for label, name, allowed in (("p99", "p99", 3.0), ("p999", "p99.9", 10.0)):
            value, floor = record.get(f"lateness_{label}_ms"), record.get(f"floor_{label}_ms")
            over = None if value is None or floor is None else value - floor
            note = "" if over is None else f" over the floor ({value:,.2f} ms, floor {floor:,.2f} ms)"
            yield at_most("L4", f"{what}: {name} at most {allowed:g} ms over the floor", over, allowed, " ms", note)


def _watched(records: Sequence[Record]) -> Iterator[WorkloadVerdict]:
    for record in _ours(records, "L5") or [{"shape": {}}]:
        shape = _shape(record)
        rate, pending = shape.get("due_per_s"), shape.get("pending")
        what = f"{rate:,} due per second, {pending:,} pending" if rate and pending else "while somebody looks"
        late, floor = record.get("lateness_p99_ms"), record.get("floor_p99_ms")
        over = None if late is None or floor is None else late - floor
        yield at_most("L5", f"{what}: p99 at most 3 ms over the floor", over, 3.0, " ms")
        yield at_most("L5", f"{what}: p99 of every query at most 50 ms", record.get("query_p99_ms"), 50.0, " ms")


def _single_sends(records: Sequence[Record]) -> Iterator[WorkloadVerdict]:
    for record in _ours(records, "L6") or [{"shape": {}}]:
        messages = _shape(record).get("messages")
        what = f"{messages:,} single sends" if messages else "single sends"
        yield at_least("L6", f"{what}: at least 60,000 per second", record.get("send_per_s"), 60_000.0, "/s")
        yield at_most("L6", f"{what}: p99 of an ack at most 20 ms", record.get("ack_p99_ms"), 20.0, " ms")
        if messages:
            done = record.get("settings", {}).get("messages", 0)
            yield at_least("L6", f"{what}: all are accepted", float(done), float(messages))
    yield _memory_at_ten_million(_ours(records, "L6"))


def _memory_at_ten_million(found: Sequence[Record]) -> WorkloadVerdict:
    goal = "memory with 10 M pending at most 1 GB"
    whole = [one for one in found if one.get("settings", {}).get("messages", 0) >= 10_000_000]
    if whole:
        return at_most("L6", goal, whole[0].get("rss_mb"), MB_AT_TEN_MILLION, " MB")
    known = [one["memory_bytes_per_message"] for one in found if one.get("memory_bytes_per_message") is not None]
    if not known:
        return unmeasured("L6", goal)
    return at_most("L6", goal, known[-1] * 10, MB_AT_TEN_MILLION, " MB", " by the growth per message of this run")


def _fleet(records: Sequence[Record]) -> Iterator[WorkloadVerdict]:
    found = _ours(records, "L7")
    yield from _fleet_of(found[0] if found else {})
    yield at_most("L7", "the broker idle: at most 5 % of a core", (found or [{}])[0].get("idle_cpu_percent"), 5.0, " %")
    cluster = [one for one in records if (one["bench"], one["system"]) == (WORKLOADS["L7"], CLUSTER)]
    yield from _fleet_of(cluster[0] if cluster else {}, "three brokers on PostgreSQL: ")


def _fleet_of(record: Record, brokers: str = "") -> Iterator[WorkloadVerdict]:
    """What holds for one broker and for a cluster."""
    floor = record.get("floor_p99_ms")
    yield at_most("L7", f"{brokers}all consumers joined within 10 s", record.get("joined_s"), 10.0, " s")
    for figure, when in (("lateness_p99_ms", "p99"), ("after_p99_ms", "p99 from 5 s after a fifth has left")):
        late = record.get(figure)
        over = None if late is None or floor is None else late - floor
        yield at_most("L7", f"{brokers}{when} at most 20 ms over the bare sleeper", over, 20.0, " ms")
    yield at_most("L7", f"{brokers}no message is missing", record.get("undelivered"), 0.0, " messages")


def _topics(records: Sequence[Record]) -> Iterator[WorkloadVerdict]:
    found = _ours(records, "L8")
    record = found[0] if found else {}
    yield at_least("L8", "create at least 1,000 topics per second", record.get("topics_per_s"), 1_000.0, "/s")
    yield at_most("L8", "start within 5 s", record.get("start_s"), 5.0, " s")
    yield at_most("L8", "the broker idle: at most 2 % of a core", record.get("idle_cpu_percent"), 2.0, " %")
    yield at_most("L8", "memory at most 500 MB", record.get("rss_mb"), 500.0, " MB")


def _by_id(records: Sequence[Record]) -> Iterator[WorkloadVerdict]:
    found = {_shape(record).get("batch"): record for record in _ours(records, "L9")}
    for batch, name, bound in ((1_000, "in batches of 1,000", 150_000.0), (1, "single, 64 in flight", 40_000.0)):
        for kind in ("get", "move", "edit", "cancel"):
            value = found.get(batch, {}).get(f"{kind}_per_s")
            yield at_least("L9", f"{kind} {name}: at least {bound:,.0f} per second", value, bound, "/s")


def _large_backlog(records: Sequence[Record]) -> Iterator[WorkloadVerdict]:
    found = sorted(_ours(records, "L10"), key=lambda record: int(_shape(record).get("messages", 0)))
    if not found:
        yield unmeasured("L10", "lease_delete_per_s at least 1.5 x Redis")
        return
    largest = found[-1]
    what = f"{_shape(largest).get('messages', 0):,} bodies of 1 KB"
    yield _times_peer(records, "L10", what, largest, "lease_delete_per_s", 1.5)
    figure = "lease_delete_cpu_us_per_message"
    few, many = found[0].get(figure), largest.get(figure)
    ratio = many / few if len(found) > 1 and few and many else None
    goal = f"no cliff: {figure} at most {CLIFF_FACTOR:g} x that of the small backlog"
    yield at_most("L10", goal, ratio, CLIFF_FACTOR, " x")


def _priority(records: Sequence[Record]) -> Iterator[WorkloadVerdict]:
    found = _ours(records, "L12")
    if not found:
        yield unmeasured("L12", "lease_delete_per_s at least 1.2 x Redis")
    for record in found:
        what = f"{_shape(record).get('priorities', 0):,} priorities"
        yield _times_peer(records, "L12", what, record, "lease_delete_per_s", 1.2)


def _slow_work(records: Sequence[Record]) -> Iterator[WorkloadVerdict]:
    found = _ours(records, "L13")
    record = found[0] if found else {}
    yield _flat("L13", record)
    yield at_most("L13", "no lease that is extended is lost", record.get("lost_leases"), 0.0, " leases")


def _flat(workload: str, record: Record) -> WorkloadVerdict:
    goal = f"memory flat after the first tenth: growth at most {FLAT_PERCENT:g} %"
    slope = record.get("rss_slope_mb_per_million")
    note = "" if slope is None else f" ({slope:,.2f} MB per million messages, {record.get('rss_mb')} MB at the end)"
    return at_most(workload, goal, record.get("rss_growth_percent"), FLAT_PERCENT, " %", note)


def _uptime(records: Sequence[Record]) -> Iterator[WorkloadVerdict]:
    found = _ours(records, "L14")
    record = found[0] if found else {}
    yield _flat("L14", record)
    for what, name in (("start", "start time"), ("export", "time until the journal has everything")):
        first, last = record.get(f"{what}_first_s"), record.get(f"{what}_last_s")
        allowed = None if first is None else max(FLAT_FACTOR * first, first + FLAT_SECONDS)
        goal = f"{name} flat from the first tenth to the end"
        if allowed is None:
            yield unmeasured("L14", goal)
        else:
            yield at_most("L14", goal, last, allowed, " s", f", {first:,.2f} s after the first tenth")


def _one_at_a_time(records: Sequence[Record]) -> Iterator[WorkloadVerdict]:
    found = {_shape(record).get("work"): record for record in _ours(records, "L11")}
    late = found.get("latency", {}).get("latency_p50_ms")
    yield at_most("L11", "due now, from the send to user code: p50 at most 0.6 ms", late, 0.6, " ms")
    rate = found.get("transactions", {}).get("transactions_per_s")
    yield at_least("L11", "at least 10,000 transactions per second, 32 at once", rate, 10_000.0, "/s")


def _ordinary(records: Sequence[Record]) -> Iterator[WorkloadVerdict]:
    found = _ours(records, "L15")
    record = found[0] if found else {}
    late, floor = record.get("lateness_p99_ms"), record.get("floor_p99_ms")
    over = None if late is None or floor is None else late - floor
    yield at_least("L15", "5,000 messages per second, one per call", record.get("sent_per_s"), 4_950.0, "/s")
    cpu = record.get("broker_cpu_us_per_message")
    yield at_most("L15", "at most 100 us of the broker's processor time per message", cpu, 100.0, " us")
    yield at_most("L15", "p99 at most 5 ms over the bare sleeper", over, 5.0, " ms")
    yield at_most("L15", "no message is missing", record.get("undelivered"), 0.0, " messages")


def _connections(records: Sequence[Record]) -> Iterator[WorkloadVerdict]:
    for record in records:
        if record["bench"] == "connections":
            shape = _shape(record)
            kind = "idle connections with a session each" if shape.get("sessions") else "idle connections"
            what = f"{shape.get('connections', 0):,} {kind}"
            yield at_most("connections", f"{what}: at most 40 kB each", record.get("connection_kb"), 40.0, " kB")
            yield at_most("connections", f"{what}: at most 2 % of a core", record.get("idle_cpu_percent"), 2.0, " %")
