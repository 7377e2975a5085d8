from __future__ import annotations

import asyncio
import traceback
from datetime import timedelta

import pytest

import dejaq
from dejaq.errors import InvalidArgument
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.testing.waiting import eventually, patient
from dejaq.timekeeper.clock import VirtualClock
from tests.integration.sdk.conftest import TOPIC
from tests.integration.sdk.cutting import CuttingTransport
from tests.integration.sdk.skewed import SkewedClock


async def received(client: dejaq.Client, wire: CuttingTransport, rows: int) -> None:
    """Wait until the broker has leased this number of rows."""

    async def leased() -> bool:
        return await client.count(TOPIC, status="processing") >= rows

    await eventually(leased, within=5, what=f"{rows} rows are leased", poll=0)


async def test_a_lease_shows_the_message_and_its_terms(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock
) -> None:
    sent = await producer.send(b"hello", priority=-2, headers={"k": "v"})
    async with client.consumer(TOPIC, name="w", lease=30.0, prefetch=0) as consumer:
        lease = await anext(consumer)
        assert (lease.id, lease.body, lease.priority, dict(lease.headers)) == (sent, b"hello", -2, {"k": "v"})
        assert (lease.ts, lease.attempts, lease.expired) == (clock.now_ms(), 1, False)
        assert lease.at.timestamp() * 1_000 == lease.ts
        assert lease.expires - lease.at == timedelta(seconds=30)
        [message] = await client.get(TOPIC, [sent])
        assert message is not None
        assert (message.version, message.lock_consumer) == (lease.version, "w")
        await lease.delete()
    assert await client.get(TOPIC, [sent]) == [None]


async def test_no_message_is_handed_over_before_its_time(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock, wire: CuttingTransport
) -> None:
    """G2: the message is never early, though the consumer has it long before its time."""
    due = clock.now_ms() + 400
    await producer.send(b"x", at=due)
    async with client.consumer(TOPIC, name="w", prefetch=1.0) as consumer:
        taking = asyncio.ensure_future(anext(consumer))
        await received(client, wire, 1)
        await clock.advance(399)
        assert not taking.done()
        await clock.advance(1)
        await eventually(taking.done, within=5)
        assert (await taking).ts == due == clock.now_ms()


@pytest.mark.parametrize("skew_ms", [-90_000, -50, 0, 50, 90_000])
async def test_a_consumer_with_a_wrong_clock_uses_the_clock_of_the_broker(
    wire: CuttingTransport, client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock, skew_ms: int
) -> None:
    """G2: the broker's clock decides, whatever the consumer's own clock reads."""
    due = clock.now_ms() + 300
    await producer.send(b"x", at=due)
    drifts: list[float] = []
    async with (
        dejaq.connect(wire, clock=SkewedClock(clock, skew_ms), on_drift=drifts.append) as elsewhere,
        elsewhere.consumer(TOPIC, name="w", prefetch=1.0) as consumer,
    ):
        taking = asyncio.ensure_future(anext(consumer))
        await received(client, wire, 1)
        await clock.advance(299)
        assert not taking.done()
        # Two milliseconds cover the uncertainty of the clock measurement, which is at least a microsecond.
        await clock.advance(2)
        await eventually(taking.done, within=5)
        lease = await taking
        assert not lease.expired
    assert bool(drifts) == (abs(skew_ms) > 500)
    assert all(round(drift) == -skew_ms for drift in drifts)


async def test_setting_the_wall_clock_of_a_consumers_machine_makes_no_message_early(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock, wire: CuttingTransport
) -> None:
    """D3: prefetched messages were handed over by the wall clock of the consumer's machine."""
    await producer.send(b"x", at=clock.now_ms() + 2_000)
    machine = SkewedClock(clock, 0)
    async with (
        dejaq.connect(wire, clock=machine) as elsewhere,
        elsewhere.consumer(TOPIC, name="w", prefetch=5.0) as consumer,
    ):
        taking = asyncio.ensure_future(anext(consumer))
        await received(client, wire, 1)
        machine.skew_ms = 3_200
        await clock.advance(1_900)
        assert not taking.done()
        machine.skew_ms = -3_200
        await clock.advance(200)
        await eventually(taking.done, within=5)
        assert (await taking).body == b"x"


async def test_a_delay_in_a_transaction_uses_the_brokers_time_however_old_the_client_is(
    wire: CuttingTransport, client: dejaq.Client, clock: VirtualClock
) -> None:
    """D3: the client trusted the result of its first ping without end."""
    machine = SkewedClock(clock, 0)
    async with dejaq.connect(wire, clock=machine) as elsewhere:
        await clock.advance(60_000)
        machine.skew_ms = 60_000
        machine.slept_s = 20.0
        async with elsewhere.transaction(group="billing") as t:
            t.send(TOPIC, b"x", id="late", delay=10)
    (found,) = await client.get(TOPIC, ["late"])
    assert found is not None
    assert abs(found.ts - clock.now_ms() - 10_000) <= 1


async def test_a_wait_that_is_cancelled_at_any_moment_loses_no_message(
    client: dejaq.Client, producer: dejaq.Producer
) -> None:
    """D6: the message was extended for as long as the process lived, and no user code had it."""
    count = 300
    await producer.send_batch([b"x"] * count)
    taken: list[str] = []
    async with client.consumer(TOPIC, name="w", prefetch=0, max_in_flight=500) as consumer:
        taken.append((await anext(consumer)).id)
        for turn in range(3 * count):
            waiting = asyncio.ensure_future(anext(consumer))
            for _ in range(turn % 3):
                await asyncio.sleep(0)
            if not waiting.cancel():
                taken.append(waiting.result().id)
            await asyncio.gather(waiting, return_exceptions=True)
            if len(taken) == count:
                break
        while len(taken) < count:
            taken.append((await asyncio.wait_for(anext(consumer), patient(5))).id)
    assert len(set(taken)) == count


async def test_a_pause_during_an_outage_keeps_no_message(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock, wire: CuttingTransport
) -> None:
    """D6: messages that could not be released were extended when the broker returned, and no user code had them."""
    await producer.send(b"x", delay=1)
    async with client.consumer(TOPIC, name="w", prefetch=5.0, lease=10.0) as consumer:
        await received(client, wire, 1)
        await eventually(lambda: consumer._holder.next_ts is not None, within=5)
        wire.down = True
        await wire.cut_now()
        await eventually(lambda: not consumer._connection.connected, within=5)
        await consumer.pause()
        wire.down = False
        await eventually(lambda: consumer._connection.connected, within=5)
        for _ in range(5):
            await clock.advance(3_000)
        async with client.consumer(TOPIC, name="other", prefetch=0) as other:
            assert (await asyncio.wait_for(anext(other), patient(5))).body == b"x"


async def test_a_message_that_returns_to_the_buffer_after_a_stop_is_released(
    client: dejaq.Client, producer: dejaq.Producer
) -> None:
    """D6: a consumer that stopped while it fetched a large body kept the message."""
    await producer.send(b"x")
    async with client.consumer(TOPIC, name="w", prefetch=0) as consumer:
        (portion,) = await consumer._take(1)
        await consumer.stop()
        consumer._put_back(portion)
        async with client.consumer(TOPIC, name="other", prefetch=0) as other:
            assert (await asyncio.wait_for(anext(other), patient(5))).body == b"x"


async def test_messages_come_in_order_of_time_then_priority(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock
) -> None:
    now = clock.now_ms()
    await producer.send_batch(
        [b"d", b"b", b"a", b"c"], at=[now - 1, now - 5, now - 5, now - 2], priorities=[0, 1, 0, 9]
    )
    async with client.consumer(TOPIC, name="w", max_messages=4) as consumer:
        assert [lease.body async for lease in consumer] == [b"a", b"b", b"c", b"d"]


async def test_batches_have_columns_and_are_settled_in_few_frames(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport
) -> None:
    results = await producer.send_batch([b"%d" % n for n in range(3_000)])
    async with client.consumer(TOPIC, name="w") as consumer:
        ids: list[str] = []
        bodies: list[bytes] = []
        async for batch in consumer.batches(1_000):
            assert len(batch) == len(batch.bodies) == len(batch.ts) == len(batch.at) <= 1_000
            assert set(batch.attempts) == {1}
            assert batch[0].id == batch.ids[0]
            assert [lease.body for lease in batch] == batch.bodies
            ids += batch.ids
            bodies += batch.bodies
            assert (await batch.delete()).ok
            if len(ids) == 3_000:
                break
    assert dict(zip(ids, bodies, strict=True)) == {message_id: b"%d" % n for n, message_id in enumerate(results.ids)}
    assert wire.sent.count("settle") <= 6
    assert await client.count(TOPIC) == 0


async def test_a_part_of_a_batch_may_be_settled_in_another_way(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock
) -> None:
    await producer.send_batch([b"%d" % n for n in range(10)])
    async with client.consumer(TOPIC, name="w") as consumer:
        batch = await consumer.take(10)
        kept = [position for position, body in enumerate(batch.bodies) if body in (b"3", b"7")]
        assert (await batch.extend(60.0)).ok
        assert (await batch.release(delay=5, positions=kept)).ok
        rest = await batch.delete([position for position in range(10) if position not in kept])
        assert rest.ok
        assert len(rest) == 8
        with pytest.raises(IndexError):
            await batch.delete([10])
        again = await batch.delete(kept, results=True)
        assert list(again.failed.values()) == [dejaq.Code.LEASE_LOST] * 2
    pages = [page async for page in client.browse(TOPIC)]
    assert sorted(message.body for page in pages for message in page) == [b"3", b"7"]
    assert {message.ts for page in pages for message in page} == {clock.now_ms() + 5_000}


async def test_single_settlements_of_one_moment_share_frames(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport
) -> None:
    await producer.send_batch([b"x"] * 500)
    async with client.consumer(TOPIC, name="w", max_messages=500) as consumer:
        leases = [lease async for lease in consumer]
        await asyncio.gather(*(lease.delete() for lease in leases[::2]))
        assert wire.sent.count("settle") <= 2
        await asyncio.gather(*(lease.release(delay=n % 2) for n, lease in enumerate(leases[1::2])))
        # A frame of releases is of one lease, and a consumer that was just opened gets its messages in several.
        assert wire.sent.count("settle") <= 2 + 4 * len({lease.version for lease in leases}) <= 34
    assert await client.count(TOPIC) == 250


async def test_a_released_message_comes_again_at_its_new_time(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock
) -> None:
    await producer.send(b"x")
    async with client.consumer(TOPIC, name="w") as consumer:
        lease = await anext(consumer)
        await lease.release(delay=60.0)
        with pytest.raises(dejaq.Conflict) as lost:
            await lease.delete()
        assert lost.value.code is dejaq.Code.LEASE_LOST
        taking = asyncio.ensure_future(anext(consumer))
        await clock.advance(59_999)
        assert not taking.done()
        await clock.advance(1)
        await eventually(taking.done, within=5)
        again = await taking
        assert (again.id, again.attempts) == (lease.id, 2)
        assert again.version > lease.version


async def test_an_expired_lease_is_refused_and_the_message_comes_again(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock
) -> None:
    """G3, G4: the previous holder is refused; an expired lease makes the message available again."""
    await producer.send(b"x")
    async with client.consumer(TOPIC, name="w", lease=10.0, auto_extend=False, prefetch=0) as consumer:
        lease = await anext(consumer)
        await clock.advance(9_999)
        assert not lease.expired
        await clock.advance(1)
        assert lease.expired
        with pytest.raises(dejaq.Conflict) as lost:
            await lease.delete()
        assert lost.value.code is dejaq.Code.LEASE_LOST
        taking = asyncio.ensure_future(anext(consumer))
        await clock.advance(1_000)
        await eventually(taking.done, within=5)
        assert (await taking).attempts == 2


async def test_leases_are_extended_while_user_code_works(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock
) -> None:
    await producer.send_batch([b"x"] * 3)
    async with client.consumer(TOPIC, name="w", lease=1.0) as consumer:
        batch = await consumer.take(2)
        for _ in range(100):
            await clock.advance(100)
        assert not any(lease.expired for lease in batch)
        assert (await batch.delete()).ok
        left = await anext(consumer)
        assert left.attempts == 1
        await left.delete()


async def test_an_extension_by_the_user_is_not_shortened(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock
) -> None:
    await producer.send_batch([b"x"] * 2)
    async with client.consumer(TOPIC, name="w", lease=1.0, max_messages=2) as consumer:
        long, short = [lease async for lease in consumer]
        await long.extend(60.0)
        end = clock.now_ms() + 60_000
        for _ in range(20):
            await clock.advance(100)
        assert long.expires_ms == end
        assert short.expires_ms > clock.now_ms()
        [message] = await client.get(TOPIC, [long.id])
        assert message is not None
        assert message.ts == end
        with pytest.raises(dejaq.InvalidArgument):
            await long.extend(0.001)


async def test_a_closed_consumer_releases_messages_that_user_code_has_not_seen(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock, wire: CuttingTransport
) -> None:
    await producer.send_batch([b"now"] * 3)
    await producer.send_batch([b"soon"] * 2, delay=0.3)
    async with client.consumer(TOPIC, name="one", prefetch=1.0) as consumer:
        await received(client, wire, 5)
        seen = await anext(consumer)
    assert await client.count(TOPIC, status="processing") == 1
    async with client.consumer(TOPIC, name="two", max_messages=4) as other:
        first = await other.take(10)
        assert len(first) == 2
        taking = asyncio.ensure_future(other.take(10))
        await clock.advance(300)
        await eventually(taking.done, within=5)
        second = await taking
        assert set(first.attempts + second.attempts) == {1}
        assert seen.id not in first.ids + second.ids


async def test_running_settlements_are_completed_before_the_consumer_closes(
    client: dejaq.Client, producer: dejaq.Producer
) -> None:
    await producer.send_batch([b"x"] * 50)
    async with client.consumer(TOPIC, name="w", max_messages=50) as consumer:
        deleting = [asyncio.ensure_future(lease.delete()) async for lease in consumer]
    await asyncio.gather(*deleting)
    assert await client.count(TOPIC) == 0


async def test_a_second_settlement_reports_that_it_is_the_second(
    client: dejaq.Client, producer: dejaq.Producer
) -> None:
    """U17: the SDK does not claim that a message that this consumer deleted will be delivered again."""
    await producer.send(b"x")
    async with client.consumer(TOPIC) as consumer:
        lease = await anext(consumer)
        await lease.delete()
        for again in (lease.delete(), lease.extend(5), lease.release(), lease.progress("half")):
            with pytest.raises(dejaq.Conflict, match="this consumer has settled the message already") as refused:
                await again
            assert refused.value.code is dejaq.Code.LEASE_LOST


async def test_an_owner_may_change_a_message_that_user_code_has_not_seen(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock, wire: CuttingTransport
) -> None:
    ids = (await producer.send_batch([b"a", b"b", b"c"], delay=[0, 0.3, 0.4])).ids
    async with client.consumer(TOPIC, name="w", prefetch=1.0) as consumer:
        await received(client, wire, 3)
        seen = await anext(consumer)
        results = await producer.cancel(ids, results=True)
        assert results.failed == {0: dejaq.Code.LEASED}
        assert "recalled" in wire.sent
        taking = asyncio.ensure_future(anext(consumer))
        await clock.advance(1_000)
        assert not taking.done()
        taking.cancel()
        await seen.delete()
    assert await client.count(TOPIC) == 0


async def test_several_tasks_share_one_consumer(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock
) -> None:
    await producer.send_batch([b"%d" % n for n in range(100)], delay=[n / 1_000 for n in range(100)])
    seen: list[bytes] = []
    async with client.consumer(TOPIC, name="w", max_messages=100) as consumer:

        async def work() -> None:
            async for lease in consumer:
                seen.append(lease.body)
                await lease.delete()

        workers = [asyncio.ensure_future(work()) for _ in range(5)]
        for _ in range(110):
            await clock.advance(1)
        await eventually(lambda: len(seen) == 100, within=5)
    await asyncio.wait(workers, timeout=5)
    assert all(worker.done() for worker in workers)
    assert sorted(seen) == sorted(b"%d" % n for n in range(100))


async def test_a_waiting_task_ends_when_the_consumer_is_closed(client: dejaq.Client) -> None:
    async with client.consumer(TOPIC, name="w") as consumer:
        waiting = asyncio.ensure_future(_drain(consumer))
        await asyncio.sleep(0)
    assert await asyncio.wait_for(waiting, patient(5)) == 0


async def _drain(consumer: dejaq.Consumer) -> int:
    return len([lease async for lease in consumer])


async def test_no_more_messages_are_in_flight_than_allowed(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport
) -> None:
    await producer.send_batch([b"x"] * 50)
    async with client.consumer(TOPIC, name="w", max_in_flight=10) as consumer:
        await received(client, wire, 10)
        total = 0
        while total < 50:
            batch = await consumer.take(50)
            assert len(batch) <= 10
            assert await client.count(TOPIC, status="processing") <= 10
            total += len(batch)
            await batch.delete()


async def test_a_second_consumer_of_one_name_takes_over(client: dejaq.Client, producer: dejaq.Producer) -> None:
    async with client.consumer(TOPIC, name="same") as first, client.consumer(TOPIC, name="same") as second:
        with pytest.raises(dejaq.OutOfState):
            await asyncio.wait_for(anext(first), patient(5))
        await producer.send(b"x")
        await (await asyncio.wait_for(anext(second), patient(5))).delete()


@pytest.mark.parametrize(
    "options",
    [
        {"lease": 0.01},
        {"lease": 10**9},
        {"prefetch": -1},
        {"prefetch": 6},
        {"max_in_flight": 0},
        {"max_in_flight": 100_001},
        {"max_messages": 0},
        {"name": "n" * 65},
    ],
)
def test_terms_out_of_range_are_refused(client: dejaq.Client, options: dict[str, float]) -> None:
    with pytest.raises(dejaq.InvalidArgument):
        client.consumer(TOPIC, **options)  # type: ignore[arg-type]


async def test_a_consumer_of_a_deleted_topic_gets_an_error(client: dejaq.Client) -> None:
    async with client.consumer(TOPIC, name="w") as consumer:
        await client.delete_topic(TOPIC)
        with pytest.raises(dejaq.Missing):
            await asyncio.wait_for(anext(consumer), patient(5))


async def test_a_settlement_carries_the_time_when_user_code_got_the_message(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock, wire: CuttingTransport
) -> None:
    await producer.send_batch([b"x"] * 3, delay=[0, 0.005, 0.005])
    async with client.consumer(TOPIC, name="w", prefetch=1.0) as consumer:
        first = await anext(consumer)
        start_us = clock.now_us()
        await clock.advance(5)
        second, third = await anext(consumer), await anext(consumer)
        await asyncio.gather(first.delete(), second.delete())
        await third.release(delay=1)
    assert [list(frame.settle.handed_us) for frame in wire.frames if frame.HasField("settle")] == [
        [start_us, start_us + 5_000],
        [start_us + 5_000],
    ]


async def test_a_recall_is_answered_with_the_rows_that_user_code_has_not_seen(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport
) -> None:
    await producer.send_batch([b"x"] * 3)
    async with client.consumer(TOPIC, name="w") as consumer:
        seen = await anext(consumer)
        recall = carrier.BrokerFrame(request=77, recall=carrier.Recall(lease=seen.version, rows=[0, 1, 9]))
        link = consumer._connection._link
        assert link is not None
        link._received(recall)
        await eventually(lambda: "recalled" in wire.sent, within=5, poll=0)
        answer = next(frame for frame in wire.frames if frame.HasField("recalled"))
        assert (answer.request, answer.recalled.lease) == (77, seen.version)
        assert list(answer.recalled.rows) == [1]
        assert len(await consumer.take(10)) == 1


async def test_a_paused_consumer_releases_unseen_messages_and_takes_nothing_until_it_resumes(
    client: dejaq.Client, producer: dejaq.Producer, clock: VirtualClock
) -> None:
    """A pause keeps the messages that user code has; other consumers get the rest at once."""
    async with client.consumer(TOPIC, name="paused", max_in_flight=5) as consumer:
        await producer.send_batch([b"x"] * 10)
        held = await anext(consumer)
        await consumer.pause()
        await consumer.pause()
        assert consumer.paused
        assert await client.count(TOPIC, status="processing") == 1
        async with client.consumer(TOPIC, name="other", max_messages=9) as other:
            assert [lease.attempts async for lease in other] == [1] * 9
        await producer.send(b"later")
        await clock.advance(1_000)
        assert await client.count(TOPIC, status="processing", consumer="paused") == 1
        await held.delete()
        await consumer.resume()
        assert (await anext(consumer)).body == b"later"


async def test_a_pause_outlasts_a_new_session(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport
) -> None:
    async with client.consumer(TOPIC, name="paused") as consumer:
        await consumer.pause()
        await wire.cut_now()
        await eventually(lambda: wire.sent.count("consumer") == 2, within=10, what="the consumer is connected again")
        await producer.send(b"x")
        assert await client.count(TOPIC, status="available") == 1
        await consumer.resume()
        assert (await anext(consumer)).body == b"x"
    assert wire.sent.count("subscribe") == 2


async def test_a_consumer_that_pauses_as_soon_as_it_is_open_takes_nothing(
    client: dejaq.Client, producer: dejaq.Producer
) -> None:
    """D6: the broker was not informed of the pause and leased a message to the consumer, and no user code got it."""
    consumer = client.consumer(TOPIC, name="paused", prefetch=0)
    await consumer.open()
    try:
        await consumer.pause()
        await producer.send(b"x")
        async with client.consumer(TOPIC, name="other", prefetch=0) as other:
            assert (await other.take(1, timeout=5)).bodies == [b"x"]
    finally:
        await consumer.close()


async def test_a_consumer_that_pauses_while_it_subscribes_releases_messages_that_come(
    client: dejaq.Client, producer: dejaq.Producer, wire: CuttingTransport
) -> None:
    """D6: the consumer checked for a pause before it subscribed, and not afterwards."""
    await producer.send(b"x", delay=1)
    async with client.consumer(TOPIC, name="paused", prefetch=5.0) as consumer:
        await eventually(lambda: consumer._holder.next_ts is not None, within=5)
        await wire.cut_now()
        await eventually(lambda: wire.sent.count("subscribe") == 2, within=10, poll=0)
        assert not consumer._connection.connected
        await consumer.pause()
        async with client.consumer(TOPIC, name="other", prefetch=5.0) as other:
            await eventually(lambda: other._holder.next_ts is not None, within=5)
        assert await client.count(TOPIC, status="processing") == 0


async def test_an_error_that_is_raised_again_and_again_does_not_grow(
    client: dejaq.Client, wire: CuttingTransport
) -> None:
    async with client.consumer(TOPIC, name="w") as consumer:
        wire.down = True
        await wire.cut_now()
        await eventually(lambda: not consumer._connection.connected, within=5)
        consumer._connection._give_up(InvalidArgument("it is gone"))
        depths = []
        for _ in range(3):
            with pytest.raises(InvalidArgument) as raised:
                await anext(consumer)
            depths.append(len(list(traceback.walk_tb(raised.value.__traceback__))))
            with pytest.raises(InvalidArgument) as raised:
                await consumer.busy(1)
            depths.append(len(list(traceback.walk_tb(raised.value.__traceback__))))
        assert depths == 3 * depths[:2]
