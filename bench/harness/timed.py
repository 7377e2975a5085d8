"""Lateness runs: messages pending far in the future, others due during the run, and the bare
sleeper at the same time.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass

from bench.harness.crew import Crew, late_us_of
from bench.harness.figures import Figures, curve, lateness_figures, us_each
from bench.harness.floor import Floor
from bench.harness.orders import Consume, Done, Produce
from bench.harness.payload import FAR_MS, FAR_PREFIX, Load
from bench.harness.stage import Stage

FAR_PER_S = 500
# All messages must be created well before the first of them is due.
LEAD_SECONDS = 3.0
LEAD_FACTOR = 2.0
GRACE_SECONDS = 30.0
FEWEST_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Loaded:
    """How many messages are pending, and how fast the system accepts them."""

    count: int
    per_s: float


def load_pending(stage: Stage, count: int, seconds_max: float, *, scatter_ms: int = 0) -> Loaded:
    """Create messages that are due hours from now, in order or scattered, as many as the time allows."""
    start_ms = time.time_ns() // 1_000_000 + FAR_MS
    load = Load(count=count, prefix=FAR_PREFIX, start_ms=start_ms, per_s=FAR_PER_S, scatter_ms=scatter_ms)
    with stage.crew() as crew:
        order = Produce(load, ready=False, seconds_max=seconds_max)
        done = crew.work(order, seconds_max=2 * seconds_max + GRACE_SECONDS)[0]
    return Loaded(count=done.count, per_s=done.count * 1e9 / max(1, done.end_ns - done.start_ns))


@dataclass(frozen=True, slots=True)
class Watched:
    """The measurements of messages that became due during the run."""

    figures: Figures
    curve: list[tuple[float, float]]
    due: int
    consumers: int


def watch_due(
    stage: Stage,
    loaded: Loaded,
    *,
    messages: int,
    per_s: int,
    consumers: int,
    prefix: str,
    load_seconds_max: float,
    scattered: bool = False,
) -> Watched:
    """Create messages a little before their times, consume them as they become due, and measure how late they were.

    A system that cannot accept all of them within `load_seconds_max` gets as many as it can. With `scattered` their
    times are uniform over the same span, and they arrive in random order.
    """
    messages = max(1, min(messages, int(loaded.per_s * load_seconds_max)))
    lead = LEAD_SECONDS + LEAD_FACTOR * messages / loaded.per_s
    span_s = max(FEWEST_SECONDS, messages / per_s if per_s else 0.0)
    most = lead + span_s + GRACE_SECONDS
    with stage.crew() as crew, ExitStack() as stack:
        consuming = crew.add(*(Consume(target=messages, seconds_max=most, timed=True) for _ in range(consumers)))
        crew.go(consuming)
        start_ns = time.time_ns() + int(lead * 1e9)
        floor = stack.enter_context(Floor(start_ns, start_ns + int(span_s * 1e9)))
        scatter_ms = int(span_s * 1_000) if scattered else 0
        start_ms = start_ns // 1_000_000
        load = Load(count=messages, prefix=prefix, start_ms=start_ms, per_s=per_s, scatter_ms=scatter_ms)
        created = crew.work(Produce(load, ready=False), seconds_max=most)[0]
        cpu_before = stage.cpu_seconds()
        rss = _watch(stage, crew, consuming, until=time.monotonic() + most)
        delivered = crew.wait(consuming, most)
        figures = _figures(delivered, messages=messages, start_ns=start_ns, overrun_ns=created.end_ns - start_ns)
        cpu = stage.cpu_seconds() - cpu_before
        figures["broker_cpu_us_per_message"] = us_each(cpu, sum(done.count for done in delivered))
        figures |= {"rss_mb": rss} | floor.figures()
    return Watched(figures=figures, curve=curve(late_us_of(delivered)), due=messages, consumers=consumers)


def _watch(stage: Stage, crew: Crew, consuming: list[int], until: float) -> float:
    """The maximum memory of the server while the consumers worked."""
    most = stage.rss_mb()
    while time.monotonic() < until and not all(crew.finished(number) for number in consuming):
        most = max(most, stage.rss_mb())
        time.sleep(0.5)
    return most


def _figures(delivered: list[Done], *, messages: int, start_ns: int, overrun_ns: int) -> Figures:
    late = late_us_of(delivered)
    seconds = (max(done.end_ns for done in delivered) - start_ns) / 1e9
    figures: Figures = {
        "early": sum(1 for sample in late if sample < 0),
        "undelivered": max(0, messages - len(late)),
        **lateness_figures(late),
        "drain_per_s": round(len(late) / seconds, 1) if seconds > 0 else None,
    }
    if overrun_ns > 0:
        # Then some messages were created after their time, and their lateness is that of the loading and not of the
        # system.
        figures["loading_overran_ms"] = overrun_ns // 1_000_000
    return figures
