"""Sessions that break at chosen frames, with a real broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from pathlib import Path

import pytest

import dejaq
from dejaq.domain.batch import Outcomes
from dejaq.domain.changes import Change, Delete
from dejaq.domain.context import CallContext
from dejaq.errors import Refused
from dejaq.storage.base import Filter
from dejaq.storage.memory.store import MemoryStorage
from dejaq.testing.servers.faults import FaultyDisk
from dejaq.testing.waiting import eventually, patient
from dejaq.timekeeper.clock import VirtualClock
from tests.integration.sdk.conftest import TOPIC
from tests.integration.sdk.cutting import CuttingTransport

FAR_MS = 2_000_000_000_000
BOTH = pytest.mark.parametrize("done", [False, True], ids=["before it was done", "after it was done"])


@BOTH
async def test_a_send_whose_session_breaks_is_done_exactly_once(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport, done: bool
) -> None:
    """G6: an idempotent retry resolves an unknown outcome."""
    wire.cut("create", done=done, times=3)
    sent = await producer.send(b"x")
    assert wire.sent.count("create") == 4
    assert await client.count(TOPIC) == 1
    assert await client.get(TOPIC, [sent]) != [None]


@BOTH
async def test_a_message_consumed_before_the_retry_does_not_come_twice(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport, done: bool
) -> None:
    async with client.consumer(TOPIC, name="w") as consumer:
        wire.cut("create", done=done)
        sending = asyncio.ensure_future(producer.send(b"x", id="natural"))
        lease = await asyncio.wait_for(anext(consumer), patient(5))
        await lease.delete()
        assert await sending == "natural"
    assert await client.count(TOPIC) == 0


@BOTH
async def test_a_batch_of_natural_ids_keeps_its_outcomes_after_a_cut(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport, clock: VirtualClock, done: bool
) -> None:
    at = clock.now_ms() + 5
    await producer.send(b"other", id="taken", at=at)
    wire.cut("create", done=done)
    results = await producer.send_batch([b"a", b"b", b"c"], ids=["one", "taken", "two"], at=at, results=True)
    assert results.codes == [dejaq.Code.OK, dejaq.Code.ID_TAKEN, dejaq.Code.OK]
    assert await client.count(TOPIC) == 3


@BOTH
async def test_a_delay_is_counted_once_though_the_send_is_repeated(
    client: dejaq.Client, wire: CuttingTransport, clock: VirtualClock, done: bool
) -> None:
    async with client.producer(TOPIC) as producer:
        due = clock.now_ms() + 1_000
        wire.cut("create", done=done)
        sending = asyncio.ensure_future(producer.send(b"x", delay=1.0))
        await eventually(lambda: "create" in wire.sent, within=5, poll=0)
        await clock.advance(700)
        [message] = await client.get(TOPIC, [await sending])
        assert message is not None
        assert message.ts == due


@BOTH
async def test_changes_by_the_owner_are_done_once(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport, done: bool
) -> None:
    sent = await producer.send(b"x", delay=60)
    [message] = await client.get(TOPIC, [sent])
    assert message is not None
    wire.cut("edit", done=done)
    await producer.edit(sent, body=b"y", version=message.version)
    wire.cut("edit", done=done)
    assert (await producer.move([sent], delay=90)).ok
    wire.cut("cancel", done=done)
    assert (await producer.cancel([sent], results=True)).ok
    assert await client.get(TOPIC, [sent]) == [None]


async def test_a_version_conflict_after_a_cut_is_still_a_conflict(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport
) -> None:
    sent = await producer.send(b"x", delay=60)
    wire.cut("edit", done=True)
    with pytest.raises(dejaq.Conflict):
        await producer.edit(sent, body=b"y", version=12_345)


@BOTH
async def test_a_delete_whose_session_breaks_is_done(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport, done: bool
) -> None:
    await producer.send_batch([b"x"] * 5)
    async with client.consumer(TOPIC, name="w") as consumer:
        first = await anext(consumer)
        wire.cut("settle", done=done)
        await first.delete()
        batch = await consumer.take(10)
        assert len(batch) == 4
        wire.cut("settle", done=done)
        assert (await batch.delete()).ok
        assert await client.count(TOPIC) == 0


@BOTH
async def test_a_release_whose_session_breaks_is_done_once(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport, clock: VirtualClock, done: bool
) -> None:
    await producer.send(b"x")
    async with client.consumer(TOPIC, name="w") as consumer:
        lease = await anext(consumer)
        wire.cut("settle", done=done)
        await lease.release(delay=60)
        [message] = await client.get(TOPIC, [lease.id])
        assert message is not None
        assert (message.ts, message.lock_consumer, message.attempts) == (clock.now_ms() + 60_000, "", 1)


async def test_a_lease_that_expired_during_an_outage_is_lost(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport, clock: VirtualClock
) -> None:
    """G3: a delete that never arrived is not reported as done because its repeat came too late."""
    await producer.send(b"x")
    async with client.consumer(TOPIC, name="w", lease=1.0, prefetch=0) as consumer:
        lease = await anext(consumer)
        wire.down = True
        wire.cut("settle", done=False)
        deleting = asyncio.ensure_future(lease.delete())
        await eventually(lambda: "settle" in wire.sent, within=5, poll=0)
        await clock.advance(1_000)
        wire.down = False
        with pytest.raises(dejaq.Conflict) as lost:
            await deleting
        assert lost.value.code is dejaq.Code.LEASE_LOST
    assert await client.count(TOPIC) == 1


async def test_a_consumer_that_reconnects_gets_no_message_twice(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport, clock: VirtualClock
) -> None:
    """G3: after a cut the broker pushes live leases again; messages that the consumer has are not handed out twice."""
    await producer.send_batch([b"%d" % n for n in range(6)], delay=[0, 0, 0, 0.2, 0.2, 0.4])
    async with client.consumer(TOPIC, name="w", prefetch=1.0) as consumer:
        await eventually(lambda: client.count(TOPIC, status="processing"), within=5, poll=0)
        mine = await consumer.take(2)
        sessions = wire.sessions
        await wire.cut_now()
        await eventually(lambda: wire.sessions >= sessions + 2, within=5)
        third = await anext(consumer)
        rest: list[bytes] = []
        await third.delete()
        for _ in range(2):
            taking = asyncio.ensure_future(consumer.take(10))
            await clock.advance(200)
            await eventually(taking.done, within=5)
            batch = await taking
            rest += batch.bodies
            assert (await batch.delete()).ok
        assert sorted([*mine.bodies, third.body, *rest]) == [b"%d" % n for n in range(6)]
        assert (await mine.delete()).ok
        nothing = asyncio.ensure_future(anext(consumer))
        await clock.advance(100)
        assert not nothing.done()
        nothing.cancel()
    assert await client.count(TOPIC) == 0


async def test_a_recall_whose_answer_was_lost_brings_the_row_back(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport, clock: VirtualClock
) -> None:
    sent = await producer.send(b"x", delay=0.5)
    async with client.consumer(TOPIC, name="w", prefetch=1.0) as consumer:
        await eventually(lambda: client.count(TOPIC, status="processing"), within=5, poll=0)
        wire.cut("recalled", done=False)
        cancelling = asyncio.ensure_future(producer.cancel([sent], results=True))
        await eventually(lambda: "recalled" in wire.sent, within=5, poll=0)
        for _ in range(5):
            await clock.advance(100)
        results = await cancelling
        if results.ok:
            assert await client.count(TOPIC) == 0
            return
        assert results.failed == {0: dejaq.Code.LEASED}
        lease = await asyncio.wait_for(anext(consumer), patient(5))
        assert lease.id == sent
        await lease.delete()


async def test_an_outage_longer_than_the_deadline_reports_what_is_known(
    wire: CuttingTransport, client: dejaq.Client, clock: VirtualClock
) -> None:
    async with dejaq.connect(wire, clock=clock, deadline=patient(0.15)) as hasty:
        async with hasty.producer(TOPIC) as producer:
            wire.down = True
            wire.cut("create", done=True)
            with pytest.raises(dejaq.Indefinite):
                await producer.send(b"may be there")
            for error in await errors_of(
                producer.send(b"never left"), producer.send_batch([b"never left"] * 3), hasty.count(TOPIC)
            ):
                assert error.code is dejaq.Code.NO_BROKER
            wire.down = False
            await producer.send(b"works again")
        assert await hasty.count(TOPIC) == 2


async def test_the_unanswered_items_of_a_batch_are_reported(
    wire: CuttingTransport, client: dejaq.Client, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dejaq.sdk.producing.outgoing.CHUNK_COUNT_MAX", 2)
    monkeypatch.setattr("dejaq.sdk.producing.sender.PIPELINE_MAX", 1)
    async with dejaq.connect(wire, clock=clock, deadline=patient(0.15)) as hasty, hasty.producer(TOPIC) as producer:
        wire.cut("create", done=False, times=100, after=1)
        results = await producer.send_batch([b"x"] * 5, results=True)
        assert [code.name for code in results] == ["OK", "OK", *["INDEFINITE"] * 2, results[4].name]
        assert results[4] in (dejaq.Code.NO_BROKER, dejaq.Code.INDEFINITE)


async def test_a_consumer_waits_through_an_outage_of_any_length_and_logs_it(
    wire: CuttingTransport,
    client: dejaq.Client,
    producer: dejaq.Producer,
    clock: VirtualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """U8: the consumer ended with NO_BROKER after the client's deadline."""
    async with (
        dejaq.connect(wire, clock=clock, deadline=patient(0.15)) as hasty,
        hasty.consumer(TOPIC, name="w") as consumer,
    ):
        taking = asyncio.ensure_future(anext(consumer))
        with caplog.at_level(logging.INFO, logger="dejaq.consumer"):
            wire.down = True
            await wire.cut_now()
            await eventually(lambda: "waits for a broker" in caplog.text, within=5)
            assert not taking.done()
            wire.down = False
            await producer.send(b"x")
            assert (await asyncio.wait_for(taking, patient(5))).body == b"x"
        assert "has a broker again" in caplog.text


async def test_a_consumer_reports_an_outage_beyond_its_deadline_and_continues_after_it(
    wire: CuttingTransport, client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock
) -> None:
    async with (
        dejaq.connect(wire, clock=clock, deadline=patient(0.15)) as hasty,
        hasty.consumer(TOPIC, name="w", wait_through_outages=False) as consumer,
    ):
        wire.down = True
        await wire.cut_now()
        with pytest.raises(dejaq.NoBroker):
            await asyncio.wait_for(anext(consumer), patient(5))
        wire.down = False
        await producer.send(b"x")

        async def next_one() -> dejaq.Lease | None:
            try:
                return await asyncio.wait_for(anext(consumer), patient(5))
            except dejaq.NoBroker:
                return None

        found: list[dejaq.Lease] = []

        async def taken() -> bool:
            lease = await next_one()
            found.extend([lease] if lease else [])
            return bool(found)

        await eventually(taken, within=5)
        await found[0].delete()


async def failures_of(client: dejaq.Client, producer: dejaq.Producer) -> list[dejaq.DejaqError]:
    """The error of each kind of work."""

    async def send_in_a_transaction() -> None:
        async with client.transaction() as transaction:
            transaction.send(TOPIC, b"x")

    async def open_a_producer() -> None:
        # Of another group: it cannot share the session of the producer that is open.
        async with client.producer(TOPIC, group="another"):
            pass

    works = (producer.send(b"x"), client.create_topic("new"), send_in_a_transaction(), open_a_producer())
    return await errors_of(*works)


async def errors_of(*works: Awaitable[object]) -> list[dejaq.DejaqError]:
    """The error of each of some works, which run at the same time because each takes the whole deadline."""
    ended = await asyncio.gather(*works, return_exceptions=True)
    assert all(isinstance(error, dejaq.DejaqError) for error in ended), ended
    return [error for error in ended if isinstance(error, dejaq.DejaqError)]


async def test_a_failing_disk_has_its_own_error_code(tmp_path: Path) -> None:
    """U12: every client got NO_BROKER, with the advice to start a broker."""
    with FaultyDisk() as disk:
        async with (
            dejaq.Broker(tmp_path / "data", drain_ms=0) as broker,
            dejaq.connect(broker, deadline=patient(0.15)) as client,
        ):
            await client.create_topic(TOPIC)
            async with client.producer(TOPIC) as producer:
                disk.fail_syncs = True
                with pytest.raises(dejaq.Indefinite, match="storage"):
                    await producer.send(b"x")
                for failure in await failures_of(client, producer):
                    assert failure.code is dejaq.Code.STORE_FAILED, repr(failure)
                    assert isinstance(failure, dejaq.Unavailable)
                disk.heal()
                await eventually(lambda: broker.central.doctor.ready, within=5)


async def test_a_broker_that_is_cut_off_has_its_own_error_code() -> None:
    """U12: every client got NO_BROKER, with the advice to start a broker."""
    async with dejaq.Broker(drain_ms=0) as broker, dejaq.connect(broker, deadline=patient(0.15)) as client:
        await client.create_topic(TOPIC)
        async with client.producer(TOPIC) as producer:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(broker.central.cluster, "serving_until", lambda: 0.0)
                for failure in await failures_of(client, producer):
                    assert failure.code is dejaq.Code.CUT_OFF, repr(failure)


async def test_the_lack_of_any_broker_is_reported_when_the_deadline_has_passed(wire: CuttingTransport) -> None:
    wire.down = True
    with pytest.raises(dejaq.NoBroker, match="cutting"):
        async with dejaq.connect(wire, deadline=0.1):
            pass
    wire.down = False


async def test_other_seeds_take_over(broker: dejaq.Broker, clock: VirtualClock) -> None:
    first = CuttingTransport(broker.transport(), "first")
    second = CuttingTransport(broker.transport(), "second")
    first.down = True
    client = dejaq.connect(first, clock=clock, deadline=5.0)
    client._seeds._ring.append(second)
    async with client:
        await client.create_topic(TOPIC)
        async with client.producer(TOPIC) as producer, client.consumer(TOPIC, name="w") as consumer:
            await producer.send(b"1")
            assert (await anext(consumer)).body == b"1"
            first.down, second.down = False, True
            await second.cut_now()
            await producer.send(b"2")
            assert (await anext(consumer)).body == b"2"
            assert first.sessions == 2


async def test_clients_leave_a_draining_broker_without_an_error(broker: dejaq.Broker, clock: VirtualClock) -> None:
    async with dejaq.Broker(clock=clock, drain_ms=60_000) as leaving:
        away = CuttingTransport(leaving.transport(), "leaving")
        staying = CuttingTransport(broker.transport(), "staying")
        async with dejaq.connect(staying, clock=clock) as both:
            await both.create_topic(TOPIC)
        client = dejaq.connect(away, clock=clock, deadline=5.0)
        client._seeds._ring.append(staying)
        async with client:
            await client.create_topic(TOPIC)
            async with client.producer(TOPIC) as producer, client.consumer(TOPIC, name="w") as consumer:
                await producer.send(b"1")
                await (await anext(consumer)).delete()
                draining = asyncio.ensure_future(leaving.central.drain())
                await eventually(lambda: staying.sessions >= 2, within=5)
                await producer.send(b"2")
                assert (await asyncio.wait_for(anext(consumer), patient(5))).body == b"2"
                await asyncio.wait_for(draining, patient(5))


@pytest.mark.parametrize("how", ["delete", "transaction", "batch"])
async def test_a_broker_that_drains_waits_for_the_messages_that_user_code_has(how: str) -> None:
    """U11: the broker ended 40 ms after SIGTERM, and a worker could not settle its message before the next start."""
    broker = dejaq.Broker(drain_ms=60_000)
    async with broker, dejaq.connect(broker, deadline=1.0) as client:
        topic = await client.create_topic(TOPIC)
        async with client.producer(TOPIC) as producer:
            await producer.send_batch([b"1", b"2"], at=[0, FAR_MS])
        async with client.consumer(TOPIC, name="w") as consumer:
            batch = await consumer.take()
            stopping = asyncio.ensure_future(broker.central.drain())
            await eventually(lambda: broker.central.doctor.draining, within=5)
            done, _ = await asyncio.wait((stopping,), timeout=0.2)
            assert not done, "the broker did not wait"
            if how == "delete":
                await batch[0].delete()
            elif how == "batch":
                await batch.delete()
            else:
                async with client.transaction() as transaction:
                    transaction.delete(batch[0])
            await asyncio.wait_for(stopping, patient(5))
        found = await broker.central.storage.count(broker.central.catalog.live(TOPIC), Filter(), 0)
        assert (topic.name, found) == (TOPIC, 1)


async def test_a_draining_broker_waits_a_limited_time_for_a_message_that_is_never_settled() -> None:
    """U11: `drain_ms` limits the wait, and the broker does not wait for a consumer that holds nothing."""
    broker = dejaq.Broker(drain_ms=300)
    async with broker, dejaq.connect(broker, deadline=1.0) as client:
        await client.create_topic(TOPIC)
        async with client.producer(TOPIC) as producer:
            await producer.send(b"1")
        async with client.consumer(TOPIC, name="w") as consumer:
            await anext(consumer)
            await asyncio.wait_for(broker.central.drain(), patient(5))


async def test_closing_during_an_outage_does_not_hang(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport
) -> None:
    await producer.send(b"x")
    async with asyncio.timeout(patient(5)):
        async with client.consumer(TOPIC, name="w") as consumer:
            await anext(consumer)
            wire.down = True
            await wire.cut_now()
    wire.down = False


class SilentDeletes(MemoryStorage):
    """A memory store whose deletes are done, and not answered until the gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.done = asyncio.Event()

    async def apply(self, changes: Sequence[Change], now: int, context: CallContext) -> list[Outcomes | Refused]:
        outcomes = await super().apply(changes, now, context)
        if any(isinstance(change, Delete) for change in changes):
            self.done.set()
            await self.gate.wait()
        return outcomes


async def test_a_delete_whose_consumer_is_taken_over_before_the_answer_is_indefinite() -> None:
    """C7: the delete raised OUT_OF_STATE although it was done."""
    storage = SilentDeletes()
    async with dejaq.Broker(storage=storage, listen="127.0.0.1:0", drain_ms=0) as broker:
        url = f"dejaq://{broker.address}"
        async with dejaq.connect(url) as one, dejaq.connect(url) as other:
            await one.create_topic(TOPIC)
            async with one.producer(TOPIC) as producer:
                await producer.send(b"x")
            async with one.consumer(TOPIC, name="w") as first:
                lease = await asyncio.wait_for(anext(first), patient(5))
                deleting = asyncio.ensure_future(lease.delete())
                await asyncio.wait_for(storage.done.wait(), patient(5))
                async with other.consumer(TOPIC, name="w"):
                    with pytest.raises(dejaq.DejaqError) as raised:
                        await asyncio.wait_for(deleting, patient(5))
                    assert raised.value.code is dejaq.Code.INDEFINITE
                    storage.gate.set()
