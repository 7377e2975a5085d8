"""L14: uptime. A day's traffic replayed at speed: groups, consumers, connections and topics come and go in rounds.

Redis has no topics, groups or consumers that it would have to forget, so this workload has no peer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import dejaq
from bench.harness.apart import apart
from bench.harness.figures import Figures, us_each
from bench.harness.growth import Growth, growth_figures
from bench.harness.payload import BATCH, Load
from bench.harness.server import cpu_seconds
from bench.harness.stage import Outcome, Stage, staged
from bench.harness.timed import load_pending
from bench.harness.window import Window
from bench.plan import Plan
from bench.systems.base import System
from bench.systems.dejaq_broker import TOPIC, DejaqServer, metric
from bench.workloads.reminders import MONTH_MS
from bench.workloads.sizes import Sizes

# A topic lives for so many rounds.
TOPIC_ROUNDS = 5
TOPIC_BUCKETS = 4
# Messages that are created, moved and cancelled in every round.
CHANGED = 100
HOUR_MS = 3_600_000
# The messages of a round are due at random times within so long.
SPREAD_MS = 500
CREATES_IN_FLIGHT = 8
DELETES_IN_FLIGHT = 8
ROUND_SECONDS_MAX = 300.0
EXPORT_SECONDS_MAX = 120.0
POLL_SECONDS = 0.02
LAG = 'dejaq_journal_lag{unit="records"}'


@dataclass(slots=True)
class Replayed:
    """What came of some rounds."""

    messages: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    export_s: list[float] = field(default_factory=list)
    samples: list[tuple[int, float, float]] = field(default_factory=list)


def run(system: System, plan: Plan) -> Iterator[Outcome]:
    """One outcome. The broker restarts after the first tenth and at the end, and not in between."""
    sizes = plan.sizes
    deadline = time.monotonic() + sizes.uptime_seconds_max
    tenth = max(1, sizes.uptime_rounds // 10)
    with staged(system) as stage:
        pending = load_pending(stage, sizes.uptime_pending, sizes.load_seconds_max, scatter_ms=MONTH_MS).count
        first = _replay(stage, sizes, range(tenth), deadline)
        start_first = _start_again(stage, pending)
        rest = _replay(stage, sizes, range(tenth, max(tenth + 1, sizes.uptime_rounds)), deadline)
        disk = _size_mb(_server(stage).folder)
        start_last = _start_again(stage, pending)
    some = max(1, len(rest.export_s) // 10)
    figures: Figures = {
        "pass_per_s": round(rest.messages / rest.seconds),
        "broker_cpu_us_per_message": us_each(rest.cpu, rest.messages),
        **growth_figures(rest.samples),
        "start_first_s": start_first,
        "start_last_s": start_last,
        "export_first_s": round(median(rest.export_s[:some]), 3),
        "export_last_s": round(median(rest.export_s[-some:]), 3),
        "disk_mb": disk,
    }
    yield Outcome(
        shape={"rounds": sizes.uptime_rounds},
        figures=figures,
        actual={"messages": first.messages + rest.messages, "pending": pending},
        extras={"samples": rest.samples},
    )


def _server(stage: Stage) -> DejaqServer:
    assert isinstance(stage.server, DejaqServer)
    return stage.server


def _replay(stage: Stage, sizes: Sizes, rounds: range, deadline: float) -> Replayed:
    seconds = max(0.0, deadline - time.monotonic())
    server = _server(stage)
    arguments = (server.address, server.pid, sizes, rounds, seconds)
    return apart(replay, *arguments, seconds_max=seconds + ROUND_SECONDS_MAX + EXPORT_SECONDS_MAX)


def _start_again(stage: Stage, pending: int) -> float:
    """Seconds from the start of the broker's process to its first answer about the pending messages."""
    stage.server.stop()
    began = time.monotonic()
    stage.server.start()
    found = asyncio.run(_count(stage.server.address))
    seconds = time.monotonic() - began
    if found != pending:
        raise RuntimeError(f"{found} messages are pending after a restart, not {pending}")
    return round(seconds, 3)


async def _count(address: str) -> int:
    async with dejaq.connect(f"dejaq://{address}") as client:
        return await client.count(TOPIC)


def _size_mb(folder: Path) -> float:
    return round(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6, 1)


async def replay(address: str, pid: int, sizes: Sizes, rounds: range, seconds_max: float) -> Replayed:
    """Do rounds until they are done or the time is over; at least one."""
    done, growth, cpu = Replayed(), Growth(pid, every_seconds=0.0), cpu_seconds(pid)
    end = time.monotonic() + seconds_max
    for number in rounds:
        began = time.monotonic()
        async with asyncio.timeout(ROUND_SECONDS_MAX):
            done.messages += await _round(address, number, max(2 * BATCH, sizes.uptime_messages // sizes.uptime_rounds))
        done.seconds += time.monotonic() - began
        done.export_s.append(await _exported(address))
        growth.look(done.messages)
        if time.monotonic() > end:
            break
    done.cpu = cpu_seconds(pid) - cpu
    done.samples = growth.samples
    return done


async def _round(address: str, number: int, messages: int) -> int:
    """New clients, groups, consumers and a new topic; an old topic is deleted."""
    half = messages // 2
    async with dejaq.connect(f"dejaq://{address}", name=f"service-{number}") as client:
        await client.create_topic(_topic(number), buckets=TOPIC_BUCKETS)
        await asyncio.gather(
            _pass(client, TOPIC, number, half),
            _pass(client, _topic(number), number, half),
            _change(client, number),
        )
        if number >= TOPIC_ROUNDS:
            await client.delete_topic(_topic(number - TOPIC_ROUNDS))
    return 2 * half


def _topic(number: int) -> str:
    return f"day-{number}"


async def _pass(client: dejaq.Client, topic: str, number: int, count: int) -> None:
    """Create messages as one group and delete them as one consumer, both at once."""
    load = Load(count=count, prefix=f"{topic}{number}", start_ms=time.time_ns() // 1_000_000, scatter_ms=SPREAD_MS)
    await asyncio.gather(_produce(client, topic, number, load), _consume(client, topic, number, count))


async def _produce(client: dejaq.Client, topic: str, number: int, load: Load) -> None:
    creates = Window(CREATES_IN_FLIGHT)
    async with client.producer(topic, group=f"group-{number}") as producer:

        async def create(ids: list[str], bodies: list[bytes], due_ms: list[int]) -> None:
            (await producer.send_batch(bodies, at=due_ms, ids=ids)).raise_for_failures()

        for batch in load.batches():
            await creates.add(create(list(batch.ids), list(batch.bodies), list(batch.due_ms or [])))
        await creates.drain()


async def _consume(client: dejaq.Client, topic: str, number: int, count: int) -> None:
    deletes = Window(DELETES_IN_FLIGHT)

    async def delete(leases: dejaq.Batch) -> None:
        (await leases.delete()).raise_for_failures()

    async with client.consumer(topic, name=f"consumer-{number}", max_messages=count) as consumer:
        async for leases in consumer.batches(BATCH):
            await deletes.add(delete(leases))
        await deletes.drain()


async def _change(client: dejaq.Client, number: int) -> None:
    """Messages that are created for later, moved, and cancelled."""
    start_ms = time.time_ns() // 1_000_000 + HOUR_MS
    (batch,) = Load(count=CHANGED, prefix=f"change{number}", start_ms=start_ms, scatter_ms=HOUR_MS).batches()
    async with client.producer(TOPIC, group=f"changes-{number}") as producer:
        (await producer.send_batch(batch.bodies, at=batch.due_ms, ids=batch.ids)).raise_for_failures()
        await producer.move(batch.ids, at=start_ms + 2 * HOUR_MS)
        await producer.cancel(batch.ids)


async def _exported(address: str) -> float:
    """Seconds until the journal has everything that happened so far."""
    began = time.monotonic()
    while await asyncio.to_thread(metric, address, LAG):
        if time.monotonic() - began > EXPORT_SECONDS_MAX:
            raise TimeoutError(f"the journal is still behind after {EXPORT_SECONDS_MAX:.0f} s")
        await asyncio.sleep(POLL_SECONDS)
    return time.monotonic() - began
