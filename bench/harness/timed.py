"""Lateness runs: messages pending far away, others due while we watch, and the bare sleeper beside them."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass

from bench.harness.crew import Crew, late_us_of
from bench.harness.figures import Figures, curve, lateness_figures
from bench.harness.floor import Floor
from bench.harness.orders import Consume, Done, Produce
from bench.harness.payload import Load
from bench.harness.stage import Stage

FAR_MS = 6 * 3_600 * 1_000
FAR_PER_S = 500
# What is loaded must be there well before the first of it is due.
LEAD_SECONDS = 3.0
LEAD_FACTOR = 2.0
GRACE_SECONDS = 30.0
FEWEST_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Loaded:
    """How many are pending, and how fast this system takes them."""

    count: int
    per_s: float


def load_pending(stage: Stage, count: int, seconds_max: float) -> Loaded:
    """Create messages that are due hours from now, as many as fit into the time."""
    load = Load(count=count, prefix="far", start_ms=time.time_ns() // 1_000_000 + FAR_MS, per_s=FAR_PER_S)
    with stage.crew() as crew:
        order = Produce(load, ready=False, seconds_max=seconds_max)
        done = crew.work(order, seconds_max=2 * seconds_max + GRACE_SECONDS)[0]
    return Loaded(count=done.count, per_s=done.count * 1e9 / max(1, done.end_ns - done.start_ns))


@dataclass(frozen=True, slots=True)
class Watched:
    """What came of messages that fell due while we watched."""

    figures: Figures
    curve: list[tuple[float, float]]
    due: int
    consumers: int


def watch_due(
    stage: Stage, loaded: Loaded, *, messages: int, per_s: int, consumers: int, prefix: str, load_seconds_max: float
) -> Watched:
    """Schedule messages a little ahead, consume them as they fall due, and say how late they were.

    A system that cannot take them all in `load_seconds_max` gets as many as it can.
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
        load = Load(count=messages, prefix=prefix, start_ms=start_ns // 1_000_000, per_s=per_s)
        created = crew.work(Produce(load, ready=False), seconds_max=most)[0]
        rss = _watch(stage, crew, consuming, until=time.monotonic() + most)
        delivered = crew.wait(consuming, most)
        figures = _figures(delivered, messages=messages, start_ns=start_ns, overrun_ns=created.end_ns - start_ns)
        figures |= {"rss_mb": rss} | floor.figures()
    return Watched(figures=figures, curve=curve(late_us_of(delivered)), due=messages, consumers=consumers)


def _watch(stage: Stage, crew: Crew, consuming: list[int], until: float) -> float:
    """The most memory the server had while the consumers were at work."""
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
        # Then some were created after their time, and their lateness is the loading's and not the system's.
        figures["loading_overran_ms"] = overrun_ns // 1_000_000
    return figures
