"""How much work the workloads do. Every size can be set from the command line: `--set uptime_messages=1000000`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, get_type_hints


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of one run; the defaults are the full sizes."""

    # How long one phase of a workload may take; a system that is slower does less.
    phase_seconds_max: float = 300.0
    # How long it may take to create what must be pending before a workload starts.
    load_seconds_max: float = 1_200.0

    # L1, L2, L3: messages to create, the buckets of the topic, and what is pending before with the last of them.
    reminders: int = 1_000_000
    reminders_buckets: tuple[int, ...] = (16, 64)
    reminders_pending: int = 20_000_000

    # L4: messages pending, messages due per second, and for how long.
    due_pending: int = 1_000_000
    due_per_s: tuple[int, ...] = (4_000, 10_000)
    due_seconds: int = 60
    due_consumers: int = 2

    # L5: messages pending; the rates and consumers are those of L4.
    watched_pending: int = 10_000_000

    # L6: messages per run, and the clients that send them.
    single_sends: tuple[int, ...] = (1_000_000, 10_000_000)
    single_processes: int = 2
    single_connections: int = 50
    single_producers: int = 1_000

    # L7: consumers in so many processes, how long they may take to join, messages due per second, for how long before
    # and after so many of the consumers leave at once.
    fleet_consumers: int = 1_000
    fleet_processes: int = 4
    fleet_buckets: int = 1_024
    fleet_join_seconds: float = 10.0
    fleet_per_s: int = 2_000
    fleet_seconds: float = 20.0
    fleet_leave: int = 200

    # L8: topics.
    topics: int = 10_000

    # L9: messages pending, and the changes of each kind.
    by_id_pending: int = 5_000_000
    by_id_batched: int = 500_000
    by_id_single: int = 50_000

    # L10: messages pending; the smallest is below the memory for messages that are due soon, the largest above it.
    backlog: tuple[int, ...] = (100_000, 600_000)
    # The times of these messages are uniform over so long, and all have passed when the consumer starts.
    backlog_seconds: float = 10.0

    # L11: transactions of one message in and one message out.
    transactions: int = 20_000

    # L13: leases held, messages that pass meanwhile, the shortest and the longest time.
    slow_held: int = 10_000
    slow_messages: int = 100_000_000
    slow_seconds: float = 3_600.0
    slow_seconds_max: float = 7_200.0
    slow_lease_seconds: float = 30.0
    # At most so many are sent per second; 0 is no limit.
    slow_per_s: int = 0

    # L14: messages through, messages pending, and the rounds of clients and topics that come and go.
    uptime_messages: int = 100_000_000
    uptime_pending: int = 1_000_000
    uptime_rounds: int = 200
    uptime_seconds_max: float = 7_200.0

    # L15: messages per second, for how long, and within how many seconds each is due.
    ordinary_per_s: int = 5_000
    ordinary_seconds: float = 60.0
    ordinary_due_seconds: float = 20.0

    # L16: messages of each size that are appended and read; single appends; messages one at a time; offsets that groups
    # commit. L17: appended per second beside a timeline, for how long, and messages due per second.
    log_messages: int = 2_000_000
    log_body_bytes: tuple[int, ...] = (100, 1_024)
    log_single: int = 200_000
    log_latency: int = 500
    log_offsets: int = 1_000_000
    log_beside_per_s: int = 200_000
    log_beside_seconds: int = 20
    log_beside_due_per_s: int = 4_000

    # Idle connections, and for how long: an idle session is pinged once in two minutes.
    connections: int = 10_000
    connections_seconds: float = 150.0


FULL = Sizes()

# For a run of minutes: the long runs are short, and nothing has tens of millions of messages pending.
SHORT = Sizes(
    phase_seconds_max=60.0,
    load_seconds_max=150.0,
    reminders_pending=0,
    due_seconds=20,
    watched_pending=1_000_000,
    single_sends=(1_000_000,),
    by_id_batched=100_000,
    by_id_single=10_000,
    slow_messages=2_000_000,
    slow_seconds=60.0,
    slow_seconds_max=120.0,
    slow_lease_seconds=10.0,
    uptime_messages=2_000_000,
    uptime_pending=100_000,
    uptime_rounds=40,
    uptime_seconds_max=120.0,
    ordinary_seconds=20.0,
    log_messages=1_000_000,
    log_single=100_000,
    log_latency=200,
)

# For every day: all workloads together take about a minute.
SMALL = Sizes(
    phase_seconds_max=5.0,
    load_seconds_max=10.0,
    reminders=20_000,
    reminders_buckets=(64,),
    reminders_pending=0,
    due_pending=20_000,
    watched_pending=20_000,
    due_per_s=(4_000,),
    due_seconds=2,
    single_sends=(5_000,),
    single_connections=10,
    single_producers=100,
    fleet_consumers=60,
    fleet_processes=2,
    fleet_buckets=256,
    fleet_join_seconds=3.0,
    fleet_per_s=200,
    fleet_seconds=3.0,
    fleet_leave=12,
    topics=500,
    by_id_pending=20_000,
    by_id_batched=4_000,
    by_id_single=500,
    backlog=(10_000,),
    backlog_seconds=1.0,
    slow_held=500,
    slow_messages=50_000,
    slow_seconds=2.0,
    slow_seconds_max=5.0,
    slow_lease_seconds=1.0,
    uptime_messages=50_000,
    uptime_pending=5_000,
    uptime_rounds=5,
    uptime_seconds_max=10.0,
    transactions=1_000,
    connections=500,
    connections_seconds=5.0,
    ordinary_per_s=1_000,
    ordinary_seconds=5.0,
    ordinary_due_seconds=2.0,
    log_messages=200_000,
    log_body_bytes=(100,),
    log_single=10_000,
    log_latency=100,
    log_offsets=20_000,
    log_beside_per_s=50_000,
    log_beside_seconds=3,
    log_beside_due_per_s=1_000,
)

# Shows that everything works; its figures mean nothing.
TINY = replace(
    SMALL,
    reminders=2_000,
    due_pending=2_000,
    watched_pending=2_000,
    due_per_s=(500,),
    due_seconds=2,
    single_sends=(500,),
    single_connections=2,
    single_producers=10,
    fleet_consumers=8,
    fleet_processes=2,
    fleet_buckets=16,
    fleet_join_seconds=1.0,
    fleet_per_s=50,
    fleet_seconds=1.0,
    fleet_leave=2,
    topics=50,
    by_id_pending=4_000,
    by_id_batched=2_000,
    by_id_single=100,
    backlog=(1_000,),
    slow_held=50,
    slow_messages=5_000,
    slow_seconds=1.0,
    slow_lease_seconds=1.0,
    uptime_messages=5_000,
    uptime_pending=1_000,
    transactions=100,
    connections=50,
    connections_seconds=3.0,
    ordinary_per_s=200,
    ordinary_seconds=2.0,
    ordinary_due_seconds=1.0,
    log_messages=4_000,
    log_single=500,
    log_latency=10,
    log_offsets=1_600,
    log_beside_per_s=5_000,
    log_beside_seconds=2,
    log_beside_due_per_s=200,
)


def changed(sizes: Sizes, settings: Sequence[str]) -> Sizes:
    """The sizes with settings such as `reminders=5000` or `due_per_s=500,1000`; raises ValueError for another text."""
    hints = get_type_hints(Sizes)
    known = {field.name: hints[field.name] for field in fields(Sizes)}
    changes: dict[str, Any] = {}
    for setting in settings:
        name, _, text = setting.partition("=")
        if name not in known:
            raise ValueError(f"{name!r} is not a size; known: {', '.join(known)}")
        kind = known[name]
        changes[name] = kind(text) if kind in (int, float) else tuple(int(part) for part in text.split(","))
    return replace(sizes, **changes)
