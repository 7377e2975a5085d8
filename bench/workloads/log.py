"""L16: a log. Append, read by one reader and by four, both at once, single appends, latency, commits of offsets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

import dejaq
from bench.harness.apart import apart
from bench.harness.crew import late_us_of, span_ns
from bench.harness.figures import Figures, lateness_figures, per_second, us_each
from bench.harness.floor import START_SECONDS, Floor
from bench.harness.orders import Consume, Done, OneByOne, Produce, SendLoop
from bench.harness.payload import Load
from bench.harness.stage import Outcome, Stage, staged
from bench.plan import Plan
from bench.systems.base import System

GRACE_SECONDS = 60.0
READERS = 4
TASKS = 64
WARM_UP = 10
COMMIT_GROUPS = 32
COMMIT_BUCKETS = 16


def run(system: System, plan: Plan) -> Iterator[Outcome]:
    """One outcome per size of a message, then single appends, latency, and for DejaQ commits."""
    for body_bytes in plan.sizes.log_body_bytes:
        # As many bytes for large messages as ten times fewer small ones have.
        count = plan.sizes.log_messages if body_bytes <= 100 else plan.sizes.log_messages // 5
        yield _in_batches(system, plan, body_bytes, count)
    yield _single(system, plan)
    yield _latency(system, plan)
    if system.name.startswith("dejaq"):
        yield _commits(system, plan)


def _in_batches(system: System, plan: Plan, body_bytes: int, count: int) -> Outcome:
    figures: Figures = {}
    reached = count
    for readers in (1, READERS):
        with staged(system) as stage:
            appended, append_figures = _append(stage, plan, body_bytes, count)
            reached = min(reached, appended)
            figures |= append_figures if readers == 1 else {}
            name = "read" if readers == 1 else "read_by_four"
            figures |= _read(stage, plan, appended, readers, name)
    with staged(system) as stage:
        figures |= _both(stage, plan, body_bytes, reached)
    shape = {"work": "batches", "body_bytes": body_bytes}
    return Outcome(shape=shape, figures=figures, actual={"messages": reached})


def _append(stage: Stage, plan: Plan, body_bytes: int, count: int) -> tuple[int, Figures]:
    most, before = plan.sizes.phase_seconds_max, stage.cpu_seconds()
    with stage.crew() as crew:
        order = Produce(Load(count=count, body_bytes=body_bytes), seconds_max=most)
        done = crew.work(order, seconds_max=most + GRACE_SECONDS)[0]
    cpu = stage.cpu_seconds() - before
    return done.count, {
        "append_per_s": per_second(done.count, span_ns([done])),
        "append_cpu_us_per_message": us_each(cpu, done.count),
    }


def _read(stage: Stage, plan: Plan, count: int, readers: int, name: str) -> Figures:
    """From the first message that a reader has. They connect when the time runs: none may fetch anything before."""
    most, before = plan.sizes.phase_seconds_max, stage.cpu_seconds()
    with stage.crew() as crew:
        orders = [Consume(target=count, seconds_max=most, opened=False) for _ in range(readers)]
        done = crew.work(*orders, seconds_max=most + GRACE_SECONDS)
    cpu, read = stage.cpu_seconds() - before, sum(one.count for one in done)
    return {
        f"{name}_per_s": per_second(read, _from_first(done)),
        f"{name}_cpu_us_per_message": us_each(cpu, read),
        "undelivered": max(0, count - read),
    }


def _from_first(done: Sequence[Done]) -> int:
    first = [one.first_ns for one in done if one.first_ns]
    return max(one.end_ns for one in done) - min(first) if first else 0


def _both(stage: Stage, plan: Plan, body_bytes: int, count: int) -> Figures:
    most, before = plan.sizes.phase_seconds_max, stage.cpu_seconds()
    with stage.crew() as crew:
        reading = crew.add(Consume(target=count, seconds_max=most))
        appending = crew.add(Produce(Load(count=count, body_bytes=body_bytes), seconds_max=most))
        crew.go([*reading, *appending])
        appended = crew.wait(appending, most + GRACE_SECONDS)
        read = crew.wait(reading, most + GRACE_SECONDS)
    elapsed = read[0].end_ns - appended[0].start_ns
    return {
        "both_per_s": per_second(read[0].count, elapsed),
        "both_cpu_us_per_message": us_each(stage.cpu_seconds() - before, read[0].count),
    }


def _single(system: System, plan: Plan) -> Outcome:
    with staged(system) as stage, stage.crew() as crew:
        numbers = crew.add(SendLoop(count=plan.sizes.log_single, tasks=TASKS))
        before = stage.cpu_seconds()
        crew.go(numbers)
        done = crew.wait(numbers, plan.sizes.phase_seconds_max + GRACE_SECONDS)
        cpu = stage.cpu_seconds() - before
    return Outcome(
        shape={"work": "single appends", "tasks": TASKS, "body_bytes": 100},
        figures={
            "single_per_s": per_second(done[0].count, span_ns(done)),
            "single_cpu_us_per_message": us_each(cpu, done[0].count),
        },
        actual={"messages": done[0].count},
    )


def _latency(system: System, plan: Plan) -> Outcome:
    most, count = plan.sizes.phase_seconds_max, plan.sizes.log_latency + WARM_UP
    with staged(system) as stage, stage.crew() as crew:
        reading = crew.add(Consume(target=count, seconds_max=most, timed=True))
        appending = crew.add(OneByOne(count=count, seconds_max=most))
        with Floor(time.time_ns() + int(START_SECONDS * 1e9)) as floor:
            time.sleep(START_SECONDS)
            crew.go([*reading, *appending])
            crew.wait(appending, most + GRACE_SECONDS)
            late = late_us_of(crew.wait(reading, most + GRACE_SECONDS))[WARM_UP:]
            figures: Figures = {**lateness_figures(late, "latency"), **floor.figures()}
    return Outcome(shape={"work": "latency", "in_flight": 1}, figures=figures, actual={"messages": len(late)})


def _commits(system: System, plan: Plan) -> Outcome:
    with staged(system) as stage:
        before = stage.cpu_seconds()
        count, seconds = apart(commit_offsets, stage.server.address, plan.sizes.log_offsets)
        cpu = stage.cpu_seconds() - before
    figures: Figures = {
        "commits_per_s": round(count / seconds, 1),
        "commit_cpu_us_per_offset": us_each(cpu, count),
    }
    shape = {"work": "commits", "groups": COMMIT_GROUPS, "buckets": COMMIT_BUCKETS}
    return Outcome(shape=shape, figures=figures, actual={"messages": count})


async def commit_offsets(address: str, count: int) -> tuple[int, float]:
    """Groups with one member each commit one offset further of every bucket, again and again; (offsets, seconds)."""
    rounds = max(1, count // (COMMIT_GROUPS * COMMIT_BUCKETS))
    async with dejaq.connect(f"dejaq://{address}") as client:
        await client.create_topic("log", kind="log", buckets=COMMIT_BUCKETS)
        log = client.log("log")
        for bucket in range(COMMIT_BUCKETS):
            await log.append_batch([b"x"] * rounds, bucket=bucket)
        members = [log.group(f"group-{number}") for number in range(COMMIT_GROUPS)]
        await asyncio.gather(*(member.open() for member in members))
        for member in members:
            while len(member.buckets) < COMMIT_BUCKETS:
                await asyncio.sleep(0.01)
        started = time.monotonic()

        async def work(member: dejaq.LogGroup) -> None:
            for offset in range(1, rounds + 1):
                await member.commit(dict.fromkeys(range(COMMIT_BUCKETS), offset))

        await asyncio.gather(*map(work, members))
        return rounds * COMMIT_GROUPS * COMMIT_BUCKETS, time.monotonic() - started
