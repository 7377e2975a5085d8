"""The amount of work: the full comparison, the quick one for every day, and a smoke run that only
shows that all works.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.workloads import sizes as workload_sizes
from bench.workloads.names import WORKLOADS

# The benches that need many pending messages, and so are repeated less.
LONG_BENCHES = ("accuracy", "depth", "burst", "mutate", "cron", "transactions")
BENCHES = (*WORKLOADS.values(), "throughput", *LONG_BENCHES, "latency", "send_loop", "connections", "tabs")
# Those that take minutes to hours by themselves, and so are never repeated.
ONCE = ("fleet", "topics", "slow_work", "uptime", "ordinary", "connections", "tabs")
LOG_SYSTEMS = ("dejaq-log", "redis-streams", "kafka", "kafka-flush", "nats-stream")
WORKLOAD_SYSTEMS = (
    "dejaq",
    "dejaq-natural",
    "redis-always",
    "dejaq-postgres",
    "dejaq-postgres-natural",
    "dejaq-cluster",
    "skip-locked",
    *LOG_SYSTEMS,
)


@dataclass(frozen=True, slots=True)
class Burst:
    """A number of messages, all at one millisecond or spread over `seconds`."""

    messages: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes of one run. `phase_seconds_max` ends any phase of a system that cannot finish it in time.

    A system that is not a contender is measured once, and only with the first body size and the first number of
    clients.
    """

    name: str
    benches: tuple[str, ...]
    systems: tuple[str, ...]
    contenders: tuple[str, ...]
    long_systems: tuple[str, ...]
    depth_systems: tuple[str, ...]
    repeats: int
    long_repeats: int
    # How often the other body sizes and numbers of clients are measured.
    shape_repeats: int
    phase_seconds_max: float
    body_bytes: tuple[int, ...]
    clients: tuple[int, ...]
    messages: int
    pending: int
    depth_pending: int
    load_seconds_max: float
    accuracy_per_s: tuple[int, ...]
    depth_per_s: tuple[int, ...]
    due_seconds: int
    bursts: tuple[Burst, ...]
    burst_consumers: int
    changes_single: int
    changes_batched: int
    latency_messages: int
    loop_messages: int
    priority_messages: int
    priorities: int
    schedules: int
    cron_seconds: int
    transacted: int
    # The realistic workloads: their sizes and the systems that are measured in them.
    sizes: workload_sizes.Sizes
    workload_systems: tuple[str, ...] = WORKLOAD_SYSTEMS

    @property
    def every_system(self) -> tuple[str, ...]:
        """The systems of all benches."""
        return tuple(dict.fromkeys((*self.systems, *self.workload_systems)))

    def systems_of(self, bench: str) -> tuple[str, ...]:
        """The systems to measure in a bench."""
        if bench == "depth":
            return self.depth_systems
        if bench in WORKLOADS.values():
            return self.workload_systems
        return self.long_systems if bench in LONG_BENCHES else self.systems

    def repeats_of(self, bench: str, system: str) -> int:
        """The number of repeats of a system in a bench."""
        if system not in self.contenders:
            return 1
        if bench in ONCE:
            return 1
        return self.long_repeats if bench in LONG_BENCHES or bench in WORKLOADS.values() else self.repeats

    def of_repeat(self, system: str, repeat: int) -> Plan:
        """The plan of a system in repeat `number`, counted from 0."""
        if system in self.contenders and repeat < self.shape_repeats:
            return self
        return replace(self, body_bytes=self.body_bytes[:1], clients=self.clients[:1])


EVERYONE = (
    "dejaq",
    "dejaq-natural",
    "dejaq-postgres",
    "dejaq-postgres-natural",
    "dejaq-cluster",
    "redis-always",
    "redis-everysec",
    "beanstalkd-fsync",
    "beanstalkd",
    "nats-always",
    "nats",
    "rabbitmq",
    "skip-locked",
    "procrastinate",
    "celery",
)

FULL = Plan(
    name="full",
    benches=BENCHES,
    systems=EVERYONE,
    contenders=(*EVERYONE, *LOG_SYSTEMS),
    long_systems=EVERYONE,
    depth_systems=EVERYONE,
    repeats=3,
    long_repeats=3,
    shape_repeats=3,
    phase_seconds_max=20.0,
    body_bytes=(100, 1_024),
    clients=(1, 4),
    messages=1_000_000,
    pending=1_000_000,
    depth_pending=10_000_000,
    load_seconds_max=45.0,
    accuracy_per_s=(1_000, 5_000, 10_000),
    depth_per_s=(1_000, 4_000, 6_000),
    due_seconds=60,
    bursts=(Burst(messages=100_000, seconds=0.0), Burst(messages=500_000, seconds=1.0)),
    burst_consumers=2,
    changes_single=20_000,
    changes_batched=200_000,
    latency_messages=500,
    loop_messages=64_000,
    priority_messages=1_000_000,
    priorities=10_000,
    schedules=100_000,
    cron_seconds=40,
    transacted=20_000,
    sizes=workload_sizes.FULL,
)

# The whole comparison in less than an hour, without the long runs of the workloads: fewer repeats, shorter lateness
# runs, the benches with many pending messages for DejaQ and the fastest peer only, and one repeat of slow systems.
SHORT = Plan(
    name="short",
    benches=BENCHES,
    systems=EVERYONE,
    contenders=(
        "dejaq",
        "dejaq-natural",
        "redis-always",
        "redis-everysec",
        "dejaq-postgres",
        "dejaq-postgres-natural",
        "skip-locked",
        "dejaq-log",
        "redis-streams",
        "kafka",
        "kafka-flush",
    ),
    long_systems=("dejaq", "redis-always"),
    depth_systems=("dejaq",),
    repeats=3,
    long_repeats=1,
    shape_repeats=1,
    phase_seconds_max=4.0,
    body_bytes=(100, 1_024),
    clients=(1, 4),
    messages=600_000,
    pending=1_000_000,
    depth_pending=10_000_000,
    load_seconds_max=150.0,
    accuracy_per_s=(1_000, 5_000, 10_000),
    depth_per_s=(1_000, 4_000, 6_000),
    due_seconds=20,
    bursts=(Burst(messages=100_000, seconds=0.0), Burst(messages=500_000, seconds=1.0)),
    burst_consumers=2,
    changes_single=4_000,
    changes_batched=100_000,
    latency_messages=300,
    loop_messages=64_000,
    priority_messages=1_000_000,
    priorities=10_000,
    schedules=100_000,
    cron_seconds=20,
    transacted=20_000,
    sizes=workload_sizes.SHORT,
)

QUICK = Plan(
    name="quick",
    benches=(
        *WORKLOADS.values(),
        "throughput",
        "accuracy",
        "burst",
        "mutate",
        "latency",
        "send_loop",
        "connections",
        "tabs",
    ),
    systems=("dejaq", "dejaq-natural", "redis-always"),
    contenders=("dejaq", "dejaq-natural", "redis-always", "dejaq-log", "redis-streams"),
    long_systems=("dejaq", "redis-always"),
    depth_systems=("dejaq", "redis-always"),
    repeats=3,
    long_repeats=1,
    shape_repeats=1,
    phase_seconds_max=10.0,
    body_bytes=(100,),
    clients=(1,),
    messages=50_000,
    pending=100_000,
    depth_pending=100_000,
    load_seconds_max=10.0,
    accuracy_per_s=(5_000,),
    depth_per_s=(1_000,),
    due_seconds=5,
    bursts=(Burst(messages=20_000, seconds=0.0),),
    burst_consumers=2,
    changes_single=2_000,
    changes_batched=20_000,
    latency_messages=100,
    loop_messages=12_800,
    priority_messages=50_000,
    priorities=10_000,
    schedules=2_000,
    cron_seconds=5,
    transacted=2_000,
    sizes=workload_sizes.SMALL,
)

SMOKE = Plan(
    name="smoke",
    benches=BENCHES,
    systems=EVERYONE,
    contenders=EVERYONE,
    long_systems=EVERYONE,
    depth_systems=EVERYONE,
    repeats=1,
    long_repeats=1,
    shape_repeats=1,
    phase_seconds_max=5.0,
    body_bytes=(100,),
    clients=(1,),
    messages=3_000,
    pending=3_000,
    depth_pending=5_000,
    load_seconds_max=5.0,
    accuracy_per_s=(500,),
    depth_per_s=(500,),
    due_seconds=2,
    bursts=(Burst(messages=2_000, seconds=0.0),),
    burst_consumers=2,
    changes_single=200,
    changes_batched=2_000,
    latency_messages=20,
    loop_messages=640,
    priority_messages=3_000,
    priorities=500,
    schedules=200,
    cron_seconds=3,
    transacted=200,
    sizes=workload_sizes.TINY,
)

PLANS = {plan.name: plan for plan in (FULL, SHORT, QUICK, SMOKE)}
