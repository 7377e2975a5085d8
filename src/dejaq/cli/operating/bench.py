"""`dejaq bench`: measures the speed of a broker on this machine; needs only the core."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.request import urlopen

import click
from click.core import ParameterSource

from dejaq.cli.terminal.invocation import Group, Invocation, pass_invocation
from dejaq.errors import Code, error_of

if TYPE_CHECKING:
    from dejaq.sdk.client import Client

BATCH = 1_000
BUCKETS = 16
IN_FLIGHT = 8
LEASE_SECONDS = 60.0
STOP_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one client process, and its broker."""

    url: str
    topic: str
    messages: int
    body_bytes: int
    natural: bool
    seconds_max: float


@dataclass(frozen=True, slots=True)
class Span:
    """The number of messages and the time they took, by the machine's clock."""

    count: int
    start_ns: int
    end_ns: int

    def per_s(self) -> float:
        """The rate."""
        return rate(self.count, self.end_ns - self.start_ns)


def rate(count: int, nanoseconds: int) -> float:
    """Messages per second."""
    return round(count * 1e9 / nanoseconds, 1) if nanoseconds > 0 else 0.0


@click.group(cls=Group)
def bench() -> None:
    """Measure a broker on this machine."""


@bench.command()
@click.option("--messages", type=click.IntRange(min=1), default=100_000, show_default=True, help="How many.")
@click.option("--body-bytes", type=click.IntRange(0, 65_536), default=100, show_default=True, help="Size of a body.")
@click.option("--natural-ids", is_flag=True, help="Give each message a natural id instead of a generated one.")
@click.option("--seconds-max", type=click.FloatRange(1), default=120.0, show_default=True, help="Limit of one phase.")
@click.pass_context
@pass_invocation
def throughput(
    invocation: Invocation,
    context: click.Context,
    messages: int,
    body_bytes: int,
    natural_ids: bool,
    seconds_max: float,
) -> None:
    """Create messages, then lease and delete them, then both at once.

    Without --url, the command starts a broker on temporary data and stops it at the end. With --url, it creates a
    topic at that broker for the time of the run. Producer and consumer are separate processes.
    """
    note = invocation.output.note
    with _broker(invocation.url if _url_given(context) else None, note) as (url, syncs):
        topic = f"bench-{secrets.token_hex(4)}"
        work = Work(url, topic, messages, body_bytes, natural_ids, seconds_max)

        async def measured(client: Client) -> dict[str, float | int | None]:
            await client.create_topic(topic, buckets=BUCKETS)
            try:
                return await _measure(work, syncs, note)
            finally:
                await client.delete_topic(topic)

        invocation.url = url
        figures = invocation.run(measured)
    invocation.output.record({"messages": messages, "body_bytes": body_bytes, "natural_ids": natural_ids, **figures})


def _url_given(context: click.Context | None) -> bool:
    while context is not None:
        if context.get_parameter_source("url") is ParameterSource.COMMANDLINE:
            return True
        context = context.parent
    return False


async def _measure(
    work: Work, syncs: Callable[[], int | None], note: Callable[[str], None]
) -> dict[str, float | int | None]:
    spawn = multiprocessing.get_context("spawn")
    # One process per phase, because grpc supports only one event loop per process.
    with ProcessPoolExecutor(max_workers=2, mp_context=spawn, max_tasks_per_child=1) as processes:

        async def done(phase: Callable[[Work], Span]) -> Span:
            return _whole(await asyncio.wrap_future(processes.submit(phase, work)), work)

        before = syncs()
        note(f"creating {work.messages:,} messages")
        created = await done(produce)
        note("leasing and deleting them")
        deleted = await done(consume)
        after = syncs()
        note("both at once")
        producing, consumed = await asyncio.gather(done(produce), done(consume))
    return {
        "create_per_s": created.per_s(),
        "lease_delete_per_s": deleted.per_s(),
        "end_to_end_per_s": rate(consumed.count, consumed.end_ns - producing.start_ns),
        "fsyncs": None if before is None or after is None else after - before,
    }


def _whole(span: Span, work: Work) -> Span:
    """The time span, if all messages passed in it."""
    if span.count < work.messages:
        raise click.ClickException(
            f"{span.count:,} of {work.messages:,} messages went through in {work.seconds_max:g} s; "
            "give fewer with --messages, or more time with --seconds-max"
        )
    return span


def produce(work: Work) -> Span:
    """Create the messages, several batches in flight; runs in a process of its own."""
    return asyncio.run(_produce(work))


async def _produce(work: Work) -> Span:
    import dejaq

    prefix, sent = secrets.token_hex(4), 0
    async with dejaq.connect(work.url) as client, client.producer(work.topic) as producer:
        body = b"x" * work.body_bytes
        starts = iter(range(0, work.messages, BATCH))

        async def send() -> None:
            nonlocal sent
            for start in starts:
                rows = range(start, min(start + BATCH, work.messages))
                ids = [f"{prefix}-{row}" for row in rows] if work.natural else None
                await producer.send_batch([body] * len(rows), ids=ids)
                sent += len(rows)

        start_ns = time.time_ns()
        try:
            async with asyncio.timeout(work.seconds_max), asyncio.TaskGroup() as tasks:
                for _ in range(IN_FLIGHT):
                    tasks.create_task(send())
        except TimeoutError:
            # The result contains what was done; the caller sees that it is not everything.
            pass
        return Span(count=sent, start_ns=start_ns, end_ns=time.time_ns())


def consume(work: Work) -> Span:
    """Lease and delete the messages, several deletes in flight; runs in a process of its own."""
    return asyncio.run(_consume(work))


async def _consume(work: Work) -> Span:
    import dejaq

    deleted, end_ns = 0, 0
    async with dejaq.connect(work.url) as client:
        start_ns = time.time_ns()
        consumer = client.consumer(
            work.topic, lease=LEASE_SECONDS, max_in_flight=20 * BATCH, max_messages=work.messages
        )

        async def take() -> None:
            nonlocal deleted, end_ns
            async for batch in consumer.batches(BATCH):
                await batch.delete()
                deleted, end_ns = deleted + len(batch), time.time_ns()

        async with consumer:
            try:
                async with asyncio.timeout(work.seconds_max), asyncio.TaskGroup() as tasks:
                    for _ in range(IN_FLIGHT):
                        tasks.create_task(take())
            except TimeoutError:
                end_ns = time.time_ns()
    return Span(count=deleted, start_ns=start_ns, end_ns=end_ns)


@contextmanager
def _broker(url: str | None, note: Callable[[str], None]) -> Iterator[tuple[str, Callable[[], int | None]]]:
    """The address of the broker to measure, and a function that reads its number of syncs if that is known."""
    if url is not None:
        yield url, lambda: None
        return
    with tempfile.TemporaryDirectory(prefix="dejaq-bench-") as folder:
        command = [sys.executable, "-m", "dejaq", "serve", "--json", "--data", folder, "--listen", "127.0.0.1:0"]
        child = subprocess.Popen([*command, "--log-level", "warning"], stdout=subprocess.PIPE)
        try:
            assert child.stdout is not None
            line = child.stdout.readline()
            if not line:
                raise error_of(Code.UNAVAILABLE, "the broker of the bench did not start; its output is above")
            started: str = json.loads(line)["url"]
            note(f"started a broker at {started}")
            yield started, lambda: _syncs(started.removeprefix("dejaq://"))
        finally:
            child.terminate()
            try:
                child.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _syncs(address: str) -> int | None:
    with urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    found = re.search(r'^dejaq_storage\{figure="syncs"\} (\S+)$', text, re.MULTILINE)
    return int(float(found.group(1))) if found else None
