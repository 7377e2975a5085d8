"""The worker deletes a message when its function returns, and retries it by its policy when the function raises."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

import dejaq
import dejaq.sync
from dejaq.testing.waiting import eventually, patient
from dejaq.timekeeper.clock import VirtualClock
from tests.integration.sdk.conftest import TOPIC
from tests.integration.sdk.cutting import CuttingTransport

WITHIN = 10.0


async def pending(client: dejaq.Client) -> int:
    return await client.count(TOPIC)


async def drained(client: dejaq.Client) -> None:
    async def empty() -> bool:
        return await pending(client) == 0

    await eventually(empty, within=WITHIN, what="every message is deleted")


async def test_every_message_is_processed_once_and_deleted(client: dejaq.Client, producer: dejaq.Producer) -> None:
    seen: list[bytes] = []

    @client.worker(TOPIC, concurrency=4)
    async def work(lease: dejaq.Lease) -> None:
        seen.append(lease.body)

    bodies = [b"%d" % number for number in range(50)]
    await producer.send_batch(bodies)
    async with work.running():
        await drained(client)
    assert sorted(seen) == sorted(bodies)
    assert (work.stats.done, work.stats.failed, work.stats.lost) == (50, 0, 0)


async def test_no_more_functions_run_at_once_than_allowed(client: dejaq.Client, producer: dejaq.Producer) -> None:
    running = most = 0
    gate = asyncio.Event()

    async def work(lease: dejaq.Lease) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1

    await producer.send_batch([b"x"] * 20)
    async with client.worker(TOPIC, concurrency=3)(work).running():
        await eventually(lambda: running == 3, within=WITHIN)
        gate.set()
        await drained(client)
    assert most == 3


async def test_a_blocking_function_runs_in_threads_outside_the_event_loop(
    client: dejaq.Client, producer: dejaq.Producer
) -> None:
    threads: set[str] = set()
    together = threading.Barrier(3, timeout=WITHIN)

    def work(lease: dejaq.sync.Lease) -> None:
        threads.add(threading.current_thread().name)
        together.wait()

    await producer.send_batch([b"x"] * 9)
    worker = client.worker(TOPIC, concurrency=3)(work)
    async with worker.running():
        await drained(client)
    assert len(threads) == 3
    assert threading.current_thread().name not in threads
    assert worker.stats.done == 9


async def test_a_failed_message_comes_again_at_the_time_of_the_policy(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock
) -> None:
    """G4: at least once, with the attempts counted."""
    attempts: list[tuple[int, int]] = []

    async def work(lease: dejaq.Lease) -> None:
        attempts.append((lease.attempts, lease.ts - start))
        if lease.attempts < 4:
            raise RuntimeError("not yet")

    start = clock.now_ms()
    await producer.send(b"x", id="stubborn")
    worker = client.worker(TOPIC, retry="exponential:1s:3s", prefetch=0)(work)
    async with worker.running():
        for count, wait in enumerate((1_000, 2_000, 3_000), start=1):
            await eventually(lambda count=count: worker.stats.failed == count, within=WITHIN)  # type: ignore[misc]
            due = start + attempts[-1][1] + wait

            async def released(due: int = due) -> bool:
                found = (await client.get(TOPIC, ["stubborn"]))[0]
                return found is not None and found.ts == due and not found.lock_consumer

            await eventually(released, within=WITHIN, what=f"the message is released by {wait} ms")
            await clock.advance(wait)
        await drained(client)
    assert attempts == [(1, 0), (2, 1_000), (3, 3_000), (4, 6_000)]
    assert (worker.stats.done, worker.stats.failed) == (1, 3)


async def test_a_function_may_choose_the_next_time_or_settle_by_itself(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock
) -> None:
    async def work(lease: dejaq.Lease) -> None:
        if lease.body == b"later":
            raise dejaq.Postpone(60)
        await lease.release(delay=30)

    await producer.send(b"later", id="later")
    await producer.send(b"self", id="self")
    worker = client.worker(TOPIC, prefetch=0)(work)
    async with worker.running():

        async def both() -> bool:
            found = await client.get(TOPIC, ["later", "self"])
            times = [m.ts - clock.now_ms() for m in found if m is not None and not m.lock_consumer]
            return times == [60_000, 30_000]

        await eventually(both, within=WITHIN, what="both messages have their new times")
    assert worker.stats.failed == 0


async def test_a_blocking_function_settles_with_blocking_calls(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock
) -> None:
    """U1: the calls were coroutines that were never awaited, and the worker deleted the message."""

    def work(lease: dejaq.sync.Lease) -> None:
        assert lease.body == lease.read() == b"".join(lease.parts())
        lease.extend(60)
        lease.release(delay=30)

    await producer.send(b"later", id="later")
    worker = client.worker(TOPIC, prefetch=0)(work)
    async with worker.running():

        async def released() -> bool:
            (found,) = await client.get(TOPIC, ["later"])
            return found is not None and found.ts == clock.now_ms() + 30_000 and not found.lock_consumer

        await eventually(released, within=WITHIN, what="the message has its new time")
    assert worker.stats.failed == 0


async def test_a_blocking_lease_is_refused_in_the_event_loop(
    client: dejaq.Client, producer: dejaq.Producer, caplog: pytest.LogCaptureFixture
) -> None:
    """U1: a function that is not async and returns a coroutine would block the event loop that the coroutine needs."""

    async def settle(lease: Any) -> None:
        await lease.release(delay=30)

    await producer.send(b"x", id="kept")
    worker = client.worker(TOPIC, prefetch=0)(lambda lease: settle(lease))
    with caplog.at_level(logging.WARNING, logger="dejaq.worker"):
        async with worker.running():
            await eventually(lambda: worker.stats.failed == 1, within=WITHIN)
    assert "make it `async def`" in caplog.text
    assert await client.get(TOPIC, ["kept"]) != [None]


@pytest.mark.parametrize("call", ["delete()", "release(delay=30)", "reject('no')", "extend(5)"])
async def test_a_call_that_is_not_awaited_fails_the_function_and_deletes_nothing(
    client: dejaq.Client, producer: dejaq.Producer, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    """U1: the coroutine was never awaited, and the worker deleted the message."""

    async def work(lease: dejaq.Lease) -> None:
        eval(f"lease.{call}")

    await producer.send(b"x", id="kept")
    worker = client.worker(TOPIC, prefetch=0)(work)
    with caplog.at_level(logging.WARNING, logger="dejaq.worker"):
        async with worker.running():
            await eventually(lambda: worker.stats.failed + worker.stats.done == 1, within=WITHIN)
    name = call.partition("(")[0]
    assert f"write `await lease.{name}(...)`" in caplog.text
    assert await client.get(TOPIC, ["kept"]) != [None]


async def test_the_worker_waits_for_a_call_in_a_task_of_its_own(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock
) -> None:
    """U1: the worker deleted a message that a task was about to release."""
    tasks: list[asyncio.Task[None]] = []

    async def work(lease: dejaq.Lease) -> None:
        tasks.append(asyncio.create_task(lease.release(delay=30)))

    await producer.send(b"x", id="later")
    worker = client.worker(TOPIC, prefetch=0)(work)
    async with worker.running():
        await eventually(lambda: worker.stats.done == 1, within=WITHIN)
    (found,) = await client.get(TOPIC, ["later"])
    assert found is not None
    assert found.ts == clock.now_ms() + 30_000


async def test_the_lease_of_a_long_function_is_extended(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock
) -> None:
    """G3: no other consumer gets the message meanwhile."""
    gate = asyncio.Event()
    seen: list[int] = []

    async def work(lease: dejaq.Lease) -> None:
        seen.append(lease.attempts)
        await gate.wait()

    await producer.send(b"long")
    worker = client.worker(TOPIC, lease=6)(work)
    async with worker.running():
        await eventually(lambda: seen, within=WITHIN)
        for _ in range(30):
            await clock.advance(1_000)
        gate.set()
        await drained(client)
    assert seen == [1]
    assert worker.stats.done == 1


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_function_that_exceeds_its_time_limit_counts_as_failed(
    client: dejaq.Client, producer: dejaq.Producer, kind: str
) -> None:
    blocked = threading.Event()
    attempts: list[int] = []

    async def wait(lease: dejaq.Lease) -> None:
        attempts.append(lease.attempts)
        await asyncio.Event().wait()

    def block(lease: dejaq.Lease) -> None:
        attempts.append(lease.attempts)
        blocked.wait(WITHIN)

    await producer.send(b"stuck", id="stuck")
    function: Any = wait if kind == "async" else block
    worker = client.worker(TOPIC, timeout=0.05, retry="fixed:1h", concurrency=1, grace=0)(function)
    async with worker.running():
        await eventually(lambda: worker.stats.timed_out == 1, within=WITHIN)

        async def released() -> bool:
            found = (await client.get(TOPIC, ["stuck"]))[0]
            return found is not None and not found.lock_consumer

        await eventually(released, within=WITHIN, what="the message is released")
        if kind == "async":
            # An async function that timed out frees its slot at once; a thread keeps its slot until its function
            # returns.
            await producer.send(b"next")
            await eventually(lambda: len(attempts) == 2, within=WITHIN)
        blocked.set()
    assert worker.stats.done == 0


async def test_a_stop_takes_no_more_messages_and_lets_functions_finish(
    client: dejaq.Client, producer: dejaq.Producer
) -> None:
    started: list[str] = []
    gate = asyncio.Event()

    async def work(lease: dejaq.Lease) -> None:
        started.append(lease.id)
        await gate.wait()

    await producer.send_batch([b"x"] * 10)
    worker = client.worker(TOPIC, concurrency=2, max_in_flight=6)(work)
    running = asyncio.ensure_future(worker.run())
    await eventually(lambda: len(started) == 2, within=WITHIN)
    worker.stop()

    async def recalled() -> bool:
        return await client.count(TOPIC, status="processing") == 2

    await eventually(recalled, within=WITHIN, what="messages that no function saw are released")
    gate.set()
    await running
    assert (len(started), worker.stats.done, await pending(client)) == (2, 2, 8)
    assert {m.attempts async for page in client.browse(TOPIC) for m in page} == {0}


async def test_a_stop_releases_messages_whose_functions_do_not_finish_in_time(
    client: dejaq.Client, producer: dejaq.Producer
) -> None:
    started: list[str] = []

    async def work(lease: dejaq.Lease) -> None:
        started.append(lease.id)
        await asyncio.Event().wait()

    await producer.send(b"x")
    worker = client.worker(TOPIC, grace=0.05)(work)
    running = asyncio.ensure_future(worker.run())
    await eventually(lambda: started, within=WITHIN)
    worker.stop()
    await running
    assert worker.stats.interrupted == 1
    assert await client.count(TOPIC, status="available") == 1


async def test_a_function_that_raises_a_cancellation_only_fails(client: dejaq.Client, producer: dejaq.Producer) -> None:
    async def work(lease: dejaq.Lease) -> None:
        if lease.body == b"odd":
            raise asyncio.CancelledError
        if lease.body == b"exit":
            raise SystemExit(1)

    await producer.send_batch([b"odd", b"exit", b"good"])
    worker = client.worker(TOPIC, concurrency=1, retry="fixed:1h")(work)
    async with worker.running():
        await eventually(lambda: worker.stats.failed == 2 and worker.stats.done == 1, within=WITHIN)


async def test_a_worker_waits_through_an_outage_longer_than_the_deadline(
    broker: dejaq.Broker, wire: CuttingTransport, clock: VirtualClock
) -> None:
    seen: list[bytes] = []

    async def work(lease: dejaq.Lease) -> None:
        seen.append(lease.body)

    async with dejaq.connect(wire, clock=clock, deadline=patient(0.1)) as client:
        await client.create_topic("outage", buckets=2)
        worker = client.worker("outage", concurrency=2)(work)
        async with worker.running(), dejaq.connect(broker, clock=clock) as other, other.producer("outage") as producer:
            await eventually(lambda: wire.sent.count("subscribe"), within=WITHIN, what="the worker is connected")
            wire.down = True
            await wire.cut_now()
            await producer.send(b"meanwhile")
            await eventually(lambda: worker.stats.outages, within=WITHIN, what="the worker detects the outage")
            wire.down = False
            await eventually(lambda: seen == [b"meanwhile"], within=WITHIN)


async def test_a_worker_starts_while_no_broker_runs(
    wire: CuttingTransport, client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock
) -> None:
    """U8: the worker ended with NO_BROKER."""
    await producer.send(b"x")
    async with dejaq.connect(wire, clock=clock, deadline=patient(0.1)) as hasty:
        wire.down = True
        await wire.cut_now()
        worker = hasty.worker(TOPIC)(lambda _: None)
        async with worker.running():
            await eventually(lambda: worker.stats.outages == 1, within=WITHIN)
            wire.down = False
            await eventually(lambda: worker.stats.done == 1, within=WITHIN)
        assert worker.stats.outages == 1


async def test_a_worker_that_is_stopped_before_a_broker_runs_ends(
    wire: CuttingTransport, client: dejaq.Client, clock: VirtualClock
) -> None:
    """U8: a stop ends the wait for a broker."""
    async with dejaq.connect(wire, clock=clock, deadline=patient(0.1)) as hasty:
        wire.down = True
        worker = hasty.worker(TOPIC)(lambda _: None)
        async with worker.running():
            await eventually(lambda: worker.stats.outages == 1, within=WITHIN)
        wire.down = False


async def test_log_records_have_fields_and_no_bodies(
    client: dejaq.Client, producer: dejaq.Producer, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(lease: dejaq.Lease) -> None:
        if lease.attempts == 1:
            raise ValueError("first time")

    caplog.set_level(logging.INFO, logger="dejaq.worker")
    await producer.send(b"secret-body", id="logged", headers={"key": "secret-header"})
    worker = client.worker(TOPIC, retry="fixed:0s")(work)
    async with worker.running():
        await drained(client)
    records = [record.dejaq for record in caplog.records if hasattr(record, "dejaq")]
    assert [fields["event"] for fields in records] == ["started", "failed", "done", "stopping", "stopped"]
    assert records[1]["id"] == "logged"
    assert records[1]["error"] == "ValueError: first time"
    assert (records[2]["attempts"], records[2]["topic"]) == (2, TOPIC)
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        ({"concurrency": 0}, "concurrency=0"),
        ({"timeout": 0}, "timeout=0"),
        ({"grace": -1}, "grace=-1"),
        ({"retry": "sometimes"}, "not a back-off policy"),
    ],
)
async def test_invalid_terms_are_refused(client: dejaq.Client, terms: dict[str, Any], says: str) -> None:
    with pytest.raises(dejaq.InvalidArgument, match=says):
        client.worker(TOPIC, **terms)


async def test_a_topic_that_does_not_exist_ends_the_worker_with_an_error(client: dejaq.Client) -> None:
    with pytest.raises(dejaq.Missing, match="no-such-topic"):
        await client.worker("no-such-topic")(lambda lease: None).run()


async def test_the_function_can_be_called_directly(client: dejaq.Client) -> None:
    @client.worker(TOPIC)
    def work(lease: Any) -> int:
        return int(2 * lease)

    assert work(21) == 42
