"""An owner's change that meets a prefetched message takes it back from the consumer, or is told LEASED."""

from __future__ import annotations

import pytest

from dejaq.broker import Broker
from dejaq.errors import Code
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.timekeeper.clock import VirtualClock
from tests.unit.broker.client import Batches, RawClient, until
from tests.unit.broker.conftest import Connect
from tests.unit.broker.test_consumer import gated
from tests.unit.broker.test_producer import codes, stored

WINDOW_MS = 2_000


async def prefetched(connect: Connect, clock: VirtualClock, *ids: str) -> tuple[RawClient, RawClient]:
    """A producer and a consumer that holds its messages, due in a second."""
    consumer = await (await (await connect()).consume()).subscribe(prefetch_ms=WINDOW_MS)
    producer = await (await connect()).produce()
    await producer.ask(create=Batches().natural(list(ids), clock.now_ms() + 1_000))
    await until(lambda: len(consumer.received()) == len(ids))
    return producer, consumer


async def test_a_cancel_takes_back_what_is_not_yet_due(connect: Connect, clock: VirtualClock, broker: Broker) -> None:
    producer, consumer = await prefetched(connect, clock, "a", "b", "c")
    consumer.on_recall = lambda recall: list(recall.rows)
    assert codes(await producer.ask(cancel=carrier.CancelBatch(ids=["c", "a"]))) == {}
    assert len(consumer.recalls) == 1, "one recall a lease, whatever the number of rows"
    assert await stored(broker, clock, "a", "c") == [None, None]
    rows = {consumer.received().index(name) for name in ("a", "c")}
    assert set(consumer.recalls[0].recall.rows) == rows
    left = await consumer.settle(carrier.DELETE, consumer.pushes[0].lease)
    assert set(left.outcomes.rows) == rows


async def test_an_edit_takes_back_and_the_message_comes_again_as_edited(connect: Connect, clock: VirtualClock) -> None:
    producer, consumer = await prefetched(connect, clock, "a")
    consumer.on_recall = lambda recall: list(recall.rows)
    edit = carrier.EditBatch(ids=["a"], ts=[clock.now_ms() + 1_500], bodies=[b"new"])
    assert codes(await producer.ask(edit=edit)) == {}
    await until(lambda: len(consumer.pushes) == 2)
    again = consumer.pushes[1]
    assert (list(again.ts), list(again.bodies), list(again.attempts)) == (
        [clock.now_ms() + 1_500],
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


async def test_what_is_already_due_is_leased_and_nobody_is_asked(connect: Connect, clock: VirtualClock) -> None:
    producer, consumer = await prefetched(connect, clock, "a")
    consumer.on_recall = lambda recall: list(recall.rows)
    await clock.advance(1_000)
    assert codes(await producer.ask(cancel=carrier.CancelBatch(ids=["a"]))) == {0: Code.LEASED}
    assert consumer.recalls == []


async def test_a_consumer_that_does_not_answer_in_time_keeps_it(connect: Connect, clock: VirtualClock) -> None:
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


async def test_a_consumer_that_is_gone_cannot_be_asked(connect: Connect, clock: VirtualClock, broker: Broker) -> None:
    producer, consumer = await prefetched(connect, clock, "a")
    await consumer.close()
    await until(lambda: len(broker.central.greeter) == 1)
    assert codes(await producer.ask(cancel=carrier.CancelBatch(ids=["a"]))) == {0: Code.LEASED}


async def test_a_consumer_that_leaves_while_it_is_asked_keeps_nobody_waiting(
    connect: Connect, clock: VirtualClock
) -> None:
    producer, consumer = await prefetched(connect, clock, "a")
    waiting = await producer.start(cancel=carrier.CancelBatch(ids=["a"]))
    await until(lambda: consumer.recalls)
    await consumer.close()
    assert codes(await waiting) == {0: Code.LEASED}


async def test_rows_that_were_not_asked_for_are_not_taken_back(connect: Connect, clock: VirtualClock) -> None:
    producer, consumer = await prefetched(connect, clock, "a", "b")
    consumer.on_recall = lambda recall: [0, 1, 77, 2**31]
    assert codes(await producer.ask(cancel=carrier.CancelBatch(ids=["a"]))) == {}
    other = consumer.received().index("b")
    answer = await consumer.settle(carrier.DELETE, consumer.pushes[0].lease, ranges=[other, other + 1])
    assert not answer.outcomes.codes


async def test_a_recall_never_overtakes_the_push_of_what_it_asks_for() -> None:
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


@pytest.mark.parametrize("times", [3])
async def test_a_message_can_be_moved_again_and_again(connect: Connect, clock: VirtualClock, times: int) -> None:
    producer, consumer = await prefetched(connect, clock, "a")
    consumer.on_recall = lambda recall: list(recall.rows)
    for n in range(times):
        edit = carrier.EditBatch(ids=["a"], ts=[clock.now_ms() + 1_100 + n])
        assert codes(await producer.ask(edit=edit)) == {}
        await until(lambda n=n: len(consumer.pushes) == n + 2)  # type: ignore[misc]
    assert list(consumer.pushes[-1].ts) == [clock.now_ms() + 1_100 + times - 1]
