"""U24: a consumer reports how far its work is, and the owner reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

import dejaq
from dejaq import limits
from dejaq.broker.delivery.progress import ProgressReport, ProgressReports
from dejaq.broker.delivery.roster import Rosters
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.testing.waiting import eventually
from dejaq.timekeeper.clock import VirtualClock
from tests.integration.sdk.conftest import TOPIC
from tests.integration.sdk.cutting import CuttingTransport


async def progress(client: dejaq.Client, message_id: str) -> str | None:
    (message,) = await client.get(TOPIC, [message_id])
    return None if message is None else message.progress


async def test_the_owner_sees_the_last_report_while_the_work_lasts(
    client: dejaq.Client, producer: dejaq.Producer
) -> None:
    """U24: the owner had no way to find out how far the work on a message is."""
    await producer.send_batch([b"a", b"b"], ids=["a", "b"])
    async with client.consumer(TOPIC, max_messages=2) as consumer:
        leases = {lease.id: lease for lease in [await anext(consumer), await anext(consumer)]}
        assert await progress(client, "a") == ""
        await leases["a"].progress("10 %")
        await leases["a"].progress("20 %")
        await leases["a"].extend(60)
        assert [m.progress for m in await client.get(TOPIC, ["b", "a"]) if m] == ["", "20 %"]
        await leases["a"].release(delay=60)
        assert await progress(client, "a") == ""
        with pytest.raises(dejaq.Conflict) as refused:
            await leases["a"].progress("30 %")
        assert refused.value.code is dejaq.Code.LEASE_LOST
        await leases["b"].delete()


async def test_a_report_belongs_to_its_lease(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock
) -> None:
    """U24: the next attempt begins without a report."""
    await producer.send(b"a", id="a")
    async with client.consumer(TOPIC, lease=10, auto_extend=False) as consumer:
        first = await anext(consumer)
        await first.progress("half")
        await clock.advance(11_000)
        second = await anext(consumer)
        assert (second.attempts, await progress(client, "a")) == (2, "")
        with pytest.raises(dejaq.Conflict):
            await first.progress("more")
        await second.progress("again")
        assert await progress(client, "a") == "again"


async def test_a_report_that_is_too_long_is_refused_by_the_sdk_and_the_broker(
    client: dejaq.Client, producer: dejaq.Producer
) -> None:
    """G8: the limit applies to every client."""
    await producer.send(b"a", id="a")
    async with client.consumer(TOPIC) as consumer:
        lease = await anext(consumer)
        await lease.progress("x" * limits.PROGRESS_CHARS_MAX)
        with pytest.raises(dejaq.InvalidArgument):
            await lease.progress("x" * (limits.PROGRESS_CHARS_MAX + 1))
        with pytest.raises(dejaq.InvalidArgument):
            await lease._settler.report(lease.version, "a", "x" * (limits.PROGRESS_CHARS_MAX + 1))


async def test_a_report_whose_answer_is_lost_is_repeated(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport
) -> None:
    await producer.send(b"a", id="a")
    async with client.consumer(TOPIC) as consumer:
        lease = await anext(consumer)
        wire.cut("progress", done=True)
        await lease.progress("half")
        assert await progress(client, "a") == "half"


async def test_a_worker_reports_and_a_store_on_disk_shows_it(tmp_path: Path) -> None:
    """U24: the number of the lease is the message's version in every store."""
    async with dejaq.Broker(tmp_path / "data", drain_ms=0) as broker, dejaq.connect(broker) as client:
        await client.create_topic(TOPIC)
        seen: list[str | None] = []

        @client.worker(TOPIC)
        async def work(lease: dejaq.Lease) -> None:
            await lease.progress("1 of 2")
            seen.append(await progress(client, lease.id))

        async with client.producer(TOPIC) as producer, work.running():
            await producer.send(b"generated")
            await producer.send(b"named", id="a")
            await eventually(lambda: work.stats.done == 2, within=10)
        assert seen == ["1 of 2"] * 2


def test_no_more_reports_are_kept_than_the_limit() -> None:
    """G8: consumers that report and disconnect leave a limited number of reports."""
    reports = ProgressReports(Rosters())
    for number in range(limits.PROGRESS_COUNT_MAX + 5):
        reports.put(1, f"m{number}", ProgressReport(lease_id=7, text="x"))
    assert len(reports) == limits.PROGRESS_COUNT_MAX
    assert reports.here(1, "m4", 7) == ""
    assert reports.here(1, "m5", 7) == "x"
    assert reports.here(1, "m5", 8) == ""


def test_an_old_broker_that_sends_no_reports_is_understood() -> None:
    assert not carrier.MessageColumns(ids=["a"]).progress
