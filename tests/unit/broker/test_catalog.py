"""The life of a topic: created and deleted in steps that survive a crash, also under load."""

from __future__ import annotations

import asyncio

import pytest

from dejaq.broker import Broker
from dejaq.broker.inprocess import InProcessTransport
from dejaq.domain.context import DIRECT_CALL, CallContext
from dejaq.domain.topic import Topic, TopicKind, TopicSettings, TopicStage
from dejaq.errors import Code, DejaqError
from dejaq.protocol.v1 import carrier_pb2 as carrier
from dejaq.protocol.v1 import overseer_pb2 as overseer
from dejaq.storage.memory.store import MemoryStorage
from dejaq.timekeeper.clock import VirtualClock
from tests.unit.broker.client import Batches, create_topic, until
from tests.unit.broker.conftest import Connect


async def delete_topic(transport: InProcessTransport, name: str) -> overseer.TopicResponse:
    return await transport.call("Overseer.DeleteTopic", overseer.TopicRequest(name=name), overseer.TopicResponse, 5.0)


async def describe_topic(transport: InProcessTransport, name: str) -> overseer.TopicInfo:
    request = overseer.TopicRequest(name=name)
    return (await transport.call("Overseer.DescribeTopic", request, overseer.TopicResponse, 5.0)).topic


async def test_a_topic_is_created_once_and_found_the_second_time(transport: InProcessTransport) -> None:
    first = await create_topic(transport, "new", buckets=8)
    again = await create_topic(transport, "new", buckets=8)
    assert (first.created, again.created) == (True, False)
    assert again.topic.settings.buckets == 8
    assert again.topic.state == "live"


async def test_the_logs_are_listed_as_they_come_and_go(transport: InProcessTransport, broker: Broker) -> None:
    def logs() -> list[str]:
        return [topic.name for topic in broker.central.catalog.logs()]

    assert logs() == []
    for name in ("b", "a"):
        await create_topic(transport, f"timeline-{name}")
        await create_topic(transport, f"log-{name}", kind=TopicKind.LOG)
    assert logs() == ["log-a", "log-b"]
    await delete_topic(transport, "log-a")
    await until(lambda: logs() == ["log-b"])


async def test_other_settings_are_a_conflict_that_names_them(transport: InProcessTransport) -> None:
    await create_topic(transport, "new", buckets=8)
    with pytest.raises(DejaqError) as caught:
        await create_topic(transport, "new", buckets=9)
    assert caught.value.code is Code.TOPIC_EXISTS
    assert "buckets is 8, not 9" in caught.value.message


@pytest.mark.parametrize("name", ["", "x" * 129, "sp ace", "new\n", "a/b", "ümlaut"])
async def test_invalid_names_are_refused(transport: InProcessTransport, name: str) -> None:
    with pytest.raises(DejaqError) as caught:
        await create_topic(transport, name)
    assert caught.value.code is Code.INVALID_TOPIC


@pytest.mark.parametrize(
    "settings",
    [
        overseer.TopicSettings(buckets=0),
        overseer.TopicSettings(buckets=1_025),
        overseer.TopicSettings(max_lease_ms=99),
        overseer.TopicSettings(max_body_bytes=-1),
        overseer.TopicSettings(durability="never"),
        overseer.TopicSettings(kind="heap"),
    ],
)
async def test_settings_out_of_range_are_refused(
    transport: InProcessTransport, settings: overseer.TopicSettings
) -> None:
    request = overseer.CreateTopicRequest(name="new", settings=settings)
    with pytest.raises(DejaqError) as caught:
        await transport.call("Overseer.CreateTopic", request, overseer.TopicResponse, 5.0)
    assert caught.value.code is Code.INVALID_SETTING


async def test_the_number_of_topics_is_limited(clock: VirtualClock) -> None:
    async with Broker(clock=clock, topics_max=2) as broker:
        transport = broker.transport()
        await create_topic(transport, "a")
        await create_topic(transport, "b")
        with pytest.raises(DejaqError) as caught:
            await create_topic(transport, "c")
        assert caught.value.code is Code.LIMIT_EXCEEDED
        assert not (await create_topic(transport, "b")).created
        await delete_topic(transport, "a")
        await until(lambda: len(broker.central.catalog.all()) == 1)
        assert (await create_topic(transport, "c")).created


async def test_concurrent_creates_of_one_name_create_one_topic(transport: InProcessTransport, broker: Broker) -> None:
    made = await asyncio.gather(*(create_topic(transport, "same") for _ in range(10)))
    assert sorted(one.created for one in made) == [False] * 9 + [True]


async def test_deleting_under_load_ends_the_sessions_and_leaves_nothing(
    connect: Connect,
    transport: InProcessTransport,
    broker: Broker,
    clock: VirtualClock,
    storage: MemoryStorage,
) -> None:
    producer = await (await connect()).produce()
    consumer = await (await (await connect()).consume()).subscribe()
    batches = Batches()
    await producer.ask(create=batches.natural([f"m{n}" for n in range(100)], clock.now_ms()))
    await until(lambda: len(consumer.received()) == 100)
    old = broker.central.catalog.live("mail")
    sent = [await producer.start(create=batches.natural([f"x{n}"], clock.now_ms())) for n in range(20)]
    answer = await delete_topic(transport, "mail")
    assert answer.topic.state == "deleting"
    for future in sent:
        frame = await future
        assert frame.HasField("outcomes") or frame.error.code == Code.TOPIC_DELETING
    await until(lambda: producer.ended and consumer.ended)
    assert producer.errors[-1].error.code == consumer.errors[-1].error.code == Code.TOPIC_DELETING
    await until(lambda: not broker.central.catalog.all())
    assert await storage.topics() == []
    assert (await create_topic(transport, "mail", buckets=4)).created
    new = broker.central.catalog.live("mail")
    assert new.number != old.number
    assert (await describe_topic(transport, "mail")).available == 0


async def test_a_topic_that_is_being_deleted_accepts_nothing(
    connect: Connect,
    transport: InProcessTransport,
    broker: Broker,
    storage: MemoryStorage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = asyncio.Event()
    drop = storage.drop_topic

    async def slow_drop(topic: Topic, now: int, context: CallContext) -> None:
        await gate.wait()
        await drop(topic, now, context)

    monkeypatch.setattr(storage, "drop_topic", slow_drop)
    await delete_topic(transport, "mail")
    assert (await delete_topic(transport, "mail")).topic.state == "deleting"
    client = await connect()
    await client.hello()
    for command in (
        {"producer": carrier.ProducerHandshake(topic="mail", group="g")},
        {"consumer": carrier.ConsumerHandshake(topic="mail", name="n")},
    ):
        assert (await client.ask(**command)).error.code == Code.TOPIC_DELETING
    with pytest.raises(DejaqError) as caught:
        await create_topic(transport, "mail", buckets=4)
    assert caught.value.code is Code.TOPIC_DELETING
    gate.set()
    await until(lambda: not broker.central.catalog.all())


async def test_an_open_session_cannot_change_a_topic_that_is_being_deleted(
    connect: Connect, transport: InProcessTransport, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await (await connect()).produce()
    consumer = await (await connect()).consume()
    gate = asyncio.Event()
    evacuate = broker.central.reactions.topic_closing

    async def slow_evacuate(topic: Topic, error: DejaqError) -> None:
        await gate.wait()
        await evacuate(topic, error)

    monkeypatch.setattr(broker.central.reactions, "topic_closing", slow_evacuate)
    await delete_topic(transport, "mail")
    answers = [
        await producer.ask(create=Batches().natural(["a"], 0)),
        await producer.ask(cancel=carrier.CancelBatch(ids=["a"])),
        await consumer.ask(subscribe=carrier.Subscribe(credit_rows=1, lease_ms=1_000)),
        await consumer.settle(carrier.DELETE, 1),
    ]
    assert [answer.error.code for answer in answers] == [Code.TOPIC_DELETING] * 4
    gate.set()
    await until(lambda: not broker.central.catalog.all())


async def test_work_that_a_crash_interrupted_is_completed_at_the_next_start(clock: VirtualClock) -> None:
    storage = MemoryStorage()
    await storage.open(0)
    settings = TopicSettings(buckets=2)
    await storage.put_topic(Topic("half-made", 1, settings, TopicStage.CREATING), DIRECT_CALL)
    await storage.put_topic(Topic("half-gone", 2, settings, TopicStage.DELETING), DIRECT_CALL)
    await storage.put_topic(Topic("whole", 3, settings), DIRECT_CALL)
    async with Broker(clock=clock, storage=storage) as broker:
        await until(lambda: len(broker.central.catalog.all()) == 2)
        assert {topic.name: topic.state for topic in await storage.topics()} == {
            "half-made": TopicStage.LIVE,
            "whole": TopicStage.LIVE,
        }


async def test_the_numbers_of_a_topic_are_exact(
    connect: Connect, transport: InProcessTransport, clock: VirtualClock
) -> None:
    producer = await (await connect()).produce()
    now = clock.now_ms()
    await producer.ask(create=Batches().natural(["due1", "due2", "w1", "w2", "w3"], [now, now, *[now + 9_000] * 3]))
    consumer = await (await (await connect()).consume()).subscribe(rows=1)
    await until(lambda: consumer.received())
    info = await describe_topic(transport, "mail")
    assert (info.available, info.waiting, info.processing) == (1, 3, 1)
    assert (info.producers, info.consumers) == (1, 1)


class GatheringStorage(MemoryStorage):
    """A memory store that writes a topic only when several calls wait for it, as a store with group commit does."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0
        self.puts = 0
        self.enough = asyncio.Event()

    async def put_topic(self, topic: Topic, context: CallContext) -> None:
        self.puts += 1
        self.waiting += 1
        if self.waiting >= 50:
            self.enough.set()
        await self.enough.wait()
        await super().put_topic(topic, context)


async def test_topics_that_are_created_at_the_same_time_share_the_writes_of_the_storage(clock: VirtualClock) -> None:
    """L8: each creation waited for the one before, and was written three times: 180 per second."""
    storage = GatheringStorage()
    async with Broker(clock=clock, storage=storage) as broker:
        transport = broker.central.transport()
        names = [f"topic-{number}" for number in range(50)]
        async with asyncio.timeout(5):
            await asyncio.gather(*(create_topic(transport, name) for name in [*names, names[0]]))
        assert storage.puts == 50, "each topic is written once"
        assert [topic.name for topic in broker.central.catalog.all()] == sorted(names)
        assert len({topic.number for topic in broker.central.catalog.all()}) == 50


async def test_the_limit_of_topics_counts_those_that_are_being_created(clock: VirtualClock) -> None:
    async with Broker(clock=clock, topics_max=5) as broker:
        transport = broker.central.transport()
        answers = await asyncio.gather(
            *(create_topic(transport, f"topic-{number}") for number in range(9)), return_exceptions=True
        )
        refused = [answer for answer in answers if isinstance(answer, DejaqError)]
        assert [error.code for error in refused] == [Code.LIMIT_EXCEEDED] * 4


async def test_a_list_of_many_topics_is_read_in_pages(transport: InProcessTransport) -> None:
    names = sorted([f"topic-{number}" for number in range(7)])
    for name in names:
        await create_topic(transport, name)
    found: list[list[str]] = []
    after, more = "", True
    while more:
        request = overseer.ListTopicsRequest(after=after, count=3)
        answer = await transport.call("Overseer.ListTopics", request, overseer.ListTopicsResponse, 5.0)
        found.append([topic.name for topic in answer.topics])
        after, more = found[-1][-1], answer.more
    assert [len(page) for page in found] == [3, 3, 2]
    assert [name for page in found for name in page] == ["mail", *names]
    whole = await transport.call("Overseer.ListTopics", overseer.ListTopicsRequest(), overseer.ListTopicsResponse, 5.0)
    assert (len(whole.topics), whole.more) == (8, False)
