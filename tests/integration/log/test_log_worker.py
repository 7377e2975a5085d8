"""Workers of logs: a function of the user for each message or batch."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import dejaq
import dejaq.sync
from dejaq.testing.waiting import eventually, wait_until
from tests.integration.log.conftest import TOPIC

WITHIN = 30.0


async def test_a_worker_handles_every_message_in_order_and_commits(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    await log.append_batch([b"%d" % n for n in range(300)], keys=[b"k%d" % (n % 7) for n in range(300)])
    seen: list[dejaq.LogMessage] = []

    @log.worker("billing")
    async def handle(message: dejaq.LogMessage) -> None:
        seen.append(message)

    running = asyncio.ensure_future(handle.run())
    await eventually(lambda: len(seen) == 300, within=WITHIN)
    handle.stop()
    await running
    for bucket in range(4):
        offsets = [message.offset for message in seen if message.bucket == bucket]
        assert offsets == list(range(len(offsets)))
    assert handle.stats.done == 300
    assert (await log.groups())[0].lag == 0


async def test_a_failed_batch_is_handled_again_and_nothing_is_skipped(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    await log.append_batch([b"%d" % n for n in range(50)], bucket=1)
    seen: list[bytes] = []
    failures = iter([True, False, True])

    @log.worker("billing", batch=20, retry="fixed:10ms")
    def handle(batch: dejaq.LogBatch) -> None:
        if next(failures, False):
            raise ValueError("not yet")
        seen.extend(batch.bodies)

    running = asyncio.ensure_future(handle.run())
    await eventually(lambda: len(seen) == 50, within=WITHIN)
    handle.stop()
    await running
    assert seen == [b"%d" % n for n in range(50)]
    assert (handle.stats.done, handle.stats.failed) == (50, 2)


async def test_a_stopped_worker_commits_what_it_has_done_and_the_next_one_continues(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    await log.append_batch([b"%d" % n for n in range(40)], bucket=0)
    seen: list[bytes] = []

    def worker() -> dejaq.LogWorker:
        @log.worker("billing", retry="fixed:1h")
        async def handle(message: dejaq.LogMessage) -> None:
            if message.body == b"25" and len(seen) == 25:
                handle.stop()
                raise ValueError("it is stopped at this message")
            seen.append(message.body)

        return handle

    async with asyncio.timeout(WITHIN):
        await worker().run()
    assert (await log.groups())[0].committed[0] == 25
    seen.append(b"second")
    second = worker()
    running = asyncio.ensure_future(second.run())
    await eventually(lambda: len(seen) == 41, within=WITHIN)
    second.stop()
    await running
    assert seen == [*(b"%d" % n for n in range(25)), b"second", *(b"%d" % n for n in range(25, 40))]


async def test_a_bucket_is_released_when_the_running_call_has_been_committed(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    for bucket in range(4):
        await log.append_batch([b"%d" % n for n in range(5)], bucket=bucket)
    seen: list[tuple[int, int]] = []
    go_on = asyncio.Event()

    async def handle(message: dejaq.LogMessage) -> None:
        seen.append((message.bucket, message.offset))
        if len(seen) == 3:
            await go_on.wait()

    first, second = log.worker("billing", name="a")(handle), log.worker("billing", name="b")(handle)
    running = [asyncio.ensure_future(first.run())]
    await eventually(lambda: len(seen) == 3, within=WITHIN)
    running.append(asyncio.ensure_future(second.run()))

    async def joined() -> bool:
        return len((await log.groups())[0].members) == 2

    await eventually(joined, within=WITHIN)
    go_on.set()
    await eventually(lambda: len(seen) >= 20, within=WITHIN)
    for one in (first, second):
        one.stop()
    await asyncio.gather(*running)
    assert sorted(seen) == [(bucket, offset) for bucket in range(4) for offset in range(5)]


async def test_names_of_aiokafka_do_what_they_say(client: dejaq.Client) -> None:
    log = client.log(TOPIC)
    await log.append_batch([b"%d" % n for n in range(10)], bucket=2)
    async with log.reader(buckets=[2]) as reader:
        assert (await reader.getone()).body == b"0"
        many = await reader.getmany(4)
        assert [body for batch in many for body in batch.bodies] == [b"1", b"2", b"3", b"4"]
        assert reader.position(2) == 5
        assert (await reader.beginning_offsets(), await reader.end_offsets()) == ({2: 0}, {2: 10})
        await reader.seek_to_end()
        assert await reader.getmany(timeout=0.01) == []
        await reader.seek_to_beginning(2)
        assert (await reader.getone()).offset == 0
        assert await reader.offsets_for_times({2: 0}) == {2: 0}
    assert await reader.getmany() == []
    with pytest.raises(dejaq.DejaqError, match="closed"):
        await reader.getone()


def test_a_worker_of_a_program_without_asyncio(tmp_path: Path) -> None:
    with dejaq.sync.Broker(tmp_path / "data") as broker, dejaq.sync.connect(broker.url) as client:
        client.create_topic("events", kind="log", buckets=2)
        log = client.log("events")
        log.append_batch([b"a", b"b", b"c"])
        seen: list[bytes] = []
        worker = log.worker("billing")(lambda message: seen.append(message.body))
        thread = threading.Thread(target=worker.run)
        thread.start()
        wait_until(lambda: len(seen) == 3, within=WITHIN, what="the messages are handled")
        worker.stop()
        thread.join(WITHIN)
        assert not thread.is_alive()
        assert log.groups()[0].lag == 0
