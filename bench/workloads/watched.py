"""L5: what falls due while somebody looks. The deliveries of L4, and once per second each a histogram of 30 days, a
page, counts by producer group and status, and the state of the cluster.

Redis has no such questions, so this workload has no peer; deliveries are compared with those of L4.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import dejaq
from bench.harness.apart import apart
from bench.harness.figures import Figures, lateness_figures
from bench.harness.stage import Outcome, staged
from bench.harness.timed import LEAD_FACTOR, LEAD_SECONDS, Loaded, load_pending, watch_due
from bench.plan import Plan
from bench.systems.base import System
from bench.systems.dejaq_broker import TOPIC
from bench.workloads.reminders import MONTH_MS
from dejaq.domain.message import Status

# Besides the group of what is pending and falls due, so many have one message in so many of what is pending.
GROUPS, GROUP_SHARE = 4, 50
PAGE = 100
HOUR_MS = 3_600_000
PERIOD_SECONDS = 1.0
GRACE_SECONDS = 60.0


Looking = Callable[[str, float, float], Coroutine[object, object, Figures]]


def run(system: System, plan: Plan) -> Iterator[Outcome]:
    """One outcome per rate, all on one server."""
    return deliver_while(system, plan, look)


def deliver_while(system: System, plan: Plan, looking_at: Looking) -> Iterator[Outcome]:
    """The same while `looking_at` asks the broker, in a process of its own, from the first due time to the last."""
    sizes = plan.sizes
    with staged(system) as stage, ThreadPoolExecutor(1) as pool:
        loaded = load_pending(stage, sizes.watched_pending, sizes.load_seconds_max, scatter_ms=MONTH_MS)
        apart(add_groups, stage.server.address, sizes.watched_pending // GROUP_SHARE)
        for per_s in sizes.due_per_s:
            messages = per_s * sizes.due_seconds
            seconds = _seconds_until_end(loaded, messages, per_s)
            begin = time.time() + seconds - messages / per_s
            looking = pool.submit(
                apart,
                looking_at,
                stage.server.address,
                begin,
                begin + messages / per_s,
                seconds_max=seconds + GRACE_SECONDS,
            )
            watched = watch_due(
                stage,
                loaded,
                messages=messages,
                per_s=per_s,
                consumers=sizes.due_consumers,
                prefix=f"due{per_s}",
                load_seconds_max=sizes.load_seconds_max,
                scattered=True,
            )
            figures = {name: value for name, value in watched.figures.items() if name != "drain_per_s"}
            yield Outcome(
                shape={"due_per_s": per_s, "pending": sizes.watched_pending},
                figures=figures | looking.result(),
                actual={"pending": loaded.count, "due": watched.due, "consumers": watched.consumers},
            )


def _seconds_until_end(loaded: Loaded, messages: int, per_s: int) -> float:
    """When the last message is due, as `watch_due` plans it."""
    return LEAD_SECONDS + LEAD_FACTOR * messages / loaded.per_s + messages / per_s


async def add_groups(address: str, rows: int) -> None:
    """Some messages of other producer groups, scattered as the others."""
    chance, begin = random.Random(5), time.time_ns() // 1_000_000 + 3_600_000
    async with dejaq.connect(f"dejaq://{address}") as client:
        for group in range(GROUPS):
            async with client.producer(TOPIC, group=f"group-{group}") as producer:
                for first in range(0, rows // GROUPS, 1_000):
                    count = min(1_000, rows // GROUPS - first)
                    at = [begin + chance.randrange(MONTH_MS) for _ in range(count)]
                    (await producer.send_batch([b"x" * 100] * count, at=at)).raise_for_failures()


async def look(address: str, begin: float, end: float) -> Figures:
    """Ask everything once per second, and report how long each answer took. The first round is reported by itself."""
    took: dict[str, list[int]] = {}
    async with dejaq.connect(f"dejaq://{address}") as client:
        questions = _questions(client)
        first = [(name, await _timed(question)) for name, question in questions]
        await asyncio.sleep(max(0.0, begin - time.time()))
        beat = time.monotonic()
        while time.time() < end:
            for name, question in questions:
                took.setdefault(name, []).append(await _timed(question))
            beat += PERIOD_SECONDS
            await asyncio.sleep(max(0.0, beat - time.monotonic()))
    figures: Figures = {"rounds": len(took.get("info", ()))}
    figures["first_count_by_group_ms"] = max(us for name, us in first if name == "count") // 1_000
    for name, samples in took.items():
        found = lateness_figures(samples, name)
        figures |= {f"{name}_p50_ms": found[f"{name}_p50_ms"], f"{name}_p99_ms": found[f"{name}_p99_ms"]}
    worst = [figures[f"{name}_p99_ms"] or 0.0 for name in took]
    figures["query_p99_ms"] = max(worst, default=None)
    return figures


def _questions(client: dejaq.Client) -> list[tuple[str, Callable[[], Awaitable[object]]]]:
    async def histogram() -> None:
        # From a full hour on, as people and dashboards ask; a step that divides a minute reads that minute's rows.
        start = client.now_ms() // HOUR_MS * HOUR_MS
        await client.histogram(TOPIC, start=start, end=start + MONTH_MS, step=timedelta(hours=1))

    async def browse() -> None:
        async for _ in client.browse(TOPIC, page_size=PAGE):
            return

    counts = [
        partial(client.count, TOPIC, group=f"group-{group}", status=status)
        for group in range(GROUPS)
        for status in Status
    ]
    return [
        ("histogram", histogram),
        ("browse", browse),
        *(("count", count) for count in counts),
        ("info", client.info),
    ]


async def _timed(question: Callable[[], Awaitable[object]]) -> int:
    began = time.perf_counter()
    await question()
    return round(1e6 * (time.perf_counter() - began))
