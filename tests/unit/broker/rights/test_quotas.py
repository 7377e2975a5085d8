"""Quotas: topics, pending messages and messages per second, for each caller separately."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dejaq.broker import Broker
from dejaq.domain.context import Principal, PrincipalKind
from dejaq.domain.ids import ProducerSession
from dejaq.errors import Code, DejaqError
from dejaq.protocol.create_columns import read_create
from dejaq.protocol.spliced import create_frame, serialized
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import log_pb2
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.protocol.v1 import rights_pb2 as rights
from dejaq.security.rights.quotas import Quota, QuotaSet
from dejaq.storage.rocksdb.store import RocksStorage
from dejaq.timekeeper.clock import VirtualClock
from tests.unit.broker.rights.callers import (
    ROOT,
    OfferedFrames,
    allow,
    call,
    called_by,
    code_of,
    make_topic,
    services_of,
    session,
    user,
)

ALICE, BOB = user("alice", "partners"), user("bob")


async def limit(broker: Broker, principal: str, **limits: int) -> None:
    quota = rights.RightsQuota(principal=principal, **limits)
    await call(broker, ROOT, "Rights.SetQuota", rights.QuotaRequest(quota=quota))


async def send(
    broker: Broker, who: Principal, topic: str, count: int, *, sequence: int = 0, body: bytes = b""
) -> list[int]:
    """Create messages in a session; the codes of its errors."""
    batch = carrier.CreateBatch(
        session=ProducerSession(2, sequence).pack(), ts=[1_700_000_900_000] * count, bodies=[body] * count
    )
    answers = await session(
        broker,
        who,
        carrier.ClientFrame(request=1, hello=carrier.Hello(protocol=99)),
        carrier.ClientFrame(request=2, producer=carrier.ProducerHandshake(topic=topic, group="g")),
        carrier.ClientFrame(request=3, create=batch),
    )
    return [one.error.code for one in answers if one.HasField("error")]


async def test_a_caller_creates_no_more_topics_than_its_quota(guarded: Broker) -> None:
    await limit(guarded, "*", topics=2)
    for name in ("~/a", "~/b"):
        await make_topic(guarded, ALICE, name)
    third = overseer.CreateTopicRequest(name="~/c")
    assert await code_of(guarded, ALICE, "Overseer.CreateTopic", third) is Code.QUOTA_EXCEEDED
    # Others have quotas of their own, and a repeat creates nothing.
    await make_topic(guarded, BOB, "~/a")
    await make_topic(guarded, ALICE, "~/a")
    await call(guarded, ALICE, "Overseer.DeleteTopic", overseer.TopicRequest(name="~/a"))
    assert await code_of(guarded, ALICE, "Overseer.CreateTopic", third) is Code.OK


async def test_the_creator_of_a_topic_is_charged_for_its_messages(guarded: Broker, clock: VirtualClock) -> None:
    await make_topic(guarded, ALICE, "~/mail")
    await allow(guarded, "user:bob", "produce", "~alice/mail")
    await limit(guarded, "user:alice", pending=5)
    assert await send(guarded, BOB, "~alice/mail", 4) == []
    assert await send(guarded, BOB, "~alice/mail", 2, sequence=1) == [Code.QUOTA_EXCEEDED]
    assert await send(guarded, ALICE, "~/mail", 1, sequence=2) == []
    quotas = guarded.central.rights.quotas
    await quotas.count()
    assert quotas.pending["user:alice"] == 5
    purge = carrier.PurgeRequest(topic="~/mail")
    page = await call(guarded, ALICE, "Carrier.Browse", carrier.BrowseRequest(topic="~/mail"))
    purge.ids.extend(page.ids)
    await call(guarded, ALICE, "Carrier.Purge", purge)
    await quotas.count()
    assert await send(guarded, BOB, "~alice/mail", 5, sequence=3) == []
    step = carrier.Step(
        topic="~alice/mail", actor="g", create=carrier.CreateBatch(ids=["t"], ts=[1_700_000_900_000], bodies=[b""])
    )
    request = carrier.TransactRequest(session=bytes(10), steps=[step])
    assert await code_of(guarded, BOB, "Carrier.Transact", request) is Code.QUOTA_EXCEEDED


async def test_the_creator_of_a_topic_is_charged_for_its_bytes(guarded: Broker) -> None:
    await make_topic(guarded, ALICE, "~/mail")
    await allow(guarded, "user:bob", "produce", "~alice/mail")
    await limit(guarded, "user:alice", bytes=1_000)
    assert await send(guarded, BOB, "~alice/mail", 4, body=b"x" * 200) == []
    assert await send(guarded, BOB, "~alice/mail", 2, sequence=1, body=b"x" * 200) == [Code.QUOTA_EXCEEDED]
    quotas = guarded.central.rights.quotas
    assert quotas.bytes["user:alice"] == 800
    await quotas.count()
    assert quotas.bytes["user:alice"] == 800
    text = guarded.central.metrics.render().decode()
    assert 'dejaq_quota_used_ratio{quota="bytes"} 0.8' in text
    assert 'dejaq_quota_refused_total{quota="bytes"} 1' in text
    # Another broker, which created none of them, finds the sizes in the store.
    quotas._created.clear()
    await quotas.count()
    assert quotas.bytes["user:alice"] == 800
    page = await call(guarded, ALICE, "Carrier.Browse", carrier.BrowseRequest(topic="~/mail"))
    await call(guarded, ALICE, "Carrier.Purge", carrier.PurgeRequest(topic="~/mail", ids=page.ids))
    await quotas.count()
    assert await send(guarded, BOB, "~alice/mail", 5, sequence=3, body=b"x" * 200) == []


async def test_bytes_count_however_a_frame_is_read(tmp_path: Path, clock: VirtualClock) -> None:
    """A large create whose columns are not decoded is charged as any other, and stored as any other."""
    storage = RocksStorage(tmp_path)
    async with Broker(clock=clock, storage=storage, drain_ms=0, admins="user:root") as broker:
        await make_topic(broker, ALICE, "~/mail")
        await limit(broker, "user:alice", bytes=90_000)
        frames = OfferedFrames(
            carrier.ClientFrame(request=1, hello=carrier.Hello(protocol=99)).SerializeToString(),
            carrier.ClientFrame(
                request=2, producer=carrier.ProducerHandshake(topic="~/mail", group="g")
            ).SerializeToString(),
            _large_create(0, 40, repeated=7),
            *(_large_create(number, 40) for number in (1, 2)),
        )
        await services_of(broker).session(called_by(ALICE), frames, frames.answer)
        assert frames.taken == 3
        assert [one.error.code for one in frames.answers] == [0, 0, 0, 0, Code.QUOTA_EXCEEDED]
        repeated = frames.answers[2].outcomes
        assert (repeated.rows, repeated.codes) == ([7], [Code.DUPLICATE_IN_BATCH])
        assert broker.central.rights.quotas.bytes["user:alice"] == 80_000
        ids = [f"1-{row:03}" for row in range(40)]
        found = await call(broker, ALICE, "Carrier.Get", carrier.GetRequest(topic="~/mail", ids=ids))
        # The messages of an answer have any order.
        assert dict(zip(found.ids, found.bodies, strict=True)) == {
            one: bytes((row,)) * 1_000 for row, one in enumerate(ids)
        }


def _large_create(number: int, count: int, *, repeated: int = 0) -> bytes:
    """A batch whose columns stay bytes; one of its ids occurs twice if a row is `repeated`."""
    create = carrier.CreateBatch(
        session=ProducerSession(2, number).pack(), ts=range(1_700_000_900_000, 1_700_000_900_000 + count)
    )
    bodies, ids = [bytes((row,)) * 1_000 for row in range(count)], [f"{number}-{row:03}" for row in range(count)]
    ids[repeated] = ids[0]
    frame = create_frame(carrier.ClientFrame(request=3 + number, create=create), bodies, ids)
    assert read_create(serialized(frame)) is not None
    return serialized(frame)


async def test_appends_to_a_log_count_in_the_quotas_of_rate_and_bytes(guarded: Broker) -> None:
    settings = overseer.TopicSettings(kind="log", buckets=1)
    await call(guarded, ALICE, "Overseer.CreateTopic", overseer.CreateTopicRequest(name="~/log", settings=settings))
    await limit(guarded, "user:alice", rate=10, bytes=10_000)

    def append(count: int, body: bytes = b"x") -> log_pb2.LogAppend:
        records = log_pb2.LogRecords(bodies=[body] * count).SerializeToString()
        return log_pb2.LogAppend(topic="~/log", batches=[log_pb2.LogBatch(bucket=0, records=records)])

    hello = carrier.ClientFrame(request=1, hello=carrier.Hello(protocol=99))
    requests = [append(1, b"x" * 20_000), append(30), append(1)]
    frames = [
        carrier.ClientFrame(request=number, log=log_pb2.LogCommand(append=one))
        for number, one in enumerate(requests, 2)
    ]
    answers = await session(guarded, ALICE, hello, *frames)
    refused = {one.request: one.error.code for one in answers if one.HasField("error")}
    assert refused == {2: Code.QUOTA_EXCEEDED, 4: Code.OVERLOADED}
    quotas = guarded.central.rights.quotas
    await quotas.count()
    assert 0 < quotas.bytes["user:alice"] < 1_000


async def test_a_change_that_a_quota_refuses_uses_up_nothing_of_another(guarded: Broker) -> None:
    """Neither what is pending nor the rate is counted for messages that were not created."""
    await make_topic(guarded, ALICE, "~/mail")
    await limit(guarded, "user:alice", pending=5, bytes=1_000, rate=1_000)
    for body, count in ((b"", 6), (b"x" * 600, 2)):
        assert await send(guarded, ALICE, "~/mail", count, body=body, sequence=count) == [Code.QUOTA_EXCEEDED]
    quotas = guarded.central.rights.quotas
    assert quotas.pending["user:alice"] == quotas.bytes["user:alice"] == 0
    assert quotas._rates == {}
    await limit(guarded, "user:alice", pending=50, rate=10)
    assert await send(guarded, ALICE, "~/mail", 30, sequence=7) == []
    assert await send(guarded, ALICE, "~/mail", 1, sequence=8) == [Code.OVERLOADED]
    assert quotas.pending["user:alice"] == 30


async def test_a_caller_that_is_too_fast_must_wait(guarded: Broker, clock: VirtualClock) -> None:
    await make_topic(guarded, ALICE, "~/mail")
    await limit(guarded, "group:partners", rate=10)
    assert await send(guarded, ALICE, "~/mail", 30) == []
    assert await send(guarded, ALICE, "~/mail", 1, sequence=1) == [Code.OVERLOADED]
    await clock.advance(5_000)
    assert await send(guarded, ALICE, "~/mail", 1, sequence=2) == []


async def test_callers_see_their_own_quota_and_operators_all(guarded: Broker) -> None:
    await limit(guarded, "*", topics=9)
    await limit(guarded, "user:alice", topics=3, pending=7)
    await make_topic(guarded, ALICE, "~/a")
    mine = await call(guarded, ALICE, "Rights.ListQuotas", rights.ListQuotasRequest())
    assert [(one.principal, one.topics, one.topics_used) for one in mine.quotas] == [("user:alice", 3, 1)]
    everything = await call(guarded, ROOT, "Rights.ListQuotas", rights.ListQuotasRequest())
    assert [one.principal for one in everything.quotas] == ["*", "user:alice"]
    await limit(guarded, "user:alice")
    mine = await call(guarded, ALICE, "Rights.ListQuotas", rights.ListQuotasRequest())
    assert [one.principal for one in mine.quotas] == ["*"]
    await limit(guarded, "*")
    assert not (await call(guarded, ALICE, "Rights.ListQuotas", rights.ListQuotasRequest())).quotas


def test_the_most_specific_quota_counts() -> None:
    quotas = QuotaSet([Quota("*", topics=1), Quota("group:partners", topics=2), Quota("user:alice", topics=3)])
    key = Principal("key:7", PrincipalKind.KEY, groups=frozenset({"partners"}))
    assert [one.topics for one in map(quotas.of, (ALICE, key, BOB)) if one is not None] == [3, 2, 1]
    assert QuotaSet().of(ALICE) is None
    assert quotas.of_creator("") is None


@pytest.mark.parametrize("quota", [Quota("alice"), Quota("user:x", topics=-1), Quota("user:x", rate=2**60)])
def test_a_quota_out_of_range_is_refused(quota: Quota) -> None:
    with pytest.raises(DejaqError) as refused:
        quota.check()
    assert refused.value.code is Code.INVALID_ARGUMENT


def test_a_quota_survives_its_record() -> None:
    quota = Quota("user:alice", 1, 2, 3, 4)
    assert Quota.unpack(quota.packed()) == quota
    old = b'{"principal": "user:alice", "topics": 1, "rate": 2, "pending": 3}'
    assert Quota.unpack(old) == replace(quota, bytes=0)
    with pytest.raises(ValueError, match=r"."):
        Quota.unpack(b"{}")
