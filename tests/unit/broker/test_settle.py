"""The settlements of a consumer: delete, extend, release and recall, with an answer for each row."""

from __future__ import annotations

from typing import Any

import pytest

from dejaq import limits
from dejaq.broker import Broker
from dejaq.domain.topic import TopicSettings
from dejaq.errors import Code
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.storage.base import Filter
from dejaq.storage.memory.store import MemoryStorage
from dejaq.timekeeper.clock import VirtualClock
from tests.unit.broker.client import Batches, RawClient, until
from tests.unit.broker.conftest import Connect


async def holding(connect: Connect, clock: VirtualClock, *, rows: int = 3, lease_ms: int = 1_000) -> RawClient:
    """A consumer that holds `rows` messages in one lease."""
    producer = await (await connect()).produce()
    await producer.ask(create=Batches().natural([f"m{n}" for n in range(rows)], clock.now_ms()))
    consumer = await (await (await connect()).consume()).subscribe(lease_ms=lease_ms)
    await until(lambda: len(consumer.received()) == rows)
    assert len(consumer.pushes) == 1
    return consumer


async def test_deleted_rows_are_removed(
    connect: Connect, clock: VirtualClock, storage: MemoryStorage, broker: Broker
) -> None:
    consumer = await holding(connect, clock)
    answer = await consumer.settle(carrier.DELETE, consumer.pushes[0].lease, ranges=[0, 1, 2, 3])
    assert not answer.outcomes.codes
    topic = broker.central.catalog.live("mail")
    assert await storage.count(topic, Filter(), clock.now_ms()) == 1
    again = await consumer.settle(carrier.DELETE, consumer.pushes[0].lease)
    assert list(again.outcomes.rows) == [0, 2]
    assert list(again.outcomes.codes) == [Code.LEASE_LOST] * 2
    assert await storage.count(topic, Filter(), clock.now_ms()) == 0


async def test_an_extended_lease_outlasts_its_first_end(connect: Connect, clock: VirtualClock) -> None:
    consumer = await holding(connect, clock, lease_ms=1_000)
    lease = consumer.pushes[0].lease
    await clock.advance(900)
    assert not (await consumer.settle(carrier.EXTEND, lease, ranges=[0, 2], lease_ms=5_000)).outcomes.codes
    await clock.advance(200)
    await until(lambda: consumer.received() == ["m0", "m1", "m2", consumer.received()[2]])
    answer = await consumer.settle(carrier.DELETE, lease)
    assert list(answer.outcomes.rows) == [2]


async def test_released_rows_come_again_at_their_new_time(connect: Connect, clock: VirtualClock) -> None:
    consumer = await holding(connect, clock)
    lease = consumer.pushes[0].lease
    first = list(consumer.received())
    answer = await consumer.settle(carrier.RELEASE, lease, ranges=[0, 2], ts=[300, 100], relative=True)
    assert not answer.outcomes.codes
    assert not (await consumer.settle(carrier.RELEASE, lease, ranges=[2, 3], ts=[clock.now_ms() + 200])).outcomes.codes
    for row in (1, 2, 0):
        await clock.advance(100)
        await until(lambda row=row: consumer.received()[-1] == first[row])  # type: ignore[misc]
    assert list(consumer.pushes[-1].attempts) == [2]


async def test_recalled_rows_are_as_before_the_lease(connect: Connect, clock: VirtualClock) -> None:
    consumer = await holding(connect, clock, rows=1)
    await consumer.settle(carrier.RECALL, consumer.pushes[0].lease)
    await until(lambda: len(consumer.pushes) == 2)
    assert list(consumer.pushes[1].attempts) == []
    assert consumer.pushes[1].ts == consumer.pushes[0].ts


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"kind": carrier.SETTLE_KIND_UNSPECIFIED}, Code.INVALID_ARGUMENT),
        ({"kind": carrier.DELETE, "ranges": [0]}, Code.INVALID_ARGUMENT),
        ({"kind": carrier.DELETE, "ranges": [1, 1]}, Code.INVALID_ARGUMENT),
        ({"kind": carrier.DELETE, "ranges": [1, 2, 0, 1]}, Code.INVALID_ARGUMENT),
        ({"kind": carrier.DELETE, "ranges": [0, 2, 1, 3]}, Code.INVALID_ARGUMENT),
        ({"kind": carrier.DELETE, "ranges": [0, 4]}, Code.INVALID_ARGUMENT),
        ({"kind": carrier.DELETE, "ranges": [0, 2**32 - 1]}, Code.INVALID_ARGUMENT),
        ({"kind": carrier.DELETE, "lease": 999, "ranges": [0, 2**32 - 1]}, Code.INVALID_ARGUMENT),
        ({"kind": carrier.DELETE, "ranges": [0, 3], "handed_us": [1, 2]}, Code.INVALID_ARGUMENT),
        ({"kind": carrier.EXTEND, "lease_ms": 0}, Code.INVALID_LEASE),
        ({"kind": carrier.EXTEND, "lease_ms": limits.LEASE_MS_MAX + 1}, Code.INVALID_LEASE),
        ({"kind": carrier.RELEASE}, Code.INVALID_ARGUMENT),
        ({"kind": carrier.RELEASE, "ts": [-1]}, Code.INVALID_TIME),
        ({"kind": carrier.RELEASE, "ts": [2**62]}, Code.INVALID_TIME),
        ({"kind": carrier.RELEASE, "ts": [2**63 - 1], "relative": True}, Code.INVALID_TIME),
        ({"kind": carrier.RELEASE, "ts": [limits.TS_MS_MAX]}, Code.TOO_FAR),
        ({"kind": carrier.RELEASE, "ts": [1, 2]}, Code.INVALID_ARGUMENT),
        ({"kind": carrier.RELEASE, "ts": [1, 2], "ranges": [0, 3]}, Code.INVALID_ARGUMENT),
    ],
)
async def test_an_invalid_settlement_changes_nothing(
    connect: Connect, clock: VirtualClock, fields: dict[str, Any], code: Code
) -> None:
    consumer = await holding(connect, clock)
    lease = consumer.pushes[0].lease
    answer = await consumer.settle(**{"lease": lease, **fields})
    assert answer.error.code == code
    assert not (await consumer.settle(carrier.DELETE, lease)).outcomes.codes


async def test_an_unknown_lease_is_lost(connect: Connect, clock: VirtualClock) -> None:
    consumer = await holding(connect, clock)
    for ranges in ([], [0, 1]):
        answer = await consumer.settle(carrier.DELETE, 2**64 - 1, ranges=ranges)
        assert list(answer.outcomes.codes) == [Code.LEASE_LOST]


async def test_a_consumer_cannot_settle_messages_of_another_consumer(connect: Connect, clock: VirtualClock) -> None:
    """G3: at most one consumer holds a message."""
    consumer = await holding(connect, clock)
    thief = await (await connect()).consume("thief")
    answer = await thief.settle(carrier.DELETE, consumer.pushes[0].lease)
    assert list(answer.outcomes.codes) == [Code.LEASE_LOST] * 3


def test_every_topic_accepts_the_default_lease_time() -> None:
    assert limits.LEASE_MS_MIN <= limits.LEASE_MS_DEFAULT <= TopicSettings().max_lease_ms


async def test_several_leases_are_deleted_from_in_one_frame_and_answered_row_by_row(
    connect: Connect, clock: VirtualClock, storage: MemoryStorage, broker: Broker
) -> None:
    producer = await (await connect()).produce()
    consumer = await (await (await connect()).consume()).subscribe(lease_ms=1_000)
    batches = Batches()
    for count in (3, 6):
        await producer.ask(create=batches.natural([f"{count}-{n}" for n in range(3)], clock.now_ms()))
        await until(lambda: len(consumer.received()) == count)
    first, second = (push.lease for push in consumer.pushes)
    await consumer.settle(carrier.DELETE, first, ranges=[1, 2])
    deletes = carrier.Deletes()
    deletes.settles.add(kind=carrier.DELETE, lease=second, ranges=[0, 1, 2, 3])
    deletes.settles.add(kind=carrier.DELETE, lease=first, ranges=[0, 3])
    deletes.settles.add(kind=carrier.DELETE, lease=12345, ranges=[4, 6])
    answer = await consumer.ask(deletes=deletes)
    assert dict(zip(answer.outcomes.rows, answer.outcomes.codes, strict=True)) == {
        3: Code.LEASE_LOST,
        5: Code.LEASE_LOST,
        6: Code.LEASE_LOST,
    }
    assert await storage.count(broker.central.catalog.live("mail"), Filter(), clock.now_ms()) == 1


async def test_several_leases_are_extended_in_one_frame_and_answered_row_by_row(
    connect: Connect, clock: VirtualClock
) -> None:
    producer = await (await connect()).produce()
    consumer = await (await (await connect()).consume()).subscribe(lease_ms=1_000)
    batches = Batches()
    for count in (3, 6):
        await producer.ask(create=batches.natural([f"{count}-{n}" for n in range(3)], clock.now_ms()))
        await until(lambda: len(consumer.received()) == count)
    first, second = (push.lease for push in consumer.pushes)
    await consumer.settle(carrier.DELETE, first, ranges=[1, 2])
    extends = carrier.Extends()
    extends.settles.add(kind=carrier.EXTEND, lease=second, ranges=[0, 2], lease_ms=60_000)
    extends.settles.add(kind=carrier.EXTEND, lease=first, ranges=[0, 3], lease_ms=60_000)
    extends.settles.add(kind=carrier.EXTEND, lease=12345, ranges=[4, 5], lease_ms=60_000)
    answer = await consumer.ask(extends=extends)
    lost = Code.LEASE_LOST
    assert dict(zip(answer.outcomes.rows, answer.outcomes.codes, strict=True)) == {3: lost, 5: lost}
    await clock.advance(2_000)
    ended = await consumer.settle(carrier.DELETE, second, ranges=[0, 3])
    assert dict(zip(ended.outcomes.rows, ended.outcomes.codes, strict=True)) == {2: lost}
    assert not (await consumer.settle(carrier.DELETE, first, ranges=[0, 1, 2, 3])).outcomes.codes


@pytest.mark.parametrize(
    ("kind", "ranges", "lease_ms"),
    [(carrier.DELETE, [0, 1], 1_000), (carrier.EXTEND, [], 1_000), (carrier.EXTEND, [0, 1], 1 << 31)],
)
async def test_a_frame_of_extensions_with_an_invalid_one_changes_nothing(
    connect: Connect, clock: VirtualClock, kind: carrier.SettleKind, ranges: list[int], lease_ms: int
) -> None:
    consumer = await holding(connect, clock)
    lease = consumer.pushes[0].lease
    extends = carrier.Extends()
    extends.settles.add(kind=carrier.EXTEND, lease=lease, ranges=[0, 3], lease_ms=limits.LEASE_MS_DEFAULT + 60_000)
    extends.settles.add(kind=kind, lease=lease, ranges=ranges, lease_ms=lease_ms)
    assert (await consumer.ask(extends=extends)).HasField("error")
    await clock.advance(limits.LEASE_MS_DEFAULT + 1)
    answer = await consumer.settle(carrier.DELETE, lease, ranges=[0, 3])
    assert list(answer.outcomes.codes) == [Code.LEASE_LOST] * 3


@pytest.mark.parametrize(("kind", "ranges"), [(carrier.EXTEND, [0, 1]), (carrier.DELETE, []), (carrier.DELETE, [2, 1])])
async def test_a_frame_of_deletes_with_an_invalid_one_changes_nothing(
    connect: Connect,
    clock: VirtualClock,
    storage: MemoryStorage,
    broker: Broker,
    kind: carrier.SettleKind,
    ranges: list[int],
) -> None:
    consumer = await holding(connect, clock)
    deletes = carrier.Deletes()
    deletes.settles.add(kind=carrier.DELETE, lease=consumer.pushes[0].lease, ranges=[0, 3])
    deletes.settles.add(kind=kind, lease=consumer.pushes[0].lease, ranges=ranges, lease_ms=1_000)
    assert (await consumer.ask(deletes=deletes)).error.code == Code.INVALID_ARGUMENT
    assert await storage.count(broker.central.catalog.live("mail"), Filter(), clock.now_ms()) == 3
