"""An owner's change of a prefetched message recalls it from the consumer, or is answered with LEASED."""

from __future__ import annotations

import asyncio

import pytest

from dejaq.broker import Broker
from dejaq.broker.delivery import leaser
from dejaq.broker.delivery.flow import YOUNG_MS
from dejaq.broker.delivery.leaser import GATHER_MS
from dejaq.broker.inprocess import InProcessTransport
from dejaq.errors import Code
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.testing.waiting import patient
from dejaq.timekeeper.clock import VirtualClock
from tests.unit.broker.client import Batches, RawClient, until
from tests.unit.broker.conftest import Connect
from tests.unit.broker.test_consumer import gated
from tests.unit.broker.test_producer import codes, stored

WINDOW_MS = 2_000


async def prefetched(connect: Connect, clock: VirtualClock, *ids: str) -> tuple[RawClient, RawClient]:
    """A producer, and a consumer that holds its messages, which are due in a second."""
    consumer = await (await (await connect()).consume()).subscribe(prefetch_ms=WINDOW_MS)
    producer = await (await connect()).produce()
    await producer.ask(create=Batches().natural(list(ids), clock.now_ms() + 1_000))
    await until(lambda: len(consumer.received()) == len(ids))
    return producer, consumer


async def test_a_cancel_recalls_messages_that_are_not_yet_due(
    connect: Connect, clock: VirtualClock, broker: Broker
) -> None:
    producer, consumer = await prefetched(connect, clock, "a", "b", "c")
    consumer.on_recall = lambda recall: list(recall.rows)
    assert codes(await producer.ask(cancel=carrier.CancelBatch(ids=["c", "a"]))) == {}
    assert len(consumer.recalls) == 1, "one recall per lease, whatever the number of rows"
    assert await stored(broker, clock, "a", "c") == [None, None]
    rows = {consumer.received().index(name) for name in ("a", "c")}
    assert set(consumer.recalls[0].recall.rows) == rows
    left = await consumer.settle(carrier.DELETE, consumer.pushes[0].lease)
    assert set(left.outcomes.rows) == rows


async def test_an_edit_recalls_a_message_which_comes_again_as_edited(connect: Connect, clock: VirtualClock) -> None:
    producer, consumer = await prefetched(connect, clock, "a")
    consumer.on_recall = lambda recall: list(recall.rows)
    ts = clock.now_ms() + 1_500
    edit = carrier.EditBatch(ids=["a"], ts=[ts], bodies=[b"new"])
    assert codes(await producer.ask(edit=edit)) == {}
    await clock.advance(GATHER_MS)
    await until(lambda: len(consumer.pushes) == 2)
    again = consumer.pushes[1]
    assert (list(again.ts), list(again.bodies), list(again.attempts)) == (
        [ts],
        [b"new"],
        [],
    )


async def test_rows_that_user_code_has_seen_stay_leased_and_the_others_are_changed(
    connect: Connect, clock: VirtualClock, broker: Broker
) -> None:
    producer, consumer = await prefetched(connect, clock, "a", "b")
    kept = consumer.received().index("a")
    consumer.on_recall = lambda recall: [row for row in recall.rows if row != kept]
    assert codes(await producer.ask(cancel=carrier.CancelBatch(ids=["a", "b"]))) == {0: Code.LEASED}
    assert not (await consumer.settle(carrier.DELETE, consumer.pushes[0].lease, ranges=[kept, kept + 1])).outcomes.codes


async def test_a_due_message_is_leased_and_its_consumer_is_not_asked(connect: Connect, clock: VirtualClock) -> None:
    producer, consumer = await prefetched(connect, clock, "a")
    consumer.on_recall = lambda recall: list(recall.rows)
    await clock.advance(1_000)
    assert codes(await producer.ask(cancel=carrier.CancelBatch(ids=["a"]))) == {0: Code.LEASED}
    assert consumer.recalls == []


async def test_a_consumer_that_does_not_answer_in_time_keeps_its_message(connect: Connect, clock: VirtualClock) -> None:
    producer, consumer = await prefetched(connect, clock, "a")
    waiting = await producer.start(cancel=carrier.CancelBatch(ids=["a"]))
    await until(lambda: consumer.recalls)
    assert not waiting.done()
    await clock.advance(200)
    assert codes(await waiting) == {0: Code.LEASED}


async def test_an_answer_that_comes_too_late_still_frees_the_message(connect: Connect, clock: VirtualClock) -> None:
    producer, consumer = await prefetched(connect, clock, "a")
    waiting = await producer.start(cancel=carrier.CancelBatch(ids=["a"]))
    await until(lambda: consumer.recalls)
    await clock.advance(200)
    assert codes(await waiting) == {0: Code.LEASED}
    frame = consumer.recalls[0]
    answer = carrier.RecallAnswer(lease=frame.recall.lease, rows=frame.recall.rows)
    await consumer.send_raw(carrier.ClientFrame(request=frame.request, recalled=answer))
    await until(lambda: consumer.received() == ["a", "a"])


async def test_a_disconnected_consumer_cannot_be_asked(connect: Connect, clock: VirtualClock, broker: Broker) -> None:
    producer, consumer = await prefetched(connect, clock, "a")
    await consumer.close()
    await until(lambda: len(broker.central.greeter) == 1)
    assert codes(await producer.ask(cancel=carrier.CancelBatch(ids=["a"]))) == {0: Code.LEASED}


async def test_a_consumer_that_leaves_during_a_recall_does_not_delay_the_owner(
    connect: Connect, clock: VirtualClock
) -> None:
    producer, consumer = await prefetched(connect, clock, "a")
    waiting = await producer.start(cancel=carrier.CancelBatch(ids=["a"]))
    await until(lambda: consumer.recalls)
    await consumer.close()
    assert codes(await waiting) == {0: Code.LEASED}


async def test_rows_that_the_broker_did_not_ask_for_are_not_recalled(connect: Connect, clock: VirtualClock) -> None:
    producer, consumer = await prefetched(connect, clock, "a", "b")
    consumer.on_recall = lambda recall: [0, 1, 77, 2**31]
    assert codes(await producer.ask(cancel=carrier.CancelBatch(ids=["a"]))) == {}
    other = consumer.received().index("b")
    answer = await consumer.settle(carrier.DELETE, consumer.pushes[0].lease, ranges=[other, other + 1])
    assert not answer.outcomes.codes


async def test_a_recall_never_overtakes_the_push_of_its_rows() -> None:
    broker, storage, consumer, producer = await gated()
    try:
        seen: list[int] = []

        def let_go(recall: carrier.Recall) -> list[int]:
            seen.append(len(consumer.pushes))
            return list(recall.rows)

        consumer.on_recall = let_go
        await consumer.subscribe(prefetch_ms=WINDOW_MS)
        due = broker.central.clock.now_ms() + 1_500
        await producer.ask(create=Batches().natural(["a"], due))
        await until(lambda: storage.taken)
        waiting = await producer.start(cancel=carrier.CancelBatch(ids=["a"]))
        for session in broker.central.greeter:
            await until(lambda session=session: session._under_way or session.producer is None)  # type: ignore[misc]
        storage.gate.set()
        assert codes(await waiting) == {}
        assert seen == [1]
    finally:
        await broker.stop()


async def test_a_recall_takes_nothing_from_the_next_session_of_the_same_name(
    connect: Connect, clock: VirtualClock, broker: Broker
) -> None:
    """The old session released the rows, and left before they were recalled: the next session has got them."""
    _, old = await prefetched(connect, clock, "a", "b")
    consumer = next(iter(broker.central.rosters)).find("worker")
    assert consumer is not None
    await old.close()
    new = await (await (await connect()).consume()).subscribe(prefetch_ms=WINDOW_MS)
    await until(lambda: sorted(new.received()) == ["a", "b"])
    await consumer.recall_late(old.pushes[0].lease, [0, 1])
    answer = await new.settle(carrier.DELETE, new.pushes[0].lease, ranges=[0, 2])
    assert not answer.outcomes.codes


async def test_a_consumer_that_has_left_is_not_asked_for_its_overdue_messages(
    connect: Connect, clock: VirtualClock, broker: Broker
) -> None:
    """It was asked for one lease after the other, and each took as long as an answer may."""
    consumer = await (await (await connect()).consume()).subscribe()
    producer, batches = await (await connect()).produce(), Batches()
    for count, name in enumerate("abc", start=1):
        await producer.ask(create=batches.natural([name], clock.now_ms()))
        await until(lambda count=count: len(consumer.pushes) == count)  # type: ignore[misc]
    connected = next(iter(broker.central.rosters)).find("worker")
    assert connected is not None
    recalling = asyncio.ensure_future(connected.recall_overdue(before=clock.now_ms(), keep=0))
    await until(lambda: consumer.recalls)
    await consumer.close()
    await until(recalling.done)
    assert recalling.result() == 0


@pytest.mark.parametrize("times", [3])
async def test_a_message_can_be_moved_again_and_again(connect: Connect, clock: VirtualClock, times: int) -> None:
    producer, consumer = await prefetched(connect, clock, "a")
    consumer.on_recall = lambda recall: list(recall.rows)
    for n in range(times):
        ts = clock.now_ms() + 1_100 + n
        assert codes(await producer.ask(edit=carrier.EditBatch(ids=["a"], ts=[ts]))) == {}
        await clock.advance(GATHER_MS)
        await until(lambda n=n: len(consumer.pushes) == n + 2)  # type: ignore[misc]
        assert list(consumer.pushes[-1].ts) == [ts]


async def unread(
    connect: Connect, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> tuple[RawClient, RawClient, list[str]]:
    """A producer, a consumer that holds leases and no longer reads its session, and the ids of all messages."""
    # Each message is leased by itself, so that the pushes fill the session.
    monkeypatch.setattr(leaser, "URGENT_MS", 3_600_000)
    consumer = await (await (await connect()).consume()).subscribe(prefetch_ms=WINDOW_MS)
    producer = await (await connect()).produce()
    # Until then its lease calls follow each other.
    await clock.advance(YOUNG_MS)
    consumer._reader.cancel()
    batches = Batches()
    ids = [f"m{number}" for number in range(60)]
    for message_id in ids:
        await producer.ask(create=batches.natural([message_id], clock.now_ms() + 1_000))
    # The lease loop checks its free credit again, and leases rows that it cannot push.
    await clock.advance(50)
    return producer, consumer, ids


async def test_a_consumer_that_stops_reading_does_not_block_an_owner(
    connect: Connect, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D4: only the wait for the client's answer had a limit, not the waits before it."""
    producer, _, ids = await unread(connect, clock, monkeypatch)
    waiting = await producer.start(cancel=carrier.CancelBatch(ids=ids))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not waiting.done()
    await clock.advance(200)
    answer = await asyncio.wait_for(waiting, patient(2))
    assert Code.LEASED in codes(answer).values()


async def test_a_consumer_that_stops_reading_and_disconnects_does_not_block_an_owner(
    connect: Connect,
    clock: VirtualClock,
    monkeypatch: pytest.MonkeyPatch,
    broker: Broker,
    transport: InProcessTransport,
) -> None:
    """D4: the owner's cancel was never answered, and the topic could not be deleted."""
    producer, consumer, ids = await unread(connect, clock, monkeypatch)
    waiting = await producer.start(cancel=carrier.CancelBatch(ids=ids))
    for _ in range(100):
        await asyncio.sleep(0)
    await consumer._channel.close()
    for _ in range(100):
        await asyncio.sleep(0)
    await clock.advance(200)
    await asyncio.wait_for(waiting, patient(2))
    request = overseer.TopicRequest(name="mail")
    await transport.call("Overseer.DeleteTopic", request, overseer.TopicResponse, 5.0)
    await until(lambda: not broker.central.catalog.all())
